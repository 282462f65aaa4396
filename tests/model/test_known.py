"""Known histories: each has failed once, and is right, but for those of faults that are known and not mended.

A history that fails prints itself as it stands here: paste it, name it, say what is right. Those of snapshots and
retention lie in `known_retention`, those of erasures and conversions in `known_erasure`, all others here.
"""

from collections import Counter

import pytest

from tests.model import known_erasure, known_retention
from tests.model.actions import (
    Backup,
    Clean,
    CutOff,
    History,
    Recreate,
    Restore,
    SetPolicy,
    Write,
    history,
)
from tests.model.play import play
from tests.model.world import Settings

# A point between two backups is refused if it lacks what was overwritten before the later one came.
COMPACTED_BEFORE_A_BACKUP = history(Settings("compact"), Write("a"), Backup(), Write(), Write(), Clean(), Backup())
# So it is if only a run that was killed has found the topic compacted.
COMPACTED_AS_A_KILLED_RUN_FOUND = history(
    Settings("compact,delete", format="Records"),
    Write(),
    Backup(dies=9),
    Write("ddaa"),
    Clean(),
    SetPolicy("delete"),
    Backup(),
)
# A time restores no incarnation of which consumers had seen nothing then.
ABORTED_INCARNATION = history(
    Settings(), Write(), Backup(), Recreate(), Write(commits=False), Backup(), Write("Aadc"), Backup()
)
# A first backup that has failed after it had tried everything has read a log that was cleaned, too.
FAILED_BACKUP = history(Settings("compact"), Write("cac"), Clean(), Backup(end="Failed"))
# A point that was refused while the topic was compacted is refused when it is not, too.
POLICY_CHANGED = history(Settings("compact"), Write("Adda"), Clean(left=1), Backup(), SetPolicy("delete"), Backup())
# Records that are late, and overwritten before a run has read them, are missing at times below those before them.
LATE_AND_OVERWRITTEN = history(
    Settings("compact"),
    Write("c"),
    Backup(),
    Write(hours=48),
    Write("b", commits=True),
    Clean(),
    Backup(),
)
# Segments are not merged across the end of a generation that is being read: it could never be activated.
MERGED_BESIDE_A_GENERATION = history(
    Settings("compact"),
    Write(commits=True),
    Backup(pieces=2),
    Write(),
    Backup(generation="part", merges=2),
    Backup(generation="whole"),
)
# A merged segment, of which a log has left the end, says nothing of transactions in what has come in its place.
ABORTED_THEN_CUT_OFF = history(
    Settings("compact,delete"),
    Write(),
    Backup(),
    Write(commits=False),
    Backup(pieces=2),
    CutOff(),
    Write(commits=True),
    Backup(merges=2),
)
# A late record that brokers had removed has no batch in formats of records: nothing tells that it was late.
LATE_WITHOUT_BATCHES = history(
    Settings("compact", format="Avro"),
    Write(),
    Backup(),
    Write("ddcd", hours=48),
    Clean(),
    Write(),
    Write(),
    Backup(),
)
# A time is that of a record which is there since the log was read again: nothing tells of others.
READ_AGAIN_AND_LATE = history(
    Settings("compact", format="Records"),
    Write(),
    Write("bcA", hours=1),
    Backup(),
    Clean(),
    Backup(generation="whole"),
)
# What was compacted before any run came, of a topic that was not compacted then, is unknown.
COMPACTED_BEFORE_ANY_BACKUP = history(Settings("compact,delete"), Write("cc"), Clean(), SetPolicy("delete"), Backup())
# A broker has lost a record that had overwritten others, which are in no archive: older ones take their place.
CUT_OFF_AFTER_CLEANING = history(
    Settings("compact,delete"), Write(), Backup(), Write(), Write("B"), Clean(), CutOff(), Backup()
)
# What a killed run has archived after a cut-off is no end of the log before.
CUT_OFF_BEFORE_ITS_END = history(
    Settings("compact"),
    Backup(),
    Write(),
    Write(),
    CutOff(),
    Write(),
    Backup(pieces=2, backwards=True, dies=4),
    Backup(),
)
# The first records of a late batch that brokers had removed are taken to be no earlier than its others.
LATE_AND_FIRST_IN_A_BATCH = history(
    Settings("compact"), Write(), Backup(), Write("daab", hours=48), Write("dbc"), Clean(), Backup()
)
# What a killed run has left out of a topic is lost once that was deleted, and counts so: nothing else is damaged.
HOLE_OF_A_DELETED_TOPIC = history(
    Settings(),
    Write(),
    Backup(),
    Write(),
    Write(),
    Backup(pieces=2, backwards=True, dies=4),
    Recreate(),
    Backup(),
)
# A merge since may have put segments before and after the point of a restore into one.
MERGED_ACROSS_A_TIME = history(
    Settings(), Write(), Backup(), Write("cbbb"), Backup(), Restore("time", 1), Backup(merges=2)
)

PLACES = (globals(), vars(known_retention), vars(known_erasure))
NAMED = [(name, value) for place in PLACES for name, value in [*place.items()] if isinstance(value, History)]
KNOWN = {name.lower(): value for name, value in NAMED}


def test_no_two_histories_have_one_name() -> None:
    assert [name for name, count in Counter(name for name, _ in NAMED).items() if count > 1] == []


@pytest.mark.parametrize("name", KNOWN)
def test_a_history_is_right(name: str) -> None:
    faults = list(play(KNOWN[name], thorough=True))
    assert not faults, f"{KNOWN[name]}\n" + "\n".join(map(str, faults))

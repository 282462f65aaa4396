"""Known histories: each has failed once, and is right, but for those of faults that are known and not mended.

A history that fails prints itself as it stands here: paste it, name it, say what is right.
"""

import pytest

from tests.model.actions import (
    AddPartition,
    AddTopic,
    Backup,
    Clean,
    Convert,
    CutOff,
    Erase,
    History,
    HoldRun,
    Recreate,
    Restore,
    Retain,
    SetPolicy,
    Wait,
    Write,
    history,
)
from tests.model.play import play
from tests.model.world import Settings

# A branch has its records, whatever snapshot ends where it begins.
BRANCH_SNAPSHOT = history(
    Settings("compact"),
    Write("abcdef"),
    Write("ghij"),
    Backup(segment=9),
    CutOff(),
    Backup(snapshots=True),
)
# A restore of a run that is started again brings the same records, or says that retention has removed some.
RESUMED_RUN = history(
    Settings(max_age=1),
    Write("ab"),
    Backup(),
    Write("cd"),
    Backup(),
    Write("ef"),
    Backup(),
    *(Restore("run", number) for number in range(4)),
    Wait(50),
    Write("g"),
    Backup(retains=True),
)
# A restore that began after an erasure goes on.
ERASURE_RESTART = history(Settings(), Write("abc"), Backup(), Erase(), Restore(), Write("d"), Backup())
# A second conversion brings what the source has gained, also where a snapshot holds it.
CONVERT_AGAIN = history(
    Settings("compact", keep_runs=1),
    Write("ab"),
    Write("cd"),
    Backup(),
    Convert(),
    Write("ef"),
    Backup(snapshots=True, retains=True),
    Write("gh"),
    Backup(),
    Convert(),
)
# A conversion that was killed goes on, or another one does.
CONVERT_INTERRUPTED = history(
    Settings("compact", keep_runs=1),
    Write("ab"),
    Backup(),
    Write("cd"),
    Backup(),
    Convert(dies=7),
    Write("ef"),
    Backup(snapshots=True, retains=True),
    Convert(),
)
# A time restores the newest incarnation that had records then.
INCARNATION_SNAPSHOT = history(
    Settings("compact"), Write("a"), Backup(), Recreate(), Write("a"), Write("a"), Backup(snapshots=True)
)
# What a rule keeps is restorable, also when a generation has taken the place of what it had.
KEPT_POINT_GENERATION = history(
    Settings("compact", keep_runs=3),
    Write("abcd"),
    Write("bc"),
    Backup(due=True),
    Write("ef"),
    Backup(generation="part"),
    Backup(generation="whole", snapshots=True, retains=True),
)
# A time at which the state is not known any more is refused.
COMPACT_DELETE = history(
    Settings("compact,delete", max_age=1),
    Write("abcd"),
    Backup(snapshots=True),
    Wait(1),
    Write("abcd"),
    Backup(snapshots=True, retains=True),
    Wait(25),
    Write("abcd"),
    Backup(snapshots=True, retains=True),
    Wait(25),
    Write("abcd"),
    Backup(retains=True),
)
# An erasure is done although the last backup has failed.
ERASURE_PUT_OFF = history(
    Settings(max_age=1, grace=1),
    Write("ab"),
    Backup(),
    Write("cd"),
    Wait(25),
    Backup(retains=True),
    Write("c"),
    Backup(end="Failed"),
    Erase("c"),
)
# What was erased out of a snapshot does not count as lost.
ERASURE_RECONCILE = history(
    Settings("compact", keep_runs=1), Write("abc"), Backup(snapshots=True, retains=True), Erase("b")
)
# A log that is cut off below what retention has taken is archived again as far as the cluster has it.
BRANCH_AFTER_REMOVAL = history(
    Settings("compact", keep_days=2),
    Write(),
    Write(),
    Backup(snapshots=True, retains=True),
    CutOff(),
    Backup(),
)
# An erasure makes no point less exact: what it has taken was not overwritten.
ERASURE_EXACT = history(Settings("compact"), Write("ab"), Write("cd"), Backup(), Erase("b"))
# What was erased does not count as lost, also where a log was cut off behind it.
ERASURE_BRANCH = history(Settings("compact"), Write(), Write("aBAc"), Backup(), Erase(), CutOff(), Write(), Backup())
# A point between two backups is refused if it lacks what was overwritten before the later one came.
COMPACTED_BEFORE_A_BACKUP = history(Settings("compact"), Write("a"), Backup(), Write(), Write(), Clean(), Backup())
# A point that no rule keeps is refused as gone, not as damaged, also if its objects' deletion was killed.
KILLED_PURGE = history(
    Settings("compact", keep_runs=1),
    Write(),
    Backup(due=True),
    Backup(generation="part"),
    Backup(retains=True, dies=9),
)
# A time restores an incarnation that has a record of before, not one whose records of before were erased.
ERASED_INCARNATION = history(Settings("compact"), Write(), Backup(), Recreate(), Write("bdB"), Backup(), Erase("b"))
# Nor one of which consumers had seen nothing then.
ABORTED_INCARNATION = history(
    Settings(), Write(), Backup(), Recreate(), Write(commits=False), Backup(), Write("Aadc"), Backup()
)
# Nor does it matter that all keys of an incarnation were deleted later.
DELETED_INCARNATION = history(
    Settings("compact"),
    Write("a"),
    Backup(snapshots=True),
    Write("A"),
    Backup(snapshots=True),
    Write(commits=False),
    Backup(snapshots=True),
    Recreate(),
    Backup(),
)
# A comparison of two archives sees what only a snapshot has.
DIFF_SNAPSHOT = history(
    Settings("compact", keep_runs=1), Write("ab"), Backup(snapshots=True, retains=True), Write("c"), Backup()
)
# A snapshot of a log that was read again is none of a kept point that has the reading before.
SNAPSHOT_GENERATION = history(
    Settings("compact", keep_runs=2),
    Write(),
    Backup(),
    Backup(),
    Write(),
    Backup(snapshots=True, retains=True, generation="whole"),
)
# Nor does it take an empty incarnation where a snapshot is all that is left of the one before.
DIFF_INCARNATION = history(
    Settings("compact", keep_runs=1), Write(), Backup(), Recreate(), Backup(snapshots=True, retains=True)
)
# A held point stays if a snapshot stands for its log, also when a generation takes the place of both.
HELD_SNAPSHOT = history(
    Settings("compact", keep_days=2),
    Write(),
    Backup(snapshots=True),
    Retain(),
    HoldRun(),
    Backup(generation="whole"),
)
# What was erased does not count as lost, also where what is left of a segment begins later.
ERASURE_RECORDS = history(Settings(format="Avro"), Write("ab"), Write("ac"), Backup(), Erase("a"))
# What retention has removed counts as removed, also where a later range went first.
REMOVED_OUT_OF_ORDER = history(
    Settings(max_age=1),
    Write("a"),
    Write("b", hours=48),
    Write("c"),
    Write("d", hours=48),
    Backup(segment=1, retains=True),
    Wait(25),
    Write("e"),
    Backup(retains=True),
    Write("f"),
    Backup(),
)
# A hold keeps what is there when it is set.
HELD_LATE = history(Settings(max_age=1), Write(), Backup(), Wait(), Retain(), HoldRun())
# A transaction of which a snapshot has lost the last record may count as one of before a window.
SNAPSHOT_WINDOW = history(
    Settings("compact"), Write("bcAa", commits=True), Wait(), Write(), Backup(), Backup(snapshots=True)
)
# A first backup that has failed after it had tried everything has read a log that was cleaned, too.
FAILED_BACKUP = history(Settings("compact"), Write("cac"), Clean(), Backup(end="Failed"))
# A point that was refused while the topic was compacted is refused when it is not, too.
POLICY_CHANGED = history(Settings("compact"), Write("Adda"), Clean(left=1), Backup(), SetPolicy("delete"), Backup())
# A merged segment stays as long as a kept point has a part of it, also where it begins at the first offset.
MERGED_BELOW_SNAPSHOT = history(
    Settings("compact", keep_runs=9),
    Write("ab"),
    Backup(),
    Write("cd"),
    Write("ef"),
    Backup(segment=1, snapshots=True, merges=2),
    Write("g"),
    Backup(snapshots=True, retains=True),
)
# A restore goes on that has begun with a part of a merged segment, which retention removes meanwhile.
MERGED_THEN_REMOVED = history(
    Settings("compact", keep_runs=3),
    Write(),
    Backup(),
    Write(),
    Backup(snapshots=True, merges=2),
    Restore("run", 1),
    Backup(),
    Backup(retains=True),
)


# Points before the first snapshot that lack what limits have taken are refused, those of kept runs, too.
KEPT_BEFORE_SNAPSHOTS = history(
    Settings("compact,delete", keep_runs=3, max_bytes=400),
    Write(),
    Write(),
    Write("bbb"),
    Backup(retains=True, segment=1),
    Write(),
    Backup(snapshots=True),
)
COMPACTED_AFTER_LIMITS = history(
    Settings("compact,delete", keep_runs=1, max_age=1),
    Write(hours=48),
    Backup(retains=True),
    SetPolicy("compact"),
    Backup(),
)
# A time whose records lie below all that limits have taken is as exact as its offsets.
TIME_BELOW_LIMITS = history(
    Settings("compact,delete", max_age=1),
    Write("bbd"),
    Backup(),
    Write("dcB", hours=48),
    Backup(),
    Backup(snapshots=True, retains=True),
    Backup(),
)
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
# What a killed conversion has brought is there still when an erasure has taken it from the source.
CONVERTED_THEN_ERASED = history(
    Settings("compact", format="Records"),
    Write(),
    AddPartition(),
    Backup(),
    Convert("Records", dies=11),
    Erase(),
    Convert("Records"),
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
# An erasure has taken what it has taken, and not what brokers had removed after it.
ERASED_THEN_OVERWRITTEN = history(
    Settings("compact", format="Records"),
    Backup(),
    Recreate(),
    Write(),
    Backup(),
    Erase(),
    Write("Aaa"),
    Clean(),
    Backup(),
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
# A topic whose log was read again was there before, though what it had then is gone: none with its name is taken.
READ_AGAIN_AND_RECREATED = history(
    Settings("compact", max_age=1),
    Write(),
    Backup(),
    Write(),
    Backup(),
    Backup(),
    Convert(),
    Write(),
    Clean(),
    Backup(generation="whole"),
    Write(),
    CutOff(),
    Backup(),
    Recreate(),
    Write(),
    Backup(),
)
# A restore of what a generation has replaced cannot go on when that is deleted.
REPLACED_THEN_DELETED = history(
    Settings("compact", max_age=3, grace=1),
    Write(),
    Backup(),
    Backup(retains=True, generation="whole"),
    Restore("run", 2),
    Wait(),
    Backup(retains=True),
)
# The snapshot of a log that was read again is none of the log before.
LIMITS_THEN_READ_AGAIN = history(
    Settings("compact,delete", keep_runs=3, max_age=1),
    Write(hours=48),
    Backup(retains=True),
    Backup(snapshots=True, generation="whole"),
)
# A merged segment is larger than those of which it was made, and kept points had them.
MERGED_AND_TOO_MUCH = history(
    Settings(keep_runs=3, max_bytes=400),
    Write(commits=False),
    AddTopic(),
    Backup(segment=1),
    Write(commits=True),
    Backup(),
    Backup(merges=2),
    Backup(retains=True),
)
# Whether brokers had removed records from what an erasure has rewritten is unknown.
OVERWRITTEN_THEN_ERASED = history(Settings("compact"), Write("caBc"), Clean(), Backup(), Erase())
# A generation has read again what limits had taken.
TAKEN_THEN_READ_AGAIN = history(
    Settings(max_bytes=400, format="Avro"),
    Write(commits=True),
    Backup(retains=True),
    SetPolicy("compact"),
    Backup(generation="whole"),
)
# A kept point has what the limits left of it when its run ended: a generation keeps no more of it.
OVER_THE_LIMITS = history(
    Settings("compact,delete", keep_runs=2, max_bytes=900, format="Avro"),
    Write(),
    Backup(),
    Retain(),
    Backup(generation="whole"),
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
# A merge has put what a restore brings into one segment with what an erasure takes.
MERGED_THEN_ERASED = history(
    Settings("compact,delete", keep_runs=2),
    Write("da"),
    Backup(),
    Backup(),
    Backup(),
    Restore(),
    Write(commits=False),
    Backup(segment=1),
    Write(),
    Backup(merges=3),
    Erase("b"),
)
# A snapshot is made of the last one and of the log after it, also where a merge lies across the end of that one.
SNAPSHOT_AFTER_A_MERGE = history(
    Settings("compact"), Write(), Backup(snapshots=True), Write(), Backup(merges=2), Write("b"), Backup(snapshots=True)
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
# What was overwritten before an erasure is not asked for after it.
OVERWRITTEN_AND_COMPACTED = history(
    Settings("compact", keep_runs=1),
    Write(),
    Write(),
    Backup(snapshots=True, retains=True),
    Write(),
    Erase(),
    Backup(snapshots=True, retains=True),
)
# Which incarnation a restore has begun to bring is unknown once retention has deleted what it had.
DELETED_AND_RECREATED = history(
    Settings("compact,delete", max_bytes=400),
    Write(),
    Backup(),
    Recreate(),
    Write(commits=False),
    Backup(end="Failed"),
    Restore(),
    Write(commits=True),
    Backup(retains=True),
)
# A log that was cut off below a snapshot is read again where retention has removed it, also if it is not compacted now.
CUT_OFF_BELOW_A_SNAPSHOT = history(
    Settings("compact", max_bytes=400),
    Write("aab"),
    Write(commits=False),
    Backup(snapshots=True, retains=True),
    SetPolicy("delete"),
    CutOff(),
    Backup(),
)
# What was compacted before any run came, of a topic that was not compacted then, is unknown.
COMPACTED_BEFORE_ANY_BACKUP = history(Settings("compact,delete"), Write("cc"), Clean(), SetPolicy("delete"), Backup())
# Of what had been compacted before the first backup nothing is told where limits have taken the rest.
COMPACTED_AND_TAKEN = history(
    Settings("compact,delete", max_bytes=900, format="Avro"), Write("bdcb"), Clean(), Backup(retains=True)
)
# A snapshot stands for the log of the run before it, too, which a hold keeps, also once the log was read again.
HELD_BEFORE_A_SNAPSHOT = history(
    Settings("compact", keep_runs=2),
    Write(),
    Backup(),
    Backup(snapshots=True, retains=True),
    HoldRun(),
    Write(),
    Backup(generation="whole"),
    Backup(retains=True),
)
# The same, and the log as it was read again has a snapshot: that is none of the run before.
HELD_AND_A_FLOOR = history(
    Settings("compact", keep_runs=2),
    Write(),
    Backup(),
    Backup(snapshots=True, retains=True),
    HoldRun(),
    Write(),
    Backup(snapshots=True, generation="whole"),
    Backup(retains=True),
)
# A broker has lost a record that had overwritten others, which are in no archive: older ones take their place.
CUT_OFF_AFTER_CLEANING = history(
    Settings("compact,delete"), Write(), Backup(), Write(), Write("B"), Clean(), CutOff(), Backup()
)
# The catalog has the times of what was erased: points before them may be refused for its sake.
ERASED_BEFORE_A_TIME = history(
    Settings("compact"),
    Write(commits=True),
    Write("aAac"),
    Backup(segment=1, merges=2),
    Erase("c"),
    Backup(),
    Erase(),
    Wait(),
    SetPolicy("compact,delete"),
    CutOff(),
    Backup(),
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
# A conversion that was killed has a hole where it has not come to.
CONVERT_WITH_A_HOLE = history(
    Settings("compact,delete", max_bytes=400),
    Write(),
    Backup(),
    Write(),
    Write(),
    Write(hours=48),
    Convert(),
    Backup(retains=True),
    Convert(dies=3),
)
# A branch is no older than the transactions below it, by which the log goes on, too.
TOO_MUCH_WITH_A_BRANCH = history(
    Settings("compact,delete", max_bytes=400),
    Write(),
    Backup(),
    Write(commits=True),
    Backup(),
    Write(hours=1),
    Backup(),
    CutOff(),
    Backup(retains=True),
)
# A restore that has begun with the log cannot go on once a snapshot stands for that, and there is no grace.
STOOD_FOR_SINCE = history(
    Settings("compact", keep_runs=3), Write(), Backup(), Restore("run", 3), Backup(snapshots=True, retains=True)
)
# Of an incarnation with tombstones alone a snapshot has nothing: it has no records, and the one before is taken.
NOTHING_BUT_TOMBSTONES = history(
    Settings("compact"),
    Write(),
    Backup(),
    Recreate(),
    Write("B"),
    Backup(snapshots=True),
    Write(commits=False),
    Backup(snapshots=True),
)
# What a branch has below its beginning counts in maxBytes, too, once the log was read again.
TOO_MUCH_BELOW_A_BRANCH = history(
    Settings("compact,delete", max_bytes=400),
    Write("add"),
    Backup(),
    Write("c", commits=True),
    Backup(),
    Write("dabA"),
    Erase("c"),
    Backup(retains=True),
    CutOff(),
    Backup(retains=True),
)
# The first records of a late batch that brokers had removed are taken to be no earlier than its others.
LATE_AND_FIRST_IN_A_BATCH = history(
    Settings("compact"), Write(), Backup(), Write("daab", hours=48), Write("dbc"), Clean(), Backup()
)
# A conversion that was begun cannot go on without what retention has removed since.
REMOVED_WHILE_CONVERTED = history(
    Settings(max_bytes=400),
    Write(),
    Write(),
    Backup(segment=1),
    Write("bBdb"),
    Convert(dies=8),
    Backup(retains=True),
    Convert(),
)
# The same for a restore that was begun before.
OVER_THE_LIMITS_SINCE = history(
    Settings(keep_runs=2, max_bytes=900, format="Avro"), Write(), Backup(), Restore("run", 2), Backup(retains=True)
)
# Where limits take the log after a snapshot of a topic that is not compacted any more, that stands for nothing.
SNAPSHOT_WITHOUT_ITS_LOG = history(
    Settings("compact", max_bytes=400),
    Write(),
    Write(),
    Write(commits=True),
    Backup(snapshots=True, retains=True),
    Write(),
    Write(commits=False),
    SetPolicy("delete"),
    Backup(retains=True),
)
# A generation reads again what limits had taken below its end, and shares what lies behind it.
TAKEN_BEHIND_A_GENERATION = history(
    Settings("compact,delete", keep_days=2, max_age=1),
    Write(),
    Backup(),
    Write(hours=48),
    Backup(retains=True, generation="part"),
    Backup(generation="whole"),
)
# What a generation has replaced is nothing of later points, and takes no room from them.
REPLACED_AND_TOO_MUCH = history(
    Settings("compact,delete", keep_runs=2, max_bytes=900),
    Write(commits=False),
    Backup(),
    Backup(),
    Write(),
    Write("cadc"),
    Backup(),
    Write(),
    Write(),
    Backup(generation="whole", merges=2),
    Write(),
    Backup(retains=True),
)
# A tombstone that was erased is no key that a reconciliation would miss.
ERASED_TOMBSTONE = history(
    Settings("compact,delete", max_bytes=400),
    Write("aBBa"),
    Backup(snapshots=True),
    Write(commits=False),
    Backup(snapshots=True, retains=True),
    Erase("b"),
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
# What a conversion was to convert may be on a branch since: that is said, and not that retention has taken it.
CUT_OFF_WHILE_CONVERTED = history(
    Settings("compact"),
    Write(),
    Write(),
    Backup(pieces=2),
    Convert(dies=7),
    CutOff(),
    Backup(),
    Convert(),
)
# Of what a killed conversion lacks, a snapshot may have no batch: there is nothing to copy.
SLICE_WITHOUT_BATCHES = history(
    Settings("compact", keep_runs=1),
    Write("ab"),
    Write("cd"),
    Backup(segment=1),
    Convert(dies=4),
    Write("cd"),
    Backup(snapshots=True, retains=True),
    Convert(),
)
# What was erased of a branch is no erased record of the log that has its offsets now.
ERASED_THEN_CUT_OFF = history(Settings(), Write(), Backup(), Write(), Backup(), Erase(), CutOff(), Write(), Backup())


# A merge since may have put segments before and after the point of a restore into one.
MERGED_ACROSS_A_TIME = history(
    Settings(), Write(), Backup(), Write("cbbb"), Backup(), Restore("time", 1), Backup(merges=2)
)
# An erasure leaves nothing of the incarnation that a restore has taken.
ERASED_WHILE_RESTORED = history(
    Settings("compact"),
    Write("b"),
    AddTopic(),
    Backup(),
    Recreate(),
    Write(topic=1),
    Backup(),
    Restore(),
    Erase("b"),
)
# An erasure takes the record that shows where a time lies.
ERASED_AT_A_TIME = history(
    Settings("compact,delete"),
    Write("dd", commits=True),
    Write(),
    Backup(),
    Restore("time", 6),
    Erase(),
)

KNOWN = {name.lower(): value for name, value in globals().items() if isinstance(value, History)}


@pytest.mark.parametrize("name", KNOWN)
def test_a_history_is_right(name: str) -> None:
    faults = list(play(KNOWN[name], thorough=True))
    assert not faults, f"{KNOWN[name]}\n" + "\n".join(map(str, faults))

"""Known histories of erasures and conversions, for `test_known`."""

from tests.model.actions import (
    AddPartition,
    AddTopic,
    Backup,
    Clean,
    Convert,
    CutOff,
    Erase,
    Recreate,
    Restore,
    SetPolicy,
    Wait,
    Write,
    history,
)
from tests.model.world import Settings

# A restore that began after an erasure continues.
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
# A conversion that was killed continues, or another one does.
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
# An erasure makes no point less exact: what it has taken was not overwritten.
ERASURE_EXACT = history(Settings("compact"), Write("ab"), Write("cd"), Backup(), Erase("b"))
# What was erased does not count as lost, also where a log was cut off after it.
ERASURE_BRANCH = history(Settings("compact"), Write(), Write("aBAc"), Backup(), Erase(), CutOff(), Write(), Backup())
# A time restores an incarnation that has a record of before, not one whose records of before were erased.
ERASED_INCARNATION = history(Settings("compact"), Write(), Backup(), Recreate(), Write("bdB"), Backup(), Erase("b"))
# What was erased does not count as lost, also where what is left of a segment begins later.
ERASURE_RECORDS = history(Settings(format="Avro"), Write("ab"), Write("ac"), Backup(), Erase("a"))
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
# Whether brokers had removed records from what an erasure has rewritten is unknown.
OVERWRITTEN_THEN_ERASED = history(Settings("compact"), Write("caBc"), Clean(), Backup(), Erase())
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
# A conversion that was begun cannot continue without what retention has removed since.
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
# A tombstone that was erased is no key that a reconciliation would miss.
ERASED_TOMBSTONE = history(
    Settings("compact,delete", max_bytes=400),
    Write("aBBa"),
    Backup(snapshots=True),
    Write(commits=False),
    Backup(snapshots=True, retains=True),
    Erase("b"),
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

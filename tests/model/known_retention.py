"""Known histories of snapshots, retention and holds, for `test_known`."""

from tests.model.actions import (
    AddTopic,
    Backup,
    Clean,
    CutOff,
    HoldRun,
    Recreate,
    Restore,
    Retain,
    SetPolicy,
    Wait,
    Write,
    history,
)
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
# A log that is cut off below what retention has taken is archived again as far as the cluster has it.
BRANCH_AFTER_REMOVAL = history(
    Settings("compact", keep_days=2),
    Write(),
    Write(),
    Backup(snapshots=True, retains=True),
    CutOff(),
    Backup(),
)
# A point that no rule keeps is refused as gone, not as damaged, also if its objects' deletion was killed.
KILLED_PURGE = history(
    Settings("compact", keep_runs=1),
    Write(),
    Backup(due=True),
    Backup(generation="part"),
    Backup(retains=True, dies=9),
)
# A time restores an incarnation also if all of its keys were deleted later.
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
# A time restores no empty incarnation where a snapshot is all that is left of the one before.
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
# A restore continues that has begun with a part of a merged segment, which retention removes meanwhile.
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
# A restore of what a generation has replaced cannot continue when that is deleted.
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
# A snapshot is made of the last one and of the log after it, also where a merge lies across the end of that one.
SNAPSHOT_AFTER_A_MERGE = history(
    Settings("compact"), Write(), Backup(snapshots=True), Write(), Backup(merges=2), Write("b"), Backup(snapshots=True)
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
# A branch is no older than the transactions below it, by which the log continues, too.
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
# A restore that has begun with the log cannot continue once a snapshot stands for that, and there is no grace.
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
# A restore that was begun cannot continue without what retention has removed since.
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
# A generation reads again what limits had taken below its end, and shares what lies after it.
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
# A merge across the offset from which on a generation is exact would give its last times to what follows.
MERGED_ACROSS_EXACT = history(
    Settings("compact", max_bytes=900),
    Write("acA"),
    Backup(),
    Write("bBA", commits=False),
    Backup(),
    Backup(),
    Write("bcB"),
    Write("BbdA"),
    Backup(retains=True, generation="whole"),
    SetPolicy("delete"),
    Write("acd"),
    Backup(retains=True, merges=2),
)

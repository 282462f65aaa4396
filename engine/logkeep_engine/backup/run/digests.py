"""Makes digests of the records that a run has archived, if the resource asks for it, after the run's end.

A verification makes the digests that it lacks, so a run does not fail without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.maintenance.kept_digests import AT_ONCE, DigestsInWork, DigestsPlace, keep_as_made
from logkeep_engine.archive.maintenance.record_digests import DigestWork, fitting, make_digests, reaching_into
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.backup.run.context import BackupContext
from logkeep_engine.limits import NO_LIMITS
from logkeep_engine.log.transactions import Spans
from logkeep_engine.tasks import in_groups

_TASK_BYTES = 256 << 20
_SEGMENTS_AT_ONCE = 4096  # the driver holds the digests of this many, whatever the archive has


def make_missing(context: BackupContext) -> int:
    """Make the digests that lack in the partitions of which the run has archived something, and keep them. Returns of
    how many segments. Raises ArchiveDamaged, and what the storage raises.
    """
    state, epoch = context.writer.state, context.writer.epoch
    keys = [key for key in list(state.segments) if any(entry.epoch == epoch for entry in state.segments[key])]
    groups = in_groups(keys, lambda key: len(state.segments[key]), _SEGMENTS_AT_ONCE)
    return sum(_make(context, some) for some in groups)


def _make(context: BackupContext, keys: Sequence[Partition]) -> int:
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="logkeep-digests") as pool:
        partitions = list(pool.map(lambda key: _missing(context, key), keys))
    work = [item for _, items in partitions for item in items]
    of = [digests for digests, items in partitions for _ in items]
    if work:
        runner, update = context.runner_factory(), context.reporter.update
        keep_as_made(of, lambda on_result: runner.run(work, make_digests, on_result, update, NO_LIMITS))
    return sum(len(item.segments) for item in work)


def _missing(context: BackupContext, key: Partition) -> tuple[DigestsInWork, list[DigestWork]]:
    """Return the digests of a partition, and the work to make those that lack. Those of segments that are gone are
    dropped."""
    storage, state = context.writer.archive.storage, context.writer.state
    topic, entries = state.topics[key[0]].name, tuple(state.segments[key])
    place = DigestsPlace(storage, topic, *key)
    aborted = Spans.of(open_partition(storage, topic, entries, state.kept(*key)).transactions.aborted)
    known = fitting(place.load(), entries, aborted)
    wanted = [entry for entry in entries if entry.base_offset not in known]
    work = [
        DigestWork(storage, topic, tuple(group), reaching_into(aborted, group))
        for group in in_groups(wanted, lambda entry: entry.bytes, _TASK_BYTES)
    ]
    return DigestsInWork(place, {}, known, (entry.base_offset for entry in wanted)), work

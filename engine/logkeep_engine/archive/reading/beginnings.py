"""Where the archive of a partition was meant to begin, if its first offsets are still missing.

    beginnings = missing_beginnings(archive, state)
    for start, end in holes(state, (topic_id, partition), beginnings): ...

The catalog alone cannot show it. An archive may begin at offset 100 because the log began there, or because the task of
the earlier offsets failed while a later task was committed. The plan of that backup or conversion shows it: a run
stores its plan before the first task. Only a run that did not end with success leaves such a hole, so few plans are
read. A conversion keeps the holes of its source, and its plan also says which holes lay before the beginning of a
partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from typing import Any

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Partition, RunEntry, RunOutcome
from logkeep_engine.archive.catalog.generations import UNKNOWN_TIME, generation_of
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.plans import BACKUP_PLAN, CONVERT_PLAN, CONVERT_PLAN_FILE, backup_plan_files
from logkeep_engine.archive.ranges import Range
from logkeep_engine.contract.stored import DocumentRefused, StoredDocument
from logkeep_engine.errors import ObjectMissing

log = logging.getLogger(__name__)

NOT_ACCOUNTED_FOR = "neither archived nor recorded as lost: a run did not finish, or had onDataLoss: Fail"
"""Commands describe a hole so."""

_READERS = 16
_CONVERSION = "Convert"  # `RunEntry.kind`


def missing_beginnings(archive: Archive, state: ArchiveState) -> dict[Partition, int]:
    """Return the offsets at which partitions should begin, for partitions that begin later.

    The plan of the run that archived the first offsets says where a partition should begin. If a conversion did not
    take the beginning of a partition, its plan says where that was. A plan that cannot be read is left out: a run's
    folder may be deleted. Raises storage errors.
    """
    unfinished = [run for run in state.runs.values() if run.outcome is not RunOutcome.SUCCEEDED]
    conversions = [run for run in state.runs.values() if run.kind == _CONVERSION]
    if not unfinished and not conversions:
        return {}
    firsts = {key: accounted[0][0] for key in state.partitions() if (accounted := state.accounted_for(*key))}
    if not firsts:
        return {}
    found = {
        key: begins
        for key, begins in _carried_over(archive, conversions, firsts)
        if key in firsts and begins < firsts[key]
    }
    if not unfinished:
        return found
    with ThreadPoolExecutor(min(_READERS, len(unfinished)), thread_name_prefix="logkeep-plans") as pool:
        plans = pool.map(lambda run: _planned(archive, run.run_id), unfinished)
        for run, plan in zip(unfinished, plans, strict=True):
            for key, chunks in plan.items():
                first = firsts.get(key)
                if first is None or len(chunks) == 1 or _is_read_again(state, run, key):
                    continue
                begins = min(start for start, _ in chunks)
                # If the first chunk of a plan has failed, the first archived offsets belong to another of its chunks.
                # They begin with that chunk, or after a batch that belongs to the failed chunk.
                for start, end in chunks:
                    if begins < start <= first < end and _has_archived(state, run, key, first, end):
                        found[key] = min(found.get(key, first), begins)
    return found


def _is_read_again(state: ArchiveState, run: RunEntry, key: Partition) -> bool:
    """Return whether a generation took the place of what a backup was to archive first: it begins where the log did
    then, and all of it was read."""
    return run.kind != _CONVERSION and generation_of(state, key).since != UNKNOWN_TIME


def _carried_over(
    archive: Archive, conversions: Sequence[RunEntry], partitions: Iterable[Partition]
) -> Iterator[tuple[Partition, int]]:
    """Yield the missing beginnings of what was converted, of each topic as its last conversion that succeeded has found
    them. What was missing before, and was not any more then, that one has planned.
    """
    left = {topic_id for topic_id, _ in partitions}
    for run in reversed(conversions):
        if not left:
            return
        path = names.run_file(run.run_id, CONVERT_PLAN_FILE)
        try:
            plan = CONVERT_PLAN.loads(archive.storage.read(path))
            begins = [((topic_id, partition), offset) for topic_id, partition, offset in plan["begins"]]
            topics = {topic["topicId"] for topic in plan["topics"]}
        except ObjectMissing:
            continue
        except DocumentRefused as error:
            log.warning("%s/%s: %s", archive.storage.uri, path, error)
            continue
        yield from (item for item in begins if item[0][0] in left)
        if run.outcome is RunOutcome.SUCCEEDED:
            left -= topics


def _has_archived(state: ArchiveState, run: RunEntry, key: Partition, start: int, end: int) -> bool:
    """Return whether what is archived first in [start, end) may be of this run: not if another has written the first
    segment there. A run's entry has its last epoch only; those of earlier attempts are nobody else's last. Where
    retention has removed segments, it is no longer known whose they were, and what lay before them was to go, too.
    """
    if any(low < end and high > start for low, high in state.removed.get(key, ())):
        return False
    entries = state.segments.get(key)
    at = entries.position(start) if entries is not None else 0
    if entries is None or at == len(entries) or entries[at].base_offset >= end:
        return True
    epoch = entries[at].archived_first
    return epoch <= run.epoch and all(other is run or other.epoch != epoch for other in state.runs.values())


def holes(state: ArchiveState, partition: Partition, beginnings: Mapping[Partition, int]) -> list[Range]:
    """Return the offsets of a partition that are neither archived nor recorded as lost, from where it was meant to
    begin (by `missing_beginnings`) to the last that are.
    """
    accounted = state.accounted_for(*partition)
    begins = beginnings.get(partition)
    meant = [] if begins is None else [(begins, begins)]
    return [(end, start) for (_, end), (start, _) in pairwise([*meant, *accounted])]


def _planned(archive: Archive, run_id: str) -> dict[Partition, list[Range]]:
    """Return the chunks of each partition in the plan of a run."""
    planned: dict[Partition, list[Range]] = {}
    try:
        for key, chunk in chain(
            _chunks(archive, run_id, backup_plan_files(), BACKUP_PLAN, _backup_chunks),
            _chunks(archive, run_id, (CONVERT_PLAN_FILE,), CONVERT_PLAN, _convert_chunks),
        ):
            planned.setdefault(key, []).append(chunk)
    except (DocumentRefused, IndexError) as error:
        log.warning("a plan of run %s in %s cannot be read: %s", run_id, archive.storage.uri, error)
        return {}
    return planned


def _chunks(
    archive: Archive,
    run_id: str,
    files: Iterable[str],
    document: StoredDocument,
    chunks: Callable[[Mapping[str, Any]], Iterator[tuple[Partition, Range]]],
) -> Iterator[tuple[Partition, Range]]:
    """Yield the chunks in these files, up to the first that is missing."""
    for name in files:
        try:
            plan = archive.storage.read(names.run_file(run_id, name))
        except ObjectMissing:
            return
        yield from chunks(document.loads(plan))


def _backup_chunks(plan: Mapping[str, Any]) -> Iterator[tuple[Partition, Range]]:
    topics = [topic["topicId"] for topic in plan["topics"]]
    for topic, partition, start, end, *_ in plan["chunks"]:
        yield (topics[topic], partition), (start, end)


def _convert_chunks(plan: Mapping[str, Any]) -> Iterator[tuple[Partition, Range]]:
    for topic_id, partition, start, end, *_ in plan["pieces"]:
        yield (topic_id, partition), (start, end)

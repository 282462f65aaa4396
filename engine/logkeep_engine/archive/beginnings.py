"""Where the archive of a partition was meant to begin, if its first offsets are still missing.

    for (topic_id, partition), start in missing_beginnings(archive, archive.load()).items(): ...

The catalog alone cannot tell it: an archive that begins at offset 100 may have found a log that began there, or the
task of the offsets before has failed while a later one was committed. The plan of that run, a backup or a conversion,
knows. It is stored before the first task, and only a run that did not end with success leaves such a hole, so few plans
are read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from logkeep_engine.archive.catalog import Archive
from logkeep_engine.archive.model import ArchiveState, Outcome, Partition
from logkeep_engine.errors import ObjectMissing

log = logging.getLogger(__name__)

PLAN_FILE = "plan.json"
"""Of a backup, see `backup.plan`."""
CONVERT_PLAN_FILE = "convert-plan.json"
"""Of a conversion, see `convert.plan`."""

_READERS = 16


def missing_beginnings(archive: Archive, state: ArchiveState) -> dict[Partition, int]:
    """Of each partition that begins later than the run planned which archived its first offsets, where the plan begins.

    A plan that cannot be read is left out: a run's folder may be deleted. Raises storage errors.
    """
    unfinished = [run.run_id for run in state.runs.values() if run.outcome is not Outcome.SUCCEEDED]
    if not unfinished:
        return {}
    firsts = {key: settled[0][0] for key in state.partitions() if (settled := state.settled(*key))}
    if not firsts:
        return {}
    found: dict[Partition, int] = {}
    with ThreadPoolExecutor(min(_READERS, len(unfinished)), thread_name_prefix="logkeep-plans") as pool:
        for starts in pool.map(lambda run_id: _planned_starts(archive, run_id), unfinished):
            for key, planned in starts.items():
                # If the first chunk of a plan has failed, what was archived first is another of its chunks.
                if firsts.get(key) in planned and min(planned) < firsts[key]:
                    found[key] = min(found.get(key, firsts[key]), *planned)
    return found


def _planned_starts(archive: Archive, run_id: str) -> dict[Partition, set[int]]:
    """Where the chunks of each partition begin in the plan of a run."""
    starts: dict[Partition, set[int]] = {}
    for name, chunks in ((PLAN_FILE, _backup_chunks), (CONVERT_PLAN_FILE, _convert_pieces)):
        path = archive.run_file(run_id, name)
        try:
            for key, start in chunks(json.loads(archive.storage.read(path))):
                starts.setdefault(key, set()).add(start)
        except ObjectMissing:
            continue
        except (ValueError, LookupError, TypeError) as error:
            log.warning("%s/%s is no plan: %s", archive.storage.uri, path, error)
            return {}
    return starts


def _backup_chunks(plan: Any) -> Iterator[tuple[Partition, int]]:
    topics = [topic["topic_id"] for topic in plan["topics"]]
    for topic, partition, start, *_ in plan["chunks"]:
        yield (topics[topic], partition), start


def _convert_pieces(plan: Any) -> Iterator[tuple[Partition, int]]:
    for topic_id, partition, start, *_ in plan["pieces"]:
        yield (topic_id, partition), start

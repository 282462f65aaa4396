"""Finds out what an erasure would take out of an archive, without writing anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.owner import check_owner
from logkeep_engine.archive.maintenance.as_json import AsJson
from logkeep_engine.archive.maintenance.leases import reading
from logkeep_engine.archive.maintenance.rewriting import RewritePlace
from logkeep_engine.erasure.run import ErasureAsked, range_of, refuse, topic_ids_of
from logkeep_engine.erasure.work import ErasureSetting, KeysCounted, count_task, works_of
from logkeep_engine.log.keys import WantedKeys
from logkeep_engine.report import Reporter
from logkeep_engine.tasks import TaskRunner


@dataclass(frozen=True)
class ErasurePreview(AsJson):
    """The findings of a dry run of an erasure. `segments` with `bytes` hold `records` of the keys; `read` were looked
    through. `faults`: segments that cannot be read to the end, so that the erasure would fail."""

    topic: str
    topic_ids: tuple[str, ...]
    keys: int
    partitions: int
    read: int
    segments: int
    records: int
    bytes: int
    faults: tuple[str, ...]


def preview(
    run_id: str,
    archive: Archive,
    asked: ErasureAsked,
    runner_factory: Callable[[], TaskRunner],
    reporter: Reporter,
) -> ErasurePreview:
    """Read all segments of the topic, and count the records of the keys. Raises what would refuse the erasure, and what
    the storage and the tasks raise."""
    reporter.phase("Planning")
    state = archive.load()
    check_owner(archive, state)
    topic_ids = topic_ids_of(archive, state, asked.topic)
    refuse(archive, state, topic_ids)
    works = works_of(state, asked.topic, topic_ids)
    found: list[KeysCounted] = []

    def on_result(index: int, counted: KeysCounted) -> None:
        found.append(counted)
        records, size = works[index].segments.sums()
        reporter.done(works[index].number, records, size)

    if works:
        reporter.planned([range_of(work) for work in works], topics=1)
        reporter.phase("Running")
        setting = ErasureSetting(RewritePlace(archive.storage, 0), WantedKeys.of(asked.keys))
        with reading(archive.storage, run_id, state.commit):
            runner_factory().run(works, partial(count_task, setting), on_result, reporter.update)
    return ErasurePreview(
        topic=asked.topic,
        topic_ids=topic_ids,
        keys=len(asked.keys),
        partitions=len({work.key for work in works}),
        read=sum(len(work.segments) for work in works),
        segments=sum(item.segments for item in found),
        records=sum(item.records for item in found),
        bytes=sum(item.bytes for item in found),
        faults=tuple(fault for item in found for fault in item.faults),
    )

"""Small archives whose segments lie in packs."""

from collections.abc import Sequence

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, Partition, Receipt, RunOutcome, TopicEntry
from logkeep_engine.archive.writing.packs import TaskPacks
from logkeep_engine.contract.archive_format import Compression
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import Storage
from tests.unit.archive.build import ORDERS, begin, write_segment

AUDIT = TopicEntry("audit", "bbbbbbbbbbbbbbbbbbbbb_", 1, 3, {"cleanup.policy": "delete"})

Content = tuple[TopicEntry, int, Sequence[bytes]]
"""Batches of a partition: its topic, its number."""


def packed(
    storage: Storage,
    *content: Content,
    run_id: str = "run-1",
    compression: Compression = Compression.PASSTHROUGH,
    aborted: Sequence[AbortedTxn] = (),
    own: Sequence[Content] = (),
) -> list[SegmentEntry]:
    """A run that puts a segment of each content into one pack, and those of `own` into objects of their own. Each
    continues where its partition ends."""
    with begin(storage, run_id) as writer:
        packs = TaskPacks(storage, writer.epoch, 0, 0)
        receipts: list[Receipt] = []
        ends: dict[Partition, int] = {}
        for into, some in ((packs, content), (None, own)):
            for topic, partition, batches in some:
                entry = write_segment(
                    storage,
                    batches,
                    topic=topic,
                    partition=partition,
                    epoch=writer.epoch,
                    compression=compression,
                    aborted=aborted,
                    packs=into,
                )
                key = (topic.topic_id, partition)
                known = writer.state.accounted_for(*key)
                start = ends.get(key, known[-1][1] if known else 0)
                ends[key] = entry.next_offset
                receipts.append(Receipt((Coverage(*key, start, entry.next_offset),), (entry,)))
        packs.commit()
        topics = {topic.topic_id: topic for topic, _, _ in (*content, *own)}
        writer.commit(topics=topics.values(), receipts=receipts)
        writer.end(RunOutcome.SUCCEEDED)
        return [entry for receipt in receipts for entry in receipt.segments]


def pack_paths(storage: Storage) -> list[str]:
    """The packs that are there."""
    return [info.path for info in storage.list("packs/")]


def faults(storage: Storage) -> list[str]:
    """Verify the archive; returns faults and orphans."""
    from logkeep_engine.archive.maintenance.verify import verify

    report = verify(Archive.open(storage))
    return [*map(str, report.faults), *report.orphans]


__all__ = ["AUDIT", "ORDERS", "faults", "pack_paths", "packed"]

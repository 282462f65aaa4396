"""Transactions across a fork and across the end of a snapshot. Random histories have none: their transactions have one
batch each.

A fault that is known and not mended is marked. Whoever mends it takes the mark away: the test fails until then.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from logkeep_engine.archive.care.branching import branch_off
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome, TopicEntry, branch_id
from logkeep_engine.archive.catalog.lineage import Fork
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.writing.packs import TaskPacks
from logkeep_engine.backup.snapshots import make_snapshots
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.report import Reporter
from tests.model.asking import Asked
from tests.model.restoring import started
from tests.model.store import MemoryStore
from tests.model.world import QUICK
from tests.unit.archive.build import CLUSTER, write_segment
from tests.unit.backup.compacted_topic import spec_of
from tests.unit.erasure.erasing import Inside
from tests.unit.log.batches import batch, marker

TOPIC = TopicEntry("orders", "aaaaaaaaaaaaaaaaaaaaa_", 1, 3, {"cleanup.policy": "delete"})
TABLE = TopicEntry(TOPIC.name, TOPIC.topic_id, 1, 3, {"cleanup.policy": "compact"})
KEY = (TOPIC.topic_id, 0)
P = 77


def data(at: int, count: int, producer: int = -1) -> bytes:
    sequence = at if producer >= 0 else -1
    return batch(at, count, producer_id=producer, transactional=producer >= 0, base_sequence=sequence)


def archive(
    store: MemoryStore,
    run_id: str,
    parts: Sequence[tuple[list[bytes], list[AbortedTxn]]],
    *,
    topic: TopicEntry = TOPIC,
    fork: int = 0,
    snapshot: bool = False,
) -> None:
    """A run that archives segments, after the log was cut off at `fork`, if that is not 0."""
    with begin_run(Archive.create_or_open(store, CLUSTER), run_id, wait=QUICK) as writer:
        if fork:
            end = writer.state.accounted_for(*KEY)[-1][1]
            branch_off(writer, [Fork(*KEY, fork, end, branch_id(KEY[0], 1))])
        packs = TaskPacks(store, writer.epoch, 0, 0)
        made = [
            write_segment(store, batches, topic=topic, epoch=writer.epoch, aborted=aborted, packs=packs)
            for batches, aborted in parts
        ]
        packs.commit()
        ranges = (Coverage(*KEY, made[0].base_offset, made[-1].next_offset),)
        writer.commit(topics=[topic], receipts=[Receipt(ranges, tuple(made))])
        writer.end(RunOutcome.SUCCEEDED)
        if snapshot:
            assert make_snapshots(writer, spec_of(store.uri), Reporter(run_id), Inside, None).count == 1


def restored(store: MemoryStore, offset: int | None = None) -> list[int]:
    """The offsets of the records that a restore sends."""
    point = None if offset is None else {"offsets": [{"topic": "orders", "partition": 0, "offset": offset}]}
    return [row[0] for row in started(store, Asked("x", {}, point), "restore-1").rows.get(KEY, [])]


def forked(first: Sequence[tuple[list[bytes], list[AbortedTxn]]]) -> MemoryStore:
    """An archive of these segments, whose log was cut off at 10: the producer goes on there, and commits at 12."""
    store = MemoryStore("file:///model/archive", lambda: 1_700_000_000.0)
    archive(store, "run-1", first)
    archive(store, "run-2", [([data(10, 2, P), marker(12, P, commit=True), data(13, 2)], [])], fork=10)
    return store


BELOW = [data(0, 5), data(5, 5, P)]
ABORTED = [data(10, 5, P), marker(15, P, commit=False), data(16, 2)]
COMMITTED = [data(10, 5, P), marker(15, P, commit=True), data(16, 2)]


def test_a_transaction_goes_on_behind_a_fork_where_segments_end_there() -> None:
    store = forked([(BELOW, [AbortedTxn(P, 5, 9, 5)]), (ABORTED, [AbortedTxn(P, 5, 15, 5)])])
    assert restored(store) == [*range(12), 13, 14]


def test_a_transaction_goes_on_behind_a_fork_within_a_segment() -> None:
    """It was aborted in the part that was cut off, and is committed since: its first records come, too."""
    store = forked([([*BELOW, *ABORTED], [AbortedTxn(P, 5, 15, 5)])])
    assert restored(store) == [*range(12), 13, 14]


def test_a_point_in_a_transaction_that_goes_on_behind_a_fork_has_nothing_of_it() -> None:
    store = forked([([*BELOW, *COMMITTED], [])])
    assert restored(store, 11) == [*range(5)]


@pytest.mark.xfail(strict=True, reason="history/compacted.py chooses a snapshot that ends within the transaction")
def test_a_point_in_a_transaction_has_nothing_of_it_where_a_snapshot_ends_within_it() -> None:
    """The first run ended at the stable offset 1, since another transaction had begun there."""
    store = MemoryStore("file:///model/archive", lambda: 1_700_000_000.0)
    archive(store, "run-1", [([data(0, 1, P)], [])], topic=TABLE, snapshot=True)
    rest = [data(1, 1, P + 1), data(2, 1, P), marker(3, P, commit=True), marker(4, P + 1, commit=True), data(5, 1)]
    archive(store, "run-2", [(rest, [])], topic=TABLE)
    assert restored(store, 3) == []

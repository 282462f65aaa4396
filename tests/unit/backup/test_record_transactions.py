"""Records of aborted transactions never get into a format of records, whatever a broker's lists leave out: nobody could
tell such a record from others later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.backup.model.plan import Piece
from logkeep_engine.backup.pieces.records import LossChecker, RecordChunkWriter
from logkeep_engine.backup.pieces.task import PieceDone, _archive
from logkeep_engine.backup.pieces.writer import BackupSetting
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import CorruptBatch, OffsetOutOfRange, RecordsWithheld
from logkeep_engine.kafka.client import Fetched, RawClient
from logkeep_engine.kafka.connection import Limits, connection_from
from logkeep_engine.limits import UNLIMITED
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.records import decode
from logkeep_engine.storage import LocalStorage, Storage
from tests import examples
from tests.unit.archive.build import read_records
from tests.unit.log.batches import batch, marker
from tests.unit.log.made_logs import Item, Log, make_log

SEEDS = examples.number(8, deep=150)
QUICK = Limits(outage=0.05, pause=0.01)


@dataclass
class Broker:
    """A client of a broker with this log, whose lists leave out or make up transactions, each time others. What begins
    at offset `torn` arrives damaged; from offset `withheld` on nothing comes; the log is gone below `start` for whoever
    looks after the last stable offset."""

    log: Log
    random: Random
    honest: float = 0.5
    torn: int = -1
    withheld: int = -1
    start: int = 0
    asked: list[int] = field(default_factory=list)

    async def stream(
        self, topic: str, partition: int, start: int, end: int, **_: object
    ) -> AsyncGenerator[Fetched, None]:
        items = [item for item in self.log.items if item.next_offset > start and item.offset < end]
        while items:
            fetch, items = items[: (count := self.random.randint(1, 6))], items[count:]
            if 0 <= self.withheld < fetch[-1].next_offset:
                raise RecordsWithheld("The broker does not give them.")
            yield self._answer(fetch)

    async def fetch(self, topic: str, partition: int, offset: int, *, committed: bool, **_: object) -> Fetched:
        assert not committed
        self.asked.append(offset)
        if offset < self.start:
            raise OffsetOutOfRange("gone", log_start=self.start, log_end=self.log.end)
        return self._answer([item for item in self.log.items if item.next_offset > offset][:2], offset)

    def _answer(self, items: Sequence[Item], offset: int = 0) -> Fetched:
        data = bytearray(b"".join(item.data for item in items))
        at = 0
        for item in items:
            at += len(item.data)
            if item.offset == self.torn:
                data[at - 1] ^= 1
        low, high = (items[0].offset, items[-1].next_offset) if items else (offset, offset)
        truth = self.log.named(low, high)
        everything = replace(self.log, aborted=dict.fromkeys(self.log.aborted, True)).named(low, high)
        named = [item for item in everything if (item in truth) is (self.random.random() < self.honest)]
        return Fetched(memoryview(data), high, self.log.end, self.log.end, 0, tuple(named), by_id=True)


def archived(storage: Storage, broker: Broker, start: int, end: int, limit: int = 1 << 20) -> PieceDone:
    connection = replace(connection_from(ClusterSpec(bootstrap_servers=("localhost:1",)), {}), limits=QUICK)
    setting = BackupSetting(connection, storage, 7, limit, format=FormatName.RECORDS)
    writer = RecordChunkWriter(setting, Piece(0, "orders", "a" * 22, 0, start, end, 1, 1000), 0)
    return asyncio.run(_archive(cast(RawClient, broker), writer, UNLIMITED, 1 << 20))


def offsets(storage: Storage, done: PieceDone) -> list[int]:
    segments = done.receipt.segments if done.receipt is not None else ()
    return [record.offset for entry in segments for part in read_records(storage, "orders", entry) for record in part]


def committed(log: Log, start: int, end: int) -> list[int]:
    return [
        record.offset
        for item in log.items
        if not parse_header(item.data).is_control and not log.aborted.get(item.transaction, False)
        for record in decode(item.data)
        if start <= record.offset < end
    ]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    found = LocalStorage(tmp_path.as_uri())
    Archive.create_or_open(found, "MkU3OEVBNTcwNTJENDM2Qg", FormatName.RECORDS)
    return found


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("honest", [0.0, 0.5, 1.0])
def test_each_committed_record_is_archived_and_no_other(storage: Storage, seed: int, honest: float) -> None:
    random = Random(seed)
    log = make_log(random)
    broker = Broker(log, random, honest)
    bounds = sorted({0, log.end, *(random.randrange(log.end) for _ in range(3))})
    for start, end in pairwise(bounds):
        done = archived(storage, broker, start, end, random.choice([60, 1 << 20]))
        assert offsets(storage, done) == committed(log, start, end)
        assert [(item.start, item.end) for item in (done.receipt.coverage if done.receipt else ())] == [(start, end)]
        assert done.failure is None


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("trouble", ["torn", "withheld"])
def test_what_lies_before_trouble_is_archived_as_far_as_it_is_decided(
    storage: Storage, seed: int, trouble: str
) -> None:
    random = Random(seed)
    log = make_log(random)
    hurt = random.choice(log.items).offset
    done = archived(storage, Broker(log, random, **cast(Any, {trouble: hurt})), 0, log.end)
    assert isinstance(done.failure, CorruptBatch if trouble == "torn" else RecordsWithheld)
    until = done.receipt.coverage[-1].end if done.receipt is not None else 0
    assert until <= hurt
    assert offsets(storage, done) == committed(log, 0, until)


def two(end: bytes) -> Log:
    """A transaction of producer 7, one of producer 8 that is committed, and the end of the first one."""
    log = Log([], {0: True, 1: False}, {0: 0, 1: 1}, {0: 3, 1: 2}, {0: 7, 1: 8})
    parts = [batch(0, producer_id=7, transactional=True), batch(1, producer_id=8, transactional=True)]
    for data, number in zip((*parts, marker(2, 8, commit=True), end), (0, 1, -1, -1), strict=True):
        header = parse_header(data)
        log.items.append(Item(header.base_offset, data, header.producer_id, number))
    return log


def test_the_end_of_a_transaction_is_looked_up_after_the_piece(storage: Storage) -> None:
    broker = Broker(two(marker(3, 7, commit=False)), Random(1), honest=0.0)
    done = archived(storage, broker, 0, 2)
    assert offsets(storage, done) == [1]
    assert broker.asked, "behind the piece"
    assert sorted(map(str, done.disagreements)) == [
        (
            "the broker did not name the transaction of producer 7 with offsets 0 to 3 as aborted, but its ABORT "
            "marker does"
        ),
        "the broker named the transaction of producer 8 with offsets 1 to 2 as aborted, but its COMMIT marker does not",
    ]


def test_a_transaction_without_an_end_is_not_archived(storage: Storage) -> None:
    """The piece fails by itself; it took all others of its task with it."""
    broker = Broker(two(batch(3, 5)), Random(1), honest=1.0)
    done = archived(storage, broker, 0, 8)
    assert isinstance(done.failure, RecordsWithheld)
    assert "Topic 'orders' partition 0: the transaction of producer 7 has no end" in done.failure.message
    assert (done.receipt, storage.list("topics/")) == (None, [])


def test_what_lies_before_a_transaction_without_an_end_is_archived(storage: Storage) -> None:
    log = Log([], {0: True}, {0: 4}, {0: 9}, {0: 7})
    for data, number in ((batch(0, 4), -1), (batch(4, producer_id=7, transactional=True), 0), (batch(5, 5), -1)):
        log.items.append(Item(parse_header(data).base_offset, data, 7, number))
    done = archived(storage, Broker(log, Random(1), honest=1.0), 0, 10)
    assert isinstance(done.failure, RecordsWithheld)
    assert offsets(storage, done) == [0, 1, 2, 3]
    assert [(item.start, item.end) for item in (done.receipt.coverage if done.receipt else ())] == [(0, 4)]


def test_piece_whose_lists_and_markers_never_agree_fails_by_itself(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logkeep_engine.backup.pieces.task._PASSES", 1)
    done = archived(storage, Broker(two(marker(3, 7, commit=False)), Random(1), honest=0.0), 0, 4)
    assert isinstance(done.failure, RecordsWithheld)
    assert "lists of aborted transactions have contradicted the markers" in done.failure.message
    assert (done.receipt, storage.list("topics/")) == (None, [])


def test_where_the_log_has_lost_the_end_the_list_holds(storage: Storage) -> None:
    broker = Broker(two(batch(3, 5)), Random(1), honest=1.0, start=20)
    assert offsets(storage, archived(storage, broker, 0, 8)) == [1, *range(3, 8)]


def test_what_a_format_would_lose_is_counted_of_committed_records_only(storage: Storage) -> None:
    connection = replace(connection_from(ClusterSpec(bootstrap_servers=("localhost:1",)), {}), limits=QUICK)
    setting = BackupSetting(connection, storage, 7, 1 << 20, format=FormatName.AVRO, checking=True)
    log = two(marker(3, 7, commit=False))
    for honest in (0.0, 1.0):
        checker = LossChecker(setting, Piece(0, "orders", "a" * 22, 0, 0, 2, 1, 1000), 0)
        asyncio.run(_archive(cast(RawClient, Broker(log, Random(1), honest)), checker, UNLIMITED, 1 << 20))
        assert checker.records == 1

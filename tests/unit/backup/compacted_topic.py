"""A compacted topic in a model: what its producers write, what runs archive of it, and what a consumer sees of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer, begin_run
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.archive.writing.packs import TaskPacks
from logkeep_engine.backup.run.snapshots import SnapshotsMade, make_snapshots
from logkeep_engine.compaction import spreading
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.contract.spec import KafkaBackupSpec, parse_backup
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.report import Reporter
from logkeep_engine.restore.model import point as points
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import TaskRunner
from tests.runners import HereRunner
from tests.unit.archive.build import CLUSTER, FAST, ORDERS, write_segment
from tests.unit.log.batches import NOON, marker

KEY = (ORDERS.topic_id, 0)
Row = tuple[bytes | None, bytes | None]
Map = dict[bytes, bytes]


def spec_of(uri: str, **changes: Any) -> KafkaBackupSpec:
    """A backup whose partitions get a snapshot whenever something new is archived."""
    wanted: dict[str, Any] = {
        "cluster": {"bootstrapServers": ["127.0.0.1:1"]},
        "topics": {"include": ["orders"]},
        "storage": {"uri": uri, **({"volume": {"claimName": "c"}} if uri.startswith("file") else {})},
        "snapshots": {"maxRecordBytesBetweenSnapshots": "1", "minCleanableRatio": 0},
    }
    return parse_backup(wanted | changes)


@dataclass
class CompactedTopic:
    """Partition 0 of a compacted topic. `written` are all records that were not aborted, by offset, `ends` the offsets
    at which the archive ended after each run. `packed`: its segments share objects."""

    storage: Storage
    configs: Mapping[str, str] = field(default_factory=lambda: {"cleanup.policy": "compact"})
    end: int = 0
    archived: int = 0
    waiting: list[bytes] = field(default_factory=list)
    aborted: list[AbortedTxn] = field(default_factory=list)
    written: dict[int, Row] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=lambda: [0])
    packed: bool = False

    def write(self, rows: Sequence[Row], *, producer_id: int = -1, commits: bool | None = None) -> None:
        """Append a batch, and a marker after it if it is of a transaction."""
        base = self.end
        records = [Record(base + at, NOON + base + at, key, value, ()) for at, (key, value) in enumerate(rows)]
        transactional = commits is not None
        self.waiting.append(
            encode(
                records,
                codec=Codec.LZ4,
                base_offset=base,
                producer_id=producer_id,
                transactional=transactional,
                leader_epoch=3,
            )
        )
        self.end += len(rows)
        if commits is not None:
            self.waiting.append(marker(self.end, producer_id, commit=commits))
            if not commits:
                self.aborted.append(AbortedTxn(producer_id, base, self.end, base))
            self.end += 1
        if commits is not False:
            self.written |= {record.offset: (record.key, record.value) for record in records}
        self.boundaries.append(self.end)

    def begin(self, run_id: str) -> Writer:
        return begin_run(Archive.create_or_open(self.storage, CLUSTER), run_id, wait=FAST)

    def back_up(self, run_id: str, limits: KafkaBackupSpec | None = None, **options: Any) -> SnapshotsMade:
        """A run that archives what was written, and makes a snapshot."""
        with self.begin(run_id) as writer:
            self.archive(writer)
            writer.end(RunOutcome.SUCCEEDED)
            return self.make(writer, limits, **options)

    def archive(self, writer: Writer) -> None:
        """Commit a segment of what was written."""
        receipts = []
        if self.waiting:
            packs = TaskPacks(self.storage, writer.epoch, 0, 0) if self.packed else None
            entry = write_segment(self.storage, self.waiting, epoch=writer.epoch, aborted=self.aborted, packs=packs)
            if packs is not None:
                packs.commit()
            receipts.append(Receipt((Coverage(*KEY, self.archived, self.end),), (entry,)))
        writer.commit(topics=[replace(ORDERS, configs=self.configs)], receipts=receipts)
        self.archived = self.end
        self.waiting, self.aborted = [], []
        self.ends.append(self.end)

    def make(
        self, writer: Writer, limits: KafkaBackupSpec | None = None, runner: Callable[[], TaskRunner] = HereRunner
    ) -> SnapshotsMade:
        return make_snapshots(writer, limits or spec_of(self.storage.uri), Reporter("run"), runner, None)

    def seen(self, end: int | None = None, point: Mapping[str, Any] | None = None) -> ArchiveState:
        """The state that a restore to a point sees."""
        archive = Archive.open(self.storage)
        if end is not None:
            point = {"offsets": [{"topic": "orders", "partition": 0, "offset": end}]}
        wanted = None if point is None else PointSpec.model_validate(point)
        state = points.choose(archive, wanted).state
        made = points.plan_point(archive, state, [replace(ORDERS, configs=self.configs)], wanted)
        return points.state_at_point(archive, state, wanted, made.plan)

    def restored(self, end: int | None = None) -> list[LogRecord]:
        """The records that a restore to an offset brings."""
        state = self.seen(end)
        reader = open_partition(self.storage, "orders", list(state.segments.get(KEY, ())), state.kept(*KEY))
        return [record for some in reader.records() for record in some if end is None or record.offset < end]

    def consumed(self, end: int | None = None) -> Map:
        """The last value of each key of a plain consumer of the topic."""
        stop = self.archived if end is None else end
        return last_values((key, value) for at, (key, value) in sorted(self.written.items()) if at < stop)


def last_values(rows: Any) -> Map:
    """The last value of each key."""
    found: Map = {}
    for key, value in rows:
        if key is None:
            continue
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


@contextmanager
def spread_all() -> Iterator[None]:
    """Partitions with more than one segment, or a snapshot, are spread over tasks: each segment is a range."""
    with patch.multiple(spreading, LEAST_BYTES=0, RANGE_BYTES=1):
        yield

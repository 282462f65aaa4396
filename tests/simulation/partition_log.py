"""A partition and its replicas, as brokers keep them: batches, high watermarks, leader epochs, transactions, producers.

Everything here is honest. What a broker says of it, and when it lies, is `cluster` and `faults`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from logkeep_engine.log.batch import BatchHeader, parse_header, seal, walk
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import ControlType, Record, control_type, decode, encode
from tests.unit.log.batches import NOON, marker

KEPT_OF_A_PRODUCER = 5  # batches, as ProducerStateEntry.NUM_BATCHES_TO_RETAIN
SEQUENCES = 2**31
END_OF_TIME = 2**63 - 1  # above every offset
OFFSET_OUT_OF_RANGE, NOT_LEADER, NOT_ENOUGH_REPLICAS = 1, 6, 19
OUT_OF_ORDER, OLD_EPOCH = 45, 47


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it lies in the log."""

    data: bytes
    header: BatchHeader
    control: ControlType | None = None

    @property
    def base(self) -> int:
        return self.header.base_offset

    @property
    def next(self) -> int:
        return self.header.next_offset


@dataclass(frozen=True, slots=True)
class Aborted:
    """An aborted transaction; `last` is its marker."""

    producer_id: int
    first: int
    last: int


@dataclass(slots=True)
class ProducerState:
    """The last batches of a producer: (first sequence, last sequence, base offset)."""

    epoch: int
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=KEPT_OF_A_PRODUCER))


def placed(data: bytes, base: int, epoch: int) -> Batch:
    """A producer's batch with the offset and the leader epoch that the leader gives it; the CRC covers neither."""
    moved = bytearray(data)
    struct.pack_into(">q", moved, 0, base)
    struct.pack_into(">i", moved, 12, epoch)
    header = parse_header(moved)
    return Batch(bytes(moved), header, control_type(moved) if header.is_control else None)


class Replica:
    """One broker's copy of a partition. `end` is the log's end; `high_watermark` what this broker knows of it;
    `lineage` the leader epoch whose log it has up to `end`."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.start = 0
        self.end = 0
        self.high_watermark = 0
        self.lineage = 0
        self.epochs: list[tuple[int, int]] = []  # (leader epoch, its first offset)
        self.aborted: list[Aborted] = []
        self.open: dict[int, int] = {}  # producer id -> first offset of its transaction
        self.producers: dict[int, ProducerState] = {}

    @property
    def last_stable(self) -> int:
        return min([self.high_watermark, *self.open.values()])

    def append(self, batch: Batch) -> None:
        header = batch.header
        if not self.epochs or self.epochs[-1][0] < header.leader_epoch:
            self.epochs.append((header.leader_epoch, batch.base))
        self.batches.append(batch)
        self.end = batch.next
        self._note(batch)

    def _note(self, batch: Batch) -> None:
        header = batch.header
        if batch.control is not None:
            first = self.open.pop(header.producer_id, None)
            if batch.control is ControlType.ABORT and first is not None:
                self.aborted.append(Aborted(header.producer_id, first, batch.base))
            return
        if header.is_transactional:
            self.open.setdefault(header.producer_id, batch.base)
        if header.producer_id >= 0 and header.base_sequence >= 0:
            state = self.producers.get(header.producer_id)
            if state is None or state.epoch != header.producer_epoch:
                state = self.producers[header.producer_id] = ProducerState(header.producer_epoch)
            last = (header.base_sequence + header.last_offset_delta) % SEQUENCES
            state.recent.append((header.base_sequence, last, batch.base))

    def truncate(self, end: int) -> None:
        """Cut off what lies at or above `end`, and what is known from there."""
        if end >= self.end:
            return
        self.batches = [batch for batch in self.batches if batch.next <= end]
        self.end = end
        self.high_watermark = min(self.high_watermark, end)
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < end]
        self.open, self.producers = {}, {}
        kept, self.aborted = [item for item in self.aborted if item.last < end], []
        for batch in self.batches:
            self._note(batch)
        self.aborted = kept

    def copy_from(self, leader: Replica) -> None:
        """Follow: cut off where the lineages part, then copy what is missing."""
        same = self.start
        theirs = {(batch.base, batch.header.leader_epoch) for batch in leader.batches}
        for batch in self.batches:
            if (batch.base, batch.header.leader_epoch) not in theirs and batch.base >= leader.start:
                break
            same = batch.next
        else:
            same = self.end
        self.truncate(min(same, leader.end))
        if self.end < leader.start:
            self.batches, self.epochs, self.end = [], [], leader.start
        for batch in leader.batches:
            if batch.base >= self.end:
                self.append(batch)
        self.start = leader.start
        self.end = max(self.end, leader.end)
        self.lineage = leader.lineage
        self.aborted = [item for item in leader.aborted if item.last < self.end]

    def check_sequence(self, header: BatchHeader) -> tuple[int, int]:
        """(error code, offset of the same batch or -1) for a batch of a producer, as ProducerAppendInfo does."""
        state = self.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if state is None or header.base_sequence < 0:
            return 0, -1  # a producer that is not known may begin anywhere
        if header.producer_epoch < state.epoch:
            return OLD_EPOCH, -1
        last = (header.base_sequence + header.last_offset_delta) % SEQUENCES
        for first, end, base in state.recent:
            if (first, end) == (header.base_sequence, last) and header.producer_epoch == state.epoch:
                return 0, base
        due = 0 if header.producer_epoch > state.epoch else (state.recent[-1][1] + 1) % SEQUENCES
        return (0, -1) if header.base_sequence == due else (OUT_OF_ORDER, -1)

    def begin_epoch(self, epoch: int) -> None:
        """This replica leads now: its epoch begins at the log's end, also if nothing is written in it
        (`Partition.makeLeader` assigns it)."""
        self.epochs = [(number, start) for number, start in self.epochs if start < self.end]
        self.epochs.append((epoch, self.end))

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(leader epoch, end offset) for OffsetForLeaderEpoch, as LeaderEpochFileCache.endOffsetFor does."""
        if not self.epochs or epoch > self.epochs[-1][0]:
            return -1, -1
        if epoch == self.epochs[-1][0]:
            return epoch, self.end
        later = [(number, start) for number, start in self.epochs if number > epoch]
        earlier = [number for number, _ in self.epochs if number <= epoch]
        return (earlier[-1] if earlier else epoch), later[0][1]

    def delete_below(self, offset: int) -> None:
        self.start = max(self.start, offset)
        self.batches = [batch for batch in self.batches if batch.next > self.start]
        self.aborted = [item for item in self.aborted if item.last >= self.start]

    def committed(self) -> list[Record]:
        """The records that a consumer with read_committed gets, from the log's start to the last stable offset."""
        found: list[Record] = []
        for batch in self.batches:
            if batch.control is not None or batch.base >= self.last_stable or self._is_aborted(batch):
                continue
            found += [record for record in decode(batch.data) if self.start <= record.offset < self.last_stable]
        return found

    def _is_aborted(self, batch: Batch) -> bool:
        header = batch.header
        return header.is_transactional and any(
            item.producer_id == header.producer_id and item.first <= batch.base < item.last for item in self.aborted
        )

    def compact(self, until: int, *, keep_markers: bool) -> None:
        """Keep the last record of each key below `until` and drop aborted ones, as the log cleaner does. The last batch
        stays as it is."""
        until = min(until, self.last_stable, self.batches[-1].base if self.batches else 0)
        newest: dict[bytes | None, int] = {}
        for batch in self.batches:
            if batch.base < until and batch.control is None and not self._is_aborted(batch):
                newest |= {record.key: record.offset for record in decode(batch.data)}
        left: list[Batch] = []
        for batch in self.batches:
            if batch.next > until:
                left.append(batch)
            elif batch.control is not None:
                if keep_markers:
                    left.append(batch)
            elif not self._is_aborted(batch):
                kept = [record for record in decode(batch.data) if newest[record.key] == record.offset]
                if kept:
                    left.append(_thinned(batch, kept))
        self.batches = left


def _thinned(batch: Batch, records: Sequence[Record]) -> Batch:
    """The batch with some of its records; it still covers the same offsets."""
    header = batch.header
    fresh = bytearray(
        encode(
            records,
            codec=header.codec,
            base_offset=batch.base,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            leader_epoch=header.leader_epoch,
        )
    )
    struct.pack_into(">i", fresh, 23, header.last_offset_delta)
    seal(fresh)
    return Batch(bytes(fresh), parse_header(fresh))


@dataclass(slots=True)
class Partition:
    """`leader` -1: none. `behind`: replicas that fetch nothing now. `local_start`: below it everything is in remote
    storage. `stale_answers`: so many answers a new leader gives before it knows the high watermark. `origins`: for each
    leader epoch the epoch whose log it continues with, and from which offset. Brokers do not know that; judges do."""

    brokers: tuple[int, ...]
    replicas: dict[int, Replica] = field(default_factory=dict)
    leader: int = -1
    epoch: int = 0
    isr: list[int] = field(default_factory=list)
    behind: set[int] = field(default_factory=set)
    min_isr: int = 1
    local_start: int = 0
    stale_answers: int = 0
    previous_leader: int = -1
    origins: dict[int, tuple[int, int]] = field(default_factory=dict)
    counted: bool = False  # a restore has seen that all it has written is there
    lost_when_counted: bool = False  # an election took some of it after that

    def __post_init__(self) -> None:
        self.replicas = {node: Replica() for node in self.brokers}
        self.leader = self.previous_leader = self.brokers[0]
        self.isr = list(self.brokers)
        self.log.begin_epoch(self.epoch)

    @property
    def log(self) -> Replica:
        """The leader's, or the one of who led last."""
        return self.replicas[self.leader if self.leader >= 0 else self.previous_leader]

    def append(self, data: bytes) -> tuple[int, int]:
        """(error code, base offset) of a producer's batches, which every replica in sync then has."""
        if self.leader < 0:
            return NOT_LEADER, -1
        if len(self.isr) < self.min_isr:
            return NOT_ENOUGH_REPLICAS, -1
        log = self.log
        self.counted = False
        base = -1
        for at, header in walk(data):
            code, known = log.check_sequence(header)
            if code or known >= 0:
                return code, known
            base = log.end if base < 0 else base
            log.append(placed(data[at : at + header.size], log.end, self.epoch))
        self.replicate()
        return 0, base

    def mark(self, producer_id: int, *, commit: bool) -> None:
        """The end of a transaction: what the transaction coordinator writes."""
        self.log.append(placed(marker(0, producer_id, commit=commit), self.log.end, self.epoch))
        self.replicate()

    def replicate(self) -> None:
        """Followers in sync copy; they hear of the high watermark with their next fetch: they know the one before."""
        log = self.log
        for node in self.isr:
            if node != self.leader:
                self.replicas[node].copy_from(log)
                self.replicas[node].high_watermark = min(log.high_watermark, self.replicas[node].end)
        if len(self.isr) >= self.min_isr:
            log.high_watermark = min(self.replicas[node].end for node in self.isr)

    def leave_isr(self, node: int) -> None:
        """The replica stops to follow."""
        self.behind.add(node)
        if node in self.isr and len(self.isr) > 1:
            self.isr.remove(node)

    def elect(self, node: int, *, stale_answers: int = 0) -> None:
        """`node` leads from now on, whatever it has: an unclean election if it is not in sync."""
        self.behind.discard(node)
        if node not in self.isr:
            self.isr = [node]
        self.previous_leader = self.leader if self.leader >= 0 else self.previous_leader
        self.leader = node
        self.epoch += 1
        self.stale_answers = stale_answers
        log = self.log
        self.origins[self.epoch] = (log.lineage, log.end)
        log.lineage = self.epoch
        log.begin_epoch(self.epoch)
        if not self.knows_high_watermark:
            return
        log.high_watermark = max(log.high_watermark, min(self.replicas[one].end for one in self.isr))

    def ancestry(self, epoch: int) -> dict[int, int]:
        """The leader epochs whose records the log of `epoch` has, and the offset below which it has them."""
        below = {epoch: END_OF_TIME}
        while epoch in self.origins:
            earlier, start = self.origins[epoch]
            below[earlier] = min(below[epoch], start)
            epoch = earlier
        return below

    def fork(self, one: int, other: int) -> int:
        """The offset at which the logs of two leader epochs part."""
        mine, theirs = self.ancestry(one), self.ancestry(other)
        common = max(mine.keys() & theirs.keys())
        return min(mine[common], theirs[common])

    @property
    def knows_high_watermark(self) -> bool:
        return self.stale_answers <= 0

    def answered(self) -> None:
        """One more answer of a new leader: its followers have fetched meanwhile."""
        if self.stale_answers > 0:
            self.stale_answers -= 1
            if self.stale_answers == 0:
                self.replicate()

    def lose(self, node: int) -> None:
        """`node` is down: somebody in sync leads, or nobody."""
        others = [one for one in self.isr if one != node]
        if others:
            self.isr = others
        if self.leader == node:
            if others:
                self.elect(others[0])
            else:
                self.previous_leader, self.leader = node, -1
                self.epoch += 1

    def rejoin(self, node: int) -> None:
        """`node` is up again: it leads what nobody leads, or follows until it is in sync."""
        if self.leader < 0:
            if node in self.isr:
                self.elect(node)
        elif node not in self.behind and node not in self.isr:
            self.isr.append(node)
            self.replicate()

    def heal(self) -> None:
        """All replicas follow again and are in sync."""
        self.stale_answers = 0
        self.behind.clear()
        if self.leader < 0:
            self.elect(self.isr[0])
        for node in self.brokers:
            if node != self.leader:
                self.replicas[node].copy_from(self.log)
        self.isr = list(self.brokers)
        self.replicate()
        self.replicate()


def batch(
    rows: Sequence[tuple[bytes | None, bytes]],
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    codec: Codec = Codec.NONE,
) -> bytes:
    """The bytes that a producer sends for these keys and values."""
    records = [Record(number, NOON + number, key, value, ((b"h", b"1"),)) for number, (key, value) in enumerate(rows)]
    return encode(
        records,
        codec=codec,
        base_offset=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )

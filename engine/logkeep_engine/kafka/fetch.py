"""Raw record batches from a partition's leader, as they lie in its log."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

from logkeep_engine.errors import CorruptBatch, OffsetOutOfRange, RecordsWithheld
from logkeep_engine.kafka import protocol
from logkeep_engine.kafka.brokers import LANES, BrokerPool, Leader
from logkeep_engine.kafka.buffers import Frame
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.emptiness import EmptyAnswers
from logkeep_engine.kafka.encoding import Call
from logkeep_engine.kafka.protocol import EARLIEST, LATEST, FetchAnswer
from logkeep_engine.kafka.survey import Survey
from logkeep_engine.kafka.trouble import Patience, Trouble, raise_for, refused
from logkeep_engine.log.batch import LOG_OVERHEAD

DEFAULT_MAX_BYTES = 16 << 20
_LEAST_BYTES = 1 << 20
_LEAST_REMOTE_BYTES = 64 << 10
_STORE_FAILS = (
    "The broker's own log says why. Where its log is in a remote store (tiered storage), the store may be failing or "
    "have lost a segment."
)
_SPARING_BATCHES = 8  # with so many batches in an answer, about a sixteenth of it is cut off

_OFFSET_LENGTH = struct.Struct(">qi")
_LENGTH = struct.Struct(">8xi")
_PREFIX = 17  # offset, length, leader epoch (or CRC), magic: enough to tell the formats apart
_LEAST_LENGTH = 14  # an empty message of magic 0, without offset and length
_LAST_OFFSET_DELTA = struct.Struct(">i")
_PRODUCER = struct.Struct(">qhi")  # id, epoch, base sequence


@dataclass(frozen=True, slots=True)
class Fetched:
    """What lies at an offset. `data` holds batches back to back; the first may begin before the offset asked for, the
    last may be cut off.

    `next_offset`: where the next fetch begins, one past the last whole batch of `data`; the offset asked for if there
    is none. `aborted`: (producer id, first offset) of the aborted transactions that reach into `data`. `by_id`: the
    topic was asked for by its id, so `data` cannot be another incarnation's. `leader_epoch`: of the leader that
    answered.

    `release` gives the memory of `data` to a later fetch. Whoever never calls it only leaves garbage behind.
    """

    data: memoryview
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...] = ()
    by_id: bool = False
    leader_epoch: int = -1
    frame: Frame | None = field(default=None, repr=False, compare=False)

    def release(self) -> None:
        """`data` can be read no more; slices of it that are still held stay as they are."""
        self.data.release()
        if self.frame is not None:
            self.frame.release()


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch in the log that a producer id wrote. `next_offset` is one past its last record."""

    base_offset: int
    next_offset: int
    producer_epoch: int
    base_sequence: int
    records: int


class Fetcher:
    """Reads through a `BrokerPool`. Many partitions at once are fine."""

    def __init__(self, pool: BrokerPool) -> None:
        self._pool = pool
        self._streams = [0] * LANES  # how many streams use each lane now

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        topic_id: str | None = None,
        committed: bool = True,
        lane: int | None = None,
    ) -> Fetched:
        """Up to `max_bytes` of batches from `offset` on; a single batch larger than that comes alone and whole.

        With `committed` the answer ends at the last stable offset and names aborted transactions (their batches are in
        `data` all the same), else it ends at the high watermark. Waits up to `max_wait_ms` for `min_bytes`; `data` may
        be empty. With `topic_id` another incarnation of the topic is never read, unless `by_id` says that it was asked
        for by name: brokers before 3.1 know no other way. A broker serves the requests of one `lane` one after another.

        Where the leader's replica selector (KIP-392) sends readers to a follower, records come from there, and what it
        does not have from the leader, by name.

        Leader changes, restarts and lost connections are waited out (`Limits.outage`). Raises OffsetOutOfRange,
        TopicGone, BrokerUnavailable, BrokerRefused, CorruptBatch.
        """
        patience = Patience(self._pool.limits, f"fetch topic {topic!r} partition {partition}")
        newer_than = -1.0
        size = max_bytes
        while True:
            try:
                leader = await self._pool.leader(topic, partition, newer_than=newer_than)
                ask = partial(
                    protocol.fetch,
                    topic,
                    partition=partition,
                    leader_epoch=leader.epoch,
                    offset=offset,
                    max_bytes=size,
                    max_wait_ms=max_wait_ms,
                    min_bytes=min_bytes,
                    committed=committed,
                )
                call = ask(topic_id=topic_id)
                if topic_id is not None and not await self._pool.speaks(leader.node, call):
                    topic_id = None  # before Kafka 3.1
                    call = ask(topic_id=None)
                on = 1 + (partition if lane is None else lane) % LANES
                answer = await self._pool.send(leader.node, on, call)
                await self._check(answer.code, topic, partition, offset, leader)
                if answer.preferred_read_replica >= 0 and not answer.records:
                    followed = await self._follow(answer.preferred_read_replica, on, call)
                    if followed is None:
                        topic_id = None  # by name (version 10) the leader does not ask its replica selector
                        continue
                    answer = followed
            except Trouble as trouble:
                if trouble.timed_out:
                    size = max(size // 2, _LEAST_BYTES)  # the link may be too slow for this much in one answer
                newer_than = await patience.wait(trouble)
                continue
            if not answer.answered:
                continue  # over its quota the broker answers without the partition; `send` waits out the throttle time
            return Fetched(
                answer.records,
                _next_offset(answer.records, topic, partition, offset),
                answer.high_watermark,
                answer.last_stable_offset,
                answer.log_start_offset,
                answer.aborted,
                topic_id is not None,
                leader.epoch,
                answer.frame,
            )

    async def _follow(self, replica: int, lane: int, call: Call[FetchAnswer]) -> FetchAnswer | None:
        """The answer of a follower to a request that its leader has handed on; None unless it has records.

        What a follower gives lies below its high watermark, so it is in the leader's log too. What it does not give
        proves nothing: it may be late, or not know of the leader yet.
        """
        try:
            if not await self._pool.speaks(replica, call):
                return None
            answer = await self._pool.send(replica, lane, call)
        except Trouble:
            return None
        return answer if answer.code == Code.NONE and answer.records else None

    async def _check(self, code: int, topic: str, partition: int, offset: int, leader: Leader) -> None:
        broker = self._pool.name(leader.node)
        if code == Code.UNKNOWN_SERVER_ERROR:
            raise Trouble(
                f"{broker} says UNKNOWN_SERVER_ERROR at offset {offset}", error=RecordsWithheld, hint=_STORE_FAILS
            )
        raise_for(code, topic, partition, "fetch", "READ", broker)
        if code == Code.OFFSET_OUT_OF_RANGE:
            start = await self.list_offset(topic, partition, EARLIEST)
            end = await self.list_offset(topic, partition, LATEST)
            if start <= offset <= end:
                raise Trouble(
                    f"{broker} says OFFSET_OUT_OF_RANGE for {offset}, within [{start}, {end})",
                    error=RecordsWithheld,
                    hint=_STORE_FAILS,
                )
            lost = f"below the log start {start}" if offset < start else f"above the log end {end}"
            why = (
                "Retention or DeleteRecords removed what was to be read: run more often, or keep records longer."
                if offset < start
                else "The log was cut off (unclean leader election), or the topic was deleted and created again."
            )
            raise OffsetOutOfRange(
                f"Topic {topic!r} partition {partition}: offset {offset} lies {lost}.",
                hint=why,
                log_start=start,
                log_end=end,
            )
        if code == Code.CORRUPT_MESSAGE:
            raise CorruptBatch(
                f"Topic {topic!r} partition {partition}: {broker} cannot read its own log at offset {offset}.",
                hint="Its disk holds damaged batches; move the leadership to a replica that is whole.",
            )
        if code != Code.NONE:
            raise refused(code, topic, partition, "fetch", broker)

    async def stream(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_wait_ms: int = 500,
        topic_id: str | None = None,
        sparing: bool = False,
        committed: bool = True,
    ) -> AsyncGenerator[Fetched, None]:
        """All committed batches that touch [start, end), in order; one fetch is in flight while the caller works on the
        last. This is the one way through a range of a live log.

        `end` is a last stable offset seen earlier; without `committed` a high watermark, and batches of open
        transactions come too. What the first answer holds below `start` and the last at or above `end` is the caller's
        to skip. Ends when everything below `end` was handed out; if compaction left nothing up to `end`, with an answer
        without data. An answer without data proves nothing by itself (see `kafka.emptiness`): it is asked for again.

        Raises what `fetch` raises, RecordsWithheld if answers stay empty where the log has records
        (`Limits.outage`) or if the last stable offset stays below `end`, and OffsetOutOfRange if the leader's log ends
        below it: the log was cut off.

        A broker fills an answer up with a part of a batch, which is fetched again with the next one. `sparing` callers,
        whose `max_bytes` is small because bytes are dear, get large batches one by one instead: then nothing is cut.
        """
        if start >= end:
            return
        loop = asyncio.get_running_loop()
        room = max_bytes
        size = 1 if sparing else room

        def ask(offset: int) -> asyncio.Task[Fetched]:
            fetch = self.fetch(
                topic,
                partition,
                offset,
                max_bytes=size,
                max_wait_ms=max_wait_ms,
                topic_id=topic_id,
                committed=committed,
                lane=lane,
            )
            return loop.create_task(fetch)

        # Streams of one partition must not wait for each other: a read of a remote store takes its time.
        lane = min(range(LANES), key=lambda number: (self._streams[number], (number - partition) % LANES))
        self._streams[lane] += 1
        position = start
        empty = EmptyAnswers(self, self._pool.limits, topic, partition, topic_id)
        short_since: float | None = None
        pending = ask(position)
        try:
            while position < end:
                fetched = await pending
                if fetched.next_offset > position:
                    short_since = None
                    empty.over()
                    position = fetched.next_offset
                    room = min(max_bytes, room + room // 8)
                    size = 1 if sparing and _first_batch(fetched.data) * _SPARING_BATCHES > max_bytes else room
                    if position < end:
                        pending = ask(position)
                    yield fetched
                    continue
                if (fetched.last_stable_offset if committed else fetched.high_watermark) >= end:
                    if await empty.proved(fetched, position, end):
                        position = end
                        yield replace(fetched, next_offset=end, aborted=())
                        continue
                    await empty.wait(position, end)
                    # A remote read may have been too large for the time that the broker gives it.
                    room = max(min(room, _LEAST_REMOTE_BYTES), room // 2)
                    size = min(size, room)
                else:
                    short_since = short_since or loop.time()
                    if loop.time() - short_since >= self._pool.limits.truncated:
                        await self._refuse_if_cut_off(topic, partition, end, fetched)
                        if loop.time() - short_since >= self._pool.limits.outage:
                            raise _not_readable(topic, partition, end, fetched)
                pending = ask(position)
        finally:
            self._streams[lane] -= 1
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)

    async def _refuse_if_cut_off(self, topic: str, partition: int, end: int, fetched: Fetched) -> None:
        """Raises OffsetOutOfRange if the leader's log ends below `end`. A leader that came back from a crash gives its
        records only up to the high watermark that it remembers, until enough followers are in sync again.
        """
        answers = await Survey(self._pool).epoch_ends({(topic, partition): None})
        ended = answers.found.get((topic, partition))
        if ended is not None and 0 <= ended.end_offset < end and ended.leader_epoch == ended.current_epoch:
            raise _cut_off(topic, partition, end, fetched, ended.end_offset)

    async def list_offset(self, topic: str, partition: int, timestamp: int, *, committed: bool = False) -> int:
        """The offset of the first record at or after `timestamp` (ms), -1 if there is none; or at EARLIEST or LATEST.

        LATEST is the high watermark, with `committed` the last stable offset. Raises TopicGone, BrokerUnavailable,
        BrokerRefused.
        """
        patience = Patience(self._pool.limits, f"list offsets of topic {topic!r} partition {partition}")
        newer_than = -1.0
        while True:
            try:
                leader = await self._pool.leader(topic, partition, newer_than=newer_than)
                call = protocol.list_offset(topic, partition, leader.epoch, timestamp, committed=committed)
                answer = await self._pool.send(leader.node, 0, call)
                broker = self._pool.name(leader.node)
                raise_for(answer.code, topic, partition, "list offsets of", "DESCRIBE", broker)
                if answer.code == Code.NONE and answer.offset < 0 and timestamp in (EARLIEST, LATEST):
                    raise Trouble(f"{broker} gives the offset {answer.offset}")
            except Trouble as trouble:
                newer_than = await patience.wait(trouble)
                continue
            if answer.code != Code.NONE:
                raise refused(answer.code, topic, partition, "list offsets of", broker)
            return answer.offset

    async def local_start(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Where the log begins on its leader's own disk, and the leader's epoch; None if the leader's version has no
        tiered storage. Below this offset the log is in the remote store.

        Raises TopicGone, BrokerUnavailable, BrokerRefused.
        """
        patience = Patience(self._pool.limits, f"ask for the local log of topic {topic!r} partition {partition}")
        newer_than = -1.0
        while True:
            try:
                leader = await self._pool.leader(topic, partition, newer_than=newer_than)
                call = protocol.earliest_local_offset(topic, partition, leader.epoch)
                if not await self._pool.speaks(leader.node, call):
                    return None
                answer = await self._pool.send(leader.node, 0, call)
                broker = self._pool.name(leader.node)
                raise_for(answer.code, topic, partition, "list offsets of", "DESCRIBE", broker)
                if answer.code == Code.NONE and answer.offset < 0:
                    raise Trouble(f"{broker} does not know where its local log begins")
            except Trouble as trouble:
                newer_than = await patience.wait(trouble)
                continue
            if answer.code != Code.NONE:
                raise refused(answer.code, topic, partition, "list offsets of", broker)
            return answer.offset, leader.epoch

    async def written_by(
        self, topic: str, partition: int, producer_id: int, *, start: int, end: int | None = None
    ) -> list[WrittenBatch]:
        """The batches of a producer id in [start, end), in order; `end` None means all that is there now.

        Reads the partition's bytes. `start` below the log start begins at the log start. Raises what `fetch` raises.
        """
        start = max(start, await self.list_offset(topic, partition, EARLIEST))
        if end is None:
            end = await self.list_offset(topic, partition, LATEST)
        found: list[WrittenBatch] = []
        async with aclosing(self.stream(topic, partition, start, end, committed=False)) as stream:
            async for fetched in stream:
                for at, next_offset in _walk(fetched.data, topic, partition):
                    base_offset = _OFFSET_LENGTH.unpack_from(fetched.data, at)[0]
                    if fetched.data[at + 16] < 2 or not start <= base_offset < end:
                        continue
                    writer, epoch, sequence = _PRODUCER.unpack_from(fetched.data, at + 43)
                    if writer == producer_id:
                        (records,) = _LAST_OFFSET_DELTA.unpack_from(fetched.data, at + 57)
                        found.append(WrittenBatch(base_offset, next_offset, epoch, sequence, records))
                fetched.release()
        return found


def _first_batch(data: memoryview) -> int:
    """Its size in bytes."""
    return int(_OFFSET_LENGTH.unpack_from(data)[1]) + _OFFSET_LENGTH.size


def _cut_off(topic: str, partition: int, end: int, fetched: Fetched, log_end: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"Topic {topic!r} partition {partition}: the leader's log ends at offset {log_end}, "
        f"but the last stable offset had been {end} or more before.",
        hint="The log was cut off (unclean leader election), or the topic was deleted and created again.",
        log_start=fetched.log_start_offset,
        log_end=log_end,
    )


def _not_readable(topic: str, partition: int, end: int, fetched: Fetched) -> RecordsWithheld:
    return RecordsWithheld(
        f"Topic {topic!r} partition {partition}: the last stable offset is {fetched.last_stable_offset}, but it had "
        f"been {end} or more before, and the leader's log may reach that far.",
        hint="Too few replicas are in sync (min.insync.replicas) for the leader to give what it has: bring their "
        "brokers back. What was not read counts as not read: the next run tries it again.",
    )


def _walk(data: memoryview, topic: str, partition: int) -> list[tuple[int, int]]:
    """(position, next offset) of the whole batches in `data`.

    Looks at as little as it can: the caller reads the headers once more.
    """
    batches: list[tuple[int, int]] = []
    at, size = 0, len(data)
    while size - at >= _PREFIX:
        offset, length = _OFFSET_LENGTH.unpack_from(data, at)
        if length < _LEAST_LENGTH:
            raise CorruptBatch(
                f"Topic {topic!r} partition {partition}: the batch at offset {offset} says it is {length} bytes long.",
                hint="The leader's log is damaged; move the leadership to a replica that is whole.",
            )
        if at + LOG_OVERHEAD + length > size:
            break
        if data[at + 16] >= 2:
            offset += _LAST_OFFSET_DELTA.unpack_from(data, at + 23)[0]
        # Before magic 2 the offset in front of a compressed set is that of its last message.
        batches.append((at, offset + 1))
        at += LOG_OVERHEAD + length
    return batches


def _last_whole(data: memoryview) -> int:
    """Where the last whole batch of `data` begins, or one that cannot be, by the lengths alone: tiny batches come by
    the hundred thousand.
    """
    at = last = 0
    end = len(data) - _OFFSET_LENGTH.size
    unpack = _LENGTH.unpack_from
    while at <= end:
        (length,) = unpack(data, at)
        if length < _LEAST_LENGTH:
            return at
        if at + length > end:
            return last
        last = at
        at += LOG_OVERHEAD + length
    return last


def _next_offset(data: memoryview, topic: str, partition: int, asked: int) -> int:
    if not data:
        return asked
    last = _last_whole(data)
    batches = _walk(data[last:], topic, partition)
    if not batches or batches[-1][1] <= asked:
        raise CorruptBatch(
            f"Topic {topic!r} partition {partition}: the {len(data)} bytes at offset {asked} hold no whole batch.",
            hint="The leader's log is damaged; move the leadership to a replica that is whole.",
        )
    return batches[-1][1]

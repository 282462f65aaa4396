"""Raw record batches from a partition's leader, as they lie in its log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from logkeep_engine.errors import CorruptBatch, OffsetOutOfRange, RecordsWithheld
from logkeep_engine.kafka import protocol, queries
from logkeep_engine.kafka.brokers import LANES, BrokerPool, Leader
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.encoding import Call
from logkeep_engine.kafka.fetched import Fetched, WrittenBatch, next_offset, written_batches
from logkeep_engine.kafka.protocol import EARLIEST, LATEST, FetchAnswer
from logkeep_engine.kafka.queries import EpochEnd
from logkeep_engine.kafka.retry import Patience, RetriableError, raise_for, refused
from logkeep_engine.kafka.stream import NextSize, Stream, StreamOptions

DEFAULT_MAX_BYTES = 16 << 20
_LEAST_BYTES = 1 << 20
_STORE_FAILS = (
    "The broker's own log says why. Where its log is in a remote store (tiered storage), the store may be failing or "
    "have lost a segment."
)


@dataclass(frozen=True, slots=True)
class _Question:
    """Everything that a fetch asks for, no matter which broker leads the partition."""

    topic: str
    partition: int
    offset: int
    max_wait_ms: int
    min_bytes: int
    committed: bool

    def call(self, leader: Leader, topic_id: str | None, max_bytes: int) -> Call[FetchAnswer]:
        return protocol.fetch(
            self.topic,
            topic_id,
            self.partition,
            leader.epoch,
            self.offset,
            max_bytes=max_bytes,
            max_wait_ms=self.max_wait_ms,
            min_bytes=self.min_bytes,
            committed=self.committed,
        )

    def fetched(self, answer: FetchAnswer, *, by_id: bool, leader_epoch: int) -> Fetched:
        return Fetched(
            answer.records,
            next_offset(answer.records, self.topic, self.partition, self.offset),
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
            answer.aborted,
            by_id,
            leader_epoch,
            answer.frame,
        )


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
        question = _Question(topic, partition, offset, max_wait_ms, min_bytes, committed)
        newer_than = -1.0
        size = max_bytes
        while True:
            try:
                leader = await self._pool.leader(topic, partition, newer_than=newer_than)
                call = question.call(leader, topic_id, size)
                if topic_id is not None and not await self._pool.speaks(leader.node, call):
                    topic_id = None  # before Kafka 3.1
                    call = question.call(leader, None, size)
                # Lane 0 has the small questions, which must not wait for a fetch.
                on = 1 + (partition if lane is None else lane) % LANES
                answer = await self._pool.send(leader.node, on, call)
                await self._check(answer.code, topic, partition, offset, leader)
                if answer.preferred_read_replica >= 0 and not answer.records:
                    followed = await self._follow(answer.preferred_read_replica, on, call)
                    if followed is None:
                        topic_id = None  # by name (version 10) the leader does not ask its replica selector
                        continue
                    answer = followed
            except RetriableError as trouble:
                if trouble.timed_out:
                    size = max(size // 2, _LEAST_BYTES)  # the link may be too slow for this much in one answer
                newer_than = await patience.wait(trouble)
                continue
            if not answer.answered:
                continue  # over its quota the broker answers without the partition; `send` waits out the throttle time
            return question.fetched(answer, by_id=topic_id is not None, leader_epoch=leader.epoch)

    async def _follow(self, replica: int, lane: int, call: Call[FetchAnswer]) -> FetchAnswer | None:
        """Return the answer of a follower to a request that its leader has handed on; None unless it has records.

        What a follower gives lies below its high watermark, so it is in the leader's log too. What it does not give
        proves nothing: it may be late, or not know of the leader yet.
        """
        try:
            if not await self._pool.speaks(replica, call):
                return None
            answer = await self._pool.send(replica, lane, call)
        except RetriableError:
            return None
        return answer if answer.code == Code.NONE and answer.records else None

    async def _check(self, code: int, topic: str, partition: int, offset: int, leader: Leader) -> None:
        broker = self._pool.name(leader.node)
        # Before `raise_for`, for which this code may mean anything: for a fetch it says that the log cannot be read.
        if code == Code.UNKNOWN_SERVER_ERROR:
            raise RetriableError(
                f"{broker} says UNKNOWN_SERVER_ERROR at offset {offset}", error=RecordsWithheld, hint=_STORE_FAILS
            )
        raise_for(code, topic, partition, "fetch", "READ", broker)
        if code == Code.OFFSET_OUT_OF_RANGE:
            start = await self.list_offset(topic, partition, EARLIEST)
            end = await self.list_offset(topic, partition, LATEST)
            if start <= offset <= end:  # a fetch at the very end is not an error: its answer is empty
                raise RetriableError(
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
                hint="Its disk holds damaged batches; move the leadership to an intact replica.",
            )
        if code != Code.NONE:
            raise refused(code, topic, partition, "fetch", broker)

    def stream(
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
        """Return all committed batches that touch [start, end), in order; one fetch is in flight while the caller works
        on the last. This is the one way through a range of a live log.

        `end` is a last stable offset seen earlier; without `committed` a high watermark, and batches of open
        transactions come too. What the first answer holds below `start` and the last at or above `end` is the caller's
        to skip. Ends when everything below `end` was handed out; if compaction left nothing up to `end`, with an answer
        without data. An answer without data proves nothing by itself (see `kafka.emptiness`): it is asked for again.

        Raises what `fetch` raises, RecordsWithheld if answers stay empty where the log has records
        (`Limits.outage`) or if the last stable offset stays below `end`, and OffsetOutOfRange if the leader's log ends
        below it: the log was cut off.

        `sparing` is for callers whose `max_bytes` is small because bytes are dear (see `NextSize`).
        """
        size = NextSize(max_bytes, sparing=sparing)
        options = StreamOptions(max_wait_ms, topic_id, committed)
        return Stream(self, self._pool, topic, partition, size, options).batches(start, end)

    @contextmanager
    def lane(self, partition: int) -> Iterator[int]:
        """Give the lane that the fewest streams use. Streams of one partition must not wait for each other: a read of a
        remote store takes its time.
        """
        lane = min(range(LANES), key=lambda number: (self._streams[number], (number - partition) % LANES))
        self._streams[lane] += 1
        try:
            yield lane
        finally:
            self._streams[lane] -= 1

    async def list_offset(self, topic: str, partition: int, timestamp: int, *, committed: bool = False) -> int:
        """Return the offset of the first record at or after `timestamp` (ms), -1 if there is none; or at EARLIEST or
        LATEST.

        LATEST is the high watermark, with `committed` the last stable offset. Raises TopicGone, BrokerUnavailable,
        BrokerRefused.
        """
        what = "list offsets of"

        async def ask(leader: Leader) -> int:
            call = protocol.list_offset(topic, partition, leader.epoch, timestamp, committed=committed)
            answer = await self._pool.send(leader.node, 0, call)
            broker = self._pool.name(leader.node)
            raise_for(answer.code, topic, partition, what, "DESCRIBE", broker)
            if answer.code != Code.NONE:
                raise refused(answer.code, topic, partition, what, broker)
            if answer.offset < 0 and timestamp in (EARLIEST, LATEST):
                raise RetriableError(f"{broker} gives the offset {answer.offset}")
            return answer.offset

        return await self._pool.ask_leader(topic, partition, what, ask)

    async def epoch_end(self, topic: str, partition: int, epoch: int | None = None, *, at_least: int = -1) -> EpochEnd:
        """Return where a leader epoch has ended in the leader's log, by default the leader's own (see
        `queries.EpochEnd`). No leader of an epoch below `at_least` is asked, and one that does not say where its own
        epoch ends is asked again.

        Needs the ACL DESCRIBE on the topic. Raises TopicGone, BrokerUnavailable, BrokerRefused.
        """
        what = "ask for the leader epochs of"

        async def ask(leader: Leader) -> EpochEnd:
            if leader.epoch < at_least:
                raise RetriableError(
                    f"brokers know only the leader of epoch {leader.epoch}, but there was one of {at_least}"
                )
            wanted = (partition, leader.epoch, leader.epoch if epoch is None else epoch)
            answers = await self._pool.send(leader.node, 0, queries.epoch_ends({topic: [wanted]}))
            broker = self._pool.name(leader.node)
            answer = answers.partitions.get((topic, partition))
            if answer is None:
                raise RetriableError(f"{broker} did not include the partition in its answer")
            raise_for(answer.code, topic, partition, what, "DESCRIBE", broker)
            if answer.code != Code.NONE:
                raise refused(answer.code, topic, partition, what, broker)
            if epoch is None and not (answer.leader_epoch == leader.epoch and answer.end_offset >= 0):
                raise RetriableError(f"{broker} does not say where its log ends")
            return answer

        return await self._pool.ask_leader(topic, partition, what, ask)

    async def local_start(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Return where the log begins on its leader's own disk, and the leader's epoch; None if the leader's version
        has no tiered storage. Below this offset the log is in the remote store.

        Raises TopicGone, BrokerUnavailable, BrokerRefused.
        """

        async def ask(leader: Leader) -> tuple[int, int] | None:
            call = protocol.earliest_local_offset(topic, partition, leader.epoch)
            if not await self._pool.speaks(leader.node, call):
                return None
            answer = await self._pool.send(leader.node, 0, call)
            broker = self._pool.name(leader.node)
            raise_for(answer.code, topic, partition, "list offsets of", "DESCRIBE", broker)
            if answer.code != Code.NONE:
                raise refused(answer.code, topic, partition, "list offsets of", broker)
            if answer.offset < 0:
                raise RetriableError(f"{broker} does not know where its local log begins")
            return answer.offset, leader.epoch

        return await self._pool.ask_leader(topic, partition, "ask for the local log of", ask)

    async def written_by(
        self, topic: str, partition: int, producer_id: int, *, start: int, end: int | None = None
    ) -> list[WrittenBatch]:
        """Return the batches of a producer id in [start, end), in order; `end` None means all that is there now.

        Reads the partition's bytes. `start` below the log start begins at the log start. Raises what `fetch` raises.
        """
        start = max(start, await self.list_offset(topic, partition, EARLIEST))
        if end is None:
            end = await self.list_offset(topic, partition, LATEST)
        found: list[WrittenBatch] = []
        if start >= end:
            return found
        async with aclosing(self.stream(topic, partition, start, end, committed=False)) as stream:
            async for fetched in stream:
                written = written_batches(fetched.data, topic, partition, producer_id)
                found += [batch for batch in written if start <= batch.base_offset < end]
                fetched.release()
        return found

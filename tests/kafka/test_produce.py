"""Raw produce on a real broker: the same bytes, in order, once, whatever happens to the connection."""

import asyncio
import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from logkeep_engine.errors import ProduceRefused
from logkeep_engine.kafka.batch_queue import Batch
from logkeep_engine.kafka.client import Limits, RawClient
from tests.cluster import system
from tests.cluster.kafka import KafkaBroker
from tests.kafka.conftest import running
from tests.kafka.raw import batch, batches, each, numbered, plain, read_all, run, value
from tests.kafka.test_fetch import create


@pytest.mark.parametrize("codec", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_batch_comes_back_as_it_was_but_for_offset_and_leader_epoch(
    kafka: KafkaBroker, unique: str, codec: int
) -> None:
    create(kafka, unique, compression_type="producer")
    sent = batch([value(number) for number in range(100)], codec=codec)

    async def work() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:
            assert await client.produce(unique, 0, sent) == 0
            assert await client.produce(unique, 0, memoryview(bytearray(sent)), acks=1) == 100
            first, second = batches((await client.fetch(unique, 0, 0)).data)
            assert second[:8] == struct.pack(">q", 100)
            for found in (first, second):
                assert (found[8:12], found[16:]) == (sent[8:12], sent[16:])

    run(work())


def test_batch_that_arrives_twice_is_there_once(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique)

    async def work() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:
            producer_id, _ = await client.init_producer_id()
            sent = numbered(producer_id, 3, 5)
            assert [await client.produce(unique, 0, one) for one in (*sent, sent[1], sent[2])] == [0, 5, 10, 5, 10]
            assert await client.end_offset(unique, 0) == 15

    run(work())


def test_what_a_producer_id_wrote_can_be_read_back(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique)

    async def work() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:
            ids = [(await client.init_producer_id())[0] for _ in range(2)]
            for mine, other in zip(numbered(ids[0], 3, 5), numbered(ids[1], 3, 2), strict=True):
                await client.produce(unique, 0, mine)
                await client.produce(unique, 0, other)
            found = await client.written_by(unique, 0, ids[0], start=0)
            assert [(one.base_offset, one.next_offset, one.base_sequence, one.records) for one in found] == [
                (0, 5, 0, 5),
                (7, 12, 5, 5),
                (14, 19, 10, 5),
            ]
            assert [one.base_offset for one in await client.written_by(unique, 0, ids[0], start=7, end=14)] == [7]

    run(work())


def test_refused_batches_say_which_and_what_to_do(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique, max_message_bytes="2000")

    async def work() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:
            producer_id, _ = await client.init_producer_id()
            good = numbered(producer_id, 8, 5)
            broken = bytearray(batch([b"abc"]))
            broken[-1] ^= 1
            await client.produce(unique, 0, good[0])
            refused = {
                "MESSAGE_TOO_LARGE.*max.message.bytes": batch([b"x" * 3000]),
                "CORRUPT_MESSAGE": bytes(broken),
                "INVALID_RECORD|CORRUPT_MESSAGE": batch([b"a"]) + batch([b"b"]),
                f"sequence 25 of producer {producer_id} epoch 0.*OUT_OF_ORDER_SEQUENCE_NUMBER.*read back": good[5],
            }
            for message, bad in refused.items():
                with pytest.raises(ProduceRefused, match=f"'{unique}' partition 0: .*(?:{message})"):
                    await client.produce(unique, 0, bad)
            assert await client.end_offset(unique, 0) == 5

            with pytest.raises(ProduceRefused, match="sequence 25"):
                _ = [one async for one in client.produce_many(unique, 0, each([*good[1:4], good[5], *good[6:]]))]
            assert [found for _, found in await read_all(client, unique)] == [value(number) for number in range(20)]

            with pytest.raises(ValueError, match="acks=0"):
                await client.produce(unique, 0, good[4], acks=0)

    run(work())


def test_batches_without_a_producer_id_keep_their_order(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique)

    async def work() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:
            sent = [batch([value(number)]) for number in range(30)]
            assert [one async for one in client.produce_many(unique, 0, each(sent))] == list(range(30))
            assert [found for _, found in await read_all(client, unique)] == [value(number) for number in range(30)]

    run(work())


def test_no_batch_at_all_is_none_written(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique)

    async def work() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:
            assert [one async for one in client.produce_many(unique, 0, each([]))] == []

    run(work())


def test_broker_killed_in_the_middle_loses_and_repeats_nothing(second_kafka: KafkaBroker, unique: str) -> None:
    broker = second_kafka
    create(broker, unique, 2)

    async def restart() -> None:
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(1)
        await asyncio.to_thread(broker.start)

    async def one(client: RawClient, partition: int) -> None:
        producer_id, _ = await client.init_producer_id()
        offsets = []
        again: asyncio.Task[None] | None = None
        async for offset in client.produce_many(unique, partition, each(numbered(producer_id, 1500, 20))):
            offsets.append(offset)
            if partition == 0 and len(offsets) == 100:
                again = asyncio.create_task(restart())
        if again is not None:
            await again
        assert offsets == list(range(0, 30_000, 20))
        found = [record for _, record in await read_all(client, unique, partition)]
        assert found == [value(number) for number in range(30_000)]

    async def work() -> None:
        async with RawClient(plain(broker.bootstrap)) as client:
            await asyncio.gather(one(client, 0), one(client, 1))

    run(work())


class Proxy:
    """Between client and broker: after `deaf_after` produce requests the broker's answers are lost, until it hangs up.

    `produced`: how many produce requests came.
    """

    def __init__(self, port: int, target: str, deaf_after: int) -> None:
        self.port = port
        self.deaf = asyncio.Event()
        self.left = deaf_after
        self.produced = 0
        self._host, _, target_port = target.rpartition(":")
        self._target_port = int(target_port)
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.hang_up()
        await asyncio.sleep(0.2)  # the handlers see it and end

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self.deaf.clear()
        self.left = 1 << 30

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._target_port)
        self._writers += [writer, back]
        await asyncio.gather(self._requests(reader, back), self._answers(there, writer))

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(6)
                size, api_key = struct.unpack(">ih", head)
                if api_key == 0:
                    self.produced += 1
                    self.left -= 1
                    if self.left <= 0:
                        self.deaf.set()
                writer.write(head + await reader.readexactly(size - 2))

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if not self.deaf.is_set():
                    writer.write(data)


@dataclass(frozen=True)
class Advertised:
    """A broker that names `port` as its own, where a test's proxy listens."""

    broker: KafkaBroker
    port: int


@pytest.fixture(scope="module")
def _advertised() -> Iterator[Advertised]:
    (port,) = system.free_ports(1, "127.0.0.1", None)
    with KafkaBroker(overrides={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}) as broker:
        yield Advertised(broker, port)


@pytest.fixture
def advertised(_advertised: Advertised) -> Advertised:
    """It runs."""
    running(_advertised.broker)
    return _advertised


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_answers_lost_before_a_restart_repeat_nothing(advertised: Advertised, unique: str, clean: bool) -> None:
    """A restarted broker remembers the last batch of a producer only: older ones are found by reading back."""
    port, broker = advertised.port, advertised.broker

    async def work() -> None:
        proxy = Proxy(port, broker.bootstrap, deaf_after=8)
        async with proxy:
            await asyncio.to_thread(create, broker, unique)
            async with RawClient(plain(f"127.0.0.1:{port}"), limits=Limits(request=60)) as client:
                producer_id, _ = await client.init_producer_id()

                async def restart() -> None:
                    await proxy.deaf.wait()
                    await asyncio.sleep(0.5)  # what was sent is appended, and its answers are lost
                    await asyncio.to_thread(broker.stop if clean else broker.kill)
                    await asyncio.to_thread(broker.start)
                    proxy.hang_up()

                again = asyncio.create_task(restart())
                written = client.produce_many(unique, 0, each(numbered(producer_id, 40, 10)))
                assert [offset async for offset in written] == list(range(0, 400, 10))
                await again
                found = [record for _, record in await read_all(client, unique)]
                assert found == [value(number) for number in range(400)]

    run(work())


# Partitions whose numbers are four apart share a connection.
TOGETHER = (0, 4, 8, 12)


def test_what_is_ready_at_once_goes_in_one_request_and_each_partition_is_answered_by_itself(
    advertised: Advertised, unique: str
) -> None:
    port, broker = advertised.port, advertised.broker

    async def work() -> None:
        async with Proxy(port, broker.bootstrap, deaf_after=1 << 30) as proxy:
            await asyncio.to_thread(create, broker, unique, 13)
            async with RawClient(plain(f"127.0.0.1:{port}")) as client:
                producer_id, _ = await client.init_producer_id()
                first, second, _, late = numbered(producer_id, 4, 5)
                broken = bytearray(second)
                broken[-1] ^= 1
                for number in TOGETHER:  # from here on it knows the leaders
                    assert await client.end_offset(unique, number) == 0
                await asyncio.gather(*(client.produce(unique, number, first) for number in TOGETHER))
                assert proxy.produced == 1
                pieces = (second[:61], memoryview(second)[61:])
                sent: list[Batch] = [second, bytes(broken), late, pieces]
                answers = await asyncio.gather(
                    *(client.produce(unique, number, one) for number, one in zip(TOGETHER, sent, strict=True)),
                    return_exceptions=True,
                )
                assert proxy.produced == 2
                assert (answers[0], answers[3]) == (5, 5)
                for number, code, answer in ((4, "CORRUPT_MESSAGE", answers[1]), (8, "OUT_OF_ORDER", answers[2])):
                    assert isinstance(answer, ProduceRefused)
                    assert f"'{unique}' partition {number}" in answer.message
                    assert code in answer.message
                ends = [await client.end_offset(unique, number) for number in TOGETHER]
                assert ends == [10, 5, 5, 10]

    run(work())


def test_a_request_stays_small_and_a_partition_is_in_it_once(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique, 13)

    async def work() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:

            async def one(number: int) -> None:
                producer_id, _ = await client.init_producer_id()
                sent = numbered(producer_id, 12, 4, size=100_000)
                assert [at async for at in client.produce_many(unique, number, each(sent))] == list(range(0, 48, 4))
                found = [record for _, record in await read_all(client, unique, number)]
                assert found == [value(at, 100_000) for at in range(48)]

            await asyncio.gather(*(one(number) for number in TOGETHER))

    run(work())


def test_small_batches_of_all_partitions_share_requests(advertised: Advertised, unique: str) -> None:
    port, broker = advertised.port, advertised.broker

    async def requests(first: int, *, small: bool) -> int:
        """How many requests take 20 batches to each of the partitions."""
        async with Proxy(port, broker.bootstrap, deaf_after=1 << 30) as proxy:
            if not first:
                await asyncio.to_thread(create, broker, unique, 4)
            async with RawClient(plain(f"127.0.0.1:{port}")) as client:

                async def one(number: int) -> None:
                    producer_id, _ = await client.init_producer_id()
                    sent = each(numbered(producer_id, 20, 5))
                    written = [at async for at in client.produce_many(unique, number, sent, small=small)]
                    assert written == list(range(first, first + 100, 5))

                await asyncio.gather(*(one(number) for number in range(4)))
            return proxy.produced

    assert run(requests(0, small=False)) == 80
    assert run(requests(100, small=True)) <= 40


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_answers_lost_for_several_partitions_at_once_repeat_nothing(
    advertised: Advertised, unique: str, clean: bool
) -> None:
    port, broker = advertised.port, advertised.broker

    async def work() -> None:
        async with Proxy(port, broker.bootstrap, deaf_after=8) as proxy:
            await asyncio.to_thread(create, broker, unique, 13)
            async with RawClient(plain(f"127.0.0.1:{port}"), limits=Limits(request=60)) as client:

                async def restart() -> None:
                    await proxy.deaf.wait()
                    await asyncio.sleep(0.5)  # what was sent is appended, and its answers are lost
                    await asyncio.to_thread(broker.stop if clean else broker.kill)
                    await asyncio.to_thread(broker.start)
                    proxy.hang_up()

                async def one(number: int) -> None:
                    producer_id, _ = await client.init_producer_id()
                    written = client.produce_many(unique, number, each(numbered(producer_id, 40, 10)))
                    assert [offset async for offset in written] == list(range(0, 400, 10))

                await asyncio.gather(restart(), *(one(number) for number in TOGETHER))
                assert proxy.produced < 40 * len(TOGETHER)
                for number in TOGETHER:
                    found = [record for _, record in await read_all(client, unique, number)]
                    assert found == [value(at) for at in range(400)]

    run(work())


def test_one_partition_that_fails_does_not_hold_up_the_others(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique, 13)

    async def work() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:

            async def one(number: int) -> list[int]:
                producer_id, _ = await client.init_producer_id()
                sent = numbered(producer_id, 30, 10)
                if number == TOGETHER[1]:
                    del sent[15]
                return [offset async for offset in client.produce_many(unique, number, each(sent))]

            answers = await asyncio.gather(*(one(number) for number in TOGETHER), return_exceptions=True)
            refused = answers.pop(1)
            assert isinstance(refused, ProduceRefused)
            assert "sequence 160" in refused.message
            assert answers == [list(range(0, 300, 10))] * 3
            assert await client.end_offset(unique, TOGETHER[1]) == 150

    run(work())


def test_producer_ids_differ(kafka: KafkaBroker) -> None:
    async def work() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:
            ids = [await client.init_producer_id() for _ in range(3)]
            assert len({producer_id for producer_id, _ in ids}) == 3
            assert {epoch for _, epoch in ids} == {0}

    run(work())

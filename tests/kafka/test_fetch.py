"""Raw fetch on a real broker: the bytes of its log, through restarts, and what it says when they are gone."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from logkeep_engine.errors import BrokerUnavailable, OffsetOutOfRange, TopicGone
from logkeep_engine.kafka import brokers
from logkeep_engine.kafka.buffers import Buffers
from logkeep_engine.kafka.client import Fetched, Limits, RawClient
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.topics import NewTopicPlan
from tests import examples
from tests.cluster import versions
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import end_transaction, wait_until_led
from tests.kafka.conftest import running
from tests.kafka.raw import batch, batches, each, numbered, plain, read_all, records, run, value
from tests.kafka.test_control_plane import WAYS, secure


def create(broker: KafkaBroker, topic: str, partitions: int = 1, **configs: str) -> str:
    settings = {name.replace("_", "."): setting for name, setting in configs.items()}
    ids = ControlPlane(plain(broker.bootstrap)).create_topics([NewTopicPlan(topic, partitions, 1, settings)])
    wait_until_led(broker.bootstrap, topic, range(partitions))
    return ids[topic]


@asynccontextmanager
async def filled(broker: KafkaBroker, topic: str, count: int = 50, size: int = 100) -> AsyncIterator[RawClient]:
    """A client, and a topic with `count` batches of 20 records in partition 0."""
    async with RawClient(plain(broker.bootstrap)) as client:
        producer_id, _ = await client.init_producer_id()
        written = [
            offset async for offset in client.produce_many(topic, 0, each(numbered(producer_id, count, 20, size=size)))
        ]
        assert written == list(range(0, count * 20, 20))
        yield client


@pytest.mark.parametrize("max_bytes", [1, 5_000, 1 << 20])
def test_stream_is_the_brokers_log_byte_for_byte(kafka: KafkaBroker, unique: str, max_bytes: int) -> None:
    topic_id = create(kafka, unique)

    async def work() -> None:
        async with filled(kafka, unique) as client:
            log = (kafka.data_dir / f"{unique}-0" / "00000000000000000000.log").read_bytes()
            for wanted in (None, topic_id):
                stream = client.stream(unique, 0, 0, 1000, max_bytes=max_bytes, topic_id=wanted)
                parts = [part async for part in stream]
                assert b"".join(one for part in parts for one in batches(part.data)) == log
                assert parts[-1].next_offset == 1000
                assert (len(parts) == 50) == (max_bytes == 1)  # a batch larger than the limit comes alone and whole

    run(work())


def test_start_inside_a_batch_gets_the_whole_batch(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique)

    async def work() -> None:
        async with filled(kafka, unique, 3) as client:
            fetched = await client.fetch(unique, 0, 33, max_bytes=100)
            assert [offset for offset, _ in records([fetched], 0, 60)] == list(range(20, 40))
            assert fetched.next_offset == 40
            parts = [part async for part in client.stream(unique, 0, 33, 45, max_bytes=100)]
            assert [part.next_offset for part in parts] == [40, 60]
            assert [part async for part in client.stream(unique, 0, 33, 33)] == []

    run(work())


def test_aborted_transactions_are_named_and_open_ones_left_out(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique, "linger.ms": 0})
    producer.init_transactions(60)
    for commit in (False, True):
        producer.begin_transaction()
        producer.produce(unique, b"x")
        end_transaction(kafka.bootstrap, producer, [(unique, 0)], commit=commit)
    producer.begin_transaction()
    producer.produce(unique, b"x")
    assert producer.flush(120) == 0

    async def work() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:
            assert await client.end_offset(unique, 0, committed=True) == 4
            assert await client.end_offset(unique, 0) == 5
            fetched = await client.fetch(unique, 0, 0)
            assert (fetched.last_stable_offset, fetched.high_watermark, fetched.next_offset) == (4, 5, 4)
            ((_, first_offset),) = fetched.aborted
            assert first_offset == 0
            uncommitted = await client.fetch(unique, 0, 0, committed=False)
            assert (uncommitted.next_offset, uncommitted.aborted) == (5, ())
            parts = [part async for part in client.stream(unique, 0, 0, 4)]
            assert parts[-1].next_offset == 4  # the last is a marker

    run(work())
    producer.abort_transaction(30)


def test_offset_below_the_log_start_carries_the_bounds(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique)

    async def work() -> None:
        async with filled(kafka, unique, 5) as client:
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
            where = TopicPartition(unique, 0, 40)
            await asyncio.to_thread(admin.delete_records([where])[where].result, 30)
            with pytest.raises(
                OffsetOutOfRange, match=f"'{unique}' partition 0: offset 10 lies below the log start 40"
            ) as caught:
                await client.fetch(unique, 0, 10)
            assert (caught.value.log_start, caught.value.log_end) == (40, 100)
            with pytest.raises(OffsetOutOfRange, match="above the log end 100"):
                await client.fetch(unique, 0, 101)
            assert await client.start_offset(unique, 0) == 40
            assert (await client.fetch(unique, 0, 40)).log_start_offset == 40

    run(work())


def test_end_above_the_last_stable_offset_is_an_error_after_a_while(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique)

    async def work() -> None:
        async with filled(kafka, unique, 2), RawClient(plain(kafka.bootstrap), limits=Limits(truncated=1)) as client:
            stream = client.stream(unique, 0, 0, 70)
            assert len(records([await anext(stream)], 0, 70)) == 40
            with pytest.raises(
                OffsetOutOfRange, match="log ends at offset 40, but the last stable offset had been 70 or more"
            ):
                await anext(stream)

    run(work())


def test_tail_that_compaction_removed_ends_the_stream(kafka: KafkaBroker, unique: str) -> None:
    segments = {"segment_bytes": "1048576", "segment_ms": "86400000"}
    create(kafka, unique, 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", **segments)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for number in range(3000):
        producer.produce(unique, value(number, 1000), key=b"one key")
    assert producer.flush(60) == 0
    kafka.wait_until_cleaned(unique)

    async def work() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:
            end = await client.end_offset(unique, 0)
            begin = time.monotonic()
            for stop in (1, 500, end):
                parts = [part async for part in client.stream(unique, 0, 0, stop)]
                assert parts[-1].next_offset >= stop
            assert records(parts, 0, end)[-1] == (end - 1, value(2999, 1000))
            assert len(records(parts, 0, end)) < 3000
            assert time.monotonic() - begin < Limits().truncated

    run(work())


@pytest.fixture(scope="module")
def _own_broker() -> Iterator[KafkaBroker]:
    """It would make topics that are asked for, ends logins after a second, and enforces quotas soon."""
    own = {"auto.create.topics.enable": "true", "connections.max.reauth.ms": "1000", "quota.window.num": "3"}
    with KafkaBroker(secure=True, overrides=own) as broker:
        yield broker


@pytest.fixture
def own_broker(_own_broker: KafkaBroker) -> KafkaBroker:
    """A broker of this module's own, which a test may kill. It runs when a test begins."""
    return running(_own_broker)


def test_topic_is_unknown_is_gone_and_not_created(own_broker: KafkaBroker, unique: str) -> None:
    broker = own_broker

    async def work() -> None:
        async with RawClient(plain(broker.bootstrap), limits=Limits(unknown=1)) as client:
            with pytest.raises(TopicGone, match=f"'{unique}' partition 2: UNKNOWN_TOPIC_OR_PARTITION"):
                await client.fetch(unique, 2, 0)
            with pytest.raises(TopicGone, match=unique):
                await client.produce(unique, 2, batch([b"x"]))

    run(work())
    assert ControlPlane(plain(broker.bootstrap)).topic_ids([unique]) == {}


def test_other_incarnation_is_never_read(kafka: KafkaBroker, unique: str) -> None:
    first = create(kafka, unique)

    async def work() -> None:
        async with filled(kafka, unique, 1), RawClient(plain(kafka.bootstrap), limits=Limits(unknown=1)) as client:
            assert (await client.fetch(unique, 0, 0, topic_id=first)).next_offset == 20
            assert (await client.fetch(unique, 0, 0, topic_id=first)).by_id
            assert not (await client.fetch(unique, 0, 0)).by_id
            control = ControlPlane(plain(kafka.bootstrap))
            await asyncio.to_thread(control.delete_topic_ids, {unique: first})
            second = await asyncio.to_thread(create, kafka, unique)
            async with filled(kafka, unique, 1):
                with pytest.raises(TopicGone, match="UNKNOWN_TOPIC_ID"):
                    await client.fetch(unique, 0, 0, topic_id=first)
                assert (await client.fetch(unique, 0, 0, topic_id=second)).next_offset == 20

    run(work())


def test_stream_continues_when_the_broker_is_killed_and_comes_back(own_broker: KafkaBroker, unique: str) -> None:
    broker = own_broker
    create(broker, unique)

    async def restart() -> None:
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(1)
        await asyncio.to_thread(broker.start)

    async def work() -> None:
        async with filled(broker, unique, 300) as client:
            parts: list[Fetched] = []
            again: asyncio.Task[None] | None = None
            async for part in client.stream(unique, 0, 0, 6000, max_bytes=5_000):
                parts.append(part)
                if len(parts) == 20:
                    again = asyncio.create_task(restart())
                await asyncio.sleep(0.01)
            assert again is not None
            await again
            assert records(parts, 0, 6000) == [(number, value(number)) for number in range(6000)]

    run(work())


def test_broker_that_stays_away_is_named(own_broker: KafkaBroker, unique: str) -> None:
    broker = own_broker
    create(broker, unique)

    async def work() -> None:
        async with RawClient(plain(broker.bootstrap), limits=Limits(outage=2)) as client:
            await client.fetch(unique, 0, 0, max_wait_ms=0)
            await asyncio.to_thread(broker.kill)
            with pytest.raises(BrokerUnavailable, match=f"'{unique}' partition 0.*{broker.bootstrap}.*refused"):
                await client.fetch(unique, 0, 0)

    run(work())


def test_quota_slows_the_stream_and_loses_nothing(own_broker: KafkaBroker, unique: str) -> None:
    broker = own_broker
    create(broker, unique)

    async def work() -> None:
        async with filled(broker, unique, 100) as client:
            begin = time.monotonic()
            assert [number for number, _ in await read_all(client, unique, max_bytes=30_000)] == list(range(2000))
            assert time.monotonic() - begin > 1

    with quota(broker, "consumer_byte_rate", "60000"):
        run(work())


@contextmanager
def quota(broker: KafkaBroker, name: str, value: str) -> Iterator[None]:
    """Every client has this quota."""

    def alter(*what: str) -> None:
        clients = ("--entity-type", "clients", "--entity-default")
        tool = versions.main_class("ConfigCommand", broker.version)
        broker.tool(tool, "--bootstrap-server", broker.bootstrap, "--alter", *what, *clients)

    alter("--add-config", f"{name}={value}")
    try:
        yield
    finally:
        alter("--delete-config", name)


def test_many_partitions_are_read_and_written_at_once(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique, 20)

    async def work() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:

            async def one(partition: int) -> None:
                producer_id, _ = await client.init_producer_id()
                written = client.produce_many(unique, partition, each(numbered(producer_id, 30, 10)))
                assert [offset async for offset in written] == list(range(0, 300, 10))
                assert [found for _, found in await read_all(client, unique, partition)] == [
                    value(n) for n in range(300)
                ]

            await asyncio.gather(*(one(partition) for partition in range(20)))

    run(work())


def test_stream_left_early_leaves_nothing_running(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique)

    async def work() -> None:
        async with filled(kafka, unique) as client:
            before = asyncio.all_tasks()
            stream = client.stream(unique, 0, 0, 1000, max_bytes=1000)
            assert (await anext(stream)).next_offset == 20
            await stream.aclose()
            assert {task for task in asyncio.all_tasks() - before if "fetch" in str(task.get_coro())} == set()

    run(work())


@pytest.mark.deep
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS[:: examples.number(4, deep=1)])
def test_megabytes_over_tls_and_login_are_the_brokers_log(
    secure_kafka: KafkaBroker, unique: str, protocol: str, mechanism: str | None
) -> None:
    create(secure_kafka, unique)

    async def work() -> None:
        async with (
            filled(secure_kafka, unique, 60, size=10_000),
            RawClient(secure(secure_kafka, protocol, mechanism)) as client,
        ):
            log = (secure_kafka.data_dir / f"{unique}-0" / "00000000000000000000.log").read_bytes()
            assert len(log) > 10_000_000
            for max_bytes in (1 << 20, 16 << 20):
                found = bytearray()
                async for part in client.stream(unique, 0, 0, 1200, max_bytes=max_bytes):
                    for one in batches(part.data):
                        found += one
                    part.release()
                assert found == log

    run(work())


def test_stream_continues_when_the_broker_ends_the_login_session(own_broker: KafkaBroker, unique: str) -> None:
    broker = own_broker
    create(broker, unique)

    async def work() -> None:
        async with filled(broker, unique), RawClient(secure(broker, "SASL_PLAINTEXT", "PLAIN")) as client:
            parts: list[Fetched] = []
            async for part in client.stream(unique, 0, 0, 1000, max_bytes=1):
                parts.append(part)
                await asyncio.sleep(0.08)
            assert len(parts) == 50
            assert records(parts, 0, 1000) == [(number, value(number)) for number in range(1000)]

    run(work())


def test_released_memory_serves_the_next_fetch_and_kept_memory_does_not(
    kafka: KafkaBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "_BUFFERS", Buffers())  # those of the process hold what other tests have released
    create(kafka, unique)

    async def work() -> None:
        async with filled(kafka, unique, 10, size=10_000) as client:
            released = await client.fetch(unique, 0, 0, max_bytes=1 << 20)
            memory = released.data.obj
            whole = bytes(released.data)
            released.release()
            with pytest.raises(ValueError, match="released"):
                bytes(released.data)
            kept = await client.fetch(unique, 0, 0, max_bytes=1 << 20)
            assert kept.data.obj is memory
            part = kept.data[:100]
            kept.release()
            again = await client.fetch(unique, 0, 0, max_bytes=1 << 20)
            assert again.data.obj is not memory
            assert (bytes(part), bytes(again.data)) == (whole[:100], whole)

    run(work())

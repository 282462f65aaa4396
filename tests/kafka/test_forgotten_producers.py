"""A broker that forgets producer ids at once, as one does with records of old times: nothing gets in twice for it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.errors import TargetChanged
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.client import Limits, RawClient
from logkeep_engine.kafka.encoding import Call
from logkeep_engine.kafka.trouble import BrokerTrouble
from tests.cluster import system
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import NO_RETENTION, Record, create_topic, produce
from tests.kafka.raw import each, numbered, plain, read_all, value
from tests.kafka.raw import run as run_limited
from tests.kafka.restores import (
    ThreadRunner,
    back_up,
    backup_spec,
    bring_back,
    committed,
    restore_spec,
    transactions,
    without_offsets,
)
from tests.kafka.test_produce import Advertised, Proxy
from tests.kafka.test_restore_division import Dies
from tests.kafka.test_restore_same import PowerCut, assert_same
from tests.runners import Job

FORGETFUL = {"producer.id.expiration.ms": "500", "producer.id.expiration.check.interval.ms": "50"}
FORGOTTEN = 1.2  # seconds after which the broker has forgotten every producer id
OLD = 1_600_000_000_000

PRODUCE, INIT_PRODUCER_ID = 0, 22


@pytest.fixture(scope="module")
def forgetful() -> Iterator[KafkaBroker]:
    with KafkaBroker(overrides=FORGETFUL) as broker:
        yield broker


@pytest.fixture(scope="module")
def behind_a_proxy() -> Iterator[Advertised]:
    (port,) = system.free_ports(1, "127.0.0.1", None)
    address = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with KafkaBroker(overrides={**FORGETFUL, **address}) as broker:
        yield Advertised(broker, port)


def test_answers_lost_and_the_producer_forgotten_repeat_nothing(behind_a_proxy: Advertised, unique: str) -> None:
    port, broker = behind_a_proxy.port, behind_a_proxy.broker

    async def work() -> None:
        async with Proxy(port, broker.bootstrap, deaf_after=8) as proxy:
            await asyncio.to_thread(create_topic, broker.bootstrap, unique, 1, NO_RETENTION)
            async with RawClient(plain(f"127.0.0.1:{port}"), limits=Limits(request=60)) as client:
                producer_id, _ = await client.init_producer_id()

                async def forget() -> None:
                    await proxy.deaf.wait()
                    await asyncio.sleep(FORGOTTEN)  # what was sent is appended, and its answers are lost
                    proxy.hang_up()

                again = asyncio.create_task(forget())
                written = client.produce_many(unique, 0, each(numbered(producer_id, 40, 10)))
                assert [offset async for offset in written] == list(range(0, 400, 10))
                await again
                found = [record for _, record in await read_all(client, unique)]
                assert found == [value(number) for number in range(400)]

    run_limited(work())


Posted = Callable[[], Coroutine[Any, Any, Awaitable[Any]]]


def at_requests(
    monkeypatch: pytest.MonkeyPatch,
    api_key: int,
    numbers: Container[int],
    act: Callable[[Posted], Coroutine[Any, Any, Awaitable[Any]]],
) -> None:
    """Some requests of a kind, counted from 0, are posted by `act`."""
    seen: list[int] = []
    usual = BrokerPool.post

    async def post(self: BrokerPool, node: int, lane: int, call: Call[Any]) -> Awaitable[Any]:
        if call.api_key != api_key:
            return await usual(self, node, lane, call)
        seen.append(api_key)
        if len(seen) - 1 not in numbers:
            return await usual(self, node, lane, call)
        return await act(lambda: usual(self, node, lane, call))

    monkeypatch.setattr(BrokerPool, "post", post)


async def lost(posted: Posted) -> Awaitable[Any]:
    """The answer is lost, and then the broker has forgotten who sent the request."""
    waiting = await posted()

    async def answer() -> Any:
        await waiting
        await asyncio.sleep(FORGOTTEN)
        raise BrokerTrouble("the answer is lost")

    return answer()


async def sent_by_two(posted: Posted) -> Awaitable[Any]:
    """An attempt that was taken for dead has sent the same, and then the broker has forgotten it."""
    await (await posted())
    await asyncio.sleep(FORGOTTEN)
    return await posted()


async def cut_before(_: Posted) -> Awaitable[Any]:
    raise PowerCut


async def cut_behind(posted: Posted) -> Awaitable[Any]:
    await (await posted())
    raise PowerCut


def filled(broker: KafkaBroker, topic: str, root: Path) -> None:
    """An archive of incompressible records of old times, in some forty batches, with gaps among them."""
    create_topic(broker.bootstrap, topic, 1, NO_RETENTION)
    for part in range(4):
        records = [Record(b"k", b"%d" % (part * 500 + number) * 100, OLD + number) for number in range(500)]
        produce(broker.bootstrap, topic, records, config={"batch.size": 20_000})
        transactions(broker, topic, [1, -3])
    back_up(backup_spec(broker, root, topic))


def spec_of(broker: KafkaBroker, root: Path, mode: str) -> dict[str, Any]:
    if mode == "Append":
        return restore_spec(broker, root, ifTopicExists="Append")
    return restore_spec(broker, root, offsets=mode)


def prepare(broker: KafkaBroker, topic: str, root: Path, mode: str) -> dict[str, Any]:
    """The spec of a restore to that topic, which is there with a record if the restore appends."""
    filled(broker, topic, root)
    if mode == "Append":
        create_topic(broker.bootstrap, f"{topic}-copy", 1, NO_RETENTION)
        produce(broker.bootstrap, f"{topic}-copy", [Record(b"before", b"", OLD)])
    return spec_of(broker, root, mode)


def assert_once(broker: KafkaBroker, topic: str, mode: str) -> None:
    """Every record is there once, in order."""
    if mode == "Same":
        assert_same(broker, topic)
    found, expected = committed(broker, f"{topic}-copy"), committed(broker, topic)
    assert without_offsets(found[mode == "Append" :]) == without_offsets(expected)


MODES = ("Append", "Any", "Same")


@pytest.mark.parametrize("mode", MODES)
def test_a_restore_whose_answers_are_lost(
    forgetful: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    spec = prepare(forgetful, unique, tmp_path, mode)
    at_requests(monkeypatch, PRODUCE, (0, 3, 4, 5, 9, 14), lost)
    bring_back(spec)
    assert_once(forgetful, unique, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_pause_after_which_the_producer_is_forgotten(
    forgetful: KafkaBroker, unique: str, tmp_path: Path, mode: str
) -> None:
    spec = prepare(forgetful, unique, tmp_path, mode)
    for cut in (cut_before, cut_behind):
        with pytest.MonkeyPatch.context() as monkeypatch:
            at_requests(monkeypatch, PRODUCE, (4,), cut)
            with pytest.raises(PowerCut):
                bring_back(spec)
        time.sleep(FORGOTTEN)
    bring_back(spec)
    assert_once(forgetful, unique, mode)


@pytest.mark.parametrize("mode", MODES)
def test_what_two_attempts_wrote_is_no_success(forgetful: KafkaBroker, unique: str, tmp_path: Path, mode: str) -> None:
    """An attempt that goes on does not know whether an earlier one is dead."""
    spec = prepare(forgetful, unique, tmp_path, mode)
    with pytest.MonkeyPatch.context() as monkeypatch:
        at_requests(monkeypatch, PRODUCE, (4,), cut_before)
        with pytest.raises(PowerCut):
            bring_back(spec)
    with pytest.MonkeyPatch.context() as monkeypatch:
        at_requests(monkeypatch, PRODUCE, (2,), sent_by_two)
        with pytest.raises(TargetChanged):
            bring_back(spec)


@pytest.mark.parametrize("mode", MODES)
def test_a_driver_killed_before_or_behind_its_requests_for_producer_ids(
    forgetful: KafkaBroker, unique: str, tmp_path: Path, mode: str
) -> None:
    """So it dies before it has a plan, and between the plan and the first record."""
    spec = prepare(forgetful, unique, tmp_path, mode)
    for number in range(3):
        for cut in (cut_before, cut_behind):
            with pytest.MonkeyPatch.context() as monkeypatch:
                at_requests(monkeypatch, INIT_PRODUCER_ID, (number,), cut)
                with suppress(PowerCut):
                    bring_back(spec)
            time.sleep(FORGOTTEN)
    bring_back(spec)
    assert_once(forgetful, unique, mode)


class Outlived(ThreadRunner):
    """A task of an earlier driver has lived on: it writes behind the look of this one, and is forgotten."""

    def perform(self, job: Job) -> None:
        if job.name == "restore_divided":
            with pytest.raises(ConnectionAbortedError):
                Dies(0, 1).perform(job)
            time.sleep(FORGOTTEN)
        super().perform(job)


def test_what_a_task_that_outlived_its_driver_wrote_to_divided_partitions_is_no_success(
    forgetful: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    filled(forgetful, unique, tmp_path)
    create_topic(forgetful.bootstrap, f"{unique}-copy", 2, NO_RETENTION)
    plain_spec = spec_of(forgetful, tmp_path, "Append")
    spec = {**plain_spec, "topics": {**plain_spec["topics"], "partitionCount": 2}}
    with pytest.raises(ConnectionAbortedError):
        bring_back(spec, runner=Dies(0))
    with pytest.raises(TargetChanged):
        bring_back(spec, runner=Outlived())

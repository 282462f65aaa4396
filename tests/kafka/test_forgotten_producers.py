"""A broker that forgets producer ids at once, as one does with records of old times: nothing gets in twice for it.

Restores append, or keep the offsets of records, or divide them among another number of partitions.
"""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.errors import TargetChanged
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.client import Limits, RawClient
from logkeep_engine.kafka.encoding import Call
from logkeep_engine.kafka.retry import RetriableError
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.sending.task import restore_partitions
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
)
from tests.kafka.test_produce import Advertised, Proxy
from tests.kafka.test_restore_division import assert_divided, make_batches
from tests.kafka.test_restore_division import spec as divided_spec
from tests.kafka.test_restore_same import PowerCut, bounds
from tests.runners import Context

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
        raise RetriableError("the answer is lost")

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


MODES = ("Append", "Any", "Same", "Divided", "Divided, Append")
TARGETS = 2  # partitions, where records are divided


@dataclass(frozen=True)
class Case:
    """A restore of an archived topic of one partition into the broker that forgets. The archive is the test's own."""

    source: KafkaBroker
    target: KafkaBroker
    topic: str
    root: Path
    mode: str

    @property
    def copy(self) -> str:
        """The restored topic."""
        return self.topic + self._suffix

    @property
    def _suffix(self) -> str:
        return f"-{self.root.name}"

    @property
    def _partitions(self) -> int:
        return TARGETS if self.mode.startswith("Divided") else 1

    def spec(self) -> dict[str, Any]:
        """The resource that asks for it."""
        exists = {"ifTopicExists": "Append"} if self.mode.endswith("Append") else {}
        if self.mode.startswith("Divided"):
            return divided_spec(self.target, self.root, TARGETS, suffix=self._suffix, **exists)
        offsets = "Same" if self.mode == "Same" else "Any"
        return restore_spec(self.target, self.root, suffix=self._suffix, **exists, offsets=offsets)

    def restore(self, runner: ThreadRunner | None = None) -> None:
        bring_back(self.spec(), runner=runner)

    def prepare(self) -> None:
        """Let the target be there with a record in each partition, if the restore appends."""
        if self.mode.endswith("Append"):
            create_topic(self.target.bootstrap, self.copy, self._partitions, NO_RETENTION)
            before = [Record(b"before", b"", OLD, partition=number) for number in range(self._partitions)]
            produce(self.target.bootstrap, self.copy, before)

    def assert_once(self) -> None:
        """Every record is there once, in order, and at its offset where that is asked for."""
        before = self.mode.endswith("Append")
        there = [committed(self.target, self.copy, number)[before:] for number in range(self._partitions)]
        expected = committed(self.source, self.topic)
        assert_divided([expected], there)
        assert all(there)
        if self.mode == "Same":
            assert (bounds(self.target, self.copy), there[0]) == (bounds(self.source, self.topic), expected)


@pytest.fixture(scope="module")
def archive(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A topic of records of old times, in some forty batches with gaps among them, and its archive."""
    topic, root = "of-old-times", tmp_path_factory.mktemp("old") / "archive"
    create_topic(kafka.bootstrap, topic, 1, NO_RETENTION)
    for part in range(4):
        records = [
            Record(b"k%d" % (number % 9), b"%d" % (part * 500 + number) * 100, OLD + number) for number in range(500)
        ]
        produce(kafka.bootstrap, topic, records, config={"batch.size": 20_000})
        transactions(kafka, topic, [1, -3])
    back_up(backup_spec(kafka, root, topic))
    return topic, root


@pytest.fixture
def case(
    kafka: KafkaBroker,
    forgetful: KafkaBroker,
    archive: tuple[str, Path],
    unique: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> Case:
    """The restore of a test. Where records are divided, each pair has many batches, too."""
    topic, root = archive
    made = Case(kafka, forgetful, topic, Path(shutil.copytree(root, tmp_path / unique)), mode)
    make_batches(monkeypatch, 15_000)
    made.prepare()
    return made


@pytest.mark.parametrize("mode", MODES)
def test_a_restore_whose_answers_are_lost(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    at_requests(monkeypatch, PRODUCE, (0, 3, 4, 5, 9, 14), lost)
    case.restore()
    case.assert_once()


@pytest.mark.parametrize("mode", MODES)
def test_a_pause_after_which_the_producer_is_forgotten(case: Case) -> None:
    """Also between the plan and the first record."""
    for number, cut in ((0, cut_before), (4, cut_before), (4, cut_behind)):
        with pytest.MonkeyPatch.context() as monkeypatch:
            at_requests(monkeypatch, PRODUCE, (number,), cut)
            with pytest.raises(PowerCut):
                case.restore()
        time.sleep(FORGOTTEN)
    case.restore()
    case.assert_once()


@pytest.mark.parametrize("mode", MODES)
def test_what_two_attempts_wrote_is_no_success(case: Case) -> None:
    """An attempt that continues does not know whether an earlier one is dead."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        at_requests(monkeypatch, PRODUCE, (4,), cut_before)
        with pytest.raises(PowerCut):
            case.restore()
    with pytest.MonkeyPatch.context() as monkeypatch:
        at_requests(monkeypatch, PRODUCE, (2,), sent_by_two)
        with pytest.raises(TargetChanged):
            case.restore()


@pytest.mark.parametrize("mode", ["Divided", "Divided, Append"])
def test_what_an_earlier_attempt_writes_after_the_look_is_no_success(case: Case) -> None:
    """The driver looks for the places of all pairs, and its tasks begin later."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        at_requests(monkeypatch, PRODUCE, (0,), cut_before)
        with pytest.raises(PowerCut):
            case.restore()

    def earlier(item: Any) -> None:
        if isinstance(item, tuple) and isinstance(item[0], RestoreTask):
            restore_partitions(item, Context())
            for note in (case.root / "runs/restore-1/offset-maps").rglob("*.json"):
                note.unlink()
            time.sleep(FORGOTTEN)

    with pytest.raises(TargetChanged):
        case.restore(ThreadRunner(before=earlier))


@pytest.mark.parametrize("mode", MODES)
def test_a_driver_killed_before_or_after_its_requests_for_producer_ids(case: Case) -> None:
    """So it dies before it has a plan, and between the plan and the first record."""
    for number in range(3):
        for cut in (cut_before, cut_behind):
            with pytest.MonkeyPatch.context() as monkeypatch:
                at_requests(monkeypatch, INIT_PRODUCER_ID, (number,), cut)
                with suppress(PowerCut):
                    case.restore()
            time.sleep(FORGOTTEN)
    case.restore()
    case.assert_once()

"""A driver that has slept while another run took over its own changes nothing more."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, cast

import pytest

from logkeep_engine.archive.catalog import run_note
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import RestoreBusy
from logkeep_engine.kafka import positions
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.groups import GroupPosition
from logkeep_engine.kafka.kept_pool import Question
from logkeep_engine.kafka.positions import FetchedPosition
from logkeep_engine.kafka.topics import NewTopicPlan
from logkeep_engine.kafka.user_requests import Acl, Quota
from logkeep_engine.restore.claim import fence, takeover
from logkeep_engine.restore.claim.fence import ClockReading, RunFence, TaskFence
from logkeep_engine.restore.claim.takeover import RunClaim, note_of
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.sending import task
from logkeep_engine.restore.sending.outlet import Outlet
from logkeep_engine.restore.sending.side_by_side import Shared
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.storage import LocalStorage
from logkeep_engine.tasks import TaskProgress
from tests.runners import Context
from tests.unit.restore.tasks import task_of

TAKEN = "Run second has taken over run first, whose driver had not shown for a while that it was still running"


class Clocks:
    """The clocks of the machine, which stand still until they are moved on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading = ClockReading(100.0, 200.0, 1_000_000.0)
        monkeypatch.setattr(fence.ClockReading, "now", classmethod(lambda _: self.reading))

    def move(self, **clocks: float) -> None:
        self.reading = replace(
            self.reading, **{name: getattr(self.reading, name) + more for name, more in clocks.items()}
        )


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """They are those of a driver whose beat is not due for a long time."""
    monkeypatch.setattr(run_note, "BEAT_SECONDS", 1e6)
    monkeypatch.setattr(takeover, "WATCH_SECONDS", 0.0)
    return Clocks(monkeypatch)


@pytest.fixture
def first(tmp_path: Path) -> RestoreState:
    return RestoreState(LocalStorage(tmp_path.as_uri()), "first")


def take_over(first: RestoreState) -> None:
    claim = RunClaim.after(first, first.of_run("second"))
    claim.refuse_alive()
    claim.make()


@pytest.mark.parametrize("clock", ["monotonic", "boot", "day"])
def test_a_driver_that_has_slept_by_any_clock_looks_before_it_changes_anything(
    first: RestoreState, clocks: Clocks, clock: str
) -> None:
    with RunFence(first) as own:
        own.check()
        take_over(first)
        own.check()  # it has just looked
        clocks.move(**{clock: 60.0})
        with pytest.raises(RestoreBusy, match=TAKEN):
            own.check()
        seen = note_of(first)
        clocks.move(day=-60.0)
        own.beat()
        with pytest.raises(RestoreBusy, match=TAKEN):
            own.check()
        assert note_of(first) == seen, "it shows that it goes on"


def test_a_driver_that_shows_that_it_continues_after_a_claim_lets_the_other_one_drop_it(
    first: RestoreState, clocks: Clocks
) -> None:
    """It wakes up while another run claims its own."""
    with RunFence(first) as own:
        claim = RunClaim.after(first, first.of_run("second"))
        claim.refuse_alive()
        clocks.move(monotonic=60.0)
        own.check()
        with pytest.raises(RestoreBusy, match="Run first has started this restore, and its driver is still running"):
            claim.make()
        clocks.move(monotonic=60.0)
        own.check()


def test_a_beat_finds_it_too(first: RestoreState, clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()

    class Noted(RunFence):
        def beat(self) -> None:
            super().beat()
            looked.set()

    with RunFence(first):
        take_over(first)
    monkeypatch.setattr(run_note, "BEAT_SECONDS", 0.01)
    with Noted(first) as own:
        assert looked.wait(60)
        with pytest.raises(RestoreBusy, match=TAKEN):
            own.check()


def test_a_driver_whose_run_was_started_again_ends_and_leaves_the_note_of_the_other_one(
    first: RestoreState, clocks: Clocks
) -> None:
    with RunFence(first) as other, RunFence(first) as own:
        clocks.move(boot=60.0)
        with pytest.raises(RestoreBusy, match="Run first was started again while this driver was still running"):
            other.check()
        seen = note_of(first)
        other.beat()
        other.end()
        assert note_of(first) == seen
        own.check()
    clocks.move(boot=60.0)
    with RunFence(first) as later:
        later.check()


def test_a_driver_whose_run_was_started_again_ends_also_if_that_has_ended(first: RestoreState, clocks: Clocks) -> None:
    with RunFence(first) as own:
        with RunFence(first):
            pass
        clocks.move(boot=60.0)
        with pytest.raises(RestoreBusy, match="Run first was started again"):
            own.check()


def test_a_task_sends_no_more_once_its_run_was_started_again(first: RestoreState, clocks: Clocks) -> None:
    async def send() -> None:
        with ThreadPoolExecutor(1) as pool:
            own = TaskFence(first, pool)
            await own.check()
            with RunFence(first):
                await own.check()  # it has just looked
                clocks.move(boot=60.0)
                with pytest.raises(RestoreBusy, match="Run first was started again"):
                    await own.check()

    with RunFence(first):
        asyncio.run(send())


def not_permitted() -> None:
    raise RestoreBusy("not permitted")


TOPIC = NewTopicPlan("t", 1, 1)
POSITION = GroupPosition("g", "t", 0, 7, -1, "")
ACL = Acl("TOPIC", "t", "LITERAL", "User:u", "*", "READ", "ALLOW")
QUOTA = Quota((("user", "u"),), "producer_byte_rate", 1.0)
CHANGES: list[Callable[[ControlPlane], Any]] = [
    lambda control: control.create_topics([TOPIC]),
    lambda control: control.alter_topic_configs("t", {"retention.ms": "1"}),
    lambda control: control.delete_topic_ids({"t": "Rzj82UoXSGijKAanKet95Q"}),
    lambda control: control.set_group_offsets([POSITION]),
    lambda control: control.delete_group_offsets([POSITION]),
    lambda control: control.create_acls([ACL]),
    lambda control: control.set_quotas([QUOTA]),
]


class NoPool:
    """Stands for connections to brokers. Nobody asks them anything but who the controller is."""

    limits = Limits()

    def __init__(self, *_: object) -> None:
        pass

    async def controller(self) -> int:
        return 1

    async def connected(self, *_: int) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_of_the_cluster_is_asked_for_without_a_look(
    change: Callable[[ControlPlane], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_no_pool(_: ControlPlane, question: Question[Any], reach: float) -> Any:
        return asyncio.run(cast(Any, question(cast(Any, NoPool()))))

    monkeypatch.setattr(ControlPlane, "_on_a_pool", on_no_pool)
    monkeypatch.setattr(positions, "BrokerPool", NoPool)
    with ControlPlane(KafkaConnection(("127.0.0.1:1",)), timeout=1.0) as control:
        control._connected = True
        control.only_while(not_permitted)
        with pytest.raises(RestoreBusy, match="not permitted"):
            change(control)


def test_positions_of_many_groups_are_not_set_on_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[str] = []

    async def change(_: object, group: str, *__: object) -> dict[tuple[str, int], int]:
        changed.append(group)
        return {}

    def permit() -> None:
        if changed:
            not_permitted()

    monkeypatch.setattr(positions, "BrokerPool", NoPool)
    monkeypatch.setattr(positions, "_change", change)
    connection = KafkaConnection(("127.0.0.1:1",))
    wanted: dict[str, list[FetchedPosition]] = {f"g{number}": [] for number in range(200)}
    with pytest.raises(RestoreBusy, match="not permitted"):
        asyncio.run(positions.change_positions(connection, wanted, positions.commit_request, permit))
    assert 0 < len(changed) < 100


def test_a_task_sends_no_more_batches_once_its_run_was_taken_over(
    first: RestoreState, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    class Batches:
        def batches(self) -> Iterator[Outgoing]:
            for number in range(100):
                yield Outgoing(number, 1, 64 << 10, (b"b",), ((number, 1),), 0)

    class Noting:
        async def take(self, item: Outgoing) -> None:
            sent.append(item.index)
            if len(sent) == 2:
                take_over(first)
                clocks.move(boot=60.0)

        def end(self) -> None:
            pass

    async def send() -> None:
        with ThreadPoolExecutor(1) as pool:
            own = TaskFence(first, pool)
            await own.check()
            context = Context(0)
            shared = Shared(cast(RawClient, None), pool, TaskProgress(context), context, own)
            sending = task._Pass(task_of(), shared)
            sending._outlets = [cast(Outlet, Noting())]
            try:
                await sending._deal()
            finally:
                await sending._ahead.stop()

    monkeypatch.setattr(task, "TaskStream", lambda *_: Batches())
    with RunFence(first):
        pass
    with pytest.raises(RestoreBusy, match=TAKEN):
        asyncio.run(send())
    assert sent == [0, 1]

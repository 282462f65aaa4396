"""`offsets: Same` into three brokers that die while transactions continue: the same offsets, or a refusal."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.errors import TargetChanged
from logkeep_engine.kafka import protocol
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.client import Limits, RawClient
from logkeep_engine.kafka.transactions import PaddingTransactions
from tests import examples
from tests.cluster.kafka_cluster import KafkaCluster
from tests.data.topics import NO_RETENTION, Record, produce
from tests.kafka.backing_up import Topics
from tests.kafka.raw import plain
from tests.kafka.restores import Archived, back_up, backup_spec, bring_back, committed, transactions
from tests.kafka.test_restore_cluster import Disturbed
from tests.runners import Runner

NOW = 1_700_000_000_000


TOPIC = "with-gaps"


@pytest.fixture(scope="module")
def archive(three_brokers: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic that starts above 0, with records that cannot be compressed, and gaps among and behind them."""
    root = tmp_path_factory.mktemp("same") / "archive"
    three_brokers.create_topic(TOPIC, [[1, 2, 3]], NO_RETENTION)
    values = random.Random(7)
    for part in range(3):
        records = [Record(b"k%d" % number, values.randbytes(250), NOW + number) for number in range(800)]
        produce(three_brokers.bootstrap, TOPIC, records, config={"batch.size": 20_000})
        transactions(three_brokers, TOPIC, [1, -3 - part, 2, -1])
    Topics(three_brokers).delete_records(TOPIC, 20)
    back_up(backup_spec(three_brokers, root, TOPIC))
    return root


@pytest.fixture
def archived(cluster: KafkaCluster, archive: Path, tmp_path: Path) -> Archived:
    return Archived.of(cluster, TOPIC, archive, tmp_path / "archive")


def bounds(cluster: KafkaCluster, topic: str) -> tuple[int, int]:
    async def ask() -> tuple[int, int]:
        async with RawClient(plain(cluster.bootstrap.split(",")[0])) as client:
            return await client.start_offset(topic, 0), await client.log_end(topic, 0)

    return asyncio.run(ask())


def assert_same(archived: Archived) -> None:
    cluster, topic, copy = archived.cluster, archived.topic, archived.copy
    cluster.restore()
    (start, end), (copy_start, copy_end) = bounds(cluster, topic), bounds(cluster, copy)
    assert copy_start == start
    assert end <= copy_end <= end + 2, "a marker may be there twice behind the last record"
    assert committed(cluster, copy) == committed(cluster, topic)


def before(monkeypatch: pytest.MonkeyPatch, step: str, number: int, act: Callable[[PaddingTransactions], None]) -> None:
    """Something happens in front of the step of the given transaction, counted from 0."""
    seen: list[str] = []
    usual = getattr(PaddingTransactions, step)

    async def run(self: PaddingTransactions, *arguments: Any, **named: Any) -> Any:
        seen.append(step)
        if len(seen) == number + 1:
            await asyncio.to_thread(act, self)
        return await usual(self, *arguments, **named)

    monkeypatch.setattr(PaddingTransactions, step, run)


def assert_same_unless_marked_twice(archived: Archived, runner: Runner | None = None) -> None:
    """A coordinator that does not hear that a marker was written, or dies before it has noted it, has it written once
    more. Then a record after it may not have its offset, and the restore must say so.
    """
    try:
        bring_back(archived.spec(offsets="Same"), runner=runner)
    except TargetChanged as error:
        assert "the marker of a transaction twice" in error.message + str(error.hint)  # noqa: PT017
        return
    assert_same(archived)


STEPS = [("_begin", 2), ("_end", 4), ("_begin", 0), ("_complete", 6), ("_write", 3), ("_complete", 2)]


@pytest.mark.deep
@pytest.mark.parametrize(("step", "number"), STEPS[: examples.number(1, deep=6)])
def test_a_leader_that_dies_in_a_transaction(
    cluster: KafkaCluster, archived: Archived, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    copy = archived.copy

    def kill(_: PaddingTransactions) -> None:
        leader = cluster.leader(copy)
        cluster.kill(leader)
        cluster.wait_for_leader(copy)

    before(monkeypatch, step, number, kill)
    assert_same_unless_marked_twice(archived)


@pytest.mark.deep
@pytest.mark.parametrize(("step", "number"), STEPS[-examples.number(1, deep=6) :])
def test_a_coordinator_that_dies_in_a_transaction(
    cluster: KafkaCluster, archived: Archived, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    def kill(held: PaddingTransactions) -> None:
        node = held._coordinator
        assert node is not None
        cluster.kill(node)

    before(monkeypatch, step, number, kill)
    assert_same_unless_marked_twice(archived)


def test_a_broker_that_comes_back_is_asked(cluster: KafkaCluster) -> None:
    """It may be the coordinator of a transaction or of a group before this client has heard of it."""

    async def ask() -> int:
        async with BrokerPool(plain(cluster.addresses[0]), Limits()) as pool:
            await asyncio.to_thread(cluster.start, 2)
            await asyncio.to_thread(cluster.wait_until_registered)
            return len((await pool.send(2, 0, protocol.metadata([]))).brokers)

    cluster.kill(2)
    cluster.wait_until_registered(1, 3)
    assert asyncio.run(ask()) == 3


def test_leaders_killed_again_and_again(cluster: KafkaCluster, archived: Archived) -> None:
    copy = archived.copy

    def kill_the_leader() -> None:
        leader = cluster.leader(copy)
        cluster.kill(leader)
        cluster.wait_for_leader(copy)
        cluster.start(leader)
        cluster.wait_in_sync(copy)

    assert_same_unless_marked_twice(archived, Disturbed(kill_the_leader, after=200_000, times=2))


@pytest.mark.deep
@pytest.mark.parametrize("inside", [False, True][: examples.number(2, deep=2)])
def test_what_an_unclean_election_took_is_sent_again_or_missed(
    cluster: KafkaCluster, archived: Archived, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """Between two records the loss is mended. In a transaction its padding may lie where records should be."""
    copy = archived.copy

    def alone() -> None:
        cluster.lead_alone(copy)

    def lose() -> None:
        cluster.lose_what_was_alone(copy)

    if inside:
        before(monkeypatch, "_write", 2, lambda _: lose())
    try:
        bring_back(
            archived.spec(offsets="Same"),
            runner=Disturbed(lambda: None if inside else lose(), alone, after=250_000),
        )
    except TargetChanged:
        assert inside
        return
    assert_same(archived)

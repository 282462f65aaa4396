"""An address of a broker that leads to a broker of another cluster, which has topics of the same names: no record of it
is archived, and none is written to it.
"""

import threading
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.model import replace
from logkeep_engine.errors import BrokerUnavailable
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import Limits
from tests.cluster import system, versions
from tests.cluster.forwarder import Forwarder
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.data.topics import create_topic, topic_names
from tests.kafka.backing_up import Topics, numbers
from tests.kafka.raw import batch, plain, run
from tests.kafka.restores import (
    ThreadRunner,
    back_up,
    backup_spec,
    bring_back,
    committed,
    restore_spec,
    topic_settings,
    without_offsets,
)

SOON = Limits(connect=2, outage=2, control=2)
SECONDS = 3.0


@dataclass(frozen=True)
class Moved:
    """A cluster whose broker is reached through a port that leads, as soon as it is `moved`, to another cluster."""

    right: KafkaBroker
    other: KafkaBroker
    port: Forwarder

    @property
    def address(self) -> str:
        """The address that the broker advertises."""
        return f"127.0.0.1:{self.port.server_address[1]}"

    @property
    def has_led_to_the_other(self) -> bool:
        """Whether a connection was led to the other cluster since the test began."""
        return self.other.bootstrap in self.port.led_to

    def move(self) -> None:
        self.port.target = self.other.bootstrap

    def move_back(self) -> None:
        self.port.target = self.right.bootstrap

    def move_for_a_while(self, *_: Any) -> None:
        """Move it, and back after some seconds. Whoever asks again then is at the right cluster."""
        self.move()
        threading.Timer(SECONDS, self.move_back).start()


@pytest.fixture(scope="module", params=[versions.NEWEST, "3.9.1"])
def both(request: pytest.FixtureRequest) -> Iterator[Moved]:
    (port,) = system.free_ports(1, "127.0.0.1", None)
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with (
        Forwarder(port) as forwarder,
        KafkaBroker(overrides={**STEADY, **advertised}, version=request.param) as right,
        KafkaBroker(overrides=STEADY, version=request.param) as other,
    ):
        yield Moved(right, other, forwarder)


@pytest.fixture
def moved(both: Moved) -> Iterator[Moved]:
    """The port leads to the right cluster when a test begins."""
    both.port.led_to.clear()
    both.move_back()
    yield both
    both.move_back()


def is_of(other: KafkaBroker, right: KafkaBroker) -> str:
    return f"belongs to Kafka cluster {other.cluster_id}, not to {right.cluster_id}"


def test_a_backup_archives_no_record_of_another_cluster(moved: Moved, unique: str, tmp_path: Path) -> None:
    for broker, first in ((moved.right, 0), (moved.other, 500)):
        create_topic(broker.bootstrap, unique)
        Topics(broker).produce(unique, numbers(100, first=first))
    result = back_up(backup_spec(moved.right, tmp_path, unique), runner=ThreadRunner(before=moved.move_for_a_while))
    assert moved.has_led_to_the_other
    assert result.records == 100
    moved.move_back()
    bring_back(restore_spec(moved.right, tmp_path))
    assert without_offsets(committed(moved.right, f"{unique}-copy")) == without_offsets(committed(moved.right, unique))


def test_a_restore_writes_no_record_to_another_cluster(moved: Moved, unique: str, tmp_path: Path) -> None:
    for broker, topic in ((moved.right, unique), (moved.other, f"{unique}-copy")):
        create_topic(broker.bootstrap, topic)
    Topics(moved.right).produce(unique, numbers(100))
    back_up(backup_spec(moved.right, tmp_path, unique))
    result = bring_back(restore_spec(moved.right, tmp_path), runner=ThreadRunner(before=moved.move_for_a_while))
    assert moved.has_led_to_the_other
    assert (result.outcome, result.records) == ("Succeeded", 100)
    assert len(committed(moved.right, f"{unique}-copy")) == 100
    assert committed(moved.other, f"{unique}-copy") == []


def test_a_run_that_begins_at_another_cluster_names_both_and_changes_nothing(
    moved: Moved, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for broker, topic in ((moved.right, unique), (moved.other, f"{unique}-copy")):
        create_topic(broker.bootstrap, topic)
    Topics(moved.right).produce(unique, numbers(100))
    back_up(backup_spec(moved.right, tmp_path, unique))
    monkeypatch.setattr(Limits.__init__, "__defaults__", astuple(SOON))
    moved.move()
    with pytest.raises(BrokerUnavailable) as refused:
        bring_back(restore_spec(moved.right, tmp_path))
    # The bootstrap address is right, and the address that its broker advertises leads to the other cluster.
    assert is_of(moved.other, moved.right) in str(refused.value)
    moved.move_back()
    assert committed(moved.other, f"{unique}-copy") == []
    assert topic_settings(moved.other, f"{unique}-copy") == {}
    assert f"{unique}-copy" not in topic_names(moved.right.bootstrap)


def test_the_message_names_the_broker_its_address_both_clusters_and_what_to_do(moved: Moved, unique: str) -> None:
    create_topic(moved.right.bootstrap, unique)
    connection = replace(plain(moved.right.bootstrap), cluster_id=moved.right.cluster_id, limits=SOON)

    async def ask() -> None:
        moved.move()
        async with RawClient(connection) as client:
            await client.end_offset(unique, 0)

    with pytest.raises(BrokerUnavailable) as refused:
        run(ask())
    text = f"Cannot list offsets of topic {unique!r} partition 0: broker 1 ({moved.address}) "
    assert str(refused.value) == (
        f"{text}{is_of(moved.other, moved.right)}. Tried for 2 s. Check where this address leads: the name, the "
        "port, and anything that forwards connections. It must be a broker of the cluster that "
        "spec.cluster.bootstrapServers names."
    )


def test_brokers_are_of_the_cluster_that_names_them_where_any_cluster_would_do(moved: Moved, unique: str) -> None:
    """Nobody has said which cluster it must be: an address that it names must still lead to it."""
    create_topic(moved.right.bootstrap, unique)

    async def ask() -> None:
        async with RawClient(replace(plain(moved.right.bootstrap), limits=SOON)) as client:
            moved.move()
            await client.produce(unique, 0, batch([b"a record"]))

    with pytest.raises(BrokerUnavailable, match=is_of(moved.other, moved.right)):
        run(ask())

"""The judge of the simulation knows which records were in one log, also where an end that was cut off comes back."""

import uuid
from collections.abc import Iterator

import pytest

from logkeep_engine.log.records import Record
from tests.simulation.cluster import SimulatedCluster, Topic, World
from tests.simulation.history import Action, History
from tests.simulation.ledger import Fate, Ledger, Written, check_topic
from tests.simulation.partition_log import Partition, batch


class Orders:
    """Topic orders with one partition on three brokers. Broker 1 leads, then 3, which was behind, then 2, which has a
    part of what 3 had cut off and nothing of what 3 took."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.ledger = Ledger()
        self._cluster = cluster
        self._history = History(cluster, self.ledger)
        self.topic: Topic = cluster.do(lambda: cluster.create("orders", 1, replicas=3))
        self.partition: Partition = self.topic.partitions[0]
        self._happen("write")
        self.common = self.now()
        cluster.do(lambda: self.partition.leave_isr(3))
        self._happen("write")
        self.old_end = self.now()[len(self.common) :]
        cluster.do(lambda: self.partition.leave_isr(2))
        self._happen("write")
        self.first = self.now()
        cluster.do(lambda: cluster.stop_broker(2))
        self._happen("unclean")
        assert self.now() == self.common

    def write_to_the_second_leader(self, times: int) -> list[Record]:
        """The records that broker 3 takes, and nobody else ever has."""
        for _ in range(times):
            self._happen("write")
        return self.now()[len(self.common) :]

    def lead_with_the_old_end(self) -> list[Record]:
        """The records that broker 2 takes."""
        self._cluster.do(lambda: self._cluster.start_broker(2))
        self._happen("unclean")
        assert self.now() == [*self.common, *self.old_end]
        self._happen("write")
        return self.now()[len(self.common) + len(self.old_end) :]

    def now(self) -> list[Record]:
        return self._cluster.do(self.partition.log.committed)

    def kinds(self, restored: list[Record], *, living: bool = True) -> set[str]:
        """The promises that a restore of these records breaks."""
        ids = {self.topic.printed_id: self.topic}
        return {
            found.kind for found in check_topic(self.ledger, "orders", [restored], ids, self.topic if living else None)
        }

    def require(self, records: list[Record]) -> None:
        """A backup that Succeeded has had them."""
        place = (self.topic.printed_id, 0)
        self.ledger.required[place] = {record.value or b"": record.offset for record in records}

    def _happen(self, name: str) -> None:
        before = self.partition.epoch, self.partition.log.end
        self._cluster.do(lambda: self._history.happen(Action(name, 1)))
        assert (self.partition.epoch, self.partition.log.end) != before


@pytest.fixture
def orders(world: World) -> Iterator[Orders]:
    with SimulatedCluster(world) as cluster:
        yield Orders(cluster)


@pytest.mark.parametrize("times", [1, 9])
def test_an_old_end_that_is_back_may_be_restored_with_what_follows_it(orders: Orders, times: int) -> None:
    orders.write_to_the_second_leader(times)
    newest = orders.lead_with_the_old_end()
    orders.require(orders.now())

    assert newest
    assert orders.kinds(orders.now()) == set()


@pytest.mark.parametrize("times", [1, 9])
def test_what_the_old_end_has_replaced_is_of_another_lineage(orders: Orders, times: int) -> None:
    replaced = orders.write_to_the_second_leader(times)
    newest = orders.lead_with_the_old_end()
    below = [record for record in replaced if record.offset < newest[0].offset]

    assert orders.kinds([*orders.common, *below, *newest]) == {"two lineages mixed"}


def test_what_an_election_has_replaced_is_of_another_lineage(orders: Orders) -> None:
    newest = orders.write_to_the_second_leader(9)
    behind = [record for record in newest if record.offset > orders.old_end[-1].offset]

    assert behind
    assert orders.kinds([*orders.common, *orders.old_end, *behind]) == {"two lineages mixed"}
    assert orders.kinds(orders.first) == orders.kinds(orders.now()) == set()


def test_an_old_end_that_is_back_is_missing_where_it_is_not_restored(orders: Orders) -> None:
    orders.require(orders.first)
    orders.write_to_the_second_leader(1)
    newest = orders.lead_with_the_old_end()

    assert orders.kinds([*orders.common, *newest]) == {"missing"}
    assert orders.kinds([*orders.common, *newest], living=False) == set()
    assert orders.kinds(orders.now()) == set()


def test_a_topic_is_restored_empty_only_where_the_cluster_has_lost_all_that_was_archived(orders: Orders) -> None:
    orders.require(orders.first[len(orders.common) :])
    assert orders.kinds([]) == set()
    orders.require(orders.first)
    assert orders.kinds([]) == {"no incarnation", "missing"}


def test_each_election_that_loses_records_counts(orders: Orders) -> None:
    place = (orders.topic.printed_id, 0)
    assert orders.ledger.cuts[place] == 1

    shorter = orders.write_to_the_second_leader(1)
    orders.lead_with_the_old_end()

    assert len(shorter) <= len(orders.old_end), "the second leader's log is not the longer one, and yet cut off"
    assert orders.ledger.cuts[place] == 2


@pytest.mark.parametrize(("archived", "kinds"), [(4, set()), (5, {"aborted restored"})])
def test_the_end_of_a_transaction_is_known_where_its_marker_is_archived(archived: int, kinds: set[str]) -> None:
    ledger = Ledger()
    record = Record(3, 0, b"key", b"value")
    place = ("id", 0)
    ledger.written[b"value"] = Written("orders", place, record, 1, 0, 0)
    ledger.fates[1], ledger.markers[1], ledger.archived[place] = Fate.ABORTED, 4, archived
    partition = Partition((1,))
    partition.append(batch([(b"key", b"value")] * 4))
    topic = Topic("orders", uuid.uuid4(), [partition])
    found = check_topic(ledger, "orders", [[record]], {"id": topic}, topic)
    assert {item.kind for item in found} == kinds


@pytest.mark.parametrize("counted", [False, True])
def test_records_that_an_election_takes_are_excused_if_the_restore_has_counted_them(
    orders: Orders, counted: bool
) -> None:
    orders.write_to_the_second_leader(1)
    orders.partition.counted = counted
    orders.lead_with_the_old_end()
    assert orders.partition.lost_when_counted is counted
    assert not orders.partition.counted  # there is a new record

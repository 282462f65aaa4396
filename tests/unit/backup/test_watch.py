"""The times that brokers tell about what a run has not archived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunOutcome, TopicEntry
from logkeep_engine.backup.model.plan import BackupPlan
from logkeep_engine.backup.recoverability import watch
from logkeep_engine.backup.recoverability.watch import BrokerRetentionLimits, EndedBackup, HeldBack, ask_brokers
from logkeep_engine.contract.facts.values import time_of
from logkeep_engine.errors import BrokerUnavailable
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import Bounds
from logkeep_engine.kafka.survey import Answers
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import ORDERS, begin, chunk

HOUR = 3_600_000
Where = tuple[str, int]
BY_TIME = {"cleanup.policy": "delete", "retention.ms": str(24 * HOUR), "retention.bytes": "-1"}
BY_SIZE = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "1000"}


@dataclass
class Leaders:
    """A cluster as its leaders tell it: log ends, log starts with last stable offsets, and times of records."""

    ends: dict[Where, int]
    bounds_: dict[Where, Bounds]
    times: dict[Where, int | None] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=lambda: BY_TIME)

    def __enter__(self) -> Leaders:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def high_watermarks(self, partitions: Iterable[Where]) -> Answers[int]:
        return Answers({where: self.ends[where] for where in partitions if where in self.ends})

    def bounds(self, partitions: Iterable[Where]) -> Answers[Bounds]:
        return Answers({where: self.bounds_[where] for where in partitions if where in self.bounds_})

    def record_times(self, wanted: Mapping[Where, int]) -> Answers[int | None]:
        return Answers({where: self.times[where] for where in wanted})


@pytest.fixture
def backed(tmp_path: Path) -> EndedBackup:
    """A run that has archived [0, 10) of both partitions of a topic."""
    storage = open_uri(f"file://{tmp_path}/archive")
    topic = TopicEntry(ORDERS.name, ORDERS.topic_id, 2, 1)
    with begin(storage, "run-1") as writer:
        writer.commit(topics=[topic], receipts=[chunk(storage, 0, 10), chunk(storage, 0, 10, partition=1)])
        writer.end(RunOutcome.SUCCEEDED)
    archive = Archive.open(storage)
    return EndedBackup("run-1", archive, archive.load(), BackupPlan("run-1", (topic,), ()))


def ask(backed: EndedBackup, leaders: Leaders, monkeypatch: pytest.MonkeyPatch) -> BrokerRetentionLimits:
    monkeypatch.setattr(watch, "ControlPlane", lambda *_, **__: leaders)
    monkeypatch.setattr(watch, "effective_topic_configs", lambda _, topics: dict.fromkeys(topics, leaders.configs))
    return ask_brokers(backed, KafkaConnection(("broker:9092",)))


P0, P1 = ("orders", 0), ("orders", 1)


def test_what_is_archived_whole_is_kept_from_now_on(backed: EndedBackup, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = ask(backed, Leaders({P0: 10, P1: 10}, {P0: Bounds(0, 10), P1: Bounds(0, 10)}), monkeypatch)
    assert reported.deadlines is not None
    assert (reported.held, reported.deadlines.unknown_topics) == ({}, 0)
    assert reported.deadlines.topics[0].oldest_time == reported.deadlines.check_time


def test_records_after_an_open_transaction_are_as_old_as_they_are(
    backed: EndedBackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = backed.begun - HOUR
    leaders = Leaders({P0: 15, P1: 13}, {P0: Bounds(0, 10), P1: Bounds(0, 10)}, {P0: old, P1: old - 1})
    reported = ask(backed, leaders, monkeypatch)
    assert reported.held == {"orders": HeldBack(8, old - 1)}
    assert reported.deadlines is not None
    assert [(topic.partition, topic.oldest_time) for topic in reported.deadlines.topics] == [
        (1, time_of((old - 1) / 1000))
    ]
    assert reported.deadlines.deadline == time_of((old - 1) / 1000 + 86400)

    unreported = ask(backed, Leaders(leaders.ends, leaders.bounds_, {P0: None, P1: old}), monkeypatch)
    assert unreported.held == {"orders": HeldBack(8, None)}
    assert unreported.deadlines is not None
    assert unreported.deadlines.unknown_topics == 1, "it is unknown how old the oldest record is"


def test_a_transaction_holds_back_all_of_a_partition_of_which_nothing_is_archived(
    backed: EndedBackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = backed.begun - HOUR
    state = backed.archive.load()
    state.coverage.pop((ORDERS.topic_id, 1))
    leaders = Leaders({P0: 10, P1: 45}, {P0: Bounds(0, 10), P1: Bounds(40, 40)}, {P1: old})
    reported = ask(replace(backed, state=state), leaders, monkeypatch)
    assert reported.held == {"orders": HeldBack(5, old)}


def test_a_transaction_that_began_after_the_run_holds_back_nothing_of_before(
    backed: EndedBackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders = Leaders({P0: 15, P1: 10}, {P0: Bounds(0, 10), P1: Bounds(0, 10)}, {P0: backed.begun})
    assert ask(backed, leaders, monkeypatch).held == {}


def test_a_limit_by_size_needs_an_answer_of_the_leader(backed: EndedBackup, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = ask(backed, Leaders({}, {}, configs=BY_SIZE), monkeypatch)
    assert reported.deadlines is not None
    assert (reported.deadlines.deadline, reported.deadlines.unknown_topics) == (None, 1)
    by_time = ask(backed, Leaders({}, {}), monkeypatch)
    assert by_time.deadlines is not None
    assert by_time.deadlines.unknown_topics == 0
    assert by_time.deadlines.topics[0].oldest_time == time_of(backed.begun / 1000)


def test_brokers_that_do_not_answer_tell_nothing(backed: EndedBackup, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object, **__: object) -> None:
        raise BrokerUnavailable("No broker answers.")

    monkeypatch.setattr(watch, "ControlPlane", silent)
    assert ask_brokers(backed, KafkaConnection(("broker:9092",))) == BrokerRetentionLimits()

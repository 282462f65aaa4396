"""How large an archive is, how fast it grows, and which topics are behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import (
    Coverage,
    GenerationChange,
    GenerationStep,
    RunEntry,
    RunOutcome,
    TopicEntry,
)
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.points import KeepRules
from logkeep_engine.archive.maintenance.removal import Purged
from logkeep_engine.archive.maintenance.retaining import RetentionRules, retain
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.reading.completeness import complete_until
from logkeep_engine.backup.model.plan import BackupPlan, Chunk
from logkeep_engine.backup.recoverability.watch import EndedBackup, HeldBack
from logkeep_engine.backup.run.archive_report import generations_of, recovery, retained_by, topic_totals
from logkeep_engine.contract.facts.values import time_of
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import MAX_LIST
from logkeep_engine.storage import LockedObject, Storage, open_uri
from tests.examples import number
from tests.unit.archive.build import ORDERS, TIME, begin, chunk

HOUR = 3_600_000
DAY = 24 * HOUR
USERS = TopicEntry("users", "uuuuuuuuuuuuuuuuuuuuuu", 1, 1)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def test_totals_of_a_topic_are_those_of_all_its_partitions(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(
            topics=[ORDERS, USERS],
            receipts=[
                chunk(storage, 0, 20),
                chunk(storage, 20, 30, partition=1),
                chunk(storage, 5, 6, topic=USERS),
            ],
        )
        writer.end(RunOutcome.SUCCEEDED)
        totals = topic_totals(writer.state)
    orders = totals[ORDERS.topic_id]
    assert (orders.segments, orders.records, orders.first, orders.last) == (2, 30, TIME, TIME + 29)
    assert orders.bytes == orders.stored_bytes > 0
    assert totals[USERS.topic_id].records == 1


def backed(storage: Storage, plan: BackupPlan, run_id: str) -> EndedBackup:
    archive = Archive.open(storage)
    return EndedBackup(run_id, archive, archive.load(), plan)


def planned(run_id: str, *chunks: Chunk) -> BackupPlan:
    return BackupPlan(run_id, (ORDERS, USERS), chunks)


def piece(start: int, end: int, topic: TopicEntry = ORDERS, partition: int = 0) -> Chunk:
    return Chunk(topic.name, topic.topic_id, partition, start, end, 1, 100)


def back_up(storage: Storage, plan: BackupPlan, done: int, outcome: RunOutcome = RunOutcome.SUCCEEDED) -> EndedBackup:
    """A run that does the first chunks of its plan."""
    with begin(storage, plan.run_id) as writer:
        storage.create(names.run_file(plan.run_id, "plan.json"), plan.to_json())
        receipts = [
            chunk(
                storage,
                item.start,
                item.end,
                partition=item.partition,
                topic=ORDERS if item.topic == "orders" else USERS,
                epoch=writer.epoch,
            )
            for item in plan.chunks[:done]
        ]
        writer.commit(topics=plan.topics, receipts=receipts)
        writer.end(outcome, partial=outcome is RunOutcome.FAILED)
    return backed(storage, plan, plan.run_id)


def complete_of(found: EndedBackup) -> dict[str, tuple[str | None, int | None]]:
    by_topic = topic_totals(found.state)
    report = recovery(found, by_topic, min((totals.first for totals in by_topic.values()), default=-1))
    assert report.last_time == time_of(found.begun / 1000)
    assert report.topics_behind == len(report.behind)
    return {topic.topic: (topic.last_time, topic.offsets) for topic in report.behind}


def test_a_topic_is_complete_up_to_the_last_run_that_archived_it_whole(storage: Storage) -> None:
    first = back_up(storage, planned("run-1", piece(0, 10), piece(0, 10, USERS)), 2)
    assert complete_of(first) == {}
    time.sleep(0.002)
    # The run gets half of one partition and nothing of the other: its own segment promises nothing.
    second = back_up(
        storage, planned("run-2", piece(10, 20), piece(20, 30), piece(0, 10, partition=1)), 1, RunOutcome.FAILED
    )
    assert complete_of(second) == {"orders": (time_of(first.begun / 1000), 20)}
    assert second.begun > first.begun
    state = second.state
    assert complete_until(second.archive, state, state.topics) == {
        ORDERS.topic_id: first.begun,
        USERS.topic_id: first.begun,
    }
    time.sleep(0.002)
    third = back_up(storage, planned("run-3", piece(20, 30), piece(0, 10, partition=1)), 2)
    assert complete_of(third) == {}
    assert complete_until(third.archive, third.state, [ORDERS.topic_id]) == {ORDERS.topic_id: third.begun}


def test_of_a_topic_that_no_run_has_archived_whole_nothing_is_promised(storage: Storage) -> None:
    only = back_up(storage, planned("run-1", piece(0, 10), piece(0, 10, USERS)), 1, RunOutcome.FAILED)
    assert complete_of(only) == {"users": (None, 10)}
    silent = replace(only, plan=replace(only.plan, unavailable=(("users", 0), ("unheard", -1))))
    assert complete_of(silent) == {"unheard": (None, None), "users": (None, None)}


def test_a_plan_that_cannot_be_read_promises_nothing(storage: Storage) -> None:
    done = back_up(storage, planned("run-1", piece(0, 10)), 1)
    path = names.run_file("run-1", "plan.json")
    for content in (b"{", b"[]", b'{"topics": 1}'):
        storage.delete([path])
        storage.create(path, content)
        assert complete_until(done.archive, done.state, [ORDERS.topic_id]) == {}
    storage.delete([path])
    assert complete_until(done.archive, done.state, [ORDERS.topic_id]) == {}


@pytest.mark.deep
def test_the_report_on_very_many_partitions_is_small(storage: Storage) -> None:
    each = number(10, deep=100)
    topics = tuple(TopicEntry(f"topic-{at}", f"{at:a>22}", each, 1) for at in range(1000))
    chunks = tuple(piece(0, 1000, topic, at) for topic in topics for at in range(each))
    state = ArchiveState()
    state.add_facts(topics, [Coverage(item.topic_id, item.partition, 0, 500) for item in chunks], (), ())
    state.runs["run-1"] = RunEntry("run-1", 1, "KafkaBackup", TIME, TIME + 1, RunOutcome.FAILED)
    archive = Archive.create_or_open(storage, "cluster")
    report = recovery(EndedBackup("run-1", archive, state, BackupPlan("run-1", topics, chunks)), {}, -1)
    assert (report.topics_behind, len(report.behind)) == (1000, MAX_LIST)
    assert {topic.offsets for topic in report.behind} == {500 * each}
    assert len(report.model_dump_json()) < 4096


def test_a_transaction_that_is_open_puts_off_the_time_or_names_its_topic(storage: Storage) -> None:
    done = back_up(storage, planned("run-1", piece(0, 10), piece(0, 10, USERS)), 2)
    by_topic = topic_totals(done.state)
    short = recovery(done, by_topic, TIME, {"orders": HeldBack(7, done.begun - 1000)})
    assert (short.last_time, short.behind) == (time_of((done.begun - 1000) / 1000), ())
    long = recovery(done, by_topic, TIME, {"orders": HeldBack(7, done.begun - HOUR), "users": HeldBack(2, None)})
    assert (long.last_time, long.topics_behind) == (time_of(done.begun / 1000), 2)
    assert [(topic.topic, topic.last_time, topic.offsets) for topic in long.behind] == [
        ("users", None, 2),
        ("orders", time_of((done.begun - HOUR) / 1000), 7),
    ]


def test_a_run_tells_what_its_retention_has_removed_and_which_points_it_keeps(storage: Storage) -> None:
    rules = RetentionRules(RetentionLimits(None, 1), KeepRules(daily=2), DAY)
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 20), chunk(storage, 20, 30)])
        writer.hold([Hold(HoldKind.TOPIC, "users", HoldOrigin.SPEC)])
        writer.end(RunOutcome.SUCCEEDED)
        done = retain(writer, rules)
        found = retained_by(writer.state, rules, done)
    assert found is not None
    assert (found.removed_segments, found.deleted_segments, found.holds) == (done.removed.segments, 0, 1)
    assert found.waiting_segments == found.removed_segments > 0
    assert found.waiting_bytes == found.removed_bytes > 0
    assert (found.points, [(point.run_id, set(point.rules)) for point in found.kept]) == (
        1,
        [("run-1", {"last", "daily"})],
    )
    locked = (LockedObject("a.log", None, True), LockedObject("b.log", 5.0, False))
    reported = retained_by(writer.state, rules, replace(done, purged=Purged(1, 9, locked=locked)))
    assert reported is not None
    assert reported.locked is not None
    assert (reported.locked.objects, reported.locked.until, reported.locked.legal_holds, reported.locked.first) == (
        2,
        "1970-01-01T00:00:05Z",
        1,
        "a.log",
    )


def test_a_run_without_rules_and_removals_tells_nothing_of_retention(storage: Storage) -> None:
    rules = RetentionRules(RetentionLimits(None, None), KeepRules(), DAY)
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 20)])
        writer.end(RunOutcome.SUCCEEDED)
        assert retained_by(writer.state, rules, retain(writer, rules)) is None
        assert retained_by(writer.state, rules, None) is None


def test_the_generations_of_a_topic_are_reported_as_one(storage: Storage) -> None:
    key = (ORDERS.topic_id, 0)
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 20)])
        writer.end(RunOutcome.SUCCEEDED)
    with begin(storage, "run-2") as writer:
        writer.change_generations([GenerationChange(*key, 2, GenerationStep.BEGIN, 0, 20)])
        (reading,) = generations_of(writer.state)
        assert (reading.topic, reading.partitions, reading.reading) == ("orders", 1, 1)
        writer.commit(receipts=[replace(chunk(storage, 0, 20, epoch=2), generation=2)])
        writer.change_generations([GenerationChange(*key, 2, GenerationStep.ACTIVATE, 0, 20)])
        writer.end(RunOutcome.SUCCEEDED)
        (active,) = generations_of(writer.state)
    assert (active.number, active.reading) == (2, 0)

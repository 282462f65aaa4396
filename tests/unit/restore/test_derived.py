"""A stored plan is held to what the spec and the archive say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RemovedSegment, RunOutcome
from logkeep_engine.archive.maintenance.removal import purge
from logkeep_engine.archive.reading.salvage import DamageSurvey, UnreadableRange
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec, parse_restore
from logkeep_engine.errors import ArchiveDamaged, SegmentsRemoved, StateAltered
from logkeep_engine.restore.model.context import RestoreContext
from logkeep_engine.restore.model.plan import (
    NEEDS_PRODUCER_ID,
    NO_TASK,
    PartitionSurvey,
    PointPlan,
    RestorePlan,
    TopicPlan,
)
from logkeep_engine.restore.planning.derived import derived
from logkeep_engine.restore.planning.planner import RestorePlanner
from logkeep_engine.storage import LocalStorage
from tests.unit.archive.build import CLUSTER, ORDERS, archive_of, begin, chunk

NAME = "file:///state/runs/r/restore-plan.json"


def parsed(**more: Any) -> KafkaRestoreSpec:
    return parse_restore(
        {"cluster": {"bootstrapServers": ["b:9092"]}, "source": {"storage": {"uri": "file:///archive"}}, **more}
    )


class Target:
    """A cluster without topics."""

    def topics(self) -> list[Any]:
        return []

    def latest_offsets(self, _: Any) -> dict[Any, int]:
        return {}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    storage = LocalStorage(tmp_path.as_uri())
    return archive_of(storage, chunk(storage, 0, 40))


def context(archive: Archive, spec: KafkaRestoreSpec) -> RestoreContext:
    nothing: Any = None
    return RestoreContext("r", spec, archive, nothing, CLUSTER, Target(), nothing, nothing, nothing)  # type: ignore[arg-type]


def planned(archive: Archive, spec: KafkaRestoreSpec) -> RestorePlan:
    """The plan that a run would have stored."""
    return RestorePlanner(context(archive, spec)).sketch().plan.with_producer_ids(range(100, 200))


def with_topic(plan: RestorePlan, **changes: Any) -> RestorePlan:
    return replace(plan, topics=(replace(plan.topics[0], **changes),))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"topics": {"rename": [{"from": "(.*)", "to": r"\1-copy"}], "replicationFactor": 1}},
        {"topics": {"partitionCount": 5}},
        {"topics": {"partitions": [{"topic": "orders", "partition": 0, "target": 1}]}},
        {"offsets": "Same"},
        {"point": {"offsets": [{"topic": "orders", "partition": 0, "offset": 17}]}},
        {"point": {"asOf": "2023-11-14T22:13:20.020Z"}},
        {"point": {"window": {"from": "2023-11-14T22:13:20Z", "to": "2023-11-14T22:13:21Z"}}},
        {"point": {"run": "run-1"}},
        {"ifTopicExists": "Replace", "confirm": ["orders"]},
    ],
)
def test_a_plan_of_this_version_follows_from_its_spec(archive: Archive, spec: dict[str, Any]) -> None:
    wanted = parsed(**spec)
    plan = RestorePlan.from_json(planned(archive, wanted).to_json(), NAME)
    found, erased = derived(context(archive, wanted), plan, NAME)
    assert (found.plan, erased) == (plan, False)


def survey(**more: Any) -> tuple[PartitionSurvey, ...]:
    return (PartitionSurvey(ORDERS.topic_id, 0, DamageSurvey(**{"damaged": (), "lost": (), **more})),)


FORGED: list[tuple[Any, str]] = [
    (
        lambda plan: with_topic(plan, target="payments"),
        "it restores payments, which the spec does not choose like this",
    ),
    (lambda plan: replace(plan, topics=plan.topics * 2), "it restores orders, orders, which the spec does not choose"),
    (
        lambda plan: replace(plan, topics=(*plan.topics, replace(plan.topics[0], target="payments"))),
        "it restores payments, which the spec does not choose like this",
    ),
    (lambda plan: replace(plan, topics=()), "it leaves out orders, which the spec chooses"),
    (lambda plan: with_topic(plan, source="other"), "of topic 'orders' it has another archived topic: 'other' instead"),
    (lambda plan: with_topic(plan, topic_id="b" * 22), "it has another topic id"),
    (lambda plan: with_topic(plan, partition_count=1), "another number of partitions: 1 instead of 2"),
    (lambda plan: with_topic(plan, replication_factor=1), "another number of replicas: 1 instead of 3"),
    (lambda plan: with_topic(plan, max_batch_bytes=1), "another largest batch"),
    (lambda plan: with_topic(plan, target_id="c" * 22), "another target_id"),
    (lambda plan: with_topic(plan, segments="0" * 64), "another digest of archived segments"),
    (lambda plan: with_topic(plan, partitions=plan.topics[0].partitions[1:]), "another list of what goes to which"),
    (lambda plan: _first_part(plan, producer_id=NO_TASK), "another list of what goes to which partition"),
    (lambda plan: _first_part(plan, start=40), "another list of what goes to which partition"),
    (lambda plan: _first_part(plan, to=1), "another list of what goes to which partition"),
    (lambda plan: _first_part(plan, log_start=0, log_end=7), "another list of what goes to which partition"),
    (lambda plan: with_topic(plan, created=False), "it appends to orders, but spec.ifTopicExists is Fail"),
    (lambda plan: with_topic(plan, replaces="d" * 22), "it replaces orders, but spec.ifTopicExists is Fail"),
    (lambda plan: replace(plan, point=PointPlan(plan.commit, {(ORDERS.topic_id, 0): 1})), "up to another point"),
    (
        lambda plan: replace(plan, surveys=survey(damaged=(0,))),
        "it leaves out records of .*, but spec.onDamagedArchive",
    ),
    (
        lambda plan: replace(plan, surveys=survey(lost=(UnreadableRange(0, 9, "x"),))),
        "it leaves out records of .*, but spec.onDamagedArchive is Refuse",
    ),
]


def _first_part(plan: RestorePlan, **changes: Any) -> RestorePlan:
    first, *others = plan.topics[0].partitions
    return with_topic(plan, partitions=(replace(first, **changes), *others))


@pytest.mark.parametrize(("forge", "expected"), FORGED)
def test_a_plan_that_says_otherwise_is_refused_by_name(archive: Archive, forge: Any, expected: str) -> None:
    spec = parsed()
    forged = forge(planned(archive, spec))
    with pytest.raises(StateAltered, match=f"^{NAME}: .*{expected}.*; it was not used") as refused:
        derived(context(archive, spec), forged, NAME)
    assert "give it its own bucket (spec.state)" in refused.value.hint


def test_a_plan_up_to_an_earlier_point_than_the_spec_says_is_refused(archive: Archive) -> None:
    spec = parsed(point={"offsets": [{"topic": "orders", "partition": 0, "offset": 17}]})
    plan = planned(archive, spec)
    assert plan.point is not None
    for point in (None, replace(plan.point, ends={(ORDERS.topic_id, 0): 5}), replace(plan.point, before=1)):
        with pytest.raises(StateAltered, match="it restores up to another point"):
            derived(context(archive, spec), replace(plan, point=point), NAME)


def test_a_run_that_replaces_may_not_append(archive: Archive) -> None:
    spec = parsed(ifTopicExists="Replace", confirm=["orders"])
    with pytest.raises(StateAltered, match=r"it appends to orders, but spec\.ifTopicExists is Replace"):
        derived(context(archive, spec), with_topic(planned(archive, spec), created=False), NAME)
    spec = parsed(ifTopicExists="Append")
    with pytest.raises(StateAltered, match=r"it replaces orders, but spec\.ifTopicExists is Append"):
        derived(context(archive, spec), with_topic(planned(archive, spec), replaces="d" * 22), NAME)


def test_records_keep_their_offsets_in_topics_that_the_restore_creates_only(archive: Archive) -> None:
    """Else it would remove the records of a live topic that lie in front of the archived ones."""
    spec = parsed(ifTopicExists="Resume", offsets="Same")
    derived(context(archive, spec), planned(archive, spec), NAME)
    with pytest.raises(StateAltered, match=r"it writes to orders, which it has not created, but spec\.offsets is Same"):
        derived(context(archive, spec), with_topic(planned(archive, spec), created=False), NAME)


def test_what_only_the_stored_plan_knows_is_taken_from_it(archive: Archive) -> None:
    """The ends and limits of a topic that was there before, and producer ids."""
    spec = parsed(ifTopicExists="Append")
    plan = planned(archive, spec)
    parts = tuple(replace(part, start=70 + at) for at, part in enumerate(plan.topics[0].partitions))
    plan = with_topic(
        plan, created=False, replication_factor=0, max_batch_bytes=7, target_id="t" * 22, partitions=parts
    )
    found, _ = derived(context(archive, spec), plan, NAME)
    assert found.plan == plan
    assert [part.producer_id for part in found.plan.topics[0].partitions] == [100, NO_TASK]
    assert NEEDS_PRODUCER_ID not in [part.producer_id for part in found.plan.topics[0].partitions]


@pytest.mark.parametrize(
    ("key", "value"), [("commit", "7"), ("commit", 7.5), ("runId", 7), ("specDigest", None), ("topics", {})]
)
def test_a_plan_whose_words_and_numbers_are_none_is_damaged(archive: Archive, key: str, value: object) -> None:
    import json

    body = json.loads(planned(archive, parsed()).to_json())
    with pytest.raises(ArchiveDamaged, match="not a restore plan"):
        RestorePlan.from_json(json.dumps({**body, key: value}).encode(), NAME)
    topic = {**body["topics"][0], "partitions": [["0", 1, 0]]}
    with pytest.raises(ArchiveDamaged, match="not a restore plan"):
        RestorePlan.from_json(json.dumps({**body, "topics": [topic]}).encode(), NAME)


def test_where_it_cannot_be_known_any_more_which_incarnation_was_chosen_the_restore_cannot_continue(
    archive: Archive,
) -> None:
    """Retention has deleted what told that the newer one has no record at the point."""
    newer = replace(ORDERS, topic_id="b" * 22)
    with begin(archive.storage, "run-2") as writer:
        writer.commit(topics=[newer], receipts=[chunk(archive.storage, 100, 110, topic=newer, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    spec = parsed(point={"asOf": "2023-11-14T22:13:20.020Z"})
    plan = planned(archive, spec)
    assert [topic.topic_id for topic in plan.topics] == [ORDERS.topic_id]
    assert derived(context(archive, spec), plan, NAME)[0].plan == plan
    with begin(archive.storage, "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(newer.topic_id, 0, 100)])
        purge(writer)
    with pytest.raises(SegmentsRemoved, match="which incarnation has records at the point") as refused:
        derived(context(archive, spec), plan, NAME)
    assert "spec.source.topicIds" in refused.value.hint


def test_every_field_of_a_topic_is_compared() -> None:
    """A field that is new must be derived, or be taken from the stored plan on purpose."""
    assert set(TopicPlan.__dataclass_fields__) == {
        *("source", "topic_id", "target", "created", "partition_count", "replication_factor", "max_batch_bytes"),
        *("partitions", "compacts", "target_id", "replaces", "divided", "partitioner", "segments"),
    }

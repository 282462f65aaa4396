"""A dry run is reported as one: it is no success, its findings are in the status, and the real run begins after it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from logkeep_engine.contract.facts.dry_run import (
    DryRunReport,
    PlannedClusterState,
    PlannedGroup,
    PlannedPosition,
    PlannedRefusal,
    PlannedRemoval,
    PlannedRetention,
    PlannedTopic,
)
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.stored import DocumentRefused
from logkeep_operator.api import Phase, Status, StatusOutcome
from logkeep_operator.reconcile import is_at_rest
from tests.unit.operator.world import World, backup_spec, resource, restore_spec

TOPIC = PlannedTopic(
    topic="orders-copy", source="orders", partitions=2, replicas=3, config="retention.ms=1", records=80, bytes=900
)
POSITION = PlannedPosition(
    group="billing", topic="orders-copy", source_offset=20, record=21, time="2023-11-14T22:13:20Z", target_offset=18
)
REFUSAL = PlannedRefusal(reason="TopicExists", message="topic orders-copy already exists.")
REPORT = DryRunReport(
    end_time="2026-11-21T08:01:00Z",
    topics=1,
    topics_created=1,
    partitions=2,
    records=80,
    bytes=900,
    aborted_records=7,
    requests=8,
    storage_requests=12,
    seconds=16,
    bytes_per_second=50,
    rate="a default",
    groups=1,
    positions=2,
    topic_list=(TOPIC,),
    group_list=(PlannedGroup(group="billing", positions=2),),
    position_list=(POSITION,),
    cluster_state=PlannedClusterState(
        source_run="backup-1",
        acls=3,
        acls_to_add=2,
        acls_held_back=1,
        quotas=2,
        quotas_to_add=1,
        quotas_kept=1,
        users=2,
        users_to_create=1,
        acl_list=("ALLOW User:a from *: READ on TOPIC orders",),
        held_back_list=("ALLOW User:m from *: ALL on TOPIC *",),
        quota_list=("request_percentage=200 of user a",),
        user_list=("a (SCRAM-SHA-512, 4096 iterations)",),
    ),
    not_checked=("whether the state can be written",),
)
REFUSED = replace(REPORT, refused=1, refusals=(REFUSAL,))


def begun(kind: str = "KafkaRestore", **spec: Any) -> World:
    made = restore_spec(**spec) if kind == "KafkaRestore" else backup_spec(**spec)
    world = World(kind, made)
    world.backup = resource("KafkaBackup", backup_spec(), status=Status(last_success_time="2026-11-21T07:00:00Z"))
    world.settle()
    return world


def found(world: World, report: DryRunReport, **facts: Any) -> World:
    """The driver tells its findings and ends."""
    numbers = {"topics": 0, "partitions": 0, "records": 0, "bytes": 0, "archive_id": "a1", "epoch": 0, "commit": -1}
    message = report.describe("restore")
    world.pass_time(minutes=1)
    world.reports(result=world.result(outcome="DryRun", dry_run=report, message=message, **numbers, **facts))
    world.job_is(active=0, complete=True)
    world.settle()
    return world


def requests(world: World) -> list[dict[str, Any]]:
    """The specs that drivers got."""
    bodies = [body for body in world.created if "request.json" in (body.get("data") or {})]
    return [json.loads(body["data"]["request.json"])["spec"] for body in bodies]


def test_a_dry_run_that_nothing_would_refuse_is_no_success() -> None:
    world = found(begun(dryRun=True), REPORT)
    assert requests(world)[-1]["dryRun"] is True
    assert world.status.phase is Phase.DRY_RUN
    assert [world.condition(kind) for kind in ("Ready", "Reconciling", "Stalled")] == [("False", "DryRunDone")] * 3
    assert world.message().startswith(
        "Dry run, nothing was written: would restore 80 records, 900 B, 1 topic (1 to be created), and leave out 7 "
        "records of aborted transactions, in about 16 s. "
        'To do it: kubectl -n team patch krst again --type merge -p \'{"spec":{"dryRun":false}}\''
    )
    assert ("Normal", "DryRunDone") in world.events
    assert (world.status.last_success_time, world.status.offset_map) == (None, None)
    assert world.status.run is not None
    assert world.status.run.outcome is StatusOutcome.DRY_RUN
    assert [entry.outcome for entry in world.status.history] == ["DryRun"]
    reported = world.status.dry_run
    assert reported is not None
    assert reported == REPORT
    assert (reported.topic_list[0].state, reported.topic_list[0].config) == ("New", "retention.ms=1")
    (position,) = reported.position_list
    assert (position.topic, position.source_offset, position.record, position.target_offset) == (
        "orders-copy",
        20,
        21,
        18,
    )
    assert position.time == "2023-11-14T22:13:20Z"
    assert (reported.group_list[0].group, reported.not_checked) == ("billing", ("whether the state can be written",))
    assert world.status.to_dict()["dryRun"]["clusterState"] == {
        "sourceRun": "backup-1",
        "acls": 3,
        "aclsToAdd": 2,
        "aclsHeldBack": 1,
        "quotas": 2,
        "quotasToAdd": 1,
        "quotasKept": 1,
        "users": 2,
        "usersToCreate": 1,
        "aclList": ["ALLOW User:a from *: READ on TOPIC orders"],
        "heldBackList": ["ALLOW User:m from *: ALL on TOPIC *"],
        "quotaList": ["request_percentage=200 of user a"],
        "userList": ["a (SCRAM-SHA-512, 4096 iterations)"],
    }
    assert Status.from_dict(world.status.to_dict()) == world.status
    world.pass_time(minutes=11)
    assert is_at_rest(world.resource, world.now)


def test_what_to_do_follows_a_warning_that_ends_with_a_full_stop() -> None:
    world = found(begun(dryRun=True), REPORT, warnings=("spec.topics.include[0] matches no topic.",))
    assert "matches no topic. To do it: kubectl" in world.message()


def test_what_would_refuse_the_run_stalls_the_resource() -> None:
    world = found(begun(dryRun=True), REFUSED)
    assert world.status.phase is Phase.DRY_RUN
    assert world.condition("Stalled") == ("True", "DryRunRefused")
    assert "would be refused for 1 reason, first: topic orders-copy already exists; else it would restore" in (
        world.message()
    )
    assert "To look again: kubectl -n team annotate krst again logkeep.dev/retry=" in world.message()
    assert ("Warning", "DryRunRefused") in world.events
    assert world.status.dry_run is not None
    assert [(item.reason, item.message) for item in world.status.dry_run.refusals] == [
        ("TopicExists", "topic orders-copy already exists.")
    ]


def test_the_history_shows_where_it_has_cut_a_message_short() -> None:
    long = replace(REPORT, refused=1, refusals=(replace(REFUSAL, message="x" * 300),))
    (entry,) = found(begun(dryRun=True), long).status.history
    assert entry.message is not None
    assert (len(entry.message), entry.message[-2:]) == (256, "x…")


def test_the_restore_begins_when_the_dry_run_is_not_wanted_any_more() -> None:
    world = found(begun(dryRun=True), REPORT)
    dry = world.run_id
    world.edit(dryRun=False)
    world.settle()
    assert world.run_id == begun().run_id != dry
    assert requests(world)[-1]["dryRun"] is False
    assert world.status.dry_run is None
    world.complete()
    assert world.status.phase is Phase.SUCCEEDED
    assert world.condition("Ready") == ("True", "RunSucceeded")
    assert [entry.outcome for entry in world.status.history] == ["Succeeded", "DryRun"]
    world.pass_time(minutes=11)
    world.settle()
    assert is_at_rest(world.resource, world.now)


def test_a_dry_run_that_continues_is_left_for_the_restore() -> None:
    world = begun(dryRun=True)
    dry = world.run_id
    world.driver()
    world.settle()
    world.edit(dryRun=False)
    world.step()
    assert dry not in world.jobs
    world.settle()
    assert dry not in {job.run_id for job in world.jobs.values()}
    world.collect()
    world.settle()
    assert world.run_id == begun().run_id
    assert [(entry.run_id, entry.outcome) for entry in world.status.history] == [(dry, "Replaced")]


def test_another_spec_and_another_retry_make_another_dry_run() -> None:
    world = found(begun(dryRun=True), REFUSED)
    seen = [world.run_id]
    world.edit(ifTopicExists="Append")
    world.settle()
    seen.append(world.run_id)
    found(world, REPORT)
    assert world.condition("Ready") == ("False", "DryRunDone")
    world.edit(ifTopicExists="Fail")
    world.settle()
    seen.append(world.run_id)
    assert world.status.phase is Phase.PENDING, "what an earlier dry run of this spec has found may be so no more"
    found(world, REFUSED)
    world.retry("1")
    assert not is_at_rest(world.resource, world.now)
    world.settle()
    seen.append(world.run_id)
    found(world, REPORT)
    world.resource = replace(world.resource, annotations={})
    world.edit(suspend=True)
    world.edit(suspend=False)
    world.settle()
    assert world.run_id == seen[-1]
    assert len(set(seen)) == len(seen)


def test_a_retry_of_a_dry_run_asks_for_nothing_of_the_restore() -> None:
    world = found(begun(dryRun=True), REFUSED)
    world.retry("1")
    world.settle()
    found(world, REPORT)
    world.edit(dryRun=False)
    world.settle()
    world.reports(result=world.failed_result(exit_code=2))
    world.job_is(active=0, failed=1, failure=("PodFailurePolicy", ""))
    world.settle()
    assert world.status.phase is Phase.FAILED
    failed = world.run_id
    world.settle()
    assert (world.run_id, world.status.phase) == (failed, Phase.FAILED)


def test_a_dry_run_whose_report_was_lost_is_no_success_either() -> None:
    world = begun(dryRun=True)
    world.job_is(active=0, complete=True)
    world.settle()
    assert world.status.phase is Phase.DRY_RUN
    assert world.condition("Ready") == ("False", "DryRunDone")
    assert "its report was lost" in world.message()
    assert world.status.last_success_time is None


def test_a_topic_that_gets_the_replicas_that_are_usual_in_the_cluster_is_in_the_status() -> None:
    report = replace(REPORT, topic_list=(replace(TOPIC, replicas=-1),))
    dry_run = found(begun(dryRun=True), report).status.dry_run
    assert dry_run is not None
    assert dry_run.topic_list is not None
    assert dry_run.topic_list[0].replicas == -1


def test_a_dry_run_that_cannot_find_out_has_failed() -> None:
    world = begun(dryRun=True)
    world.reports(result=world.failed_result(exit_code=1, error_code="BrokerUnavailable"))
    world.job_is(active=0, failed=4, failure=("BackoffLimitExceeded", ""))
    world.settle()
    assert world.status.phase is Phase.FAILED
    assert world.condition("Stalled") == ("True", "BrokerUnavailable")


def test_a_backup_says_what_it_would_archive_and_keeps_what_it_has_told() -> None:
    world = begun("KafkaBackup")
    world.complete()
    before = world.status
    world.edit(dryRun=True)
    world.settle()
    assert world.run_id != (before.run.id if before.run else "")
    found(world, REPORT)
    assert world.status.phase is Phase.DRY_RUN
    assert world.condition("Ready") == ("False", "DryRunDone")
    assert (world.status.archive, world.status.last_success_time) == (before.archive, before.last_success_time)
    assert "patch kbak nightly" in world.message()
    world.edit(dryRun=False)
    world.settle()
    assert requests(world)[-1]["dryRun"] is False
    world.complete()
    assert world.condition("Ready") == ("True", "RunSucceeded")
    assert world.status.dry_run is None


def test_a_backup_says_what_its_retention_would_remove() -> None:
    removals = tuple(
        PlannedRemoval(topic=f"t{n:02}", why="maxAge", partitions=1, segments=2, bytes=9) for n in range(30)
    )
    planned = PlannedRetention(
        topics=30, partitions=30, segments=60, snapshots=1, bytes=270, topics_unchosen=4, topic_list=removals
    )
    world = begun("KafkaBackup", dryRun=True)
    report = replace(REPORT, cluster_state=None, retention=planned)
    reported = found(world, report).status.dry_run
    assert reported is not None
    assert reported.retention is not None
    assert (reported.retention.segments, reported.retention.topics_unchosen, len(reported.retention.topic_list)) == (
        60,
        4,
        20,
    )
    assert (reported.retention.topic_list[0].topic, reported.retention.topic_list[0].why) == ("t00", "maxAge")
    assert "its retention would remove 60 segments and 1 snapshot of 30 topics, 270 B" in world.message()
    assert Status.from_dict(world.status.to_dict()) == world.status


def test_a_status_is_small_whatever_the_number_of_topics() -> None:
    many = replace(
        REFUSED,
        topics=1000,
        topic_list=tuple(replace(TOPIC, topic=f"t{n}") for n in range(1000)),
        group_list=tuple(PlannedGroup(group=f"g{n}") for n in range(1000)),
        position_list=(POSITION,) * 1000,
        cluster_state=PlannedClusterState(source_run="backup-1", acls=1000, acl_list=("x" * 5000,) * 1000),
        refused=1000,
        refusals=(replace(REFUSAL, message="x" * 5000),) * 1000,
    )
    reported = found(begun(dryRun=True), many).status.dry_run
    assert reported is not None
    assert (reported.topics, reported.refused) == (1000, 1000)
    assert [
        len(reported.topic_list),
        len(reported.group_list),
        len(reported.position_list),
        len(reported.refusals),
    ] == [20] * 4
    assert len(reported.refusals[0].message) <= 1024
    assert reported.cluster_state is not None
    assert (reported.cluster_state.acls, len(reported.cluster_state.acl_list)) == (1000, 20)
    assert len(reported.cluster_state.acl_list[0]) <= 1024
    result = begun().result(outcome="DryRun", dry_run=many, message=many.describe("restore"))
    short = result.to_termination_message(4096)
    assert len(short.encode()) <= 4096
    again = RunResult.from_json(short)
    assert again.dry_run is not None
    assert [item.message for item in again.dry_run.refusals] == ["x" * 499 + "…"]
    assert (again.dry_run.counts, again.dry_run.end_time) == (REPORT.counts, REPORT.end_time)
    assert (again.dry_run.topics, again.dry_run.refused) == (1000, 1000)


@pytest.mark.parametrize(
    "report",
    [
        {"topics": -1},
        {"refused": "1"},
        {"seconds": 1e400},
        {"refusals": [{"reason": "no word", "message": ""}]},
        {"refusals": [{"code": "X", "message": ""}]},
        {"endTime": "now"},
        {"counts": "at most"},
        [],
        7,
    ],
)
def test_a_report_that_cannot_be_is_not_read(report: Any) -> None:
    whole = json.loads(begun().result(outcome="DryRun").to_json())
    with pytest.raises(DocumentRefused):
        RunResult.from_json(json.dumps({**whole, "dryRun": report}))


def test_a_status_stays_within_its_bound_whatever_a_dry_run_has_found() -> None:
    topic, said, most = "t" * 249, "ü" * 5000, 2**62
    planned = PlannedTopic(
        topic=topic, source=topic, partitions=5, replicas=3, records=most,
        config=said,
    )  # fmt: skip
    position = PlannedPosition(
        group=said, topic=topic, partition=1, source_offset=most, time="1970-01-01T00:00:00Z", target_offset=most
    )
    report = DryRunReport(
        refused=100,
        refusals=(PlannedRefusal(reason="X", message=said),) * 100,
        topic_list=(planned,) * 100,
        group_list=(PlannedGroup(group=said, positions=most),) * 100,
        position_list=(position,) * 100,
        cluster_state=PlannedClusterState(
            source_run="r", acl_list=(said,) * 100, held_back_list=(said,) * 100, quota_list=(said,) * 100,
            user_list=(said,) * 100,
        ),
        not_checked=(said,) * 100,
    )  # fmt: skip
    world = World("KafkaBackup", backup_spec(dryRun=True))
    world.annotate("again " + "é" * 200)
    world.step()
    world.reports(result=world.result(outcome="DryRun", dry_run=report))
    world.settle()
    found = world.status.dry_run
    assert found is not None
    assert (found.refused, len(found.refusals), len(found.group_list)) == (100, 20, 20)
    assert found.group_list[0].group.endswith("ü…")
    assert len(json.dumps(world.status.to_dict(), ensure_ascii=False).encode()) < 128 << 10
    assert world.status.last_handled_run == "again " + "é" * 200, "what is compared is never cut"


def test_a_status_stays_within_its_bound_when_the_names_are_none_that_kafka_knows() -> None:
    strange = tuple(replace(TOPIC, topic="\x1b" * 249, source="\x1b" * 249, config="x" * 5000) for _ in range(100))
    said = PlannedGroup(group="ü" * 5000)
    report = replace(REPORT, topic_list=strange, group_list=(said,) * 100, not_checked=("ü" * 5000,) * 100)
    world = found(begun(dryRun=True), replace(report, position_list=(replace(POSITION, group="ü" * 5000),) * 100))
    assert len(json.dumps(world.status.to_dict(), ensure_ascii=False).encode()) < 128 << 10
    assert Status.from_dict(world.status.to_dict()) == world.status

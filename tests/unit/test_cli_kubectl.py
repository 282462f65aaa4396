"""The lines that `kubectl logkeep` prints of resources, whichever operator has written their statuses."""

from __future__ import annotations

import base64
import json
import tomllib
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from logkeep_engine.cli.explain import page_url, reasons
from logkeep_engine.cli.kubectl import inspect, lines, maintenance_lines
from logkeep_engine.cli.kubectl.calls import Kubernetes
from logkeep_engine.cli.kubectl.errors import KindNotServed, RightMissing, api_error
from logkeep_engine.cli.kubectl.lines import NOTHING
from logkeep_engine.cli.kubectl.options import named
from logkeep_engine.cli.kubectl.restore import ChoiceOptions, restore_spec
from logkeep_engine.cli.kubectl.waiting import ended, exit_code
from logkeep_engine.contract.names import APPLY_CRDS, ExitCode
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.references import ServerTls
from logkeep_engine.contract.restore_spec import IfTopicExists, RestoreOffsets, RestoreVerification, parse_restore
from logkeep_engine.contract.restored_topics import TopicRetention
from logkeep_engine.contract.storage import StorageSpec
from logkeep_engine.errors import CredentialsMissing, SpecError

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
NIGHT = "2026-11-22T02:00:00Z"


def condition(kind: str, status: str, reason: str, message: str = "said so") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def backup(**status: Any) -> dict[str, Any]:
    metadata = {"name": "nightly", "namespace": "team", "creationTimestamp": "2026-11-01T00:00:00Z"}
    return {"kind": "KafkaBackup", "metadata": metadata, "spec": {}, "status": status}


FULL = backup(
    phase="Succeeded",
    conditions=[
        condition("Ready", "True", "RunSucceeded"),
        condition("DataLoss", "False", "NoLoss"),
        condition("RetentionRisk", "True", "NextRunTooLate", "clicks goes at noon"),
    ],
    run={"id": "r1", "outcome": "Succeeded", "startTime": NIGHT, "endTime": "2026-11-22T02:10:00Z"},
    progress={"percent": 100, "display": "4/4", "records": 5, "bytes": 2048, "bytesPerSecond": 1024, "secondsLeft": 90},
    lastSuccessTime="2026-11-22T02:10:00Z",
    nextScheduleTime="2026-11-23T02:00:00Z",
    archive={"uri": "s3://b/p", "commit": 7, "topics": 3, "records": 5, "bytes": 4096, "storedBytes": 2048,
             "size": "2.0 KiB", "growth": "1.0 KiB/day"},
    recovery={"firstTime": "2026-01-01T00:00:00Z", "lastTime": NIGHT, "topics": 3, "topicsBehind": 2,
              "behind": [{"topic": "clicks", "lastTime": "2026-11-21T02:00:00Z", "offsets": 41}, {"topic": "new"}]},
    retention={"deadline": "2026-11-22T12:00:00Z", "unknownTopics": 1,
               "topics": [{"topic": "clicks", "partition": 1, "deadline": "2026-11-22T12:00:00Z"},
                          {"topic": "orders", "partition": 0, "deadline": "2026-11-29T12:00:00Z"}]},
    coverage={"protected": 3, "leftOut": 30, "vanished": 1, "topicsLeftOut": ["a", "b"], "topicsVanished": ["gone"]},
    history=[{"runId": "r1", "outcome": "Succeeded", "startTime": NIGHT, "endTime": "2026-11-22T02:10:00Z",
              "records": 5, "bytes": 2048, "requestedBy": "KafkaBackupRun team/one", "message": "done"},
             {"runId": "r0", "outcome": "Failed", "durationSeconds": 412, "executors": 0}],
)  # fmt: skip


@pytest.mark.parametrize(("executors", "said"), [(0, "0 executors"), (1, "1 executor"), (2, "2 executors")])
def test_executors_are_counted_in_words(executors: int, said: str) -> None:
    assert lines.progress_line({"executors": executors}).endswith(f", {said}")


def test_drills_of_an_archive_are_reported() -> None:
    failed = condition("Verified", "False", "RecordsDiffer", "one record differs")
    drill = {"lastGoodTime": "2026-11-21T02:00:00Z", "recovery": "12m 5s", "progress": "10/200", "report": "s3://r"}
    body = {"kind": "KafkaBackup", "metadata": {}, "status": {"conditions": [failed], "drill": drill}}
    assert lines.alarms(body) == ["Verified"]
    rows = dict(lines.detail(body, NOW))
    assert rows["Verified"] == "False, RecordsDiffer: one record differs"
    assert rows["last good drill"].startswith("2026-11-21T02:00:00Z (")
    assert (rows["recovery time"], rows["drilled"], rows["drill report"]) == ("12m 5s", "10/200", "s3://r")


@pytest.mark.parametrize(("refused", "expected"), [(0, "no"), (1, "for 1 reason"), (2, "for 2 reasons")])
def test_a_dry_run_counts_its_reasons(refused: int, expected: str) -> None:
    found = {"refused": refused, "records": 1, "abortedRecords": 2}
    status = {"dryRun": found, "run": {"id": "r1", "outcome": "DryRun"}, "progress": {"percent": 0}}
    rows = dict(lines.detail({"kind": "KafkaRestore", "metadata": {}, "status": status}, NOW))
    assert rows["would be refused"] == expected
    assert rows["left out"] == "2 records of aborted transactions"
    assert "progress" not in rows


def test_a_dry_run_says_what_retention_would_remove() -> None:
    item = {"topic": "flights", "why": "maxAge", "partitions": 1, "segments": 2, "snapshots": 1, "bytes": 2048}
    planned = {"topics": 3, "segments": 9, "topicsUnchosen": 1, "topicList": [item]}
    assert maintenance_lines.planned_removals(backup(dryRun={"retention": planned})) == [
        "retention would remove 2 segments, 1 snapshot, 2.0 KiB of flights: maxAge",
        "retention would remove something of 2 topics more",
        "retention would leave 1 topic alone that spec.topics does not choose",
    ]
    assert maintenance_lines.planned_removals(backup(dryRun={"retention": {}})) == []
    assert maintenance_lines.planned_removals(backup()) == []


def test_a_line_of_a_backup_says_what_the_morning_asks() -> None:
    line = dict(zip(lines.overview_columns(everywhere=True), lines.overview(FULL, NOW, everywhere=True), strict=True))
    assert line == {
        "NAMESPACE": "team", "KIND": "KafkaBackup", "NAME": "nightly", "PHASE": "Succeeded",
        "READY": "yes,RetentionRisk", "DONE": "100%", "LAST SUCCESS": "6h", "RECOVERABLE": "7h", "NEXT RUN": "in 17h",
        "SIZE": "2.0 KiB", "AGE": "21d",
    }  # fmt: skip


def test_a_resource_that_no_operator_has_seen_has_a_line_and_details() -> None:
    line = dict(
        zip(lines.overview_columns(everywhere=False), lines.overview(backup(), NOW, everywhere=False), strict=True)
    )
    assert (line["PHASE"], line["READY"], line["DONE"], line["NEXT RUN"]) == ("Unknown", "-", "-", "-")
    assert dict(lines.detail(backup(), NOW))["phase"] == "Unknown: the operator has not looked at it yet"
    assert lines.history(backup(), NOW) == []
    assert lines.topic_sums(backup(), NOW) == ["nightly: no run has reported topics yet"]


@pytest.mark.parametrize(
    "wrong", [{"conditions": "x"}, {"run": []}, {"progress": 1}, {"recovery": "x"}, {"history": {}}]
)
def test_a_status_of_another_shape_is_no_error(wrong: dict[str, Any]) -> None:
    body = backup(**wrong)
    assert lines.overview(body, NOW, everywhere=False)
    assert lines.detail(body, NOW)
    assert lines.topics(body, NOW) == []


def test_details_of_a_restore_of_everything_name_the_users_to_create() -> None:
    state = {
        "acls": 41,
        "aclsAdded": 40,
        "aclsRefused": 1,
        "aclsHeldBack": 2,
        "quotas": 5,
        "quotasAdded": 4,
        "quotasKept": 1,
        "usersToCreate": ["reader (SCRAM-SHA-256, 8192 iterations)"],
        "usersTotal": 3,
        "report": "s3://r",
    }
    rows = dict(lines.detail({"kind": "KafkaRestore", "metadata": {}, "status": {"clusterState": state}}, NOW))
    assert rows["ACLs"] == "41 archived, 40 added, 1 refused, 2 held back"
    assert rows["client quotas"] == "5 archived, 4 added, 0 refused, 1 kept"
    assert rows["users to create"] == "reader (SCRAM-SHA-256, 8192 iterations) and 2 more"
    assert rows["ACLs, quotas, users"] == "s3://r"
    state = {"quotas": 0}
    rows = dict(lines.detail({"kind": "KafkaRestore", "metadata": {}, "status": {"clusterState": state}}, NOW))
    assert (rows["ACLs"], rows["users to create"]) == ("not archived", "not archived")
    assert rows["client quotas"] == "0 archived, 0 added, 0 refused, 0 kept"
    planned = {"acls": 41, "aclsToAdd": 40, "aclsHeldBack": 1, "quotas": 5, "quotasToAdd": 4, "usersToCreate": 2}
    body = {"kind": "KafkaRestore", "metadata": {}, "status": {"dryRun": {"records": 5, "clusterState": planned}}}
    rows = dict(lines.detail(body, NOW))
    assert rows["ACLs"] == "41 archived, 40 to be added, 1 held back"
    assert (rows["client quotas"], rows["users to create"]) == ("5 archived, 4 to be added", "2")


def test_details_of_a_restore_name_the_topics_that_it_holds() -> None:
    held = {"topics": 21, "topicList": ["orders", "payments"]}
    rows = dict(lines.detail({"kind": "KafkaRestore", "metadata": {}, "status": {"heldTopics": held}}, NOW))
    assert rows["held topics"] == "orders, payments and 19 more: they keep all records until `logkeep release`"
    assert "held topics" not in dict(lines.detail({"kind": "KafkaRestore", "metadata": {}, "status": {}}, NOW))
    timed = {**held, "releaseTime": "2026-11-28T08:00:00Z"}
    rows = dict(lines.detail({"kind": "KafkaRestore", "metadata": {}, "status": {"heldTopics": timed}}, NOW))
    assert rows["held topics"].endswith("and 19 more: they keep all records until 2026-11-28T08:00:00Z")
    done = {**timed, "releasedTime": "2026-11-28T08:00:31Z", "released": 20, "notReleasedList": ["orders: NotHeld"]}
    rows = dict(lines.detail({"kind": "KafkaRestore", "metadata": {}, "status": {"heldTopics": done}}, NOW))
    assert rows["held topics"] == "20 of 21 released at 2026-11-28T08:00:31Z, not orders: NotHeld"


def test_details_name_risk_archive_and_times() -> None:
    rows = dict(lines.detail(FULL, NOW))
    assert rows["state"] == "RunSucceeded: said so"
    assert rows["RetentionRisk"] == "True, NextRunTooLate: clicks goes at noon"
    assert rows["run"] == "r1 Succeeded"
    assert rows["began"] == f"{NIGHT} (7h ago)"
    assert rows["progress"] == "100%, 4/4 partitions, 5 records, 2.0 KiB, 1.0 KiB/s, 1m 30s left"
    assert rows["holds"] == "3 topics, 5 records, 4.0 KiB, stored 2.0 KiB"
    assert rows["recoverable"] == f"from 2026-01-01T00:00:00Z to {NIGHT} (7h ago)"
    assert rows["behind"] == "2 of 3 topics"
    assert rows["kept by the cluster until"] == "2026-11-22T12:00:00Z (in 3h)"
    assert rows["topics"] == "3 protected, 30 left out, 1 vanished"


CARED = backup(
    phase="Succeeded",
    conditions=[condition("StaleKeys", "True", "StaleKeysFound", "2 keys")],
    archive={
        "snapshots": [{"topic": "stock", "partitions": 2, "records": 9, "bytes": 2048},
                      {"topic": "rates", "partitions": 0, "records": 0, "bytes": 0, "exactAfter": NIGHT,
                       "exactNowhere": 1}],
        "generations": [{"topic": "prices", "partitions": 1, "number": 3, "reading": 1},
                        {"topic": "rates", "partitions": 4, "number": 2}],
        "retention": {"runId": "r9", "removedSegments": 1, "removedSnapshots": 2, "removedBytes": 10,
                      "deletedSegments": 3, "deletedBytes": 2048, "waitingSegments": 0, "waitingBytes": 0, "holds": 2,
                      "locked": {"objects": 1, "until": "2026-11-22T12:00:00Z", "legalHolds": 1, "first": "a/b.log"},
                      "points": 5, "kept": [{"runId": "r9", "endTime": NIGHT, "rules": ["last", "daily"]}]},
    },
    reconcile={"endTime": NIGHT, "keys": 7, "stale": 2, "missing": 1},
)  # fmt: skip


def test_details_name_what_is_kept_removed_and_compared() -> None:
    rows = dict(maintenance_lines.maintenance_rows(CARED, NOW))
    assert rows["removed"] == "1 segment, 2 snapshots, 10 B, by run r9"
    assert rows["deleted"] == "3 segments, 2.0 KiB"
    assert rows["waits for deletion"] == "0 segments, 0 B"
    assert rows["locked by the store"] == (
        "1 object, the last until 2026-11-22T12:00:00Z (in 3h), 1 with a legal hold: first a/b.log"
    )
    assert (rows["holds"], rows["kept points"]) == ("2", "5")
    assert rows["keys compared"] == f"{NIGHT} (7h ago): 7 keys, 2 stale, 1 missing"
    assert maintenance_lines.compacted_topics(CARED) == [
        ("stock", "snapshot", "2", "9", "2.0 KiB", "all are"),
        ("rates", "generation 2", "4", NOTHING, NOTHING, f"{NIGHT}; 1 partition nowhere"),
        ("prices", "generation 3, 1 being read", "1", NOTHING, NOTHING, "unknown"),
    ]
    assert maintenance_lines.kept_points(CARED, NOW) == [
        ("r9", f"{NIGHT} (7h ago)", "last, daily"),
        ("and 4 more", "", ""),
    ]
    assert dict(lines.detail(CARED, NOW))["StaleKeys"] == "True, StaleKeysFound: 2 keys"


def test_a_backup_that_keeps_nothing_has_no_line_of_it() -> None:
    assert maintenance_lines.maintenance_rows(FULL, NOW) == []
    assert (maintenance_lines.compacted_topics(FULL), maintenance_lines.kept_points(FULL, NOW)) == ([], [])


@pytest.mark.parametrize(
    ("conditions", "pages"),
    [
        ([condition("Ready", "True", "RunSucceeded"), condition("Coverage", "True", "AllFound")], []),
        ([condition("Ready", "False", "Queued"), condition("Reconciling", "True", "Queued")], ["Queued"]),
        (
            [condition("Ready", "False", "DataLoss"), condition("Stalled", "True", "DataLoss"),
             condition("DataLoss", "True", "RecordsMissing"), condition("Coverage", "False", "TopicsVanished")],
            ["DataLoss", "RecordsMissing", "TopicsVanished"],
        ),
    ],
)  # fmt: skip
def test_details_name_the_pages_of_what_is_not_as_it_should_be(conditions: list[Any], pages: list[str]) -> None:
    named = [value for name, value in lines.detail(backup(conditions=conditions), NOW) if name == "see"]
    assert named == [f"kubectl logkeep explain {page}, {page_url(page)}" for page in pages]
    assert set(pages) <= set(reasons())


def test_what_a_verification_has_found_is_shown_with_its_report() -> None:
    found = {"outcome": "Different", "message": "topic a differs", "partitions": 3, "verified": 2, "report": "s3://b/x"}
    rows = dict(lines.detail(backup(verification=found), NOW))
    assert rows["verification"] == "Different: topic a differs (2 of 3 partitions are verified)"
    assert rows["report"] == "s3://b/x"
    assert dict(lines.detail(backup(verification={"outcome": "Verified"}), NOW))["verification"] == "Verified"


def test_warnings_and_lost_offsets_have_a_line_each() -> None:
    loss = [{"topic": "orders", "partition": 2, "start": 10, "end": 20, "reason": "damaged"}]
    found = lines.run_notes(backup(warnings=["topic orders: retention.ms=1", "a quota"], loss=loss))
    assert found == [
        "warning: topic orders: retention.ms=1",
        "warning: a quota",
        "lost: orders-2 offsets 10 to 19: damaged",
    ]
    assert lines.run_notes(backup(warnings=3)) == []


def test_a_suspended_backup_has_no_next_run() -> None:
    suspended = {**FULL, "spec": {"suspend": True}}
    assert lines.overview(suspended, NOW, everywhere=False)[7] == "-"
    assert "next run" not in dict(lines.detail(suspended, NOW))


@pytest.mark.parametrize(
    ("phase", "said"), [("Suspended", "r1 is suspended, attempt 2"), ("Running", "r1 is running, attempt 2")]
)
def test_a_run_that_is_suspended_is_not_called_running(phase: str, said: str) -> None:
    assert dict(lines.detail(backup(phase=phase, run={"id": "r1", "attempt": 2}), NOW))["run"] == said


def test_the_history_has_seconds_whoever_wrote_it() -> None:
    assert [row[3] for row in lines.history(FULL, NOW)] == ["600", "412"]
    assert [row[7] for row in lines.history(FULL, NOW)] == ["KafkaBackupRun team/one", "-"]
    assert [row[6] for row in lines.history(FULL, NOW)] == ["-", "0"]


def test_topics_are_named_with_how_far_behind_they_are() -> None:
    rows = lines.topics(FULL, NOW)
    assert [row[1:3] for row in rows] == [
        ("clicks", "behind"), ("new", "behind"), ("orders", "protected"),
        ("a", "left out"), ("b", "left out"), ("gone", "vanished"),
    ]  # fmt: skip
    assert rows[0][3:] == ("2026-11-21T02:00:00Z (31h ago)", "41", "2026-11-22T12:00:00Z (in 3h)")
    assert rows[1][3:] == ("-", "-", "-")
    (said,) = lines.topic_sums(FULL, NOW)
    assert "3 topics protected, 30 left out; 2 of 3 behind" in said
    assert said.endswith("28 more are not named in the status")


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172800, "2d")]
)
def test_an_age_has_one_unit(seconds: int, expected: str) -> None:
    assert lines.age(datetime.fromtimestamp(NOW.timestamp() - seconds, UTC).isoformat(), NOW) == expected


def test_what_is_no_time_is_no_age() -> None:
    assert (lines.age(None, NOW), lines.age("yesterday", NOW)) == ("-", "-")


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("BrokerUnavailable", ExitCode.FAILED), ("InvalidSpec", ExitCode.REFUSED), ("ArchiveFenced", ExitCode.FENCED),
        ("DataLoss", ExitCode.DATA_LOSS), ("BackoffLimitExceeded", ExitCode.FAILED),
        ("NotAllowed", ExitCode.REFUSED), ("BackupInvalid", ExitCode.REFUSED), ("RecordsDiffer", ExitCode.INCOMPLETE),
    ],
)  # fmt: skip
def test_a_run_that_failed_has_the_exit_code_of_its_reason(reason: str, code: ExitCode) -> None:
    assert exit_code(reason) is code
    end = ended({"status": {"conditions": [condition("Stalled", "True", reason)]}})
    assert end is not None
    assert (end.code, end.message) == (code, f"{reason}: said so")


@pytest.mark.parametrize(
    ("run", "reason", "code"),
    [
        ({"outcome": "Failed", "exitCode": 5}, "TopicExists", ExitCode.INCOMPLETE),
        ({"outcome": "Failed", "exitCode": 2}, "TopicExists", ExitCode.REFUSED),
        ({"outcome": "Failed"}, "TopicExists", ExitCode.REFUSED),
        ({"outcome": "Failed", "exitCode": 0}, "TopicExists", ExitCode.REFUSED),
        ({"outcome": "Failed", "exitCode": "5"}, "TopicExists", ExitCode.REFUSED),
        ({"outcome": "Succeeded", "exitCode": 5}, "TopicExists", ExitCode.REFUSED),
        ({"outcome": "Failed", "exitCode": 5}, "InvalidSpec", ExitCode.REFUSED),
        ("Failed", "TopicExists", ExitCode.REFUSED),
    ],
)
def test_a_run_that_was_refused_after_it_had_written_has_the_exit_code_of_its_driver(
    run: object, reason: str, code: ExitCode
) -> None:
    end = ended({"status": {"run": run, "conditions": [condition("Stalled", "True", reason)]}})
    assert end is not None
    assert end.code is code


def test_a_run_that_waits_has_not_ended_and_one_without_its_backup_has() -> None:
    assert ended({}) is None
    assert ended({"status": {"conditions": [condition("Ready", "False", "Queued")]}}) is None
    end = ended({"status": {"conditions": [condition("Ready", "False", "BackupNotFound")]}})
    assert end is not None
    assert end.code is ExitCode.REFUSED


def test_a_name_may_say_its_kind() -> None:
    kinds = ("KafkaBackup", "KafkaRestore")
    assert named("nightly", *kinds) == (kinds, "nightly")
    assert named("krst/again", *kinds) == (("KafkaRestore",), "again")
    with pytest.raises(SpecError, match="'pod/x' is of a kind that this command does not take") as caught:
        named("pod/x", *kinds)
    assert caught.value.hint == "Write NAME alone, or kbak/NAME of a KafkaBackup or krst/NAME of a KafkaRestore."


def test_a_right_that_is_missing_is_named() -> None:
    lacking = 'secrets "s3" is forbidden: User "eve" cannot get resource "secrets" in API group "" in the namespace'
    reported = {"kind": "Status", "message": f'{lacking} "team"', "details": {"name": "s3", "kind": "secrets"}}
    said = json.dumps(reported).encode()
    error = api_error(403, said, kind="Secret", plural="secrets", namespace="team", name="s3")
    assert isinstance(error, RightMissing)
    assert error.message == "User 'eve' lacks a right: get on secrets in namespace team."
    assert "kubectl auth can-i get secrets -n team" in error.hint
    said = said.replace(b"secrets", b"kafkaarchives")
    error = api_error(403, said, kind="KafkaArchive", plural="kafkaarchives", namespace="team", name="s3")
    assert "The ClusterRole logkeep-view of the chart has this right." in error.hint


def test_a_cluster_without_the_crds_is_told_from_a_missing_object() -> None:
    error = api_error(404, b"404 page not found\n", kind="KafkaBackup", plural="kafkabackups", namespace="a", name="x")
    assert isinstance(error, KindNotServed)
    assert error.hint.endswith(APPLY_CRDS)


def test_a_restore_has_what_was_chosen_and_nothing_else() -> None:
    spec = restore_spec("nightly", {"bootstrapServers": ["k:9092"]}, ChoiceOptions())
    assert spec == {"source": {"backupRef": {"name": "nightly"}}, "cluster": {"bootstrapServers": ["k:9092"]}}
    chosen = ChoiceOptions(["orders.*"], ["orders.test"], ["(.*)=old.\\1"], IfTopicExists.APPEND, groups=True)
    typed = parse_restore(restore_spec("nightly", {"bootstrapServers": ["k:9092"]}, chosen))
    assert (typed.topics.include, typed.topics.exclude) == (("orders.*",), ("orders.test",))
    assert (typed.topics.rename[0].from_, typed.topics.rename[0].to) == ("(.*)", "old.\\1")
    assert (typed.if_topic_exists, typed.consumer_groups.restore.value) == (IfTopicExists.APPEND, "Translate")
    held = restore_spec("nightly", {"bootstrapServers": ["k:1"]}, ChoiceOptions(retention=TopicRetention.HOLD))
    assert held["topics"] == {"retention": "Hold"}
    week = ChoiceOptions(retention=TopicRetention.HOLD, hold_for="7d")
    timed = restore_spec("nightly", {"bootstrapServers": ["k:1"]}, week)
    assert parse_restore(timed).topics.hold_seconds == 7 * 86400
    chosen = ChoiceOptions(offsets=RestoreOffsets.SAME, verify=RestoreVerification.FULL)
    same = parse_restore(restore_spec("nightly", {"bootstrapServers": ["k:1"]}, chosen))
    assert (same.offsets, same.verify) == (RestoreOffsets.SAME, RestoreVerification.FULL)
    earlier = restore_spec("nightly", {"bootstrapServers": ["k:9092"]}, ChoiceOptions(as_of="2026-11-17T14:05:00Z"))
    point = parse_restore(earlier).point
    assert point is not None
    assert point.as_of == "2026-11-17T14:05:00Z"
    assert parse_restore(
        restore_spec("nightly", {"bootstrapServers": ["k:1"]}, ChoiceOptions(everything=True))
    ).everything
    with pytest.raises(SpecInvalid, match=r"topics\.include, .* must be left out with everything"):
        parse_restore(
            restore_spec("nightly", {"bootstrapServers": ["k:1"]}, ChoiceOptions(topic=["orders"], everything=True))
        )
    with pytest.raises(SpecError, match="is not FROM=TO"):
        restore_spec("nightly", {}, ChoiceOptions(rename=["orders"]))


class Objects:
    """A cluster with these objects, by kind and name."""

    namespace = "team"

    def __init__(self, **objects: dict[str, str]) -> None:
        self._objects = objects

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return {"data": self._objects[f"{kind}_{name}"]}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("kind", ["Secret", "ConfigMap"])
def test_authorities_that_a_resource_names_are_in_a_file_while_the_archive_is_read(kind: str) -> None:
    field = {"Secret": "caSecretRef", "ConfigMap": "caConfigMapRef"}[kind]
    tls = ServerTls.model_validate({field: {"name": "ca", "certificateKey": "bundle.pem"}})
    text = "-----BEGIN CERTIFICATE-----"
    cluster = cast(Kubernetes, Objects(**{f"{kind}_ca": {"bundle.pem": encoded(text) if kind == "Secret" else text}}))
    with ExitStack() as files:
        path = Path(inspect.ca_file(cluster, tls, files))
        assert path.read_text() == text
    assert not path.exists()
    with ExitStack() as files, pytest.raises(CredentialsMissing, match=f"{kind} 'ca' in namespace team has no key b"):
        inspect.ca_file(cast(Kubernetes, Objects(**{f"{kind}_ca": {"ca.crt": text}})), tls, files)


def test_keys_of_a_secret_have_the_names_that_the_resource_gives_them() -> None:
    data = {"id": encoded("AKIA"), "key": encoded("S3CRET"), "sessionToken": encoded("T")}
    secret = {"name": "s3", "accessKeyIdKey": "id", "secretAccessKeyKey": "key"}
    spec = StorageSpec.model_validate({"uri": "s3://bucket/kafka", "credentials": {"secretRef": secret}})
    keys = inspect.secret_keys(cast(Kubernetes, Objects(Secret_s3=data)), spec)
    assert keys == {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "S3CRET", "AWS_SESSION_TOKEN": "T"}
    with pytest.raises(CredentialsMissing, match="the value is not text") as refused:
        inspect.secret_keys(cast(Kubernetes, Objects(Secret_s3={**data, "key": "/////w=="})), spec)
    assert "/////w" not in str(refused.value)


def test_the_plugin_installs_what_the_engine_has() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras["kubectl"]) < set(extras["engine"])

"""Every command of `kubectl logkeep` on a real API server, also for users without the rights for it."""

from __future__ import annotations

import base64
import json
import os
import shlex
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from logkeep_engine.cli.kubectl import calls
from tests.apiserver.operator import ROOT, Namespace, wait_for
from tests.apiserver.plugin import Plugin, administrator, kubelet, user
from tests.cluster import system, tools
from tests.cluster.kube_api import path_of
from tests.cluster.s3 import S3Server
from tests.kafka.test_storage_s3 import open_s3
from tests.unit.archive.build import archive_of, chunk
from tests.unit.operator.world import backup_of_its_own, backup_spec, restore_spec

READ = ("get", "list")
GROUP = "logkeep.dev"


def make(namespace: Namespace, name: str = "nightly", status: dict[str, Any] | None = None, **spec: Any) -> None:
    answer = namespace.apply("KafkaBackup", name, backup_of_its_own(name) | spec)
    assert answer.returncode == 0, answer.stderr
    if status is not None:
        namespace.patch("kbak", name, {"status": status}, "status")


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    moment = "2026-11-22T02:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": moment}


FAILED = {
    "phase": "Failed",
    "conditions": [
        condition("Ready", "False", "BrokerUnavailable", "No broker answers."),
        condition("Stalled", "True", "BrokerUnavailable", "No broker answers."),
    ],
    "run": {"id": "0123456789", "outcome": "Failed", "job": "nightly-0123456789"},
    "coverage": {"protected": 2, "leftOut": 1, "topicsLeftOut": ["scratch"]},
    "warnings": ["topic orders was deleted and created again"],
    "history": [{"runId": "0123456789", "outcome": "Failed", "message": "No broker answers."}],
}


def test_status_has_a_line_a_resource_and_the_whole_of_one(namespace: Namespace) -> None:
    logkeep = administrator(namespace)
    done = logkeep("status")
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"There is no KafkaBackup, KafkaRestore or KafkaArchive in namespace {namespace.name}." in done.stderr
    make(namespace, status=FAILED)
    namespace.apply("KafkaRestore", "nightly", restore_spec())
    head, *rows = logkeep("status").stdout.splitlines()
    assert head.split()[:4] == ["KIND", "NAME", "PHASE", "READY"]
    assert [row.split()[:4] for row in rows] == [
        ["KafkaBackup", "nightly", "Failed", "BrokerUnavailable"], ["KafkaRestore", "nightly", "Unknown", "-"],
    ]  # fmt: skip
    both = logkeep("status", "nightly").stdout
    assert f"KafkaBackup {namespace.name}/nightly" in both
    assert f"KafkaRestore {namespace.name}/nightly" in both
    one = logkeep("status", "kbak/nightly")
    assert "BrokerUnavailable: No broker answers." in one.stdout
    assert "KafkaRestore" not in one.stdout
    assert "warning: topic orders was deleted and created again\n" in one.stderr
    assert [item["kind"] for item in logkeep.json("status")["items"]] == ["KafkaBackup", "KafkaRestore"]
    everywhere = logkeep("status", "--all-namespaces").stdout
    assert namespace.name in everywhere.splitlines()[0] + everywhere
    assert logkeep("status", "nightly", "-A").exit_code == 2
    missing = logkeep("status", "nightli")
    assert missing.exit_code == 2
    assert (
        f"There is no KafkaBackup, KafkaRestore or KafkaArchive 'nightli' in namespace {namespace.name}."
        in missing.stderr
    )


def test_topics_says_what_is_protected_and_what_is_not(namespace: Namespace) -> None:
    logkeep = administrator(namespace)
    assert "There is no KafkaBackup in namespace" in logkeep("topics").stderr
    make(namespace, status=FAILED)
    make(namespace, "young")
    shown = logkeep("topics").stdout
    assert shown.splitlines()[1].split()[:4] == ["nightly", "scratch", "left", "out"]
    assert "nightly: 2 topics protected, 1 left out" in shown
    assert "young: no run has reported topics yet" in shown
    assert logkeep.json("topics", "nightly")["items"] == [
        {"namespace": namespace.name, "name": "nightly", "coverage": FAILED["coverage"]}
    ]


def test_restore_prints_or_makes_a_restore(namespace: Namespace) -> None:
    logkeep = administrator(namespace)
    make(namespace)
    none = logkeep("restore", "nightly")
    assert none.exit_code == 2
    assert "--bootstrap-server, --cluster-of" in none.stderr
    wrong = logkeep("restore", "nightly", "--cluster-of", "nightly", "--topic", "(")
    assert wrong.exit_code == 2
    assert "error: spec.topics.include[0]: '(' is not a regular expression" in wrong.stderr
    printed = logkeep("restore", "nightly", "--bootstrap-server", "k:9092", "--rename", "(.*)=old.\\1", "--dry-run")
    assert namespace.items("kafkarestores") == []
    namespace.kubectl("apply", "--dry-run=server", "-f", "-", stdin=printed.stdout)
    assert yaml.safe_load(printed.stdout)["spec"]["topics"] == {"rename": [{"from": "(.*)", "to": "old.\\1"}]}
    made = logkeep.json("restore", "nightly", "--cluster-of", "nightly", "--name", "again", "--topic", "orders")
    assert made["spec"]["cluster"]["bootstrapServers"] == backup_spec()["cluster"]["bootstrapServers"]
    assert namespace.get("krst", "again")["spec"]["topics"]["include"] == ["orders"]
    assert "dryRun" not in made["spec"] or made["spec"]["dryRun"] is False
    dry = logkeep.json("restore", "nightly", "--cluster-of", "nightly", "--name", "dry", "--as-dry-run")
    assert dry["spec"]["dryRun"] is True
    twice = logkeep("restore", "nightly", "--cluster-of", "nightly", "--name", "again")
    assert twice.exit_code == 2
    assert "already exists" in twice.stderr
    assert logkeep("restore", "weekly", "--cluster-of", "nightly").exit_code == 2


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ([condition("Ready", "True", "RunSucceeded", "All is back.")], 0),
        ([condition("Ready", "False", "TopicExists", "x"), condition("Stalled", "True", "TopicExists", "x")], 2),
        ([condition("Ready", "False", "DryRunDone", "Dry run."), condition("Stalled", "False", "DryRunDone", "")], 0),
        ([condition("Ready", "False", "DryRunRefused", "x"), condition("Stalled", "True", "DryRunRefused", "x")], 2),
    ],
)
def test_a_restore_that_is_waited_for_ends_with_its_exit_code(
    namespace: Namespace, state: list[dict[str, str]], code: int
) -> None:
    make(namespace)

    def end() -> None:
        wait_for("the KafkaRestore", lambda: namespace.find("krst", "again"))
        namespace.patch("krst", "again", {"status": {"phase": "Running", "conditions": state}}, "status")

    with_operator = threading.Thread(target=end)
    with_operator.start()
    done = administrator(namespace)(
        "restore", "nightly", "--cluster-of", "nightly", "--name", "again", "--wait", "--timeout", "120"
    )
    with_operator.join()
    assert done.exit_code == code, done.output
    assert state[0]["message"] in done.stderr


def test_a_wait_ends_at_its_time_and_the_run_continues(namespace: Namespace) -> None:
    make(namespace)
    done = administrator(namespace)("run", "nightly", "--wait", "--timeout", "1")
    assert done.exit_code == 1
    assert "asked for; no operator has answered yet" in done.stderr
    assert "The run has not ended within 1 s. It is not stopped." in done.stderr
    (requested,) = namespace.items("kafkabackupruns")
    assert requested["spec"] == {"backupRef": {"name": "nightly"}, "ttlSecondsAfterFinished": 86400}
    assert f"kubectl -n {namespace.name} get kbrun {requested['metadata']['name']}" in done.stderr


def test_run_asks_and_tells_the_object(namespace: Namespace) -> None:
    logkeep = administrator(namespace)
    make(namespace)
    made = logkeep.json("run", "nightly", "--ttl", "600")
    assert made["metadata"]["name"].startswith("nightly-")
    assert made["spec"]["ttlSecondsAfterFinished"] == 600
    assert logkeep("run", "nightli").exit_code == 2
    assert logkeep("run", "nightly", "--timeout", "5").exit_code == 2
    assert len(namespace.items("kafkabackupruns")) == 1


@pytest.mark.parametrize("reason", ["InvalidSpec", "NotAllowed"])
def test_nothing_is_made_for_a_backup_that_can_never_run(namespace: Namespace, reason: str) -> None:
    text = "spec.schedule.cron: '61 * * * *' is not a valid cron expression: bad minute"
    state = [condition(kind, status, reason, text) for kind, status in (("Ready", "False"), ("Stalled", "True"))]
    wrong = {"phase": "Invalid", "observedGeneration": 1, "conditions": state}
    make(namespace, status=wrong)
    logkeep = administrator(namespace)
    restore = ("restore", "nightly", "--cluster-of", "nightly", "--name", "again")
    for command in (("run", "nightly"), ("run", "nightly", "--wait"), restore, (*restore, "--wait")):
        done = logkeep(*command)
        assert done.exit_code == 2, done.output
        assert f"error: BackupInvalid: KafkaBackup 'nightly' cannot run: {reason}: {text}" in done.stderr
    assert (namespace.items("kafkabackupruns"), namespace.items("kafkarestores")) == ([], [])
    namespace.patch("kbak", "nightly", {"status": {"lastSuccessTime": "2026-11-22T02:00:00Z"}}, "status")
    assert logkeep(*restore).exit_code == 0, "there is something to restore"
    namespace.patch("kbak", "nightly", {"status": {"observedGeneration": 0}}, "status")
    assert logkeep("run", "nightly").exit_code == 0, "the operator has not looked at it as it is now"


@pytest.mark.parametrize(("command", "kind"), [("run", "kafkabackupruns"), ("restore", "kafkarestores")])
def test_a_wait_ends_when_the_operator_says_that_the_run_cannot_begin(
    namespace: Namespace, command: str, kind: str
) -> None:
    make(namespace)
    reason = "InvalidSpec" if command == "run" else "BackupInvalid"
    state = [condition("Ready", "False", reason, "wrong"), condition("Stalled", "True", reason, "wrong")]

    def tell() -> None:
        made = wait_for(kind, lambda: namespace.items(kind))[0]["metadata"]["name"]
        short = "kbrun" if command == "run" else "krst"
        namespace.patch(short, made, {"status": {"phase": "Pending", "conditions": state}}, "status")

    with_operator = threading.Thread(target=tell)
    with_operator.start()
    options = () if command == "run" else ("--cluster-of", "nightly")
    done = administrator(namespace)(command, "nightly", *options, "--wait", "--timeout", "120")
    with_operator.join()
    assert done.exit_code == 2, done.output
    assert f"error: {reason}: wrong" in done.stderr


def driver_pod(namespace: Namespace, name: str, run_id: str, node: str) -> None:
    labels = {"logkeep.dev/run": run_id, "logkeep.dev/role": "driver"}
    spec = {"nodeName": node, "containers": [{"name": "driver", "image": "x"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
    namespace.api.connection.create(path_of(namespace.name, "pods"), body)
    state = {"name": "driver", "image": "x", "imageID": "", "ready": True, "restartCount": 0, "state": {"running": {}}}
    namespace.patch("pod", name, {"status": {"phase": "Running", "containerStatuses": [state]}}, "status")


def test_logs_are_those_of_the_driver_of_a_run(namespace: Namespace, tmp_path: Path) -> None:
    logkeep = administrator(namespace)
    make(namespace)
    early = logkeep("logs", "nightly")
    assert early.exit_code == 2
    assert "No run of kbak/nightly was started yet." in early.stderr
    namespace.patch("kbak", "nightly", {"status": FAILED}, "status")
    gone = logkeep("logs", "nightly")
    assert gone.exit_code == 2
    assert f"Run 0123456789 has no driver pod in namespace {namespace.name}." in gone.stderr
    base = f"/containerLogs/{namespace.name}"
    texts = {f"{base}/first/driver": "one\n", f"{base}/second/driver": "two\nthree\n"}
    with kubelet(tmp_path, texts) as port:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": namespace.name}}
        namespace.api.connection.create("/api/v1/nodes", node)
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        namespace.api.connection.patch(f"/api/v1/nodes/{namespace.name}/status", {"status": status})
        for name in ("first", "second"):
            driver_pod(namespace, name, "0123456789", namespace.name)
        assert logkeep("logs", "nightly").stdout == "two\nthree\n"
        assert logkeep("logs", "nightly", "--tail", "1", "--follow").stdout == "three\n"
        assert logkeep("logs", "nightly", "--attempt", "1").stdout == "one\n"
        assert logkeep("logs", "nightly", "--attempt", "3").exit_code == 2
        assert logkeep("logs", "nightly", "--run", "abcdefabcd").exit_code == 2


@pytest.fixture
def archived(namespace: Namespace, s3: S3Server, bucket: str) -> Namespace:
    """A namespace with a KafkaBackup whose archive is on a real server, and the Secret that it names."""
    storage = open_s3(s3, bucket)
    archive_of(storage, chunk(storage, 0, 40))
    place = {"uri": storage.uri, "endpoint": s3.endpoint, "region": s3.region}
    make(namespace, storage={**place, "credentials": {"secretRef": {"name": "keys"}}})
    values = {"accessKeyId": s3.access_key, "secretAccessKey": s3.secret_key}
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    namespace.kubectl("apply", "-f", "-", stdin=json.dumps(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data}))  # fmt: skip
    return namespace


def test_inspect_reads_the_archive_with_the_secret_that_the_resource_names(
    archived: Namespace, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a token of somebody else")
    logkeep = administrator(archived)
    allowed = ("--allow-endpoint", s3.endpoint)
    archived.apply("KafkaRestore", "again", restore_spec())
    for name in ("kbak/nightly", "krst/again"):
        held = logkeep.json("inspect", name, *allowed)
        assert (held["records"], [topic["name"] for topic in held["topics"]]) == (40, ["orders"])
    at = logkeep.json("inspect", "krst/again", *allowed, "--at", "2999-01-01T00:00:00Z")
    assert (at["asOf"]["recordsAtMost"], at["asOf"]["partitions"][0][0]) == (40, "orders")
    both = logkeep("inspect", "nightly", *allowed, "--at", "2999-01-01T00:00:00Z", "--partitions")
    assert (both.exit_code, "--partitions has no effect with --at" in both.stderr) == (2, True)
    assert logkeep("inspect", "nightly", *allowed, "--at", "yesterday").exit_code == 2
    assert logkeep.json("inspect", "krst/again", *allowed, "--cost")["retention"] is None
    archived.kubectl("patch", "kbak", "nightly", "--type=merge", "-p", '{"spec": {"retention": {"maxAge": "30d"}}}')
    cost = logkeep.json("inspect", "kbak/nightly", *allowed, "--cost")
    assert (cost["topics"][0]["objects"], cost["retention"]["told"]) == (3, "maxAge 30d")
    assert cost["retention"]["bytes"] == cost["topics"][0]["bytes"], "the records are years old"
    shown = logkeep("inspect", "nightly", *allowed, "--debug")
    assert shown.exit_code == 0, shown.output
    assert "orders" in shown.stdout
    assert s3.secret_key not in shown.output
    archived.kubectl("patch", "secret", "keys", "--type=json", "-p", '[{"op": "remove", "path": "/data/accessKeyId"}]')
    lacking = logkeep("inspect", "nightly", *allowed)
    assert lacking.exit_code == 2
    assert "has no key accessKeyId." in lacking.stderr
    archived.kubectl("delete", "secret", "keys")
    gone = logkeep("inspect", "nightly", *allowed)
    assert gone.exit_code == 2
    assert f"There is no Secret 'keys' in namespace {archived.name}." in gone.stderr
    assert "Make it there: the pods of runs take it from the namespace of the resource" in gone.stderr


def test_inspect_warns_of_an_archive_that_lacks_what_the_status_knows(archived: Namespace, s3: S3Server) -> None:
    logkeep, allowed = administrator(archived), ("--allow-endpoint", s3.endpoint)
    archived.apply("KafkaRestore", "again", restore_spec())
    seen = logkeep.json("inspect", "nightly", *allowed)["anchor"]
    uri = archived.get("kbak", "nightly")["spec"]["storage"]["uri"]
    for anchor, warned in ((seen, False), (f"9:{seen[2:]}", True), (f"2:{'0' * 64}", True)):
        archived.patch("kbak", "nightly", {"status": {"archive": {"uri": uri, "anchor": anchor}}}, "status")
        for name in ("nightly", "krst/again"):
            shown = logkeep("inspect", name, *allowed)
            assert shown.exit_code == 0, shown.output
            assert (f"known: {anchor}" in shown.stderr) is warned
            assert "orders" in shown.stdout


def test_a_place_is_tried_with_the_secret_that_the_resource_names(archived: Namespace, s3: S3Server) -> None:
    logkeep, allowed = administrator(archived), ("--allow-endpoint", s3.endpoint)
    report = logkeep.json("storage", "check", "nightly", *allowed, "--read-only")
    assert (report["usable"], report["roles"]) == (True, ["reader"])
    report = logkeep.json("storage", "check", "kbak/nightly", *allowed)
    assert report["roles"][:3] == ["reader", "writer", "pruner"]
    assert report["left"] == []
    refused = logkeep("storage", "check", "nightly")
    assert "EndpointNotAllowed" in refused.output


def test_an_archive_is_shown_and_inspected_by_its_name_and_by_what_names_it(archived: Namespace, s3: S3Server) -> None:
    logkeep, allowed = administrator(archived), ("--allow-endpoint", s3.endpoint)
    place = archived.get("kbak", "nightly")["spec"]["storage"]
    assert archived.apply("KafkaArchive", "lake", {"storage": place}).returncode == 0
    named = {key: value for key, value in backup_spec().items() if key != "storage"} | {"archiveRef": {"name": "lake"}}
    assert archived.apply("KafkaBackup", "nightly", named).returncode == 0
    by_name = restore_spec(source={"archiveRef": {"name": "lake"}})
    assert archived.apply("KafkaRestore", "by-name", by_name).returncode == 0
    assert archived.apply("KafkaRestore", "again", restore_spec()).returncode == 0
    for name in ("kbak/nightly", "lake", "karc/lake", "krst/by-name", "again"):
        assert logkeep.json("inspect", name, *allowed)["records"] == 40
    assert logkeep.json("storage", "check", "karc/lake", *allowed, "--read-only")["usable"] is True
    known = {"uri": place["uri"], "anchor": f"9:{'0' * 64}", "commit": 9, "writeTime": "2026-11-22T02:00:00Z"}
    status = {
        "writer": "nightly", "backups": 1, "backupList": ["nightly"], "restores": 30, "restoreList": ["by-name"],
        "archive": known | {"topics": 1, "records": 40, "bytes": 1024, "storedBytes": 512, "size": "512 B"},
        "recovery": {"lastTime": "2026-11-22T01:00:00Z"},
        "drill": {"restore": "d", "endTime": "2026-11-22T03:00:00Z", "lastGoodTime": "2026-11-22T03:00:00Z"},
        "verification": {"restore": "v", "outcome": "Verified", "endTime": "2026-11-22T04:00:00Z"},
        "conditions": [condition("Ready", "True", "Usable", "It may be named.")],
    }  # fmt: skip
    archived.patch("karc", "lake", {"status": status}, "status")
    for name in ("lake", "krst/by-name"):
        assert f"known: 9:{'0' * 64}" in logkeep("inspect", name, *allowed).stderr
    rows = [row.split() for row in logkeep("status").stdout.splitlines()]
    (line,) = [row for row in rows if row[0] == "KafkaArchive"]
    assert (line[1:5], line[-3:-1]) == (["lake", "-", "yes", "-"], ["512", "B"])
    shown = " ".join(logkeep("status", "lake").stdout.split())
    for text in (
        f"KafkaArchive {archived.name}/lake", f"uri {place['uri']}", "state Usable: It may be named.",
        "written by nightly", "backups nightly", "restores by-name and 29 more", "holds 1 topics, 40 records",
        "recoverable from - to 2026-11-22T01:00:00Z", "last good drill 2026-11-22T03:00:00Z",
        "last verified restore Verified, 2026-11-22T04:00:00Z",
    ):  # fmt: skip
        assert text in shown
    archived.kubectl("delete", "karc", "lake")
    gone = logkeep("inspect", "nightly", *allowed)
    assert gone.exit_code == 2
    assert f"There is no KafkaArchive 'lake' in namespace {archived.name}." in gone.stderr


def test_the_prices_of_an_archive_are_those_of_its_resource_unless_a_file_is_given(
    archived: Namespace, s3: S3Server, tmp_path: Path
) -> None:
    logkeep, allowed = administrator(archived), ("--allow-endpoint", s3.endpoint, "--cost")
    place, file = archived.get("kbak", "nightly")["spec"]["storage"], ROOT / "examples/prices/aws-us-east-1.yaml"
    prices = yaml.safe_load(file.read_text()) | {"currency": "EUR"}
    assert archived.apply("KafkaArchive", "lake", {"storage": place, "prices": prices}).returncode == 0
    assert archived.apply("KafkaRestore", "again", restore_spec()).returncode == 0
    for name in ("nightly", "krst/again"):
        assert logkeep.json("inspect", name, *allowed)["currency"] is None, "it has a storage of its own"
    named = {key: value for key, value in backup_spec().items() if key != "storage"} | {"archiveRef": {"name": "lake"}}
    assert archived.apply("KafkaBackup", "nightly", named).returncode == 0
    by_name = restore_spec(source={"archiveRef": {"name": "lake"}})
    assert archived.apply("KafkaRestore", "by-name", by_name).returncode == 0
    for name in ("lake", "nightly", "krst/by-name", "krst/again"):
        found = logkeep.json("inspect", name, *allowed)
        assert (found["currency"], found["month"]) == ("EUR", found["bytes"] / (1 << 30) * 0.023)
    assert logkeep.json("inspect", "lake", *allowed, "--prices", str(file))["currency"] == "USD"
    assert "stored" in logkeep("inspect", "lake", *allowed).stdout
    cost = {"currency": "EUR", "month": 12.3, "monthIn30Days": 14.125, "display": "12.30 EUR/month"}
    archived.patch("karc", "lake", {"status": {"cost": cost}}, "status")
    shown = " ".join(logkeep("status", "lake").stdout.split())
    assert "costs 12.30 EUR/month, 14.12 EUR/month in 30 days" in shown
    archived.patch("karc", "lake", {"status": {"cost": {"monthIn30Days": None}}}, "status")
    assert "costs 12.30 EUR/month " in " ".join(logkeep("status", "lake").stdout.split()) + " "


def test_inspect_of_an_archive_on_a_volume_says_where_to_read_it(namespace: Namespace) -> None:
    make(namespace, storage={"uri": "file:///archive/a", "volume": {"claimName": "disk"}})
    done = administrator(namespace)("storage", "check", "nightly")
    assert "Run `logkeep storage check file:///archive/a` in a pod" in " ".join(done.output.split())
    done = administrator(namespace)("inspect", "nightly")
    assert done.exit_code == 2
    assert "The archive file:///archive/a is on the claim disk, which only pods can read." in done.stderr


LACKING: dict[tuple[str, ...], str] = {
    ("status",): "list on kafkabackups.logkeep.dev",
    ("status", "kbak/nightly"): "get on kafkabackups.logkeep.dev",
    ("topics",): "list on kafkabackups.logkeep.dev",
    ("run", "nightly"): "create on kafkabackupruns.logkeep.dev",
    ("restore", "nightly", "--cluster-of", "nightly"): "get on kafkabackups.logkeep.dev",
    ("logs", "nightly", "--run", "r"): "list on pods",
    ("inspect", "nightly"): "get on kafkabackups.logkeep.dev",
    ("inspect", "karc/nightly"): "get on kafkaarchives.logkeep.dev",
    ("storage", "check", "nightly"): "get on kafkabackups.logkeep.dev",
}


def test_a_missing_right_is_named(archived: Namespace, tmp_path: Path) -> None:
    nobody = user(archived, tmp_path, [])
    for command, right in LACKING.items():
        done = nobody(*command)
        assert done.exit_code == 2, command
        assert f"lacks a right: {right} in namespace {archived.name}." in done.stderr, command
    everywhere = nobody("status", "-A")
    assert "list on kafkabackups.logkeep.dev in the whole cluster." in everywhere.stderr
    assert "name one namespace with -n" in everywhere.stderr
    kinds = ("kafkabackups", "kafkarestores", "kafkaarchives")
    viewer = user(archived, tmp_path, [(GROUP, kind, READ) for kind in kinds], "viewer")
    assert viewer("status").exit_code == 0
    refused = viewer("inspect", "nightly", "--allow-endpoint", "http://*")
    assert refused.exit_code == 2
    assert f"lacks a right: get on secrets in namespace {archived.name}." in refused.stderr
    assert "create on kafkarestores" in viewer("restore", "nightly", "--cluster-of", "nightly").stderr


def test_without_a_cluster_it_says_what_it_looked_for(namespace: Namespace, tmp_path: Path) -> None:
    missing = Plugin(tmp_path / "none", "team")("status")
    assert missing.exit_code == 1
    assert f"error: ClusterUnreachable: The kubeconfig {tmp_path / 'none'}: " in missing.stderr
    (tmp_path / "broken").write_text("a: [")
    broken = Plugin(tmp_path / "broken", "team")("status")
    assert f"error: ClusterUnreachable: The kubeconfig {tmp_path / 'broken'}: " in broken.stderr
    config = json.loads(namespace.api.kubeconfig.read_text())
    (port,) = system.free_ports(1, "127.0.0.1", None)
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    (tmp_path / "closed").write_text(json.dumps(config))
    closed = Plugin(tmp_path / "closed", "team")("status")
    assert closed.exit_code == 1
    assert f"The Kubernetes API at https://127.0.0.1:{port} does not answer: " in closed.stderr
    wrong = administrator(namespace)("status", "--context", "production")
    assert wrong.exit_code == 1
    assert "production" in wrong.stderr
    config = json.loads(namespace.api.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "not a token"}
    (tmp_path / "stranger").write_text(json.dumps(config))
    stranger = Plugin(tmp_path / "stranger", namespace.name)("status")
    assert stranger.exit_code == 2
    assert "does not accept the credentials of the kubeconfig" in stranger.stderr


def test_lists_are_read_page_by_page(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_PAGE", "2")
    for number in range(5):
        make(namespace, f"backup-{number}")
    assert len(administrator(namespace).json("status")["items"]) == 5


def test_kubectl_finds_the_plugin(namespace: Namespace, tmp_path: Path) -> None:
    make(namespace, status=FAILED)
    program = tmp_path / "kubectl-logkeep"
    paths = shlex.quote(os.pathsep.join(sys.path))
    code = "import sys; from logkeep_engine.cli.kubectl import main; main()"
    program.write_text(f"#!/bin/sh\nPYTHONPATH={paths} exec {sys.executable} -c '{code}' \"$@\"\n")
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "KUBECONFIG": str(namespace.api.kubeconfig),
    }
    command = [str(tools.kubectl()), "logkeep", "status", "nightly", "-n", namespace.name]
    shown = system.run(command, env=environment)
    assert "BrokerUnavailable: No broker answers." in shown.stdout

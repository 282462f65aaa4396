"""The command `logkeep` as a user runs it: what it prints where, and its exit codes."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.contract import names
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.cluster.s3 import S3Server
from tests.command import environment, logkeep
from tests.data.compare import compare_topics
from tests.data.topics import Record, create_topic, produce, random_records, topic_names
from tests.kafka.archived_files import files_of
from tests.kafka.backing_up import FOR_TEST, Topics
from tests.kafka.restores import back_up, backup_spec, restore_spec
from tests.unit.archive.build import FAST

NOW = int(time.time() * 1000) - 3_600_000
UNREACHABLE = "127.0.0.1:1"


def resource(kind: str, spec: Mapping[str, Any], **more: Any) -> str:
    return yaml.safe_dump(
        {"apiVersion": "logkeep.dev/v1alpha1", "kind": kind, "metadata": {"name": "test"}, "spec": dict(spec), **more}
    )


def assert_refused(done: subprocess.CompletedProcess[str], message: str, code: int = 2) -> None:
    assert done.returncode == code, done.stderr
    assert re.search(rf"^error: .*{message}", done.stderr, re.MULTILINE), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.fixture
def orders(kafka: KafkaBroker, unique: str) -> str:
    create_topic(kafka.bootstrap, unique)
    records = [Record(b"k%d" % number, b"v" * 50, NOW + number) for number in range(100)]
    produce(kafka.bootstrap, unique, records, config={"batch.num.messages": 10, "linger.ms": 50})
    return unique


@pytest.fixture
def archived(kafka: KafkaBroker, orders: str, tmp_path: Path) -> Path:
    """An archive of the topic `orders`."""
    root = tmp_path / "archive"
    back_up(backup_spec(kafka, root, orders))
    return root


BACKUP: dict[str, Any] = {
    "cluster": {"bootstrapServers": [UNREACHABLE]},
    "topics": {"include": ["a"]},
    "storage": {"uri": "file:///nowhere"},
}
RESTORE: dict[str, Any] = {
    "cluster": {"bootstrapServers": [UNREACHABLE]},
    "source": {"storage": {"uri": "file:///nowhere"}},
}


class TestFile:
    @pytest.mark.parametrize(
        ("command", "text", "message"),
        [
            (
                "backup",
                resource("KafkaBackup", {**BACKUP, "topics": {"include": ["("]}}),
                r"spec\.topics\.include\[0\]: '\('",
            ),
            ("backup", resource("KafkaBackup", {**BACKUP, "topic": {}}), r"spec\.topic: unknown field"),
            ("backup", resource("KafkaBackup", BACKUP, spce={}), "spce: unknown field"),
            ("backup", resource("KafkaBackup", {**BACKUP, "storage": {"uri": "ftp://x"}}), r"spec\.storage\.uri: "),
            ("restore", resource("KafkaBackup", BACKUP), "kind: must be KafkaRestore, not 'KafkaBackup'"),
            (
                "backup",
                resource("KafkaBackup", BACKUP).replace("v1alpha1", "v9"),
                "apiVersion: must be 'logkeep.dev/v1alpha1', not 'logkeep.dev/v9'",
            ),
            ("backup", 2 * ("---\n" + resource("KafkaBackup", BACKUP)), "2 documents of kind KafkaBackup"),
            ("backup", "kind: [", "not YAML"),
            ("backup", "kind: a\nkind: b\n", "key 'kind' appears twice"),
            ("backup", "", "holds no document"),
            ("backup", "- a\n", "a document is a list"),
            ("backup", "apiVersion: logkeep.dev/v1alpha1\nkind: KafkaBackup\n", "spec: required"),
            (
                "restore",
                resource("KafkaRestore", {**RESTORE, "source": {"backupRef": {"name": "x"}}}),
                r"spec\.source\.backupRef: only the operator",
            ),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path: Path, command: str, text: str, message: str) -> None:
        file = tmp_path / "it.yaml"
        file.write_text(text)
        assert_refused(logkeep(command, "-f", file), message)

    def test_a_file_that_is_not_there(self) -> None:
        assert_refused(logkeep("backup", "-f", "/no/such.yaml"), "/no/such.yaml: No such file")

    def test_usage_errors_are_refusals_too(self) -> None:
        done = logkeep("backup")
        assert done.returncode == 2
        assert "--file" in done.stderr
        text = resource("KafkaBackup", BACKUP)
        assert_refused(logkeep("backup", "-f", "-", "--master", "yarn", stdin=text), "--master 'yarn'")
        assert_refused(logkeep("backup", "-f", "-", "--run-id", "a/b", stdin=text), "--run-id 'a/b'")

    def test_exit_codes_are_in_the_help(self) -> None:
        done = logkeep("restore", "--help")
        assert done.returncode == 0
        assert "130 interrupted" in " ".join(done.stdout.split())

    def test_secrets_come_from_variables_that_are_named(self) -> None:
        security = {"protocol": "SASL_PLAINTEXT", "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "s"}}}
        spec = {**BACKUP, "cluster": {**BACKUP["cluster"], "security": security}}
        assert_refused(logkeep("backup", "-f", "-", stdin=resource("KafkaBackup", spec)), names.ENV_KAFKA_USERNAME)
        spec = {**BACKUP, "storage": {"uri": "s3://bucket/x", "credentials": {"secretRef": {"name": "s"}}}}
        assert_refused(logkeep("backup", "-f", "-", stdin=resource("KafkaBackup", spec)), names.ENV_S3_ACCESS_KEY)


WITH_LOGIN = "s3://AKIAKEY:hunter2@bucket/p"


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", WITH_LOGIN],
        ["verify", WITH_LOGIN],
        ["import", WITH_LOGIN],
        ["convert", WITH_LOGIN, "file:///nowhere", "--format", "Kafka"],
        ["convert", "file:///nowhere", WITH_LOGIN, "--format", "Kafka"],
        ["log", "dump", WITH_LOGIN],
        ["log", "offsets", WITH_LOGIN],
        ["backup", "-f", "-"],
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_a_login_in_a_uri_is_refused_and_not_repeated(arguments: list[str]) -> None:
    done = logkeep(*arguments, "--debug", stdin=resource("KafkaBackup", {**BACKUP, "storage": {"uri": WITH_LOGIN}}))
    assert done.returncode == 2, done.stderr
    assert ("spec.storage.uri" if arguments[0] == "backup" else "Credentials come from the environment") in done.stderr
    for secret in ("AKIAKEY", "hunter2"):
        assert secret not in done.stdout + done.stderr


class TestRuns:
    def test_from_backup_to_verified_restore(self, kafka: KafkaBroker, orders: str, tmp_path: Path) -> None:
        root = tmp_path / "archive"
        text = "---\n" + resource("ConfigMap", {}) + "---\n" + resource("KafkaBackup", backup_spec(kafka, root, orders))
        done = logkeep("backup", "-f", "-", "--output", "json", stdin=text, spark=True)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert (result["outcome"], result["records"], result["topics"]) == ("Succeeded", 100, 1)
        assert re.fullmatch(r"[0-9]{8}t[0-9]{6}z-[0-9a-f]{6}", result["runId"])
        assert f"run {result['runId']}" in done.stderr

        shown = logkeep("inspect", root.as_uri(), "--partitions")
        assert shown.returncode == 0
        for word in (orders, "0 to 99", result["runId"], "Succeeded", kafka.cluster_id):
            assert word in shown.stdout
        described = json.loads(logkeep("inspect", root.as_uri(), "-o", "json").stdout)
        assert [topic["name"] for topic in described["topics"]] == [orders]

        checked = logkeep("verify", root.as_uri())
        assert (checked.returncode, checked.stdout[:6]) == (0, "whole:")
        assert json.loads(logkeep("verify", root.as_uri(), "-o", "json").stdout)["whole"] is True

        file = tmp_path / "restore.yaml"
        file.write_text(resource("KafkaRestore", restore_spec(kafka, root)))
        restored = logkeep("restore", "-f", file, "--run-id", "r1", "--master", "local[1]", spark=True)
        assert restored.returncode == 0, restored.stderr
        for word in ("r1", "Succeeded", "100", f"{root.as_uri()}/runs/r1/offset-maps"):
            assert word in restored.stdout
        assert "groups" not in restored.stdout
        comparison = compare_topics(kafka.bootstrap, orders, f"{orders}-copy")
        assert comparison.equal, str(comparison)
        again = logkeep("restore", "-f", file, "--run-id", "r2")
        assert_refused(again, f"TopicExists: topic {orders}-copy already exists")
        assert "hint: Delete" in again.stderr

    def test_diff_ends_as_its_verdict_says_and_leaves_the_proof_of_the_restore_alone(
        self, kafka: KafkaBroker, orders: str, archived: Path
    ) -> None:
        text = resource("KafkaRestore", restore_spec(kafka, archived, verify="Full"))
        assert logkeep("restore", "-f", "-", "--run-id", "r1", stdin=text).returncode == 0
        folder = archived / "runs/r1"
        proof = {path.name: path.read_bytes() for path in folder.glob("verification*")}
        assert proof.keys() == {"verification.json", "verification.html"}

        same = logkeep("diff", "-f", "-", "--run-id", "r1", stdin=text)
        assert same.returncode == 0, same.stderr
        assert re.search(r"^outcome +Verified$", same.stdout, re.MULTILINE)
        assert re.search(r"^report +.*/runs/r1/verification-2\.html$", same.stdout, re.MULTILINE)
        assert "Succeeded" not in same.stdout
        assert "restored" not in same.stderr

        Topics(kafka).delete_records(f"{orders}-copy", 100)
        gone = logkeep("diff", "-f", "-", "--run-id", "r1", stdin=text)
        assert gone.returncode == 5
        assert re.search(r"^outcome +NotVerified$", gone.stdout, re.MULTILINE)
        wrong = r"^error: RecordsNotVerified: not everything could be compared: .* begins at offset 100"
        assert re.search(wrong, gone.stderr, re.MULTILINE)
        reported = json.loads(logkeep("diff", "-f", "-", "--run-id", "r1", "-o", "json", stdin=text).stdout)
        assert (reported["outcome"], reported["exitCode"], reported["errorCode"]) == (
            "NotVerified",
            5,
            "RecordsNotVerified",
        )
        assert reported["verification"]["report"].endswith("/runs/r1/verification-4.html")
        assert {name: (folder / name).read_bytes() for name in proof} == proof

    def test_a_restore_that_had_succeeded_says_so_and_names_what_it_holds_now(
        self, kafka: KafkaBroker, archived: Path, orders: str
    ) -> None:
        topics = {
            "rename": [{"from": "(.*)", "to": r"\1-copy"}],
            "retention": "Hold",
            "holdFor": "1h",
            "configs": {"override": {"retention.ms": "604800000"}},
        }
        text = resource("KafkaRestore", restore_spec(kafka, archived, topics=topics))
        run = ("-f", "-", "--run-id", "r1")
        first = logkeep("restore", *run, "-o", "json", stdin=text)
        assert first.returncode == 0, first.stderr
        done = json.loads(first.stdout)
        assert "already" not in done["message"]
        ended = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(done['endTime']))}"

        again = logkeep("restore", *run, stdin=text)
        assert again.returncode == 0, again.stderr
        assert f"already succeeded at {ended}; nothing was restored now" in again.stdout
        assert re.search(r"^held topics +1$", again.stdout, re.MULTILINE)
        line = f"Nothing was restored now: run r1 had already succeeded at {ended}; 1 topic keeps all records"
        assert line in again.stderr
        assert "then: logkeep release -f FILE --run-id r1" in again.stderr

        other = resource("KafkaRestore", restore_spec(kafka, archived, topics=topics, ifTopicExists="Append"))
        for command in ("release", "diff"):
            wrong = logkeep(command, *run, stdin=other)
            assert_refused(wrong, "run r1 was started with another spec")
            assert "hint: Give the command the file that the run was started with, and in it" in wrong.stderr
        assert "its own run id" in logkeep("restore", *run, stdin=other).stderr

        assert logkeep("release", *run, stdin=text).returncode == 0
        released = logkeep("restore", *run, stdin=text)
        assert released.returncode == 0, released.stderr
        assert "held topics" not in released.stdout
        for word in ("keeps all records", "logkeep release"):
            assert word not in released.stderr
        result = json.loads(logkeep("restore", *run, "-o", "json", stdin=text).stdout)
        assert result["message"] == f"Nothing was restored now: run r1 had already succeeded at {ended}"
        assert (result["outcome"], result["records"], result["heldTopics"]) == ("Succeeded", 100, None)
        assert (result["earlierRun"], result["earlierEnd"]) == ("r1", done["endTime"])

        verified = logkeep("restore", *run, "--verify", "Full", stdin=text)
        assert verified.returncode == 0, verified.stderr
        assert f"already succeeded at {ended}; nothing was restored now" in verified.stdout
        assert re.search(r"^verification +Verified: all 100 records", verified.stdout, re.MULTILINE)

        resumed = logkeep("restore", "-f", "-", "--run-id", "r2", "--if-topic-exists", "Resume", stdin=text)
        assert resumed.returncode == 0, resumed.stderr
        assert f"run r1 has done this restore and ended at {ended}" in resumed.stderr
        assert "held topics" not in resumed.stdout

    def test_a_restore_that_was_to_move_groups_says_that_it_moved_none(
        self, kafka: KafkaBroker, archived: Path
    ) -> None:
        spec = restore_spec(kafka, archived, consumerGroups={"restore": "Translate", "include": ["no-such-group"]})
        done = logkeep("restore", "-f", "-", stdin=resource("KafkaRestore", spec))
        assert done.returncode == 0, done.stderr
        assert re.search(r"^positions of groups +0 *$", done.stdout, re.MULTILINE), done.stdout
        assert "warning: no consumer group was moved" in done.stderr

    def test_json_of_a_refused_run_has_the_reason(self, kafka: KafkaBroker, archived: Path) -> None:
        spec = {**restore_spec(kafka, archived), "topics": {"include": ["nope"]}}
        done = logkeep("restore", "-f", "-", "-o", "json", stdin=resource("KafkaRestore", spec))
        assert done.returncode == 2
        result = json.loads(done.stdout)
        assert (result["outcome"], result["errorCode"], result["exitCode"]) == ("Failed", "NoTopicMatches", 2)
        assert "error: NoTopicMatches: no topic of the archive matches" in done.stderr
        run = ("restore", "-f", "-", "--run-id", "r2", "-o", "json")
        early = logkeep(*run, stdin=resource("KafkaRestore", {**spec, "nope": 1}))
        assert early.returncode == 2
        reported = json.loads(early.stdout)
        assert reported.keys() == result.keys()
        assert (reported["outcome"], reported["errorCode"], reported["exitCode"]) == ("Failed", "InvalidSpec", 2)
        assert (reported["runId"], reported["kind"], reported["message"]) == (
            "r2",
            "KafkaRestore",
            "spec.nope: unknown field",
        )
        assert early.stderr == "error: spec.nope: unknown field\n"

    def test_no_topic_matches(self, kafka: KafkaBroker, archived: Path, orders: str, tmp_path: Path) -> None:
        text = resource("KafkaRestore", {**restore_spec(kafka, archived), "topics": {"include": ["nope"]}})
        done = logkeep("restore", "-f", "-", stdin=text)
        assert_refused(done, r"no topic of the archive matches spec\.topics\.include")
        assert orders in done.stderr
        text = resource("KafkaBackup", backup_spec(kafka, tmp_path / "b", "no-such-topic"))
        assert_refused(logkeep("backup", "-f", "-", stdin=text), "")

    def test_a_broker_out_of_reach_may_come_back(self, archived: Path, tmp_path: Path) -> None:
        soon = {"logkeep_engine.kafka.admin._CONNECT_TIMEOUT": 2.0}
        text = resource("KafkaBackup", {**BACKUP, "storage": {"uri": (tmp_path / "b").as_uri()}})
        done = logkeep("backup", "-f", "-", stdin=text, constants=soon)
        assert_refused(done, UNREACHABLE, code=1)
        text = resource("KafkaRestore", {**RESTORE, "source": {"storage": {"uri": archived.as_uri()}}})
        done = logkeep("restore", "-f", "-", stdin=text, constants=soon)
        assert_refused(done, UNREACHABLE, code=1)

    def test_interrupted_and_gone_on_with(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique, 2, {"retention.ms": "-1"})  # the records are years old
        produce(kafka.bootstrap, unique, random_records(2, 12, record_bytes=1000), config={"batch.size": 4000})
        root = tmp_path / "archive"
        back_up(backup_spec(kafka, root, unique))
        file = tmp_path / "restore.yaml"
        slow = {"bytesPerSecond": "1Mi"}  # a restore that is over before it can be interrupted shows nothing
        file.write_text(resource("KafkaRestore", restore_spec(kafka, root, limits=slow)))
        command = [sys.executable, "-m", "logkeep_engine.cli", "restore", "-f", str(file), "--run-id", "r1"]
        running = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        while not list(kafka.data_dir.glob(f"{unique}-copy-0/*.log")) and running.poll() is None:
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=120)
        assert running.returncode == 130, err
        assert out == ""
        assert "error: interrupted" in err
        assert "hint: continue with --run-id r1" in err
        assert "Traceback" not in err
        file.write_text(resource("KafkaRestore", restore_spec(kafka, root)))
        done = logkeep("restore", "-f", file, "--run-id", "r1")
        assert done.returncode == 0, done.stderr
        comparison = compare_topics(kafka.bootstrap, unique, f"{unique}-copy")
        assert comparison.equal, str(comparison)


class TestStorage:
    def test_there_is_no_archive(self, kafka: KafkaBroker, tmp_path: Path) -> None:
        uri = (tmp_path / "none").as_uri()
        for command in ("inspect", "verify"):
            assert_refused(logkeep(command, uri), f"no archive at {uri}")
        text = resource("KafkaRestore", restore_spec(kafka, tmp_path / "none"))
        assert_refused(logkeep("restore", "-f", "-", stdin=text), f"no archive at {uri}")
        assert_refused(logkeep("inspect", "gopher://x"), "not a storage URI")

    def test_wrong_credentials_and_a_missing_bucket(self, s3: S3Server, kafka: KafkaBroker, bucket: str) -> None:
        right = {names.ENV_S3_ACCESS_KEY: s3.access_key, names.ENV_S3_SECRET_KEY: s3.secret_key}
        wrong = {**right, names.ENV_S3_SECRET_KEY: "wrong"}
        for environ, uri, message in (
            (wrong, f"s3://{bucket}/a", "refused the credentials|denied"),
            (right, "s3://no-such-bucket/a", "Bucket 'no-such-bucket' does not exist"),
        ):
            assert_refused(logkeep("inspect", uri, "--endpoint", s3.endpoint, environ=environ), message)
            storage = {"uri": uri, "endpoint": s3.endpoint}
            spec = {**backup_spec(kafka, Path("/unused"), "a"), "storage": storage}
            text = resource("KafkaBackup", spec)
            assert_refused(logkeep("backup", "-f", "-", stdin=text, environ=environ), message)
            spec = {**restore_spec(kafka, Path("/unused")), "source": {"storage": storage}}
            text = resource("KafkaRestore", spec)
            assert_refused(logkeep("restore", "-f", "-", stdin=text, environ=environ), message)

    def test_an_archive_of_another_cluster(self, kafka: KafkaBroker, tmp_path: Path, orders: str) -> None:
        Archive.create_or_open(open_uri(tmp_path.as_uri()), "another-cluster-id-000")
        text = resource("KafkaBackup", backup_spec(kafka, tmp_path, orders))
        assert_refused(logkeep("backup", "-f", "-", stdin=text), "belongs to Kafka cluster another-cluster-id-000")

    def test_an_archive_that_another_run_is_writing(self, kafka: KafkaBroker, archived: Path, orders: str) -> None:
        archive = Archive.open(open_uri(archived.as_uri()), FOR_TEST)
        with begin_run(archive, "alive", wait=FAST):
            text = resource("KafkaBackup", backup_spec(kafka, archived, orders))
            done = logkeep("backup", "-f", "-", stdin=text)
        assert_refused(done, "is being written by run alive", code=3)


class TestDamage:
    @pytest.mark.parametrize("damage", ["cut short", "flipped byte", "missing"])
    def test_verify_names_it_restore_refuses_it_and_skip_goes_around(
        self, kafka: KafkaBroker, archived: Path, orders: str, damage: str
    ) -> None:
        (log,) = files_of(archived, orders)
        data = bytearray(log.read_bytes())
        if damage == "missing":
            log.unlink()
        elif damage == "cut short":
            log.write_bytes(data[:-20])
        else:
            (length,) = struct.unpack_from(">i", data, 8)
            data[length + 12 + 70] ^= 0x10
            log.write_bytes(data)
        checked = logkeep("verify", archived.as_uri())
        assert checked.returncode == 6
        faults = [line for line in checked.stdout.splitlines() if log.name in line]
        assert [line.startswith("fault: ") for line in faults] == [True], checked.stdout
        assert json.loads(logkeep("verify", archived.as_uri(), "-o", "json").stdout)["whole"] is False

        text = resource("KafkaRestore", restore_spec(kafka, archived))
        refused = logkeep("restore", "-f", "-", stdin=text)
        assert_refused(refused, "nothing was written to Kafka")
        assert log.name in refused.stderr
        assert f"{orders}-copy" not in topic_names(kafka.bootstrap)

        skip = restore_spec(kafka, archived, onDamagedArchive="Skip")
        if damage == "missing":
            message = r"everything in it is damaged\); nothing was written"
            assert_refused(logkeep("restore", "-f", "-", stdin=resource("KafkaRestore", skip)), message)
            skip["allowEmpty"] = True
        done = logkeep("restore", "-f", "-", "-o", "json", stdin=resource("KafkaRestore", skip))
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["records"] == 100 - result["lossOffsets"]
        assert result["lossTotal"] == 1
        assert (result["records"] == 0) == (damage == "missing")


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())  # a test of another file may have left a run that it broke off
    yield
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("logkeep-alive")]


class TestCoverage:
    def test_topics_that_no_backup_protects_are_listed(self, kafka: KafkaBroker, orders: str, tmp_path: Path) -> None:
        spec = backup_spec(kafka, tmp_path / "b", orders)
        done = self.ask(kafka, resource("KafkaBackup", spec), "-o", "json")
        rest = [item["topic"] for item in json.loads(done.stdout)["uncovered"]]
        assert orders not in rest
        spec["topics"] = {"include": [".*"], "exclude": [orders]}
        found = self.ask(kafka, resource("KafkaBackup", spec))
        assert found.returncode == 6, found.stderr
        assert [line.split()[0] for line in found.stdout.splitlines()] == ["topic", orders]
        assert "topics that no KafkaBackup protects: 1 (of 1 KafkaBackup)" in found.stderr

    def test_it_reads_what_kubectl_lists(self, kafka: KafkaBroker, orders: str, tmp_path: Path) -> None:
        spec = backup_spec(kafka, tmp_path / "b", ".*")
        one = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup", "metadata": {"name": "all"}, "spec": spec}
        good = {**one, "status": {"lastSuccessTime": "2026-11-21T07:00:00Z"}}
        other = {**one, "status": {"archive": {"clusterId": "another"}}}
        never = {**one, "status": {}}
        for item, code, said in ((good, 0, "protects: 0 (of 1"), (never, 6, ""), (other, 6, "another cluster")):
            listed = {"apiVersion": "v1", "kind": "List", "items": [item], "metadata": {"resourceVersion": ""}}
            done = self.ask(kafka, json.dumps(listed))
            assert (done.returncode, said in done.stderr) == (code, True), done.stderr
        assert "never succeeded" in self.ask(kafka, json.dumps(never)).stdout

    def test_a_backup_of_an_unknown_cluster_is_not_called_one_of_another(
        self, kafka: KafkaBroker, orders: str, tmp_path: Path
    ) -> None:
        spec = {**backup_spec(kafka, tmp_path / "b", orders), "cluster": {"bootstrapServers": ["kafka.elsewhere:9092"]}}
        done = self.ask(kafka, resource("KafkaBackup", spec))
        assert done.returncode == 6, done.stderr
        assert "another cluster" not in done.stderr
        assert "--bootstrap-server names none of its brokers: kafka.elsewhere:9092" in done.stderr

    def test_an_invalid_backup_of_the_cluster_does_not_hide_the_others(
        self, kafka: KafkaBroker, orders: str, tmp_path: Path
    ) -> None:
        spec = backup_spec(kafka, tmp_path / "b", ".*")
        good = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup", "metadata": {"name": "good"}, "spec": spec}
        wrong = {**good, "metadata": {"name": "wrong", "uid": "u"}, "spec": {**spec, "topics": {"include": ["("]}}}
        listed = {"apiVersion": "v1", "kind": "List", "items": [wrong, good]}
        done = self.ask(kafka, json.dumps(listed))
        assert done.returncode == 0, done.stderr
        assert "note: wrong protects nothing, its spec is invalid: spec.topics.include[0]" in done.stderr

    def test_what_is_wrong_is_named(self, kafka: KafkaBroker) -> None:
        spec = {**BACKUP, "topics": {"include": ["("]}}
        assert_refused(self.ask(kafka, resource("KafkaBackup", spec)), r"spec\.topics\.include\[0\]")
        assert_refused(logkeep("coverage", "--bootstrap-server", "nowhere", "-f", "/dev/null"), "--bootstrap-server")

    @staticmethod
    def ask(kafka: KafkaBroker, text: str, *more: str) -> "subprocess.CompletedProcess[str]":
        return logkeep("coverage", "--bootstrap-server", kafka.bootstrap, "-f", "-", *more, stdin=text)

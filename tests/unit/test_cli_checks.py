"""Commands refuse a file before they ask anybody if the operator would refuse the resource."""

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from logkeep_engine.cli import app
from logkeep_engine.cli.errors import errors
from logkeep_engine.contract.checks import check_spec
from logkeep_engine.contract.names import BACKUP, RESTORE
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.errors import Refused, SpecError, TopicExists

CLUSTER = {"bootstrapServers": ["127.0.0.1:1"]}
STORAGE = {"uri": "file:///tmp/logkeep-no-archive"}
SPECS: dict[str, dict[str, Any]] = {
    BACKUP: {"cluster": CLUSTER, "topics": {"include": ["orders"]}, "storage": STORAGE},
    RESTORE: {"cluster": CLUSTER, "source": {"storage": STORAGE}},
}
WRONG: list[tuple[str, Mapping[str, Any], str]] = [
    (BACKUP, {"schedule": {"cron": "61 * * * *"}}, "spec.schedule.cron: '61 * * * *' is not a valid cron expression"),
    (
        BACKUP,
        {"schedule": {"cron": "0 0 31 2 *"}},
        "spec.schedule.cron: '0 0 31 2 *' is not a valid cron expression: bad day",
    ),
    (BACKUP, {"schedule": {"cron": "@daily", "timeZone": "Mars/Base"}}, "spec.schedule.timeZone: 'Mars/Base' is not a"),
    (BACKUP, {"reconcile": {"cron": "0 0 * *"}}, "spec.reconcile.cron: '0 0 * *' is not a cron expression"),
    (BACKUP, {"spark": {"conf": {"spark.master": "local"}}}, "spec.spark.conf[spark.master]: is set by Logkeep"),
    (BACKUP, {"spark": {"driver": {"memory": "16Mi"}}}, "spec.spark.driver.memory: 16Mi is too little"),
    (BACKUP, {"runPolicy": {"jobLabels": {"logkeep.dev/run": "x"}}}, "spec.runPolicy.jobLabels[logkeep.dev/run]: is"),
    (RESTORE, {"drill": {"schedule": {"cron": "61 * * * *"}}}, "spec.drill.schedule.cron: '61 * * * *' is not a valid"),
    (RESTORE, {"spark": {"executor": {"coreLimit": "100m"}}}, "spec.spark.executor.coreLimit: 100m is less than"),
]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(("kind", "changes", "expected"), WRONG)
def test_a_file_that_the_operator_refuses_is_refused_before_anything_is_asked(
    kind: str, changes: Mapping[str, Any], expected: str, dry_run: bool
) -> None:
    spec = {**SPECS[kind], **changes}
    document = {"apiVersion": "logkeep.dev/v1alpha1", "kind": kind, "metadata": {"name": "one"}, "spec": spec}
    command = "drill" if "drill" in spec else "backup" if kind == BACKUP else "restore"
    options = ["--dry-run"] if dry_run and command != "drill" else []
    done = CliRunner().invoke(app, [command, "-f", "-", *options], input=json.dumps(document))
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"error: {expected}" in done.stderr
    with pytest.raises(SpecInvalid) as refused:
        check_spec(parse_backup(spec) if kind == BACKUP else parse_restore(spec))
    assert expected in str(refused.value), "the operator says the same"


REFUSED_EARLY = [
    (["backup", "-f", "/no/such.yaml"], "", "InvalidSpec", "/no/such.yaml: No such file or directory."),
    (["backup", "-f", "-", "--run-id", "a/b"], "a/b", "InvalidSpec", "--run-id 'a/b' is not a valid name for a run."),
    (["restore", "-f", "-", "--run-id", "r1"], "r1", "InvalidSpec", "standard input: kind: must be KafkaRestore"),
    (["restore", "-f", "-", "--strimzi-cluster", "c"], "", "InvalidSpec", "--strimzi-cluster has no effect without"),
    (["drill", "-f", "-"], "", "InvalidSpec", "standard input: kind: must be KafkaRestore, not 'KafkaBackup'"),
    (["diff", "-f", "-"], "", "InvalidSpec", "--run-id is required"),
    (["convert", "file:///no", "file:///none", "--format", "Kafka", "--topic", "("], "", "InvalidSpec", "--topic '('"),
    (["convert", "ftp://a", "file:///b", "--format", "Kafka"], "", "StorageRefused", "'ftp://a' is"),
    (["import", "file:///no", "--format", "Kafka"], "", "InvalidSpec", "--format has no effect"),
    (["erase", "file:///no", "--topic", "a", "--run-id", "e1"], "e1", "InvalidSpec", "--key or --keys-file must say"),
]


@pytest.mark.parametrize(("arguments", "run_id", "code", "expected"), REFUSED_EARLY)
def test_json_of_what_is_refused_before_it_begins_is_that_of_a_failed_run(
    arguments: list[str], run_id: str, code: str, expected: str
) -> None:
    document = {
        "apiVersion": "logkeep.dev/v1alpha1",
        "kind": BACKUP,
        "metadata": {"name": "one"},
        "spec": SPECS[BACKUP],
    }
    done = CliRunner().invoke(app, [*arguments, "-o", "json"], input=json.dumps(document))
    found = json.loads(done.stdout)
    if arguments[0] in ("convert", "import"):
        assert (found["dryRun"], found.pop("losses"), found.pop("faults")) == (False, [], [])
        found["dryRun"] = None  # of a run it is a report
    result = RunResult.from_json(json.dumps(found))
    assert (done.exit_code, result.exit_code, result.outcome) == (2, 2, "Failed")
    assert (result.run_id, result.error_code) == (run_id, code)
    assert result.message.startswith(expected), result.message
    assert "error: " in done.stderr


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TopicExists("topic a exists", hint="Go."), "error: TopicExists: topic a exists\nhint: Go.\n"),
        (SpecError("spec.point: wrong"), "error: spec.point: wrong\n"),
        (Refused("topic a: no"), "error: topic a: no\n"),
        (KeyError("x"), "error: UnexpectedError: KeyError: 'x'\nhint: Run it again with --debug"),
    ],
)
def test_an_error_begins_with_the_reason_that_has_a_page_about_it(
    error: Exception, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit), errors(debug=False):
        raise error
    assert capsys.readouterr().err.startswith(expected)


@pytest.mark.parametrize("kind", [BACKUP, RESTORE])
def test_only_a_pod_needs_a_volume_for_a_folder(kind: str) -> None:
    spec = parse_backup(SPECS[kind]) if kind == BACKUP else parse_restore(SPECS[kind])
    check_spec(spec, in_pods=False)
    with pytest.raises(SpecInvalid, match="volume: required with a file:// uri"):
        check_spec(spec)


def test_an_interrupt_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    """py4j tells it to the root logger."""

    def send() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            logging.exception("KeyboardInterrupt while sending command.")
            raise

    with pytest.raises(typer.Exit), errors(debug=False):
        send()
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize("option", ["--endpoint", "--target-endpoint"])
@pytest.mark.parametrize("given", ["minio.storage:9000", "ftp://minio.storage:9000", "http://me:secret@minio:9000"])
def test_an_endpoint_that_is_no_origin_is_refused_before_anything_is_asked(option: str, given: str) -> None:
    done = CliRunner().invoke(app, ["convert", "s3://a-bucket/a", "s3://a-bucket/b", "--format", "Avro", option, given])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"'{option}': must be https://host:port or http://host:port, without" in " ".join(done.stderr.split())
    assert "secret" not in done.stderr

"""Commands refuse a file before they ask anybody if the operator would refuse the resource."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from typer.testing import CliRunner

from logkeep_engine.cli import app
from logkeep_engine.contract.checks import check_spec
from logkeep_engine.contract.names import BACKUP, RESTORE
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.spec import parse_backup, parse_restore

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
@pytest.mark.parametrize(("kind", "changes", "told"), WRONG)
def test_a_file_that_the_operator_refuses_is_refused_before_anything_is_asked(
    kind: str, changes: Mapping[str, Any], told: str, dry_run: bool
) -> None:
    spec = {**SPECS[kind], **changes}
    document = {"apiVersion": "logkeep.dev/v1alpha1", "kind": kind, "metadata": {"name": "one"}, "spec": spec}
    command = "drill" if "drill" in spec else "backup" if kind == BACKUP else "restore"
    options = ["--dry-run"] if dry_run and command != "drill" else []
    done = CliRunner().invoke(app, [command, "-f", "-", *options], input=json.dumps(document))
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"error: {told}" in done.stderr
    with pytest.raises(SpecInvalid) as refused:
        check_spec(parse_backup(spec) if kind == BACKUP else parse_restore(spec))
    assert told in str(refused.value), "the operator says the same"


@pytest.mark.parametrize("kind", [BACKUP, RESTORE])
def test_only_a_pod_needs_a_volume_for_a_folder(kind: str) -> None:
    spec = parse_backup(SPECS[kind]) if kind == BACKUP else parse_restore(SPECS[kind])
    check_spec(spec, in_pods=False)
    with pytest.raises(SpecInvalid, match="volume: required with a file:// uri"):
        check_spec(spec)

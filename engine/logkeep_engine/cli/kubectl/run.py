"""The command `kubectl logkeep run`: asks for a run of a backup with a KafkaBackupRun, and follows it to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.kubectl import lines
from logkeep_engine.cli.kubectl.errors import NoSuchResource, RightMissing
from logkeep_engine.cli.kubectl.options import Backup, Timeout, Wait, Where, backup_name
from logkeep_engine.cli.kubectl.waiting import follow, refuse_invalid
from logkeep_engine.cli.options import Debug, Output, OutputFormat, refuse, spread
from logkeep_engine.cli.output import print_json, say
from logkeep_engine.contract.backup_run_spec import MIN_TTL_SECONDS
from logkeep_engine.contract.names import BACKUP, BACKUP_RUN
from logkeep_engine.contract.spec import API_VERSION

if TYPE_CHECKING:
    from logkeep_engine.cli.kubectl.calls import Kubernetes

Ttl = Annotated[
    int | None,
    typer.Option(
        metavar="SECONDS",
        help="Seconds that the KafkaBackupRun stays after its end; a day by default.",
        min=MIN_TTL_SECONDS,
    ),
]


@spread
def run(
    backup: Backup,
    wait: Wait = False,
    timeout: Timeout = None,
    ttl: Ttl = None,
    *,
    where: Where,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Ask for a run of a backup. It needs the right to create KafkaBackupRuns, and none to change the backup."""
    with errors(debug):
        if not wait:
            refuse({"--timeout": timeout}, "has no effect without --wait")
        name = backup_name(backup)
        cluster = where.connect()
        _check_backup(cluster, name)
        made = cluster.create(_request(name, cluster.namespace, ttl))
        asked = str(made["metadata"]["name"])
        say(f"{lines.short_name(made)} asks for a run of KafkaBackup {name}")
        if wait:
            _wait(cluster, asked, timeout, output)
        elif output is Output.JSON:
            print_json(lines.clean(made))


def _check_backup(cluster: Kubernetes, name: str) -> None:
    """Raises NoSuchResource for a name that is wrong, and BackupInvalid. A user who may not read backups learns it from
    the status."""
    try:
        backup = cluster.get(BACKUP, name)
    except RightMissing:
        return
    refuse_invalid(backup)


def _request(backup: str, namespace: str, ttl: int | None) -> dict[str, Any]:
    spec: dict[str, Any] = {"backupRef": {"name": backup}}
    if ttl is not None:
        spec["ttlSecondsAfterFinished"] = ttl
    metadata = {"generateName": f"{backup}-", "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": BACKUP_RUN, "metadata": metadata, "spec": spec}


def _wait(cluster: Kubernetes, asked: str, timeout: float | None, output: Output) -> None:
    def look() -> dict[str, Any]:
        try:
            return cluster.get(BACKUP_RUN, asked)
        except NoSuchResource as error:
            raise NoSuchResource(
                f"KafkaBackupRun {asked!r} was deleted while this command was waiting for its run.",
                hint="The run, if it was started, continues: kubectl logkeep status",
            ) from error

    follow(look, lines.run_line, timeout, output, f"kubectl -n {cluster.namespace} get kbrun {asked}")

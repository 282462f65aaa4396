"""The command `logkeep coverage`: lists the topics of a cluster that no KafkaBackup protects.

kubectl get kafkabackups -A -o yaml | logkeep coverage --bootstrap-server kafka:9092 -f -
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.options import Debug, Output, OutputFormat, SecurityOptions, spread
from logkeep_engine.cli.output import print_json, say, stdout, table
from logkeep_engine.contract.names import BACKUP, ExitCode
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.backup.recoverability.covered import Backup, Uncovered

EXIT_CODES = (
    "Exit codes: 0 every topic is protected; 1 no broker answered; 2 refused: a file or an option is wrong, or the "
    "broker refused; 6 some topics are not protected; 130 interrupted."
)

Files = Annotated[
    list[str],
    typer.Option(
        "--file", "-f", help="KafkaBackups as YAML, also as kubectl lists them; - reads standard input. Repeatable."
    ),
]
Bootstrap = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", help="The cluster, host:port[,host:port].", show_default=False),
]
Internal = Annotated[bool, typer.Option("--internal", help="Kafka's own topics count too.")]


@spread
def coverage(
    bootstrap_server: Bootstrap,
    file: Files,
    internal: Internal = False,
    *,
    security: SecurityOptions,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """List the topics of a cluster that no KafkaBackup protects: none chooses them, or those that do are suspended or
    have never succeeded.

    Topics that the user may not describe are not seen: give it the ACL DESCRIBE on all.
    """
    with errors(debug):
        connection = security.connection("--bootstrap-server", bootstrap_server)
        backups = [backup for name in file for backup in _backups(name)]
        from logkeep_engine.backup.recoverability.covered import is_of, uncovered
        from logkeep_engine.kafka.control import ControlPlane
        from logkeep_engine.kafka.topics import TopicInfo

        with ControlPlane(connection) as control:
            cluster_id = control.cluster_id()
            control.only(cluster_id)
            topics, silent = control.list_topics()
        own = [backup for backup in backups if is_of(backup, cluster_id, connection.bootstrap)]
        for backup in backups:
            if backup not in own:
                say(f"note: {backup.name} is ignored: {_why_aside(backup)}")
        for name, reason in silent.items():
            say(f"warning: topic {name} cannot be described now: {reason}")
        nameless = [TopicInfo(name, "", (), 0, False) for name in silent]
        found = uncovered([*topics, *nameless], own, internal=internal)
        _print(found, cluster_id, own, output)
        if found:
            raise typer.Exit(ExitCode.DIFFERS)


def _why_aside(backup: Backup) -> str:
    if backup.cluster_id:
        return "it backs up another cluster"
    cluster = backup.spec.cluster
    if cluster.strimzi is not None:
        name = cluster.strimzi.name
        return f"no run has reported which cluster it backs up, and only the operator finds Strimzi's Kafka {name}"
    servers = ", ".join(cluster.servers)
    return f"no run has reported which cluster it backs up, and --bootstrap-server names none of its brokers: {servers}"


def _backups(file: str) -> Iterator[Backup]:
    """Yield the KafkaBackups of a file. Raises SpecError for a wrong one, unless the API server has taken it: such a
    one protects nothing, and must not hide what the others do."""
    from logkeep_engine.backup.recoverability.covered import backup_of, resource_name
    from logkeep_engine.cli.documents import check_envelope, name_of

    for document in _resources(file):
        check_envelope(document, name_of(file))
        try:
            yield backup_of(document, parse_backup(document["spec"]))
        except SpecInvalid as error:
            if (document.get("metadata") or {}).get("uid"):
                say(f"note: {resource_name(document)} protects nothing, its spec is invalid: {error}")
                continue
            raise SpecError(f"{name_of(file)}: {resource_name(document)}: {error}") from error


def _resources(file: str) -> Iterator[dict[str, Any]]:
    from logkeep_engine.cli.documents import load_documents

    for document in load_documents(file, BACKUP):
        if document.get("kind") == BACKUP:
            yield document
        elif str(document.get("kind")).endswith("List"):
            items = document.get("items") or []
            yield from (item for item in items if isinstance(item, dict) and item.get("kind") == BACKUP)


def _print(found: list[Uncovered], cluster_id: str, backups: list[Backup], output: Output) -> None:
    if output is Output.JSON:
        rows = [{"topic": item.topic, "partitions": item.partitions, "chosenBy": item.chosen_by} for item in found]
        print_json({"clusterId": cluster_id, "backups": [item.name for item in backups], "uncovered": rows})
        return
    shown = table("topic", "partitions", "chosen by")
    for item in found:
        shown.add_row(item.topic, str(item.partitions), ", ".join(item.chosen_by) or "-")
    if found:
        stdout().print(shown)
    say(f"topics that no KafkaBackup protects: {len(found)} (of {so_many(len(backups), 'KafkaBackup')})")

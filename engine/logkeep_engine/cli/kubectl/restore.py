"""The command `kubectl logkeep restore`: makes a KafkaRestore of a backup, or prints it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.kubectl import lines
from logkeep_engine.cli.kubectl.errors import NoSuchResource
from logkeep_engine.cli.kubectl.options import Backup, Timeout, Wait, Where, backup_name
from logkeep_engine.cli.kubectl.waiting import follow, refuse_invalid
from logkeep_engine.cli.options import WHOLE_NAMES, Confirm, Debug, Output, OutputFormat, refuse, spread
from logkeep_engine.cli.output import print_json, print_lines, say
from logkeep_engine.contract.names import BACKUP, RESTORE
from logkeep_engine.contract.restore_spec import (
    GroupRestore,
    IfTopicExists,
    RestoreOffsets,
    RestoreVerification,
    parse_restore,
)
from logkeep_engine.contract.restored_topics import TopicRetention
from logkeep_engine.contract.spec import API_VERSION
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.cli.kubectl.calls import Kubernetes

RestoreName = Annotated[
    str | None, typer.Option("--name", help="Name of the KafkaRestore; by default the backup's name and the time.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the KafkaRestore as YAML, and create nothing.")]
Servers = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The target cluster, host:port[,host:port], without TLS and login."),
]
ClusterOf = Annotated[
    str | None, typer.Option(metavar="BACKUP", help="The target is the cluster of this KafkaBackup, with its login.")
]
Include = Annotated[
    list[str] | None, typer.Option("--topic", metavar="REGEX", help=f"Only these topics. {WHOLE_NAMES}")
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="REGEX", help=f"Topics to leave out. {WHOLE_NAMES}")
]
Rename = Annotated[
    list[str] | None, typer.Option("--rename", metavar="FROM=TO", help="Rename topics: '(.*)=old.\\1'. Repeatable.")
]  # fmt: skip
Exists = Annotated[
    IfTopicExists | None,
    typer.Option(metavar="ACTION", help="What to do with a topic that already exists; Fail by default."),
]
Offsets = Annotated[RestoreOffsets | None, typer.Option(help="Same: records keep their offsets; Any by default.")]
Verify = Annotated[
    RestoreVerification | None, typer.Option(help="Full: read it back and compare every record; Counts by default.")
]
Retention = Annotated[
    TopicRetention | None,
    typer.Option(
        help="Records that a target would delete: Hold keeps them until `logkeep release`, Apply lets them be deleted, "
        "and Refuse, the default, restores nothing."
    ),
]
HoldFor = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="With --retention Hold: release them this long after the restore has succeeded, such as 7d.",
    ),
]
AsOf = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="The state at a time, such as 2026-11-17T14:05:00Z (spec.point.asOf)."),
]
AsDryRun = Annotated[
    bool,
    typer.Option(
        "--as-dry-run",
        help="Create it with spec.dryRun: it only finds out what it would do, and why it would be refused.",
    ),
]
Everything = Annotated[
    bool,
    typer.Option("--everything", help="Bring a whole cluster back: topics, groups, quotas and ACLs (spec.everything)."),
]
Groups = Annotated[bool, typer.Option("--groups", help="Set consumer groups to where they stood.")]


@dataclass(frozen=True)
class TargetOptions:
    """The cluster into which is restored."""

    bootstrap_server: Servers = None
    cluster_of: ClusterOf = None


@dataclass(frozen=True)
class ChoiceOptions:
    """The options that say what is restored, and under which names."""

    topic: Include = None
    exclude: Exclude = None
    rename: Rename = None
    if_topic_exists: Exists = None
    confirm: Confirm = None
    offsets: Offsets = None
    verify: Verify = None
    retention: Retention = None
    hold_for: HoldFor = None
    groups: Groups = False
    everything: Everything = False
    as_of: AsOf = None
    as_dry_run: AsDryRun = False


@spread
def restore(
    backup: Backup,
    name: RestoreName = None,
    dry_run: DryRun = False,
    wait: Wait = False,
    timeout: Timeout = None,
    *,
    target: TargetOptions,
    chosen: ChoiceOptions,
    where: Where,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Restore topics of a backup: make a KafkaRestore. For other settings take --dry-run, and edit what it prints."""
    with errors(debug):
        if not wait or dry_run:
            refuse({"--timeout": timeout}, "has no effect without --wait")
        if dry_run:
            refuse({"--wait": wait}, "has no effect with --dry-run")
        source = backup_name(backup)
        cluster = where.connect()
        found = cluster.get(BACKUP, source)  # a name that is wrong would wait for ever
        if not lines.part(found, "status", "lastSuccessTime"):
            refuse_invalid(found)  # so would one that can never succeed
        spec = restore_spec(source, _cluster_spec(cluster, target), chosen)
        parse_restore(spec)
        made = name or f"{source}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        metadata = {"name": made, "namespace": cluster.namespace}
        body = {"apiVersion": API_VERSION, "kind": RESTORE, "metadata": metadata, "spec": spec}
        if dry_run:
            _print(body, output)
            return
        body = cluster.create(body)
        does = "finds out how to restore" if chosen.as_dry_run else "restores"
        say(f"krst/{made} {does} KafkaBackup {source}")
        if wait:
            _wait(cluster, made, timeout, output)
        elif output is Output.JSON:
            print_json(lines.clean(body))


def restore_spec(backup: str, cluster: Mapping[str, Any], chosen: ChoiceOptions) -> dict[str, Any]:
    """Return the spec of a KafkaRestore, with what was chosen and nothing else. Raises SpecError."""
    spec: dict[str, Any] = {"source": {"backupRef": {"name": backup}}, "cluster": dict(cluster)}
    topics: dict[str, Any] = {}
    if chosen.topic:
        topics["include"] = list(chosen.topic)
    if chosen.exclude:
        topics["exclude"] = list(chosen.exclude)
    if chosen.rename:
        topics["rename"] = [_rename(rule) for rule in chosen.rename]
    if chosen.retention is not None:
        topics["retention"] = chosen.retention.value
    if chosen.hold_for is not None:
        topics["holdFor"] = chosen.hold_for
    if topics:
        spec["topics"] = topics
    if chosen.if_topic_exists is not None:
        spec["ifTopicExists"] = chosen.if_topic_exists.value
    if chosen.confirm:
        spec["confirm"] = list(chosen.confirm)
    if chosen.offsets is not None:
        spec["offsets"] = chosen.offsets.value
    if chosen.verify is not None:
        spec["verify"] = chosen.verify.value
    if chosen.as_of is not None:
        spec["point"] = {"asOf": chosen.as_of}
    if chosen.as_dry_run:
        spec["dryRun"] = True
    if chosen.everything:
        spec["everything"] = True
    if chosen.groups:
        spec["consumerGroups"] = {"restore": GroupRestore.TRANSLATE.value}
    return spec


def _rename(rule: str) -> dict[str, str]:
    before, sign, after = rule.rpartition("=")
    if not sign or not before or not after:
        raise SpecError(f"--rename {rule!r} is not FROM=TO", hint="Write, for example, '(.*)=restored.\\1'.")
    return {"from": before, "to": after}


def _cluster_spec(cluster: Kubernetes, target: TargetOptions) -> Mapping[str, Any]:
    if (target.bootstrap_server is None) == (target.cluster_of is None):
        raise SpecError(
            (
                "--bootstrap-server, --cluster-of: exactly one of them is required and names the Kafka cluster to "
                "restore into"
            ),
            hint="For the backup's own cluster name the backup again: --cluster-of BACKUP.",
        )
    if target.cluster_of is not None:
        found: Mapping[str, Any] = cluster.get(BACKUP, backup_name(target.cluster_of))["spec"]["cluster"]
        return found
    servers = (target.bootstrap_server or "").split(",")
    return {"bootstrapServers": [server.strip() for server in servers if server.strip()]}


def _print(body: dict[str, Any], output: Output) -> None:
    if output is Output.JSON:
        print_json(body)
    else:
        print_lines(yaml.safe_dump(body, sort_keys=False, allow_unicode=False), flush=True)


def _line(body: Mapping[str, Any]) -> str:
    ready = lines.condition(body, "Ready")
    notes = [str(lines.part(body, "status", "phase") or "Pending").lower()]
    progress = lines.part(body, "status", "progress")
    if isinstance(progress, Mapping):
        notes.append(lines.progress_line(progress))
    if ready.get("message"):
        notes.append(f"{ready.get('reason')}: {ready['message']}")
    return ", ".join(notes)


def _wait(cluster: Kubernetes, name: str, timeout: float | None, output: Output) -> None:
    def look() -> dict[str, Any]:
        try:
            return cluster.get(RESTORE, name)
        except NoSuchResource as error:
            raise NoSuchResource(
                f"KafkaRestore {name!r} was deleted while this command was waiting for it.", hint="Its run was stopped."
            ) from error

    follow(look, _line, timeout, output, f"kubectl logkeep -n {cluster.namespace} status krst/{name}")

"""Prints the findings of a dry run, for people and for programs."""

from __future__ import annotations

from logkeep_engine.cli.errors import with_code
from logkeep_engine.cli.options import Output
from logkeep_engine.cli.output import facts, print_json, say, stdout, table
from logkeep_engine.cli.running import say_warnings
from logkeep_engine.contract.facts.dry_run import EXACT, DryRunReport, PlannedClusterState, PlannedRetention
from logkeep_engine.contract.names import BACKUP, ExitCode
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.values import describe_aborted, human_bytes, human_duration, so_many

_DEFAULT = "default"


def show_dry_run(result: RunResult, output: Output) -> None:
    """Print the report of a dry run."""
    report = result.dry_run
    assert report is not None
    if output is Output.JSON:
        print_json(result.to_dict())
        return
    out = stdout()
    if report.topics:
        out.print(facts(_rows(result, report)))
        out.print(_topics(report, restores=result.kind != BACKUP))
        if report.group_list:
            shown = table("group", "positions")
            for group in report.group_list:
                shown.add_row(group.group, str(group.positions))
            out.print(shown)
        if report.position_list:
            out.print(_positions(report))
        if report.cluster_state is not None:
            _print_cluster_state(report.cluster_state)
        if report.retention is not None and report.retention.topic_list:
            _print_retention(report.retention)
    else:
        out.print(facts([("run", result.run_id), ("outcome", result.outcome)]))
        if not report.refused:
            say(result.message)
    for note in report.not_checked:
        say(f"not checked: {note}")
    say_warnings(result)
    for refusal in report.refusals:
        say(f"refused: {with_code(refusal.reason, refusal.message)}")


def exit_code_of(result: RunResult) -> int:
    """Return the exit code of the command: a dry run that has found a refusal ends as the run would."""
    refused = result.dry_run is not None and result.dry_run.refused > 0
    return int(ExitCode.REFUSED) if refused else result.exit_code


def _rows(result: RunResult, report: DryRunReport) -> list[tuple[str, str]]:
    most = "" if report.counts == EXACT else "at most "
    rows = [
        ("run", result.run_id),
        ("outcome", result.outcome),
        (
            "topics",
            f"{report.topics}, {report.topics_created} to be created" if report.topics_created else str(report.topics),
        ),
        ("partitions", str(report.partitions)),
        ("records", f"{most}{report.records}"),
        *([("left out", describe_aborted(report.aborted_records))] if report.aborted_records else []),
        ("bytes", f"{most}{human_bytes(report.bytes)}"),
        ("requests", f"about {report.requests} to Kafka, {report.storage_requests} to the storage"),
    ]
    if report.seconds is not None and report.bytes_per_second is not None:
        rows.append(
            ("time", f"about {human_duration(report.seconds)} at {human_bytes(report.bytes_per_second)} a second")
        )
        rows.append(("rate", report.rate or "-"))
    if report.groups:
        rows.append(("groups", f"{report.groups}, {so_many(report.positions, 'position')}"))
    if report.cluster_state is not None:
        state = report.cluster_state
        rows += [
            ("ACLs", f"{state.acls} archived, {state.acls_to_add} to be added{_held(state)}"),
            ("client quotas", f"{state.quotas} archived, {state.quotas_to_add} to be added"),
            ("users to create", str(state.users_to_create)),
        ]
    if report.point:
        rows.append(("point", report.point))
    if report.retention is not None:
        goes = report.retention.describe() if report.retention.topics else "nothing"
        rows.append(("retention", f"would remove {goes}"))
    rows.append(
        ("refused", f"for {report.refused} reasons" if report.refused > 1 else "yes" if report.refused else "no")
    )
    return rows


def _held(state: PlannedClusterState) -> str:
    return f", {state.acls_held_back} held back: spec.acls does not name them" if state.acls_held_back else ""


def _positions(report: DryRunReport) -> object:
    """Return where each group would stand: its source position, the record that it would read next, its target
    position."""
    shown = table("group", "topic", "partition", "source", "record", "time", "target")
    for item in report.position_list:
        shown.add_row(
            item.group,
            item.topic,
            str(item.partition),
            str(item.source_offset),
            "-" if item.record is None else str(item.record),
            item.time or "-",
            str(item.target_offset),
        )
    return shown


def _print_cluster_state(state: PlannedClusterState) -> None:
    """The ACLs, client quotas and SCRAM users that the cluster lacks."""
    kinds = (
        ("ACL", state.acl_list),
        ("ACL held back", state.held_back_list),
        ("client quota", state.quota_list),
        ("user to create", state.user_list),
    )
    for kind, items in kinds:
        shown = table(kind)
        for item in items:
            shown.add_row(item)
        if items:
            stdout().print(shown)


def _print_retention(found: PlannedRetention) -> None:
    """The segments and snapshots that would go."""
    shown = table("retention removes of", "partitions", "segments", "snapshots", "size", "why")
    for item in found.topic_list:
        shown.add_row(
            item.topic, str(item.partitions), str(item.segments), str(item.snapshots), human_bytes(item.bytes), item.why
        )
    stdout().print(shown)


def _topics(report: DryRunReport, *, restores: bool) -> object:
    columns = ("topic", "from", "", "partitions", "replicas", "records", "size", "configuration")
    shown = table(*columns) if restores else table("topic", "partitions", "records", "size")
    for topic in report.topic_list:
        records = f"{'' if topic.counts == EXACT else 'at most '}{topic.records}"
        if not restores:
            shown.add_row(topic.topic, str(topic.partitions), records, human_bytes(topic.bytes))
            continue
        shown.add_row(
            topic.topic,
            topic.source or "",
            topic.state.lower(),
            str(topic.partitions),
            "-" if topic.replicas is None else _DEFAULT if topic.replicas < 0 else str(topic.replicas),
            records,
            human_bytes(topic.bytes),
            topic.config or "-",
        )
    return shown

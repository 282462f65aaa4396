"""The commands `backup` and `restore` run the resource in a file here, and show the user its result."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.errors import errors, say_failure
from logkeep_engine.cli.options import Output
from logkeep_engine.cli.output import facts, print_json, say, stdout
from logkeep_engine.cli.running import (
    SparkOptions,
    end,
    failing_as_json,
    leave,
    on_spark,
    print_failure,
    rows_of_counts,
    say_how_to_go_on,
    say_warnings,
    seconds,
)
from logkeep_engine.collector import paused
from logkeep_engine.contract.checks import check_spec
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import BACKUP, COMMAND_LINE, ExitCode
from logkeep_engine.contract.restore_spec import GroupRestore, KafkaRestoreSpec, parse_restore
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import KafkaBackupSpec, parse_backup
from logkeep_engine.contract.values import describe_aborted, human_time, so_many
from logkeep_engine.errors import LogkeepError, RecordsDiffer
from logkeep_engine.frame import with_clear_text_warnings

if TYPE_CHECKING:
    from logkeep_engine.report import Reporter
    from logkeep_engine.spark.session import Session

File = Annotated[
    str, typer.Option("--file", "-f", help="The resource as YAML; - reads standard input.", show_default=False)
]


def run_resource(
    kind: str,
    file: str,
    spark: SparkOptions,
    output: Output,
    debug: bool,
    *,
    changes: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    only_verify: bool = False,
    anchor: str | None = None,
    take_over: str | None = None,
) -> None:
    """Run the one resource of `kind` in a file, and end the command as the run ended. `changes` are fields of its spec
    that options have set, `defaults` those that the command sets where the file does not. With `only_verify` nothing
    is restored: what a run has restored is compared. `anchor` and `take_over` are as in the request of a run."""
    with errors(debug):
        with failing_as_json(kind, spark.run_id, output):
            request, spec = _read(kind, file, spark, changes or {}, defaults or {})
        request = replace(request, anchor=anchor, take_over=take_over)
        if isinstance(spec, KafkaBackupSpec) and spec.dry_run:
            _print_end(_dry_backup(request, spec), output, spec)
            return
        from logkeep_engine.spark.conf import uses_s3

        started = time.time()
        result: RunResult | None = None
        try:
            with on_spark(request.run_id, kind, spark.master, s3=uses_s3(spec)) as (session, reporter):
                result = _run(request, spec, spark, session, reporter, only_verify=only_verify)
                result = of_comparison(result) if only_verify else result
                end(session, reporter, result)
        except (LogkeepError, KeyboardInterrupt) as error:
            if result is not None:  # the run had ended, and was interrupted no more
                _print_result(result, output, spec)
                raise
            print_failure(error, kind, request.run_id, output, started)
            if isinstance(error, KeyboardInterrupt):
                say_how_to_go_on(request.run_id)
            raise
        _print_end(result, output, spec)


def of_comparison(result: RunResult) -> RunResult:
    """Return the result of a command that compares and has written to no target: records that differ end it as any
    other difference ends a command."""
    differs = result.error_code == RecordsDiffer.code
    return replace(result, exit_code=int(ExitCode.DIFFERS)) if differs else result


def _print_end(result: RunResult, output: Output, spec: KafkaBackupSpec | KafkaRestoreSpec) -> None:
    """Print the result of a run, and end the command with its exit code."""
    if result.dry_run is None:
        _print_result(result, output, spec)
        leave(result)
        return
    from logkeep_engine.cli.dry_run import exit_code_of, show_dry_run

    result = replace(result, exit_code=exit_code_of(result))
    show_dry_run(result, output)
    leave(result)


def _dry_backup(request: RunRequest, spec: KafkaBackupSpec) -> RunResult:
    """Return the result of the dry run of a backup. It has no tasks, so it needs no Spark."""
    from logkeep_engine.backup.run.dry_run import BackupDryRun
    from logkeep_engine.report import Reporter

    say(f"run {request.run_id}")
    result = BackupDryRun(request, spec, Reporter(request.run_id), os.environ).perform()
    return with_clear_text_warnings(result, spec)


def _read(
    kind: str, file: str, spark: SparkOptions, changes: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[RunRequest, KafkaBackupSpec | KafkaRestoreSpec]:
    from logkeep_engine.cli.documents import owner_in, read_document

    document = read_document(file, kind)
    spec = {**defaults, **document["spec"], **changes}
    run_id = spark.run_id_or_new()
    typed = parse_backup(spec) if kind == BACKUP else parse_restore(spec)
    check_spec(typed, in_pods=False)
    if isinstance(typed, KafkaBackupSpec):
        _ = typed.place  # it is looked up by no one here
    else:
        from logkeep_engine.restore.model.state import archive_place

        archive_place(typed)
    metadata, owner = document.get("metadata") or {}, owner_in(document)
    request = RunRequest(
        kind=kind,
        name=owner.name,
        namespace=str(metadata.get("namespace", "")),
        run_id=run_id,
        spec=spec,
        requested_by=COMMAND_LINE,
        uid=owner.uid or None,
    )
    return request, typed


def _run(
    request: RunRequest,
    spec: KafkaBackupSpec | KafkaRestoreSpec,
    spark: SparkOptions,
    session: Session,
    reporter: Reporter,
    *,
    only_verify: bool,
) -> RunResult:
    # Java has been started first, and while it starts, what plans the run is imported here.
    from logkeep_engine.spark.conf import planned_for

    if isinstance(spec, KafkaBackupSpec):
        with paused():
            from logkeep_engine.backup.run.backup_run import run_backup

        result = run_backup(request, planned_for(spark.master, spec), session.runner, reporter, os.environ)
        return with_clear_text_warnings(result, spec)
    with paused():
        from logkeep_engine.restore.run.entry import run_of, verify_again

    given = (request, planned_for(spark.master, spec), session.runner, reporter, os.environ)
    result = verify_again(*given) if only_verify else run_of(*given).perform_or_raise()
    return with_clear_text_warnings(result, spec)


def _moves_groups(spec: KafkaBackupSpec | KafkaRestoreSpec) -> bool:
    if isinstance(spec, KafkaBackupSpec):
        return False
    return spec.everything or spec.consumer_groups.restore is GroupRestore.TRANSLATE


def _print_result(result: RunResult, output: Output, spec: KafkaBackupSpec | KafkaRestoreSpec) -> None:
    if output is Output.JSON:
        print_json(result.to_dict())
        return
    succeeded = result.exit_code == ExitCode.OK
    if succeeded or result.records:
        stdout().print(facts(_result_rows(result, _moves_groups(spec))))
    if succeeded and result.message and not _is_verdict(result):
        say(result.message)
    if succeeded and isinstance(spec, KafkaRestoreSpec):
        _say_how_to_release(result, spec)
    for fact in result.loss:
        say(f"lost: {fact.topic}-{fact.partition} offsets {fact.start} to {fact.end - 1}: {fact.reason}")
    if result.loss_total > len(result.loss):
        say(f"lost: and {so_many(result.loss_total - len(result.loss), 'more range')}")
    say_warnings(result)
    if not succeeded:
        say_failure(result)


def _say_how_to_release(result: RunResult, spec: KafkaRestoreSpec) -> None:
    """Say when held topics are to be released, and how: a command does not wait for that as the operator does."""
    from logkeep_engine.restore.topics.held_topics import held_until

    until = held_until(spec, result)
    if result.held_topics is not None and until is not None:
        over, command = human_time(until), f"logkeep release -f FILE --run-id {result.run_id}"
        say(f"spec.topics.holdFor ends at {over}; then: {command}")


def _result_rows(result: RunResult, moves_groups: bool) -> list[tuple[str, str]]:
    rows = [*rows_of_counts(result), ("seconds", seconds(result))]
    if result.kind == BACKUP:
        rows += [("segments", str(result.segments)), _positions(result), ("commit", str(result.commit))]
    elif moves_groups:
        rows.append(_positions(result))
    if result.aborted_records:
        rows.append(("left out", describe_aborted(result.aborted_records)))
    if result.archive_id:
        rows.append(("archive", result.archive_id))
    if result.loss_offsets:
        rows.append(("lost offsets", str(result.loss_offsets)))
    if result.offset_map:
        rows.append(("offset map", result.offset_map))
    if result.drill is not None:
        measured = result.drill
        rows += [
            ("recovery seconds", f"{measured.recovery_seconds:.1f}"),
            ("verified after seconds", f"{measured.verified_seconds:.1f}"),
            ("drill", measured.report),
        ]
        if measured.cycle and result.outcome == "Succeeded":
            reported = f"{measured.drilled}/{measured.total}, all partitions within {measured.runs} runs"
            rows.append(("drilled", reported))
    if result.held_topics is not None:
        rows.append(("held topics", str(result.held_topics.topics)))
    if result.verification is not None:
        found = result.verification
        reported = found.message if _is_verdict(result) else f"{found.outcome}: {found.message}"
        rows += [("verification", reported), ("report", found.report)]
    if result.cluster_state is not None:
        state = result.cluster_state
        rows += [
            ("ACLs", _brought(state.acls, state.acls_added, state.acls_held_back)),
            ("client quotas", _brought(state.quotas, state.quotas_added)),
            ("users to create", "not archived" if state.users_total is None else str(state.users_total)),
            ("ACLs, quotas, users", state.report),
        ]
    return rows


def _is_verdict(result: RunResult) -> bool:
    """Return whether the outcome of the result is that of its verification: nothing was restored."""
    return result.verification is not None and result.outcome == result.verification.outcome


def _positions(result: RunResult) -> tuple[str, str]:
    return "positions of groups", str(result.groups)


def _brought(archived: int | None, added: int | None, held_back: int | None = None) -> str:
    held = f", {held_back} held back" if held_back else ""
    return "not archived" if archived is None else f"{archived} archived, {added} added{held}"

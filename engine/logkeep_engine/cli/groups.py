"""The commands `logkeep groups …`: show, set and take back the positions of consumer groups after a restore.

    logkeep groups plan -f restore.yaml
    logkeep groups reset -f restore.yaml --run-id nightly-1 --include 'billing-.*'
    logkeep groups rollback -f restore.yaml --run-id nightly-1

Imports that take long happen inside the commands.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.commands import Commands
from logkeep_engine.cli.errors import EXIT_CODES, errors
from logkeep_engine.cli.options import Debug, Output, OutputFormat, pattern, spread
from logkeep_engine.cli.output import print_json, say, stdout, table
from logkeep_engine.cli.resource import File
from logkeep_engine.contract.names import RESTORE, ExitCode
from logkeep_engine.contract.restore_spec import GroupRestore, RestoreGroups, parse_restore
from logkeep_engine.contract.values import so_many

if TYPE_CHECKING:
    from logkeep_engine.restore.positions.preview import PreviewedPosition
    from logkeep_engine.restore.run.group_commands import Changed, RestoredGroups

app = typer.Typer(
    name="groups",
    cls=Commands,
    help="Show, set and roll back positions of consumer groups after a restore.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
)

RunOfRestore = Annotated[str, typer.Option("--run-id", help="The run of the restore.", show_default=False)]


@dataclass(frozen=True)
class GroupChoice:
    """The options that choose groups, instead of spec.consumerGroups."""

    include: Annotated[
        list[str] | None,
        typer.Option("--include", help="Groups, a regular expression. Repeatable. By default the spec's."),
    ] = None
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="REGEX", help="Groups to leave out, by whole names. Repeatable."),
    ] = None

    def wanted(self, spec: Mapping[str, Any]) -> RestoreGroups:
        """Return the groups that are chosen, with the names that the spec gives them. Raises SpecInvalid, and SpecError
        for an option that is not a regular expression."""
        given: dict[str, Any] = {**spec.get("consumerGroups", {}), "restore": GroupRestore.TRANSLATE.value}
        for option, texts in (("--include", self.include), ("--exclude", self.exclude)):
            for text in texts or ():
                pattern(option, text)
        if self.include:
            given["include"] = self.include
        if self.exclude:
            given["exclude"] = self.exclude
        # A restore of everything takes all groups; this command may take some of them.
        whole = {key: value for key, value in spec.items() if key not in ("everything", "schemaTopic", "acls")}
        return parse_restore({**whole, "consumerGroups": given}).consumer_groups


@app.command(epilog=EXIT_CODES)
@spread
def plan(
    file: File,
    *,
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="The run of the restore; without it, a restore that begins now.")
    ] = None,
    choice: GroupChoice,
    records: Annotated[bool, typer.Option(help="Show the record that each group reads next.")] = True,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Show where consumer groups stood, before which record, and where they would stand after the restore. Nothing is
    changed.
    """
    from logkeep_engine.restore.run.group_commands import at_point

    with errors(debug), _opened(file, run_id) as (spec, run):
        found = run.preview(choice.wanted(spec), records=records)
        if output is Output.JSON:
            print_json({"runId": run_id, "positions": [item.to_json() for item in found]})
        else:
            _print_preview(found, at_point(parse_restore(spec)), records=records)


@app.command(epilog=EXIT_CODES)
@spread
def reset(
    file: File,
    *,
    run_id: RunOfRestore,
    choice: GroupChoice,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Set consumer groups to the restored records before which they stood, also those that stand elsewhere by now. A
    group with members is refused, and then no position is changed.
    """
    with errors(debug), _opened(file, run_id) as (spec, run):
        _print_changed(run.reset(choice.wanted(spec)), output)


@app.command(epilog=EXIT_CODES)
@spread
def rollback(
    file: File,
    *,
    run_id: RunOfRestore,
    choice: GroupChoice,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Give consumer groups the positions that they had before the restore, or before the last `logkeep groups reset`;
    those that they did not have are deleted. A group with members is refused, and so is a change of groups that are not
    chosen; then no position is changed.
    """
    with errors(debug), _opened(file, run_id) as (spec, run):
        _print_changed(run.rollback(choice.wanted(spec)), output)


@contextmanager
def _opened(file: str, run_id: str | None) -> Iterator[tuple[Mapping[str, Any], RestoredGroups]]:
    """Give the spec in the file, and the groups of the run."""
    from logkeep_engine.cli.documents import read_document
    from logkeep_engine.restore.run.group_commands import open_groups

    spec = read_document(file, RESTORE)["spec"]
    with open_groups(parse_restore(spec), run_id, os.environ) as run:
        yield spec, run


def _print_preview(found: list[PreviewedPosition], where: str, *, records: bool) -> None:
    from logkeep_engine.cli.log.times import moment
    from logkeep_engine.restore.positions.preview import shown_key

    shown = table("group", "topic", "partition", "source", *(("record", "time", "key") if records else ()), "target")
    for column in ("now", "outcome"):
        shown.add_column(column)
    for item in found:
        record = item.record
        about = []
        if records and record is None:
            about = ["-", "-", "-"]
        elif records and record is not None:
            about = [str(record.offset), moment(record.timestamp), _or_dash(shown_key(record))]
        move = item.move
        shown.add_row(
            move.group.group_id,
            move.topic,
            str(move.group.partition),
            str(move.group.offset),
            *about,
            str(move.offset),
            _or_dash(item.now),
            item.outcome.value,
        )
    stdout().print(shown)
    if not found:
        say(f"no archived group that is chosen has a position in a restored topic{where}")


def _print_changed(changed: Changed, output: Output) -> None:
    if output is Output.JSON:
        print_json({"document": changed.document, "positions": [item.to_json() for item in changed.positions]})
    else:
        shown = table("group", "topic", "partition", "from", "to", "outcome", "reason")
        for item in changed.positions:
            group, topic, partition = item.change.key
            after = item.change.after
            to = _or_dash(None if after is None else after.offset)
            row = (group, topic, str(partition), _or_dash(item.now), to, item.outcome.value, item.reason)
            shown.add_row(*row)
        stdout().print(shown)
        say(f"earlier positions: {changed.document}")
    of = f"of {so_many(len(changed.positions), 'position')}"
    if changed.refused:
        said = f"error: the cluster has refused {changed.refused} {of}"
        say(said + (", which stay as they are: the change counts as rolled back" if changed.final else ""))
    if changed.left:
        say(
            f"error: the rollback has left alone {changed.left} {of}: the groups are no longer where the change "
            "put them. `kafka-consumer-groups.sh --reset-offsets` sets them"
        )
    if changed.refused or changed.left:
        nothing = changed.refused + changed.left == len(changed.positions)
        raise typer.Exit(int(ExitCode.REFUSED if nothing else ExitCode.INCOMPLETE))


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)

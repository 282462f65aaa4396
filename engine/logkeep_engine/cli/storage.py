"""The commands `logkeep storage …`: what a place for an archive can do.

    logkeep storage check s3://backups/kafka-prod --endpoint https://minio.storage:9000
    logkeep storage check s3://backups/kafka-prod --read-only
    logkeep storage check -f backup.yaml

Imports that take long happen inside the commands.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.commands import Commands
from logkeep_engine.cli.errors import EXIT_CODES, errors
from logkeep_engine.cli.options import BucketOptions, Debug, MaybeUri, Output, OutputFormat, refuse, spread
from logkeep_engine.cli.output import print_json, print_line, say, stdout, table
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.roles import Role
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.storage import Storage
    from logkeep_engine.storage.check import CheckedStep, CheckReport

app = typer.Typer(
    name="storage",
    cls=Commands,
    help="Try what an object store or a folder can do.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
)

ReadOnly = Annotated[
    bool, typer.Option("--read-only", help="Write nothing: try what a reader needs, on an archive that is there.")
]
ForRole = Annotated[
    Role | None,
    typer.Option(
        "--role",
        help="Who is to use the place, as docs/security.md has policies for them: the exit code is 0 if nothing is "
        "missing for that. By default pruner: backups with retention, and restores without a place for their state.",
        show_default=False,
    ),
]
PlaceFile = Annotated[
    str | None,
    typer.Option(
        "--file",
        "-f",
        help="Instead of URI: a KafkaArchive, a KafkaBackup or a KafkaRestore as YAML, whose storage is tried; - reads "
        "standard input. Secrets that it refers to are not read from Kubernetes, as for logkeep backup.",
    ),
]


@app.callback(help=app.info.help, epilog=EXIT_CODES)
def storage() -> None:
    """Options of the group itself; each command has its own."""


@app.command(epilog=EXIT_CODES)
@spread
def check(
    uri: MaybeUri = None,
    *,
    file: PlaceFile = None,
    place: BucketOptions,
    read_only: ReadOnly = False,
    role: ForRole = None,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Try all that an archive needs of a place, name the right that is missing, and delete what was written. Sends
    about 100 MiB. Exit code 2 if something is missing."""
    with errors(debug):
        if (uri is None) == (file is None):
            raise SpecError("Give either a URI or a file.", hint="Write `logkeep storage check URI`, or -f FILE.")
        open_at: Callable[[str], Storage] = place.storage
        if file is not None:
            uri, open_at = _place_of(file)
        assert uri is not None
        try_storage(uri, open_at, read_only=read_only, role=role, output=output)


def _place_of(file: str) -> tuple[str, Callable[[str], Storage]]:
    """Return the URI of the storage in a file, and a function that opens that storage at a URI. Signing keys are not
    needed. Raises SpecError."""
    from logkeep_engine.cli.documents import read_place
    from logkeep_engine.storage import open_storage

    spec = read_place(file).model_copy(update={"signing": None})
    return spec.uri, lambda uri: open_storage(spec.model_copy(update={"uri": uri}), os.environ)


def try_storage(
    uri: str, open_at: Callable[[str], Storage], *, read_only: bool, role: Role | None, output: Output
) -> None:
    """Do what the command does with a storage, which `open_at` opens at a URI."""
    if read_only:
        refuse({"--role": role}, "has no effect with --read-only, which is for a reader")
        show_check(check_archive(open_at(uri)), uri, Role.READER, output)
    else:
        show_check(check_new(uri, open_at), uri, role or Role.PRUNER, output)


def check_archive(opened: Storage) -> CheckReport:
    """Try what a reader needs of an archive."""
    from logkeep_engine.archive import names
    from logkeep_engine.storage.check import check_reading

    return check_reading(opened, _scheme(opened), names.ARCHIVE, names.CATALOG)


def check_new(uri: str, open_at: Callable[[str], Storage]) -> CheckReport:
    """Try everything in a folder of its own below the URI, which is named before, lest this process be killed."""
    from logkeep_engine.storage.check import PREFIX, check_place, require_place

    whole = open_at(uri)
    require_place(whole)
    for folder in _earlier(whole):
        say(f"left: {whole.uri}/{folder} is of an earlier check that was killed, or of one that still runs: delete it")
    below = open_at(f"{whole.uri}/{PREFIX}{time.strftime('%Y%m%dt%H%M%Sz', time.gmtime())}-{secrets.token_hex(3)}")
    say(f"writes below {below.uri}, and deletes it at the end")
    report = check_place(below, _scheme(below))
    if report.left:
        say(
            f"left: {so_many(len(report.left), 'object')} below {below.uri}, such as {report.left[0]}, which could not "
            "be deleted: delete them"
        )
    return report


def _scheme(opened: Storage) -> str:
    return opened.uri.partition(":")[0]


def _earlier(whole: Storage) -> list[str]:
    from logkeep_engine.errors import LogkeepError
    from logkeep_engine.storage.check import PREFIX

    try:
        found = whole.list(PREFIX)
    except LogkeepError:  # the check says so
        return []
    return sorted({"/".join(info.path.split("/")[:2]) for info in found})


def show_check(report: CheckReport, uri: str, role: Role, output: Output) -> None:
    """Print what was found, and end the command with its exit code."""
    lacking = report.lacking(role)
    if output is Output.JSON:
        print_json(
            {
                "uri": uri,
                "role": role.value,
                "usable": not lacking,
                "roles": _roles(report),
                "steps": [step.to_json() for step in report.steps],
                "left": report.left,
            }
        )
    else:
        _print(report, role, lacking)
    if report.ended_by is not None:
        raise report.ended_by
    if lacking:
        raise typer.Exit(int(ExitCode.REFUSED))


def _roles(report: CheckReport) -> list[str]:
    """Return the roles that nothing is missing for. Of a check that wrote nothing, a reader's at most."""
    tried = {step.role for step in report.steps}
    return [role.value for role in Role if role in tried and not report.lacking(role)]


def _print(report: CheckReport, role: Role, lacking: list[CheckedStep]) -> None:
    shown = table("step", "for", "result")
    for step in report.steps:
        shown.add_row(step.name, step.role.value, step.outcome.value)
    stdout().print(shown)
    for step in report.steps:
        if step.message:
            verb = "are" if " and " in step.right else "is"
            right = f"{step.right} {verb} missing. " if step.right else ""
            print_line(f"{step.name}: {right}{step.message}")
    usable = ", ".join(_roles(report)) or "no one"
    print_line(f"these credentials suffice for: {usable}{_rest(role, lacking)}")


def _rest(role: Role, lacking: list[CheckedStep]) -> str:
    """Return what a role lacks: what was tried by name, and the number of steps that were not."""
    from logkeep_engine.storage.check import StepOutcome

    missing = [step.name for step in lacking if step.outcome is not StepOutcome.SKIPPED]
    if skipped := len(lacking) - len(missing):
        missing.append(f"{so_many(skipped, 'step')} that could not be tried")
    article = "an" if role is Role.ERASER else "a"
    return f"; missing for {article} {role.value}: {', '.join(missing)}" if missing else ""

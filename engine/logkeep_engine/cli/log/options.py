"""Options that the commands `logkeep log …` share. The functions here open what these options name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.options import WHOLE_NAMES, Output, OutputFormat, Server, pattern
from logkeep_engine.cli.output import say
from logkeep_engine.contract.names import ExitCode

if TYPE_CHECKING:
    from logkeep_engine.toolbox.source import LogSource

EXIT_CODES = (
    "Exit codes: 0 done, nothing found; 1 failed, may succeed when tried again; 2 refused: the path or the options "
    "must change first; 6 something is damaged, wrong, different, or would be changed; 130 interrupted."
)

Where = Annotated[
    str,
    typer.Argument(
        help="An archive's URI, a broker's log folder, or a file or folder of these.",
        metavar="SOURCE",
        show_default=False,
    ),
]
Sources = Annotated[
    list[str],
    typer.Argument(
        help="Archives' URIs, a broker's log folders, or files of these.", metavar="SOURCE", show_default=False
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="REGEX", help=f"Only these topics. {WHOLE_NAMES}", show_default=False),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", metavar="N", help="Only this partition. Repeatable.", show_default=False),
]
Lines = Annotated[Output, typer.Option("--output", "-o", help="json prints JSON on stdout, a document a line.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this option, only print what would be done.")]
Interval = Annotated[int, typer.Option(min=0, help="The broker's log.index.interval.bytes.")]


@dataclass(frozen=True)
class Chosen:
    """The partitions of a source that the user has chosen; all if nothing is given."""

    topic: Topics = None
    partition: Partitions = None

    def source(self, where: str, server: Server) -> LogSource:
        """Open a source. Raises an error for a source that cannot be opened."""
        from logkeep_engine.toolbox.source import LogSelection, open_source

        for text in self.topic or ():
            pattern("--topic", text)
        selection = LogSelection(tuple(self.topic or ()), tuple(self.partition or ()))
        return open_source(where, selection, endpoint=server.endpoint, region=server.region)

    def source_in_place(self, where: str, server: Server) -> LogSource:
        """Return the source without folders that a broker has put aside. The user sees them."""
        source = self.source(where, server)
        for folder in source.moved_folders:
            say(f"warning: {folder} is left out: the broker has put it aside")
        return source.in_place()


@dataclass(frozen=True)
class Form:
    """The form of the output: a document, or text."""

    output: OutputFormat = Output.TEXT

    @property
    def json(self) -> bool:
        """Whether the user has asked for JSON."""
        return self.output is Output.JSON


@dataclass(frozen=True)
class FormOfLines(Form):
    """The form of the output: a document for each line, or text."""

    output: Lines = Output.TEXT


def leave_if_damaged(damages: Sequence[str]) -> None:
    """Print the damage. If there is some, end the command with the exit code for it."""
    for damage in damages:
        say(f"fault: {damage}")
    if damages:
        raise typer.Exit(int(ExitCode.DIFFERS))

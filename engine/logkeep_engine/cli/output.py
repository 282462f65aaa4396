"""This module prints for people and for programs.

Results go to stdout, everything else to stderr. Tables have colours on a terminal, and are plain in a pipe. Their cells
are never cut.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Table

from logkeep_engine.contract.values import human_bytes

_NO_END = 1_000_000  # columns of a line
MAX_FAULTS = 20  # printed for a refused restore; all are in the archive's damage.json


def say(line: str) -> None:
    """Print one line on stderr."""
    print(line, file=sys.stderr, flush=True)


def say_damage(faults: Sequence[str]) -> None:
    """Print the first lines about damage if there are several; the error names one alone."""
    for fault in faults[:MAX_FAULTS] if len(faults) > 1 else ():
        say(f"fault: {fault}")


def print_json(value: Any) -> None:
    """Print one document on stdout."""
    print(json_text(value, indent=2), flush=True)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON that standard output can take. A character that its encoding lacks is escaped, and so is half of one."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text


def byte_count(size: int) -> str:
    """1536 → 1536 (1.5 KiB)."""
    return f"{size} ({human_bytes(size)})"


def stdout() -> Console:
    """The console for results. It prints data: nothing in it is markup."""
    if sys.stdout.isatty():
        return Console(soft_wrap=True, markup=False, emoji=False, highlight=False)
    # A pipe has no width: tables must not be folded or cut for the program that reads them.
    return Console(width=_NO_END, soft_wrap=True, markup=False, emoji=False, highlight=False)


_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord(character): repr(character)[1:-1] for character in "\t\n\r"
}


def visible(text: str) -> str:
    """Show text of somebody else on one line of a terminal: control characters are shown, such as \x1b, and do
    nothing."""
    return text.translate(_VISIBLE)


class _DataTable(Table):
    """A table of data, whose control characters are shown. No line has blanks at its end."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments = (part for part in super().__rich_console__(console, options) if isinstance(part, Segment))
        for line in Segment.split_lines(segments):
            while line and not line[-1].text.rstrip(" "):
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(" "), line[-1].style)
            yield from line
            yield Segment.line()

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        shown = (visible(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*shown, style=style, end_section=end_section)


class _WideTable(_DataTable):
    """A table as wide as its cells. A terminal that is narrower folds its lines; a cell that is cut says nothing."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return super().__rich_console__(console, options.update(width=_NO_END))


def table(*columns: str) -> Table:
    """A table without lines; numbers stand to the right. Control characters in its cells are shown."""
    table = _WideTable(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for column in columns:
        right = column in ("partition", "partitions", "runs", "records", "size", "segments", "offset")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    return table


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and what they stand for."""
    shown = _DataTable(show_header=False, box=None, pad_edge=False)
    for row in rows:
        shown.add_row(*row)
    return shown

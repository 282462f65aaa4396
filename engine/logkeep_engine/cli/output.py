"""This module prints for people and for programs. No other module of the commands writes to stdout or stderr: what
comes from outside passes through here, and comes out without characters that do something (`contract.visible`).

Results go to stdout, everything else to stderr. Tables have colours on a terminal, and are plain in a pipe. Their cells
are never cut.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Table

from logkeep_engine.contract.visible import (
    VisibleFormatter,
    print_line,
    print_lines,
    say,
    visible,
    visible_json,
    visible_lines,
)

__all__ = [
    "facts",
    "log_to_stderr",
    "print_json",
    "print_json_line",
    "print_line",
    "print_lines",
    "say",
    "say_damage",
    "stderr",
    "stdout",
    "table",
    "visible",
]

_NO_END = 1_000_000  # columns of a line
_SENTENCES = ("message", "why")  # columns
MAX_FAULTS = 20  # printed for a refused restore; all are in the archive's damage.json


def say_damage(faults: Sequence[str]) -> None:
    """Print the first lines about damage if there are several; the error names one alone."""
    for fault in faults[:MAX_FAULTS] if len(faults) > 1 else ():
        say(f"fault: {fault}")


def print_json(value: Any) -> None:
    """Print one document on stdout."""
    print_lines(_json_text(value, indent=2) + "\n", flush=True)


def print_json_line(value: Any) -> None:
    """Print one document as a line on stdout."""
    print_line(_json_text(value))


def _json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON that standard output can take. A character that its encoding lacks is escaped, and so is one that is not
    printable."""
    text = visible_json(json.dumps(value, ensure_ascii=False, indent=indent))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent)
    return text


class _VisibleConsole(Console):
    """A console whose output is data: nothing in it is markup, and nothing in it does anything."""

    def print(self, *objects: Any, **named: Any) -> None:
        # A text knows its width before it is rendered, and rich takes some control characters out of it.
        super().print(*(visible_lines(item) if isinstance(item, str) else item for item in objects), **named)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else Segment(visible_lines(part.text), part.style)


def stdout() -> Console:
    """Return the console for results."""
    if sys.stdout.isatty():
        return _VisibleConsole(soft_wrap=True, markup=False, emoji=False, highlight=False)
    # A pipe has no width: tables must not be folded or cut for the program that reads them.
    return _VisibleConsole(width=_NO_END, soft_wrap=True, markup=False, emoji=False, highlight=False)


def stderr() -> Console:
    """Return the console for progress."""
    return _VisibleConsole(stderr=True)


def log_to_stderr(level: int) -> None:
    """Send the records of all loggers to stderr, a line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(VisibleFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)


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
    """A table as wide as its cells; in a narrower terminal, sentences are broken between words. If that does not make
    it fit, the terminal folds its lines: a cell that is cut says nothing."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = options.update(width=_NO_END)
        fits = self.__rich_measure__(console, whole).minimum <= options.max_width
        return super().__rich_console__(console, options if fits else whole)


def table(*columns: str) -> Table:
    """Return a table without lines; numbers stand to the right. Control characters in its cells are shown."""
    table = _WideTable(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for column in columns:
        right = column in ("partition", "partitions", "runs", "records", "size", "segments", "offset")
        table.add_column(column, justify="right" if right else "left", no_wrap=column not in _SENTENCES)
    return table


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and what they stand for."""
    shown = _DataTable(show_header=False, box=None, pad_edge=False)
    for row in rows:
        shown.add_row(*row)
    return shown

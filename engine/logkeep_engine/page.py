"""Parts of HTML pages that need no other file: the page itself, tables, and plots over time as SVG. Pure.

Text of others becomes a part of a page by `escaped` only; cells of tables are escaped here.
"""

from __future__ import annotations

import time
from calendar import timegm
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import cycle

from logkeep_engine.contract.values import human_bytes
from logkeep_engine.contract.visible import visible

WIDTH = 900
HEIGHT = 170
"""The bytes or records of a plot lie between TOP and HEIGHT, its times between LEFT and RIGHT."""

LEFT, RIGHT, TOP = 100, 860, 8
_BELOW = 30
_LINES = 4  # across a plot, at most
_TICKS = 8  # below it, at most
_CUT = 24  # as wide is a cut
_LETTER = 6.6
_LAST_YEARS = 253_000_000_000_000  # years after 9987: a record may say any, and calendars end
_SECOND, _MINUTE, _DAY = 1000, 60_000, 86_400_000
_TICK_WIDTHS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(_SECOND * number for number in (1, 2, 5, 10, 15, 30)),
    *(_MINUTE * number for number in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)),
    *(_DAY * number for number in (1, 2, 7, 14, 30, 91, 182, 365, 730, 3650)),
)

_STYLE = """
:root{color-scheme:light}
body{font:15px/1.45 system-ui,sans-serif;color:#1c2430;background:#fff;max-width:900px;margin:2em auto;padding:0 1em;
overflow-wrap:anywhere}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}h3{font-size:1em}
table{border-collapse:collapse}td,th{padding:.25em .9em .25em 0;text-align:left;vertical-align:top}
tr+tr td{border-top:1px solid #e3e7ec}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
td.n,th{overflow-wrap:normal}td.n,th.n{white-space:nowrap}td:first-child{min-width:6em}
.good,.open,.bad{padding:.1em .55em;border-radius:.6em;white-space:nowrap}
.good{background:#d9f2e0;color:#0d5a2a}.open{background:#fff0c9;color:#6b4a00}.bad{background:#fbd9d6;color:#8a150c}
svg{display:block;max-width:100%;height:auto;margin-bottom:1em}svg text{font:12px system-ui,sans-serif;fill:#56606e}
.before{fill:#c3cbd6}.after{fill:#2f6fd0}.axis{stroke:#98a2af}.line{stroke:#e3e7ec}
.whole{fill:#bfe6cb}.listed{fill:#f4bdb7}.differs{fill:#c8281c}.unread{fill:#ffe39a}
.grows,.kept{fill:none;stroke-width:2.5}.grows{stroke:#56606e}.kept{stroke:#2f6fd0}
.key span{display:inline-block;width:.9em;height:.9em;margin:0 .35em 0 1.2em;vertical-align:-.1em}
.key span:first-child{margin-left:0}
code{background:#f1f3f6;padding:0 .25em}
"""


class Html(str):
    """A part of a page: markup, with all text in it escaped."""

    __slots__ = ()


def escaped(text: object) -> Html:
    """Return the text as a part of a page. It is not markup there, and each of its characters is visible."""
    return Html(escape(visible(str(text))))


def document(title: str, parts: Iterable[str]) -> str:
    """Return a page of these parts. `title` is text, the parts are HTML."""
    head = (
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{escaped(title)}</title>",
        f"<style>{_STYLE}</style></head><body>",
    )
    return "\n".join([*head, *parts, "</body></html>\n"])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Cells and heads are escaped unless they are Html. A head that begins with # is of a column of
    numbers."""
    numbers = [head.startswith("#") for head in heads]

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="n">{cell}</{tag}>' if number else f"<{tag}>{cell}</{tag}>"
            for cell, number in zip(map(_cell, values), numbers or [False] * len(values), strict=True)
        )

    head = f"<tr>{cells('th', [name.removeprefix('#') for name in heads])}</tr>" if heads else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table>{head}{body}</table>"


def _cell(value: str) -> Html:
    return value if isinstance(value, Html) else escaped(value)


class Axis:
    """The times from `begin` to `end` (ms since the epoch) below a plot, without those of the `cuts`: from, to."""

    def __init__(self, begin: int, end: int, cuts: Sequence[tuple[int, int]] = ()) -> None:
        starts, ends = [begin, *(cut[1] for cut in cuts)], [*(cut[0] for cut in cuts), end]
        room = RIGHT - LEFT - _CUT * len(cuts)
        self.scale = room / sum(last - first for first, last in zip(starts, ends, strict=True))
        self._parts: list[tuple[int, int, float]] = []  # the last one is where the axis ends
        left = float(LEFT)
        for first, last in zip(starts, ends, strict=True):
            self._parts.append((first, last, left))
            left += (last - first) * self.scale + _CUT

    def at(self, ms: int) -> float:
        """Return where a time is that is not in a cut."""
        first, _, left = next(part for part in reversed(self._parts) if part[0] <= ms or part is self._parts[0])
        return left + (ms - first) * self.scale

    def drawn(self) -> Iterator[str]:
        """Yield the line with its times, and its cuts."""
        taken = 0.0
        for first, last, left in self._parts:
            right = left + (last - first) * self.scale
            yield f'<line class="axis" x1="{left:.2f}" y1="{HEIGHT}" x2="{right:.2f}" y2="{HEIGHT}"/>'
            if left > LEFT:
                for x in (left - 0.65 * _CUT, left - 0.35 * _CUT):
                    yield f'<line class="axis" x1="{x - 3:.2f}" y1="{HEIGHT + 6}" x2="{x + 3:.2f}" y2="{HEIGHT - 6}"/>'
            for at, label in _ticks(first, last, max(1, int(_TICKS * (right - left) / (RIGHT - LEFT)))):
                x, half = self.at(at), _LETTER * len(label) / 2
                yield f'<line class="axis" x1="{x:.2f}" y1="{HEIGHT}" x2="{x:.2f}" y2="{HEIGHT + 10}"/>'
                if x - half >= taken:
                    yield f'<text x="{x:.2f}" y="{HEIGHT + 24}" text-anchor="middle">{label}</text>'
                    taken = x + half


def plot(parts: Iterable[str], axis: Axis) -> str:
    """Return a plot of these parts above an axis."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + _BELOW}" width="{WIDTH}" role="img">{"".join(parts)}'
        f"{''.join(axis.drawn())}</svg>"
    )


def rectangle(name: str, x: float, y: float, width: float, height: float, label: str) -> str:
    """Return a rectangle of a class of the style; `label` is shown when the pointer is over it."""
    return (
        f'<rect class="{name}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}">'
        f"<title>{escaped(label)}</title></rect>"
    )


def lines(highest: int, words: Callable[[int], str], *, binary: bool) -> Iterator[str]:
    """Lines across the plot at round values, with these."""
    step, factors = 1, cycle((2,) if binary else (2, 2.5, 2))
    while highest > _LINES * step:
        step = int(step * next(factors))
    for value in range(0, highest + 1, step):
        y = HEIGHT - value / highest * (HEIGHT - TOP)
        if value:
            yield f'<line class="line" x1="{LEFT}" y1="{y:.2f}" x2="{RIGHT}" y2="{y:.2f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.2f}" text-anchor="end">{escaped(words(value))}</text>'


def _ticks(begin: int, end: int, most: int) -> Iterator[tuple[int, str]]:
    """Yield times below the plot, each with its words: about as many as `most`, or the first of all."""
    width = next((item for item in _TICK_WIDTHS if (end - begin) // item < most), _TICK_WIDTHS[-1])
    while (end - begin) // width >= most:
        width *= 10
    pattern = "%Y-%m-%d" if width >= _DAY else "%m-%d %H:%M" if width >= _MINUTE else "%H:%M:%S"
    for at in list(_moments(begin, end, width)) or [begin]:
        yield at, _formatted(pattern, at) + (f".{at % _SECOND:03}" if width < _SECOND else "")


def _moments(begin: int, end: int, width: int) -> Iterator[int]:
    """Yield round times, about `width` apart: the first days of months and years, Mondays, or multiples of a time."""
    months = round(width / (365.25 * _DAY / 12))
    if months and begin >= 0 and end < _LAST_YEARS:
        date = time.gmtime(begin / 1000)
        number = -(-(date.tm_year * 12 + date.tm_mon - 1) // months) * months
        while (at := timegm((number // 12, number % 12 + 1, 1, 0, 0, 0)) * 1000) <= end:
            if at >= begin:
                yield at
            number += months
        return
    monday = 4 * _DAY if width % (7 * _DAY) == 0 else 0  # the times of Unix begin on a Thursday
    yield from range(-(-(begin - monday) // width) * width + monday, end + 1, width)


def moment(ms: float) -> str:
    """Return a time of a record, or of the run, in words."""
    return _formatted("%Y-%m-%d %H:%M:%S", ms)


def bytes_in_words(size: int) -> str:
    """1024 → 1 KiB: for round values."""
    return human_bytes(size).replace(".0 ", " ")


def _formatted(pattern: str, ms: float) -> str:
    try:
        return time.strftime(pattern, time.gmtime(ms / 1000))
    except (ValueError, OverflowError, OSError):
        return f"{ms:.0f} ms"

"""Shows what an archive costs as one HTML page that needs no other file. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from logkeep_engine.archive.maintenance.cost.archive_cost import ArchiveCost, BackedUp
from logkeep_engine.archive.maintenance.cost.words import (
    CostWords,
    operations_of,
    projected_of,
    summary_of,
    topic_heads,
    topics_of,
)
from logkeep_engine.archive.maintenance.growth import DAY_MS
from logkeep_engine.page import (
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    Axis,
    bytes_in_words,
    document,
    escaped,
    lines,
    moment,
    plot,
    rectangle,
    table,
)

MAX_ROWS = 500
"""This many topics are shown, the largest first."""

_ROOM = RIGHT - LEFT
_BARS = 120  # of the plot of what runs have archived, at most


def page_of(cost: ArchiveCost) -> str:
    """Return the page."""
    words = CostWords(cost)
    largest = sorted(cost.topics, key=lambda topic: (-topic.bytes, topic.name, topic.topic_id))
    more = [f"<p>And {len(largest) - MAX_ROWS:,} more topics.</p>"] if len(largest) > MAX_ROWS else []
    return document(
        f"Cost of the archive at {cost.uri}",
        (
            f"<h1>Cost of the archive at <code>{escaped(cost.uri)}</code></h1>",
            _table((), summary_of(cost, words)),
            *_archived(cost.runs),
            *_projected(cost, words),
            "<h2>Requests</h2>",
            _table(*operations_of(cost, words)),
            "<h2>Topics</h2>",
            _table(topic_heads(cost), topics_of(cost, largest[:MAX_ROWS], words)),
            *more,
        ),
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of text. All columns but the first are numbers."""
    return table([head if at == 0 else f"#{head}" for at, head in enumerate(heads)], rows)


def _archived(runs: Sequence[BackedUp]) -> Iterator[str]:
    """Yield the bytes that runs have archived, as bars over the times of their ends."""
    if not runs:
        return
    last = max(run.end for run in runs)
    first = min(last - DAY_MS, *(run.end for run in runs))  # one run alone would have an axis of milliseconds
    width = max(1, -(-(last + 1 - first) // _BARS))
    bars: dict[int, int] = {}
    for run in runs:
        bars[(run.end - first) // width] = bars.get((run.end - first) // width, 0) + run.bytes
    highest = max(bars.values())
    end = first + width * _BARS
    parts = list(lines(highest, bytes_in_words, binary=True))
    for number, size in sorted(bars.items()):
        high = max(1.0, size / highest * (HEIGHT - TOP))
        at, wide = LEFT + number * _ROOM / _BARS, 0.8 * _ROOM / _BARS
        label = f"{moment(first + number * width)}: {bytes_in_words(size)}"
        parts.append(rectangle("after", at, HEIGHT - high, wide, high, label))
    yield "<h2>What runs have archived</h2>"
    yield "<p>Bytes of logs, or of records, by the ends of the runs. Times are UTC.</p>"
    yield plot(parts, Axis(first, end))


def _projected(cost: ArchiveCost, words: CostWords) -> Iterator[str]:
    """Yield the bytes from now on, as lines, and as a table."""
    if not cost.projections:
        return
    last = cost.projections[-1].days
    whole = [(0, cost.bytes), *((item.days, item.bytes) for item in cost.projections)]
    now = cost.bytes - (cost.retention.bytes if cost.retention is not None else 0)
    kept = [(0, now), *((item.days, item.retained) for item in cost.projections if item.retained is not None)]
    highest = max(1, *(size for _, size in whole))
    parts = [*lines(highest, bytes_in_words, binary=True), _line("grows", whole, last, highest)]
    key = '<span style="background:#56606e"></span>as it grows now'
    if len(kept) == len(whole):
        parts.append(_line("kept", kept, last, highest))
        key += '<span style="background:#2f6fd0"></span>with the retention'
    yield "<h2>What is stored in a year</h2>"
    yield f'<p class="key">{key}</p>'
    yield plot(parts, Axis(cost.time, cost.time + last * DAY_MS))
    yield _table(*projected_of(cost, words))


def _line(name: str, sizes: Sequence[tuple[int, int]], last: int, highest: int) -> str:
    points = " ".join(
        f"{LEFT + day / last * _ROOM:.2f},{HEIGHT - size / highest * (HEIGHT - TOP):.2f}" for day, size in sizes
    )
    return f'<polyline class="{name}" points="{points}"/>'

"""Plots of records over time, before a restore and after it, as SVG. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from logkeep_engine.archive.maintenance.record_digests import RecordTimes
from logkeep_engine.page import HEIGHT, TOP, Axis, bytes_in_words, lines, moment, plot, rectangle

_FAR = 10
_FEW = 200
_LONG = 3

Counts = dict[int, tuple[int, int]]
"""Records and bytes by the number of their bucket. -1: no time."""


def plots_of(before: RecordTimes, after: RecordTimes) -> list[str]:
    """Records and bytes over time, as parts of a page. Nothing if no record has a time."""
    shift = RecordTimes.together((before, after)).shift
    both = _widened(before, shift), _widened(after, shift)
    numbers = sorted({number for counts in both for number in counts if number >= 0})
    if not numbers:
        return []
    first, last = _middle(both, numbers)
    shown = f"From {moment(first << shift)} to {moment((last + 1) << shift)} UTC."
    cuts = [(begin << shift, end << shift) for begin, end in _empty([n for n in numbers if first <= n <= last])]
    for begin, end in cuts:
        shown += f" From {moment(begin)} to {moment(end)} there is nothing, and the axis is cut."
    axis = Axis(first << shift, (last + 1) << shift, cuts)
    key = (
        '<p class="key"><span style="background:#c3cbd6"></span>archive<span style="background:#2f6fd0"></span>target'
        '<span style="background:#c8281c"></span>not the same</p>'
    )
    return [
        "<h2>Records over time</h2>",
        f"<p>{shown}{_outside(both, first, last)}</p>",
        key,
        _bars(both, shift, (first, last), axis, 0),
        "<h2>Bytes over time</h2>",
        "<p>Timestamps, keys, values and headers, before compression.</p>",
        key,
        _bars(both, shift, (first, last), axis, 1),
    ]


def _widened(times: RecordTimes, shift: int) -> Counts:
    counts: Counts = {}
    for number, records, size in times.buckets:
        place = max(number >> (shift - times.shift), -1)
        own = counts.get(place, (0, 0))
        counts[place] = (own[0] + records, own[1] + size)
    return counts


def _middle(both: Sequence[Counts], numbers: Sequence[int]) -> tuple[int, int]:
    """Return the first and the last bucket that are shown. Few records with times that are far from all others are left
    out: one clock that was wrong would leave no room for the rest."""
    weights = [max(counts.get(number, (0, 0))[0] for counts in both) for number in numbers]
    few = sum(weights) // _FEW
    first, last = numbers[_behind(weights, few)], numbers[-1 - _behind(weights[::-1], few)]
    wide = last + 1 - first
    if numbers[-1] + 1 - numbers[0] < _FAR * wide:
        return numbers[0], numbers[-1]
    near = [number for number in numbers if first - wide <= number <= last + wide]
    return near[0], near[-1]


def _empty(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the buckets between these, from and to, that are empty for more than a third of all that is shown: years
    without a record would leave no room for the rest."""
    most = (numbers[-1] + 1 - numbers[0]) / _LONG
    return [(one + 1, other) for one, other in pairwise(numbers) if other - one - 1 > most]


def _behind(weights: Sequence[int], few: int) -> int:
    """Return the number of the first bucket that has not only these few records in front of it and in it."""
    passed = 0
    for number, weight in enumerate(weights):
        passed += weight
        if passed > few:
            return number
    return len(weights) - 1


def _outside(both: Sequence[Counts], first: int, last: int) -> str:
    """Return how many records have another time than those that are shown, or none."""
    text = ""
    untimed = [counts.get(-1, (0, 0))[0] for counts in both]
    if any(untimed):
        text += f" Records without a time: {untimed[0]:,} in the archive, {untimed[1]:,} in the target."
    others = [
        sum(records for number, (records, _) in counts.items() if number >= 0 and not first <= number <= last)
        for counts in both
    ]
    if any(others):
        text += f" Records of other times: {others[0]:,} in the archive, {others[1]:,} in the target."
    return text


def _bars(both: Sequence[Counts], shift: int, bounds: tuple[int, int], axis: Axis, which: int) -> str:
    """Return the records (`which` 0) or the bytes (1) of both sides as bars."""
    first, end = bounds[0], bounds[1] + 1
    words = bytes_in_words if which else _records_in_words
    values = [
        {number: value[which] for number, value in counts.items() if first <= number < end and value[which]}
        for counts in both
    ]
    highest = max(chain.from_iterable(side.values() for side in values), default=1)
    wide = axis.scale * (1 << shift)
    parts = list(lines(highest, words, binary=bool(which)))
    for name, side, share in (("before", values[0], 0.9), ("after", values[1], 0.45)):
        for number in sorted(side):
            size = max(1.0, side[number] / highest * (HEIGHT - TOP))
            at, width = axis.at(number << shift) + (1 - share) / 2 * wide, max(0.7, share * wide)
            label = f"{moment(number << shift)}: {words(side[number])}"
            parts.append(rectangle(name, at, HEIGHT - size, width, size, label))
    for number in sorted(values[0].keys() | values[1].keys()):
        sides = [side.get(number, 0) for side in values]
        if sides[0] != sides[1]:
            label = f"{moment(number << shift)}: {words(sides[0])} in the archive, {words(sides[1])} in the target"
            parts.append(rectangle("differs", axis.at(number << shift), HEIGHT + 1, max(3.0, wide), 5, label))
    return plot(parts, axis)


def _records_in_words(count: int) -> str:
    return f"{count:,}"

"""Shows what a verification has found as one HTML page that needs no other file. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from html import escape

from logkeep_engine.archive.care.record_digests import RecordTimes
from logkeep_engine.contract.values import human_bytes
from logkeep_engine.restore.verification.document import VerificationReport
from logkeep_engine.restore.verification.task import Verdict, VerifiedPartition

MAX_ROWS = 500
"""So many partitions are shown, those that differ first."""

_WIDTH, _HEIGHT, _LEFT, _TOP = 900, 170, 90, 12
_WORDS = {Verdict.VERIFIED: "verified", Verdict.NOT_VERIFIED: "not verified", Verdict.DIFFERENT: "different"}
_CLASSES = {Verdict.VERIFIED: "good", Verdict.NOT_VERIFIED: "open", Verdict.DIFFERENT: "bad"}
_ORDER = {Verdict.DIFFERENT: 0, Verdict.NOT_VERIFIED: 1, Verdict.VERIFIED: 2}

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#1c2430;background:#fff;max-width:1000px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}
table{border-collapse:collapse}td,th{padding:.25em .9em .25em 0;text-align:left;vertical-align:top}
tr+tr td{border-top:1px solid #e3e7ec}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.good,.open,.bad{padding:.1em .55em;border-radius:.6em;white-space:nowrap}
.good{background:#d9f2e0;color:#0d5a2a}.open{background:#fff0c9;color:#6b4a00}.bad{background:#fbd9d6;color:#8a150c}
svg{display:block;max-width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:#56606e}
.before{fill:#c3cbd6}.after{fill:#2f6fd0}.axis{stroke:#98a2af}.whole{fill:#bfe6cb}.differs{fill:#c8281c}.unread{fill:#ffe39a}
.key span{display:inline-block;width:.9em;height:.9em;margin:0 .35em 0 1em;vertical-align:-.1em}
code{background:#f1f3f6;padding:0 .25em}
"""


def page_of(report: VerificationReport) -> str:
    """The page."""
    outcome = report.outcome
    shown = sorted(report.partitions, key=lambda item: (_ORDER[item.verdict], item.where))
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>Verification of {escape(report.run_id)}: {_WORDS[outcome]}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>Verification of restore <code>{escape(report.run_id)}</code> {_badge(outcome)}</h1>",
        f"<p>{escape(report.message)}</p>",
        _summary(report),
        *_plots(report),
        *_differences(report, shown),
        *_partitions(shown),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _badge(verdict: Verdict) -> str:
    return f'<span class="{_CLASSES[verdict]}">{_WORDS[verdict]}</span>'


def _summary(report: VerificationReport) -> str:
    rows = [
        ("Archive", report.archive_id),
        ("Kafka cluster", report.cluster_id),
        ("Time", f"{_moment(report.start_time * 1000)}, {report.end_time - report.start_time:.1f} s"),
        ("Records of the archive", f"{report.expected:,}"),
        ("Records read back", f"{report.records:,}"),
        ("Bytes read back", human_bytes(sum(item.bytes for item in report.partitions))),
        (
            "Partitions",
            f"{report.count(Verdict.VERIFIED)} verified, {report.count(Verdict.NOT_VERIFIED)} not verified, "
            f"{report.count(Verdict.DIFFERENT)} different",
        ),
        ("Segments read for their digests", f"{report.read:,}"),
    ]
    return _table((), ((escape(name), escape(value)) for name, value in rows))


def _plots(report: VerificationReport) -> list[str]:
    before = RecordTimes.together(report.before.values())
    after = RecordTimes.together(item.times for item in report.partitions)
    shift = RecordTimes.together((before, after)).shift
    both = [_widened(before, shift), _widened(after, shift)]
    if not any(number >= 0 for times in both for number in times):
        return []
    without = [times.get(-1, (0, 0))[0] for times in both]
    key = '<p class="key"><span style="background:#c3cbd6"></span>archive'
    key += '<span style="background:#2f6fd0"></span>target'
    if any(without):
        key += f" &nbsp; without a time: {without[0]:,} in the archive, {without[1]:,} in the target"
    return [
        "<h2>Records over time</h2>",
        key + "</p>",
        _bars(both, shift, 0, lambda count: f"{count:,}"),
        "<h2>Bytes over time</h2>",
        "<p>Timestamps, keys, values and headers, before compression.</p>",
        _bars(both, shift, 1, human_bytes),
    ]


def _widened(times: RecordTimes, shift: int) -> dict[int, tuple[int, int]]:
    counts: dict[int, tuple[int, int]] = {}
    for number, records, size in times.buckets:
        place = max(number >> (shift - times.shift), -1)
        own = counts.get(place, (0, 0))
        counts[place] = (own[0] + records, own[1] + size)
    return counts


def _bars(both: Sequence[dict[int, tuple[int, int]]], shift: int, which: int, words: Callable[[int], str]) -> str:
    numbers = sorted({number for times in both for number in times if number >= 0})
    first, last = numbers[0], numbers[-1] + 1
    highest = max(times[number][which] for times in both for number in times if number >= 0)
    step = (_WIDTH - _LEFT) / (last - first)
    bars = []
    for name, times, share, aside in (("before", both[0], 0.9, 0.05), ("after", both[1], 0.45, 0.275)):
        for number in numbers:
            value = times.get(number, (0, 0))[which]
            if value:
                size = max(1.0, value / highest * (_HEIGHT - _TOP))
                at, width = _LEFT + (number - first + aside) * step, max(0.7, share * step)
                label = escape(f"{_moment(number << shift)}: {words(value)}")
                bars.append(
                    f'<rect class="{name}" x="{at:.2f}" y="{_HEIGHT - size:.2f}" width="{width:.2f}" '
                    f'height="{size:.2f}"><title>{label}</title></rect>'
                )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 22}" width="{_WIDTH}" role="img">{"".join(bars)}'
        f'<line class="axis" x1="{_LEFT}" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 10}" text-anchor="end">{escape(words(highest))}</text>'
        f'<text x="{_LEFT - 6}" y="{_HEIGHT}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT + 16}">{_moment(first << shift)}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 16}" text-anchor="end">{_moment(last << shift)}</text></svg>'
    )


def _differences(report: VerificationReport, shown: Sequence[VerifiedPartition]) -> list[str]:
    worse = [item for item in shown if item.verdict is not Verdict.VERIFIED]
    idle = sorted(report.idle, key=lambda item: (_ORDER[item.verdict], item.target, item.partition))
    if not worse and not idle:
        return []
    parts = [
        "<h2>What differs where</h2>",
        '<p class="key">Offsets of the source, from the first to the last:'
        '<span style="background:#bfe6cb"></span>equal<span style="background:#c8281c"></span>different'
        '<span style="background:#ffe39a"></span>not compared</p>',
    ]
    for item in worse[:MAX_ROWS]:
        parts.append(f"<h3>{escape(item.target)}, partition {item.partition} {_badge(item.verdict)}</h3>")
        parts.append(_strip(item))
        lines = [*map(str, item.differences), *item.reasons]
        parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>")
    for other in idle[:MAX_ROWS]:
        head = f"<h3>{escape(other.target)}, partition {other.partition} {_badge(other.verdict)}</h3>"
        parts.append(f"{head}<ul><li>{escape(other.reason)}</li></ul>")
    more = max(0, len(worse) - MAX_ROWS) + max(0, len(idle) - MAX_ROWS)
    return [*parts, f"<p>And {more:,} more partitions.</p>"] if more else parts


def _strip(item: VerifiedPartition) -> str:
    """The partition from its first offset to its last as a strip."""
    first, end = item.offsets
    scale = _WIDTH / max(1, end - first)
    compared = min(max(item.compared_until, first), end)
    bars = [_bar("unread", 0, _WIDTH, ""), _bar("whole", 0, (compared - first) * scale, "")]
    for start, until in item.differing:
        words = f"offsets {start} to {until - 1}"
        bars.append(_bar("differs", (start - first) * scale, max(3.0, (until - start) * scale), words))
    return (
        f'<svg viewBox="0 0 {_WIDTH} 34" width="{_WIDTH}" role="img">{"".join(bars)}'
        f'<text x="0" y="30">{first}</text><text x="{_WIDTH}" y="30" text-anchor="end">{end - 1}</text></svg>'
    )


def _bar(name: str, at: float, width: float, words: str) -> str:
    title = f"<title>{escape(words)}</title>" if words else ""
    return f'<rect class="{name}" x="{at:.2f}" y="0" width="{width:.2f}" height="14">{title}</rect>'


def _partitions(shown: Sequence[VerifiedPartition]) -> list[str]:
    rows = [
        (
            escape(item.target),
            f"{item.partition}",
            _badge(item.verdict),
            f"{item.expected:,}",
            f"{item.records:,}",
            escape(human_bytes(item.bytes)),
        )
        for item in shown[:MAX_ROWS]
    ]
    heads = ("Topic", "#Partition", "", "#Records of the archive", "#Read back", "#Bytes")
    more = [f"<p>And {len(shown) - MAX_ROWS} more.</p>"] if len(shown) > MAX_ROWS else []
    return ["<h2>Partitions</h2>", _table(heads, rows), *more]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are escaped. A head that begins with # is of a column of numbers."""
    numbers = [head.startswith("#") for head in heads]

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="n">{value}</{tag}>' if number else f"<{tag}>{value}</{tag}>"
            for value, number in zip(values, numbers or [False] * len(values), strict=True)
        )

    head = f"<tr>{cells('th', [name.removeprefix('#') for name in heads])}</tr>" if heads else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table>{head}{body}</table>"


def _moment(ms: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ms / 1000))
    except (ValueError, OverflowError, OSError):
        return f"{ms:.0f} ms"

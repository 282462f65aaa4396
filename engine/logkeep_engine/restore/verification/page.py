"""Shows what a verification has found as one HTML page that needs no other file. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from logkeep_engine.archive.maintenance.record_digests import RecordTimes
from logkeep_engine.contract.values import human_bytes, so_many
from logkeep_engine.page import WIDTH, Html, document, escaped, moment, table
from logkeep_engine.restore.verification.document import VerificationReport
from logkeep_engine.restore.verification.plots import plots_of
from logkeep_engine.restore.verification.task import Verdict, VerifiedPartition

MAX_ROWS = 500
"""This many partitions are shown, those that differ first."""

_WORDS = {Verdict.VERIFIED: "verified", Verdict.NOT_VERIFIED: "not verified", Verdict.DIFFERENT: "different"}
_CLASSES = {Verdict.VERIFIED: "good", Verdict.NOT_VERIFIED: "open", Verdict.DIFFERENT: "bad"}
_ORDER = {Verdict.DIFFERENT: 0, Verdict.NOT_VERIFIED: 1, Verdict.VERIFIED: 2}


def page_of(report: VerificationReport) -> str:
    """Return the page."""
    outcome = report.outcome
    shown = sorted(report.partitions, key=lambda item: (_ORDER[item.verdict], item.where))
    return document(
        f"Verification of {report.run_id}: {_WORDS[outcome]}",
        (
            f"<h1>Verification of restore <code>{escaped(report.run_id)}</code> {_badge(outcome)}</h1>",
            f"<p>{escaped(report.message)}</p>",
            _summary(report),
            *_plots(report),
            *_differences(report, shown),
            *_partitions(report, shown),
        ),
    )


def _badge(verdict: Verdict) -> Html:
    return Html(f'<span class="{_CLASSES[verdict]}">{_WORDS[verdict]}</span>')


def _summary(report: VerificationReport) -> str:
    rows = [
        ("Archive", report.archive_id),
        ("Kafka cluster", report.cluster_id),
        ("Time", f"{moment(report.start_time * 1000)} UTC, {report.end_time - report.start_time:.1f} s"),
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
    return table((), rows)


def _plots(report: VerificationReport) -> list[str]:
    before = RecordTimes.together(report.before.values())
    return plots_of(before, RecordTimes.together(item.times for item in report.partitions))


def _differences(report: VerificationReport, shown: Sequence[VerifiedPartition]) -> list[str]:
    worse = [item for item in shown if item.verdict is not Verdict.VERIFIED]
    idle = sorted(report.idle, key=lambda item: (_ORDER[item.verdict], item.target, item.partition))
    if not worse and not idle:
        return []
    parts = [
        "<h2>What differs where</h2>",
        "<p>Offsets of the source, from the first to the last.</p>",
        '<p class="key"><span style="background:#bfe6cb"></span>equal<span style="background:#c8281c"></span>different'
        '<span style="background:#f4bdb7"></span>compared record by record, with differences'
        '<span style="background:#ffe39a"></span>not compared</p>',
    ]
    for item in worse[:MAX_ROWS]:
        parts.append(f"<h3>{escaped(item.target)}, partition {item.partition} {_badge(item.verdict)}</h3>")
        if item.offsets[1] > item.offsets[0]:
            parts.append(_strip(item))
        lines = [*map(str, item.differences), *item.reasons]
        parts.append("<ul>" + "".join(f"<li>{escaped(line)}</li>" for line in lines) + "</ul>")
    for other in idle[:MAX_ROWS]:
        head = f"<h3>{escaped(other.target)}, partition {other.partition} {_badge(other.verdict)}</h3>"
        parts.append(f"{head}<ul><li>{escaped(other.reason)}</li></ul>")
    more = max(0, len(worse) - MAX_ROWS) + max(0, len(idle) - MAX_ROWS)
    return [*parts, f"<p>And {more:,} more partitions.</p>"] if more else parts


def _strip(item: VerifiedPartition) -> str:
    """Return the partition from its first offset to its last as a strip."""
    first, end = item.offsets
    scale = WIDTH / (end - first)
    compared = min(max(item.compared_until, first), end)
    bars = [_bar("unread", 0, WIDTH, ""), _bar("whole", 0, (compared - first) * scale, "")]
    places = [("listed", start, until) for start, until in item.differing]
    for found in item.differences:
        if found.source_offset is not None:
            places.append(("differs", found.source_offset, min(end, found.source_offset + found.records)))
    for name, start, until in places:
        words = f"offset {start}" if until == start + 1 else f"offsets {start} to {until - 1}"
        bars.append(_bar(name, (start - first) * scale, max(3.0, (until - start) * scale), words))
    return (
        f'<svg viewBox="0 0 {WIDTH} 34" width="{WIDTH}" role="img">{"".join(bars)}'
        f'<text x="0" y="30">{first}</text><text x="{WIDTH}" y="30" text-anchor="end">{end - 1}</text></svg>'
    )


def _bar(name: str, at: float, width: float, words: str) -> str:
    title = f"<title>{escaped(words)}</title>" if words else ""
    return f'<rect class="{name}" x="{at:.2f}" y="0" width="{width:.2f}" height="14">{title}</rect>'


def _partitions(report: VerificationReport, shown: Sequence[VerifiedPartition]) -> list[str]:
    rows = [
        (
            item.target,
            f"{item.partition}",
            _badge(item.verdict),
            f"{item.expected:,}",
            f"{item.records:,}",
            human_bytes(item.bytes),
        )
        for item in shown[:MAX_ROWS]
    ]
    heads = ("Topic", "#Partition", "", "#Records of the archive", "#Read back", "#Bytes")
    more = [f"<p>And {len(shown) - MAX_ROWS} more.</p>"] if len(shown) > MAX_ROWS else []
    # So that the rows are as many as the summary counts.
    if report.empty:
        more.append(
            f"<p>And {so_many(report.empty, 'partition')} without records in the archive and in the target.</p>"
        )
    if report.idle:
        more.append(f"<p>And {so_many(len(report.idle), 'partition')} above to which nothing was restored.</p>")
    return ["<h2>Partitions</h2>", table(heads, rows), *more]

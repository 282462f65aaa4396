"""The command `logkeep inspect --at` prints what a restore to that time would give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logkeep_engine.cli.options import Output
from logkeep_engine.cli.output import facts, print_json, say, stdout, table
from logkeep_engine.contract.point import PointSpec, parse_moment
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.archive.catalog.archive import Archive


def show_point(archive: Archive, at: str, output: Output) -> None:
    """Print what `spec.point.asOf` and `spec.point.timestamp` would give. Raises SpecError for what is not a time."""
    try:
        parse_moment(at)
    except ValueError as error:
        raise SpecError(f"--at: {error}") from error
    from logkeep_engine.archive.reading import view
    from logkeep_engine.restore.model.point import taken_at
    from logkeep_engine.restore.model.point_preview import describe_groups, preview

    as_of, by_time = PointSpec(as_of=at), PointSpec(timestamp=at)
    seen = view.choose(archive)
    cut, timed = (
        preview(archive, seen.state, taken_at(archive, seen.state, point), point) for point in (as_of, by_time)
    )
    if output is Output.JSON:
        print_json({"at": at, "commit": seen.state.commit, "asOf": cut.to_json(), "timestamp": timed.to_json()})
        return
    for warning in dict.fromkeys((*seen.warnings, *cut.warnings, *timed.warnings)):
        say(f"warning: {warning}")
    out = stdout()
    out.print(
        facts(
            (
                ("point", at),
                ("asOf", f"at most {so_many(cut.records, 'record')}"),
                ("timestamp", f"at most {so_many(timed.records, 'record')}"),
                ("groups", describe_groups(cut.groups)),
            )
        )
    )
    shown = table("topic", "partition", "archived", "asOf: offsets", "records at most", "timestamp: records at most")
    of_offsets, of_times = (
        {(item.topic, item.topic_id, item.partition): item for item in found.partitions} for found in (cut, timed)
    )
    for where in sorted({*of_offsets, *of_times}):  # each point takes the incarnation that has records then
        first, second = of_offsets.get(where), of_times.get(where)
        whole = second or first
        assert whole is not None
        shown.add_row(
            where[0],
            str(where[2]),
            _offsets(whole.start, whole.archived_end),
            "-" if first is None else _offsets(first.start, first.end),
            "-" if first is None else str(first.records),
            "-" if second is None else str(second.records),
        )
    out.print(shown)


def _offsets(start: int, end: int) -> str:
    return f"{start} to {end - 1}" if start < end else "-"

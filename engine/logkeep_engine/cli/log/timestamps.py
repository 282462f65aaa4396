"""The command `logkeep log timestamps`: prints from when to when records are, and where a moment lies."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.log.options import Chosen, Form, Where, leave_if_damaged
from logkeep_engine.cli.log.times import moment, parse_time
from logkeep_engine.cli.options import Debug, Server, refuse, spread
from logkeep_engine.cli.output import print_json, stdout, table

if TYPE_CHECKING:
    from logkeep_engine.toolbox.timestamps import LogTimes, MomentPlace


class BucketChoice(StrEnum):
    NONE = "none"
    HOUR = "hour"
    DAY = "day"


@spread
def show_timestamps(
    source: Where,
    *,
    chosen: Chosen,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Find this time, ISO 8601 (UTC unless it says otherwise) or ms.")
    ] = None,
    bucket: Annotated[BucketChoice, typer.Option(help="The first offset of every hour or day.")] = BucketChoice.NONE,
    segments: Annotated[bool, typer.Option("--segments", help="Segment by segment.")] = False,
    server: Server,
    form: Form,
    debug: Debug = False,
) -> None:
    """From when to when records are, how well their times are ordered, and where a moment lies."""
    with errors(debug):
        from logkeep_engine.toolbox.timestamps import Bucket, places, timestamps

        if at is not None:
            refuse(
                {"--bucket": bucket is not BucketChoice.NONE, "--segments": segments},
                "has no effect with --at, which answers for each partition",
            )
        opened = chosen.source_in_place(source, server)
        if at is not None:
            found = list(places(opened, parse_time(at)))
            if form.json:
                print_json([place.to_json() for place in found])
            else:
                _print_places(found)
            leave_if_damaged([damage for place in found for damage in place.damage])
            return
        read = list(timestamps(opened, bucket=Bucket(bucket), per_segment=segments))
        if form.json:
            print_json([times.to_json() for times in read])
        else:
            _print_times(read, segments=segments)
        leave_if_damaged([damage for times in read for damage in times.damage])


def _print_places(found: Sequence[MomentPlace]) -> None:
    where = _columns_of_logs(found)
    shown = table(*where, "offset", "time", "first", "last", "verdict")
    for place in found:
        when = [moment(item) for item in (place.timestamp, place.first, place.last)]
        offset = "-" if place.offset is None else str(place.offset)
        shown.add_row(*_log(place, where), offset, *when, place.verdict)
    stdout().print(shown)


def _columns_of_logs(found: Sequence[LogTimes | MomentPlace]) -> Sequence[str]:
    """Return the columns that name a log. It is named by its folder too, if a partition lies in several, and by the
    topic's id, if a topic was deleted and made again."""
    logs = {(item.topic, item.topic_id, item.partition, item.folder) for item in found}
    folders = len({log[:3] for log in logs}) < len(logs)
    topics = {log[:2] for log in logs}
    again = len({topic for topic, _ in topics}) < len(topics)
    return (*(["folder"] if folders else []), "topic", *(["topic id"] if again else []), "partition")


def _log(item: LogTimes | MomentPlace, columns: Sequence[str]) -> list[str]:
    return [str(getattr(item, column.replace(" ", "_"))) or "-" for column in columns]


def _print_times(read: Sequence[LogTimes], *, segments: bool) -> None:
    where = _columns_of_logs(read)
    columns = ("records", "offsets", "first", "last", "types", "without time", "out of order", "in the future")
    shown = table(*(("segment",) if segments else where), *columns)
    for times in read:
        place = (times.segment,) if segments else _log(times, where)
        offsets = "-" if times.first_offset is None else f"{times.first_offset} to {times.last_offset}"
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(times.types.items())) or "-"
        counts = map(str, (times.without, times.out_of_order, times.future))
        shown.add_row(*place, str(times.records), offsets, moment(times.first), moment(times.last), kinds, *counts)
    stdout().print(shown)
    if any(times.buckets for times in read):
        shown = table(*where, "from", "offset")
        for times in read:
            for start, offset in sorted(times.buckets.items()):
                shown.add_row(*_log(times, where), moment(start), str(offset))
        stdout().print(shown)

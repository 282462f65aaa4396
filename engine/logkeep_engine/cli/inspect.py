"""The command `logkeep inspect`: prints tables of what an archive holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from logkeep_engine.cli.costing import CostOptions, show_cost
from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.options import Debug, Output, OutputFormat, Server, Uri, refuse, spread
from logkeep_engine.cli.output import facts, print_json, say, stdout, table
from logkeep_engine.contract.names import BACKUP
from logkeep_engine.contract.point import PointSpec, parse_moment
from logkeep_engine.contract.values import human_bytes, so_many
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    from logkeep_engine.archive.catalog.archive import Archive
    from logkeep_engine.archive.catalog.cluster_state import ClusterState
    from logkeep_engine.archive.catalog.state import ArchiveState
    from logkeep_engine.archive.maintenance.inspect import (
        ClusterStateInfo,
        Description,
        InspectedPartition,
        InspectedTopic,
    )
    from logkeep_engine.contract.prices import Prices
    from logkeep_engine.contract.retention import Retention


Partitions = Annotated[bool, typer.Option("--partitions", help="Show a line for each partition, not for each topic.")]


Wide = Annotated[
    bool, typer.Option("--wide", help="Also show the runs, segments and first times of topics, and the ends of runs.")
]


ShowsClusterState = Annotated[
    bool, typer.Option("--cluster-state", help="Also show the archived ACLs, client quotas and SCRAM users.")
]


At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Show what a restore to this time would give (spec.point), such as 2026-11-17T14:05:00Z.",
    ),
]


@spread
def inspect(
    uri: Uri,
    *,
    server: Server,
    partitions: Partitions = False,
    wide: Wide = False,
    cluster_state: ShowsClusterState = False,
    at: At = None,
    costs: CostOptions,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Show what an archive holds: runs, topics, consumer groups; what a restore to a time would give; what it costs."""
    with errors(debug):
        show(server.archive(uri), output, costs, partitions=partitions, at=at, cluster_state=cluster_state, wide=wide)


def show(
    archive: Archive,
    output: Output,
    costs: CostOptions,
    *,
    partitions: bool,
    at: str | None,
    cluster_state: bool,
    wide: bool = False,
    retention: Retention | None = None,
    prices: Prices | None = None,
) -> None:
    """Print what an archive holds, what a restore to the time `at` would give, or what the archive costs, with the
    `retention` and the `prices` of its resources. Raises SpecError."""
    if costs.cost:
        others = {"--at": at, "--partitions": partitions, "--cluster-state": cluster_state, "--wide": wide}
        refuse(others, "has no effect with --cost, which shows nothing else")
        show_cost(archive, costs, output, retention, prices)
        return
    costs.refuse_without_cost()
    if at is None:
        show_archive(archive, output, partitions=partitions, cluster_state=cluster_state, wide=wide)
        return
    refuse({"--partitions": partitions}, "has no effect with --at, which shows every partition")
    refuse({"--cluster-state": cluster_state, "--wide": wide}, "has no effect with --at")
    show_point(archive, at, output)


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
            _offset_range(whole.start, whole.archived_end),
            "-" if first is None else _offset_range(first.start, first.end),
            "-" if first is None else str(first.records),
            "-" if second is None else str(second.records),
        )
    out.print(shown)


def _offset_range(start: int, end: int) -> str:
    return f"{start} to {end - 1}" if start < end else "-"


def show_archive(archive: Archive, output: Output, *, partitions: bool, cluster_state: bool, wide: bool) -> None:
    """Print what an archive holds."""
    from logkeep_engine.archive.history.compacted import with_snapshots
    from logkeep_engine.archive.maintenance.inspect import describe
    from logkeep_engine.archive.reading.beginnings import missing_beginnings
    from logkeep_engine.archive.reading.completeness import complete_until
    from logkeep_engine.archive.reading.visible import shows

    state = archive.load()
    described = describe(
        archive.info,
        state,
        beginnings=missing_beginnings(archive, state),
        complete=complete_until(archive, state, state.topics),
        lost_tails=archive.lost_tails(state),
        shows=shows(archive.storage, with_snapshots(state)),
        cluster_state=_cluster_state(archive, state),
    )
    if output is Output.JSON:
        print_json(described.to_json())
    else:
        _print_archive(described, partitions=partitions, wide=wide)
        if cluster_state:
            _print_cluster_state(described)


def _cluster_state(archive: Archive, state: ArchiveState) -> ClusterState | None:
    """Return the state of the cluster that the last run that succeeded has archived; a warning if that is damaged."""
    from logkeep_engine.archive.catalog.cluster_state import read_cluster_state
    from logkeep_engine.archive.reading.view import ends_of_runs
    from logkeep_engine.errors import ArchiveDamaged

    end = next(iter(ends_of_runs(archive, state.commit)), None)
    try:
        return None if end is None else read_cluster_state(archive, end)
    except ArchiveDamaged as error:
        say(f"warning: {error.message}")
        return None


def _print_archive(archive: Description, *, partitions: bool, wide: bool) -> None:
    out = stdout()
    head = (
        ("archive", archive.archive_id),
        ("Kafka cluster", archive.cluster_id),
        ("format", f"{archive.segment_format}{', imported' if archive.imported else ''}"),
        ("created", f"{archive.created_at} by {archive.created_by}"),
        ("owner", archive.owner.label if archive.owner is not None else "-"),
        ("commit", archive.anchor or str(archive.commit)),
        ("records", str(archive.records)),
        ("bytes", human_bytes(archive.bytes)),
        ("stored", human_bytes(archive.stored_bytes)),
        ("segments", str(archive.segments)),
        ("digests", ", ".join(f"{name} {count}" for name, count in archive.digests.items()) or "-"),
        ("cluster state", _counted(archive.cluster_state)),
    )
    out.print(facts(head))
    for lost in archive.lost_commits:
        say(f"warning: the catalog has lost its last commits: {lost}")
    out.print(_partitions(archive) if partitions else _topics(archive, wide=wide))
    if partitions and any(part.snapshots for topic in archive.topics for part in topic.partitions):
        out.print(_snapshots(archive))
    if any(topic.incarnations > 1 for topic in archive.topics):
        out.print(_incarnations(archive))
    if any(topic.branches for topic in archive.topics):
        out.print(_branches(archive))
    if any(part.generation for topic in archive.topics for part in topic.partitions):
        out.print(_generations(archive))
    out.print(_runs(archive, wide=wide))
    groups = table("consumer group", "topic", "partition", "offset")
    for group in archive.groups:
        for position in group.positions:
            name = f"{group.group_id} (share group)" if group.share else group.group_id
            groups.add_row(name, position.topic, str(position.partition), str(position.offset))
    if groups.row_count:
        out.print(groups)


def _runs(archive: Description, *, wide: bool) -> Table:
    """Return a line for each run, with its kind if not all are backups, and its message if one has any."""
    kinds = any(run.kind != BACKUP for run in archive.runs)
    messages = any(run.message for run in archive.runs)
    ended, segments = (("ended",), ("segments",)) if wide else ((), ())
    heads = ("began", *ended, "outcome", "records", "size", *segments, *(("message",) if messages else ()))
    found = table("run", *(["kind"] if kinds else []), *heads)
    for run in archive.runs:
        found.add_row(
            run.run_id,
            *([run.kind] if kinds else []),
            _time(run.begin_time, wide=wide),
            *([run.end_time or "-"] if wide else []),
            run.outcome,
            str(run.records),
            human_bytes(run.bytes),
            *([str(run.segments)] if wide else []),
            *([run.message] if messages else []),
        )
    return found


def _counted(state: ClusterStateInfo | None) -> str:
    """Return how much of the cluster's state is archived."""
    if state is None:
        return "-"
    kinds = (("ACL", state.acls), ("client quota", state.quotas), ("SCRAM user", state.scram_users))
    counts = ", ".join(f"{name}s not archived" if rows is None else so_many(len(rows), name) for name, rows in kinds)
    return f"{counts}, at {state.time_text}"


def _print_cluster_state(archive: Description) -> None:
    from logkeep_engine.kafka.user_requests import entity_name, plain_number

    state = archive.cluster_state
    if state is None:
        say("The last run that succeeded has not archived the state of its cluster.")
        return
    for key, reason in state.not_archived.items():
        say(f"not archived: {key}: {reason}")
    acls = table("ACL on", "name", "pattern", "principal", "host", "operation", "permission")
    for acl in state.acls or ():
        acls.add_row(*acl)
    quotas = table("client quota of", "key", "value")
    for entity, key, value in state.quotas or ():
        quotas.add_row(entity_name(entity), key, plain_number(value))
    users = table("SCRAM user", "mechanism", "iterations")
    for name, mechanism, iterations in state.scram_users or ():
        users.add_row(name, mechanism, str(iterations))
    defaults = table("default of topics", "value")
    for key, value in sorted((state.topic_defaults or {}).items()):
        defaults.add_row(key, value)
    configs = table("configuration of", "name", "key", "value")
    for config in state.configs or ():
        configs.add_row(*config)
    settings = table("setting of brokers", "value")
    for key, value in sorted((state.broker_settings or {}).items()):
        settings.add_row(key, value)
    features = table("feature", "level")
    for feature, level in sorted(state.features.items()):
        features.add_row(feature, str(level))
    left_out = table("group left out", "kind", "reason")
    for group in state.groups_left_out:
        left_out.add_row(*group)
    for found in (acls, quotas, users, defaults, configs, settings, features, left_out):
        if found.row_count:
            stdout().print(found)


def _topics(archive: Description, *, wide: bool) -> Table:
    """Return a line for each topic. `complete to` is the point that a restore brings back: everything that was
    committed in Kafka before it."""
    lacking = {id(topic): _lacking(topic) for topic in archive.topics}
    more = ("runs", "segments", "first") if wide else ()
    short = ("lost or missing",) if wide or any(lacking.values()) else ()
    found = table("topic", "partitions", "records", "size", *more, "last", "complete to", *short)
    for topic in archive.topics:
        offsets = lacking[id(topic)]
        found.add_row(
            _name(topic),
            str(len(topic.partitions)),
            str(topic.records),
            human_bytes(topic.bytes),
            *((str(topic.runs), str(topic.segments), topic.times.first_time or "-") if wide else ()),
            _time(topic.times.last_time, wide=wide),
            _time(topic.complete_time, wide=wide),
            *((so_many(offsets, "offset") if offsets else "-",) if short else ()),
        )
    return found


def _time(text: str, *, wide: bool) -> str:
    """Return a time, to the second if the line must fit."""
    return text if text and wide else f"{text.partition('.')[0].removesuffix('Z')}Z" if text else "-"


def _lacking(topic: InspectedTopic) -> int:
    """Return how many offsets of a topic are lost or missing."""
    return sum(
        end - start
        for part in topic.partitions
        for start, end in (*((gap.start, gap.end) for gap in part.gaps), *part.holes)
    )


def _partitions(archive: Description) -> Table:
    """Return a line for each partition."""
    retained = any(part.removed for topic in archive.topics for part in topic.partitions)
    heads = ["topic", "partition", "offsets", "records", "size", "first", "last", "lost or missing"]
    exact = any(_exact_from(part) != "-" for topic in archive.topics for part in topic.partitions)
    found = table(*heads, *(["removed"] if retained else []), *(["exact from"] if exact else []))
    for topic in archive.topics:
        for part in topic.partitions:
            lacking = [*((gap.start, gap.end) for gap in part.gaps), *part.holes]
            found.add_row(
                _name(topic),
                str(part.partition),
                f"{part.start} to {part.end - 1}" if part.end > part.start >= 0 else "-",
                str(part.records),
                human_bytes(part.bytes),
                part.times.first_time or "-",
                part.times.last_time or "-",
                _offsets(lacking),
                *([_offsets(part.removed)] if retained else []),
                *([_exact_from(part)] if exact else []),
            )
    return found


def _exact_from(part: InspectedPartition) -> str:
    """Return the first point of a partition from which on all are exact."""
    if part.exact_from < 0 <= part.end:
        return "nowhere"
    return str(part.exact_from) if part.end >= 0 and (part.snapshots or part.generation) else "-"


def _snapshots(archive: Description) -> Table:
    """Return a table of the snapshots of compacted partitions."""
    found = table("snapshot of", "partition", "end", "leader epoch", "last record", "records", "size", "parts")
    for topic in archive.topics:
        for part in topic.partitions:
            for item in part.snapshots:
                found.add_row(
                    _name(topic),
                    str(part.partition),
                    str(item.end),
                    str(item.leader_epoch),
                    item.time_text or "-",
                    str(item.records),
                    human_bytes(item.bytes),
                    str(item.parts),
                )
    return found


def _name(topic: InspectedTopic) -> str:
    return topic.name if topic.incarnations == 1 else f"{topic.name} ({topic.incarnation} of {topic.incarnations})"


def _incarnations(archive: Description) -> Table:
    """Return a table of the topics that were deleted and created again."""
    found = table("deleted and created again", "topic id", "records", "first", "last", "restored by default")
    for topic in archive.topics:
        if topic.incarnations > 1:
            found.add_row(
                f"{topic.name} ({topic.incarnation} of {topic.incarnations})",
                topic.topic_id,
                str(topic.records),
                topic.times.first_time or "-",
                topic.times.last_time or "-",
                "yes" if topic.taken else "no",
            )
    return found


def _branches(archive: Description) -> Table:
    """A table of the old ends of logs that were cut off in the cluster."""
    found = table("cut off in the cluster", "partition", "branch", "old end", "records", "first", "last")
    for topic in archive.topics:
        for branch in topic.branches:
            found.add_row(
                topic.name,
                str(branch.partition),
                branch.id,
                _offsets([(branch.start, branch.end)]),
                str(branch.records),
                branch.times.first_time or "-",
                branch.times.last_time or "-",
            )
    return found


def _generations(archive: Description) -> Table:
    """Return a table of the generations of compacted partitions."""
    found = table("generations of", "partition", "active", "began", "active since", "exact from", "being read")
    for topic in archive.topics:
        for part in topic.partitions:
            known = part.generation
            if known is not None:
                passive = known.passive
                found.add_row(
                    _name(topic),
                    str(part.partition),
                    str(known.number),
                    known.began_time or "-",
                    known.since_time or "-",
                    "-" if known.exact < 0 else str(known.exact),
                    ("due" if known.due else "-")
                    if passive is None
                    else f"{passive.number}: {passive.read} of {passive.end - passive.start} offsets",
                )
    return found


def _offsets(ranges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{start} to {end - 1}" for start, end in sorted(ranges)) or "-"

"""Every kept point through every reader, compared with the reference.

A `Fault` is one difference. What may be refused stands in `ALLOWED`; whatever else is refused of a kept point is a
fault, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from logkeep_engine.archive.care.verify import verify
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.replacements import erased_ranges
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.moments import iso
from logkeep_engine.contract.spec import KafkaRestoreSpec, parse_restore
from logkeep_engine.errors import ArchiveDamaged, LogkeepError
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.records import decode
from logkeep_engine.report import Reporter
from logkeep_engine.restore.context import Planned, RestoreContext
from logkeep_engine.restore.partitions import explained
from logkeep_engine.restore.plan import RestorePlan
from logkeep_engine.restore.planner import RestorePlanner
from logkeep_engine.restore.point import plan_point
from logkeep_engine.restore.state import RestoreState
from logkeep_engine.restore.task import stream_of
from logkeep_engine.restore.work import restore_task, with_task
from logkeep_engine.spark.source import LogkeepReader, SegmentReads
from logkeep_engine.spark.source_options import SourceOptions
from logkeep_engine.spark.source_rows import read_rows
from logkeep_engine.storage import Storage
from tests.model.asking import Asked, Fault
from tests.model.reference import Bounds, Key, Line, Rec, last_values, offset_of
from tests.model.refusals import Refused, allowed
from tests.model.world import Target, World
from tests.unit.archive.build import CLUSTER
from tests.unit.erasure.erasing import Inside

Row = tuple[int, int | None, bytes | None, bytes | None]
"""Offset, time, key, value."""
Rows = dict[Key, list[Row]]
_NO_SCHEMA: Any = None


class _Nobody:
    """A cluster without topics."""

    def topics(self) -> list[Any]:
        return []

    def latest_offsets(self, _: Any) -> dict[Any, int]:
        return {}

    def group_offsets(self, _: Any) -> dict[Any, Any]:
        return {}

    def broker_configs(self, _: Any) -> dict[str, str]:
        return {}

    def check_replicas(self, *_: Any) -> None:
        pass

    def refusal(self, _: Any) -> None:
        pass


class _Planner(RestorePlanner):
    """The planner of a cluster that has producer ids enough."""

    def _with_producer_ids(self, plan: RestorePlan) -> RestorePlan:
        return plan.with_producer_ids(range(100, 200))


def _context(storage: Storage, point: Any, topic_id: str | None, run_id: str = "restore-1") -> RestoreContext:
    source: dict[str, Any] = {"storage": {"uri": storage.uri, "volume": {"claimName": "c"}}}
    if topic_id is not None:
        source["topicIds"] = {"orders": topic_id}
    body = {"source": source, "cluster": {"bootstrapServers": ["127.0.0.1:1"]}, **({"point": point} if point else {})}
    spec: KafkaRestoreSpec = parse_restore(body)
    nothing: Any = None
    control: Any = _Nobody()
    state = RestoreState(storage, run_id)
    reporter = Reporter(run_id)
    return RestoreContext(run_id, spec, Archive.open(storage), state, CLUSTER, control, nothing, Inside, reporter)


@dataclass
class Given:
    """The records that a reader gives of an incarnation: records by partition."""

    rows: Rows = field(default_factory=dict)
    topic_id: str = ""


def restored(storage: Storage, point: Any = None, topic_id: str | None = None) -> Given:
    """Plan a restore of the topic without storing it, and take what its tasks would send."""
    context = _context(storage, point, topic_id)
    planned = RestorePlanner(context).sketch()
    return _given(context, Planned(planned.plan.with_producer_ids(range(100, 200)), planned.archived, fresh=True))


def started(storage: Storage, asked: Asked, run_id: str) -> Given:
    """Start a restore, or start it again, and take what its tasks send from the first record on."""
    context = _context(storage, asked.point, asked.topic_id, run_id)
    planned = _Planner(context).load_or_make()
    try:
        return _given(context, planned)
    except ArchiveDamaged as error:
        raise explained(error, context, planned) from error


def _given(context: RestoreContext, planned: Planned) -> Given:
    found = Given(topic_id=planned.plan.topics[0].topic_id)
    for topic, part in with_task(planned):
        task = restore_task(context, planned, topic, part)
        rows = found.rows.setdefault((topic.topic_id, part.partition), [])
        for item in stream_of(task, 0):
            assert item.data is not None
            data = b"".join(item.data)
            assert parse_header(data).size == item.size == len(data)
            offsets = [at for first, count in item.source for at in range(first, first + count)]
            rows += [(at, rec.timestamp, rec.key, rec.value) for at, rec in zip(offsets, decode(data), strict=True)]
    return found


# ---- what is right


def judge(world: World, state: ArchiveState, reader: str, asked: Asked, given: Given) -> Iterator[Fault]:
    """Compare what a reader gives with what is right."""
    features = world.had()

    def fault(kind: str, text: str) -> Fault:
        return Fault(kind, reader, asked.name, text, features)

    if asked.expects and given.topic_id != asked.expects and not _had_records(asked, given.topic_id):
        yield fault("incarnation", f"that of {given.topic_id[:1]}, not of {asked.expects[0]}")
        return
    for key in sorted({*given.rows, *(key for key in asked.lines if key[0] == given.topic_id)}):
        line = asked.lines.get(key)
        rows = given.rows.get(key, [])
        if line is None:
            if rows:
                yield fault("invented", f"{key[1]}: {rows}")
            continue
        bounds = asked.bounds(key, line)
        for kind, text in _differences(world, state, asked, key, line, rows, bounds):
            yield fault(kind, f"partition {key[1]}: {text}")


def _had_records(asked: Asked, topic_id: str) -> bool:
    """Whether a newer incarnation had records before the time, though the point has none of them: of a transaction
    across it."""
    records = (rec for key, line in asked.lines.items() if key[0] == topic_id for rec in line.read.values())
    return topic_id > asked.expects and any(rec.told and rec.time < asked.moment for rec in records)


def _differences(
    world: World, state: ArchiveState, asked: Asked, key: Key, line: Line, rows: Sequence[Row], bounds: Bounds
) -> Iterator[tuple[str, str]]:
    offsets = [row[0] for row in rows]
    if offsets != sorted(set(offsets)):
        yield "out of order", f"offsets {offsets}"
    known = line.read | line.written
    for offset, time, name, value in rows:
        rec = known.get(offset)
        if rec is None or (rec.time, rec.key, rec.value) != (time, name, value):
            yield "invented", f"record {offset} {name!r} {value!r} is not of this history"
            return
        if not rec.told:
            yield "aborted", f"record {offset} is of an aborted transaction"
    outside = set(offsets) - {rec.offset for rec in _within(line, bounds, known.values())}
    if outside and all(known[offset].told for offset in outside):
        yield "outside", f"offsets {sorted(outside)} lie outside of {bounds}"
    policies = world.policies
    gone = world.gone(key, line, asked)
    if policies == {"delete"}:
        yield from _lacking(state, key, line, offsets, bounds, gone)
    else:
        yield from _wrong_keys(world, key, line, [known[at] for at in offsets], bounds, gone)


def _within(line: Line, bounds: Bounds, records: Iterable[Rec]) -> list[Rec]:
    return bounds.of(records, line.read.values())


def _told_gone(state: ArchiveState, key: Key) -> Callable[[int], bool]:
    """Whether the archive says that retention has removed an offset."""
    ranges = [*state.removed.get(key, ()), *(item for b in state.branches.get(key, ()) for item in b.held.removed)]
    return lambda offset: any(start <= offset < end for start, end in ranges)


def _lacking(
    state: ArchiveState, key: Key, line: Line, offsets: Sequence[int], bounds: Bounds, gone: set[int]
) -> Iterator[tuple[str, str]]:
    told = _told_gone(state, key)
    lacks = [rec.offset for rec in _within(line, bounds, line.read.values()) if rec.offset not in set(offsets)]
    untold = [offset for offset in lacks if not told(offset)]
    needed = [offset for offset in lacks if offset not in gone]
    if untold:
        yield "lacks", f"offsets {untold} of {bounds}, and the archive does not say that they were removed"
    elif needed:
        yield "taken", f"offsets {needed} of {bounds}, which retention had to leave"


def _wrong_keys(
    world: World, key: Key, line: Line, got: list[Rec], bounds: Bounds, gone: set[int]
) -> Iterator[tuple[str, str]]:
    written = _within(line, bounds, line.written.values())
    right = last_values(written)
    there = last_values(_within(line, bounds, line.log.values()))
    found = last_values(got)
    wrong: dict[bytes, str] = {}
    doubtful: dict[bytes, str] = {}
    for name in sorted({*right, *found}):
        rec, had = right.get(name), found.get(name)
        if had == rec or (line.cut and had == there.get(name)):
            continue
        last = max((rec for rec in written if rec.key == name), key=offset_of, default=None)
        if last is not None and last.offset in gone | line.lost:
            continue
        if bounds.since is not None and last is not None and line.written and _overwritten(line, last):
            continue
        told = f"{name.decode()}: {had and had.offset} instead of {rec and rec.offset}"
        (doubtful if last is not None and last.offset not in line.read else wrong)[name] = told
    if wrong:
        yield "wrong keys", "; ".join(wrong.values())
    elif doubtful:
        yield "never read", "; ".join(doubtful.values())


def _overwritten(line: Line, rec: Rec) -> bool:
    return any(other.key == rec.key and other.offset > rec.offset for other in line.written.values() if other.told)


# ---- all points and readers


def check(world: World, number: int | None) -> Iterator[Fault]:
    """All faults of the archive as it is now. `number` decides which times and offsets are asked for; None: all."""
    archive = world.archive
    if archive is None:
        return
    state = archive.load()
    world.note_kept()
    for text in world.wrongly_taken:
        yield Fault("taken", "retention", "the newest", text, world.had())
    world.wrongly_taken.clear()
    yield from _whole(world, archive, state)
    if not state.successes() and not world.reference.points:
        return
    for asked in (*_runs(world), *_newest(world), *_moments(world, state, None if number is None else Random(number))):
        yield from _asked(world, state, world.store, "restore", asked)
    yield from _restores(world)
    yield from _targets(world)
    yield from _spark(world, state)
    yield from _erased_ranges(world, state)
    yield from _forgotten(world, state)


_HOLE = "are neither archived nor recorded as lost"
"""The words of `verify` for what a run that died has not come to."""


def _whole(world: World, archive: Archive, state: ArchiveState) -> Iterator[Fault]:
    faults = [str(fault) for fault in verify(archive).faults]
    faults = [fault for fault in faults if not (world.died and _HOLE in fault)]
    if faults:
        yield Fault("damaged", "verify", "the archive", faults[0], world.had())


def _forgotten(world: World, state: ArchiveState) -> Iterator[Fault]:
    """Find offsets that the catalog calls kept, and has no segment for."""
    if world.features & {"generation", "cleaned"}:
        return
    for key, line in world.reference.lines.items():
        has = [(entry.base_offset, entry.next_offset) for entry in state.segments.get(key, ())]
        kept = [at for at in line.read if any(low <= at < high for low, high in state.kept(*key))]
        lacks = [at for at in kept if not any(low <= at < high for low, high in has)]
        if lacks:
            text = f"partition {key[1]}: offsets {lacks} are in no segment, and do not count as removed"
            yield Fault("forgotten", "the catalog", "the newest", text, world.had())


def _runs(world: World) -> Iterator[Asked]:
    for run, lines in world.reference.points.items():
        for topic_id in dict.fromkeys(key[0] for key in lines):
            yield Asked(f"run {run}", lines, {"run": run}, topic_id, kept=run in world.kept, run=True)


def _newest(world: World) -> Iterator[Asked]:
    lines = world.reference.seen
    yield Asked("the newest", lines)
    for topic_id in dict.fromkeys(key[0] for key in lines):
        yield Asked(f"incarnation {topic_id[0]}", lines, None, topic_id)
    for name, branch in world.reference.branches.items():
        if world.last_run in world.reference.points and not world.died:
            yield Asked("a branch", {**lines, **branch}, None, name, is_branch=True)


def _moments(world: World, state: ArchiveState, chance: Random | None) -> Iterator[Asked]:
    """Times and offsets of the newest state: one of each kind, or all of them."""
    lines = world.reference.seen
    times = sorted({rec.time for line in lines.values() for rec in line.read.values()})
    moments = [time + more for time in times for more in (0, 1) if time + more <= world.time]
    for kind in ("asOf", "timestamp"):
        for moment in moments if chance is None else chance.sample(moments, min(1, len(moments))):
            asked = Asked(kind, lines, {kind: iso(moment)}, moment=moment)
            yield replace(asked, expects=_incarnation_of(state, asked))
    for key, line in lines.items():
        offsets = range(line.end + 1) if key in state.coverage else ()
        for offset in offsets if chance is None else chance.sample(offsets, min(1, len(offsets))):
            point = {"offsets": [{"topic": "orders", "partition": key[1], "offset": offset}]}
            yield Asked("an offset", lines, point, key[0])


def _incarnation_of(state: ArchiveState, asked: Asked) -> str:
    """The newest incarnation of which the point has a record that is there still."""
    found = ""
    for key, line in asked.lines.items():
        gone = _told_gone(state, key)
        within = _within(line, asked.bounds(key, line), line.read.values())
        if any(not gone(rec.offset) for rec in within):
            found = max(found, key[0])
    return found


def _asked(world: World, state: ArchiveState, storage: Storage, reader: str, asked: Asked) -> Iterator[Fault]:
    features = world.had()
    try:
        given = restored(storage, asked.point, asked.topic_id)
    except LogkeepError as error:
        name = allowed(Refused(world, asked, error.message, features), error)
        world.counts[f"{reader}: refused, {name or 'wrongly'}"] += 1
        if not name:
            yield Fault("refused", reader, asked.name, f"{error.code}: {error.message}", features)
        return
    faults = list(judge(world, state, reader, asked, given))
    if faults and asked.point is None and faults[0].kind in _OF_STATES and _warned(storage, asked):
        world.counts[f"{reader}: not exact, and says so"] += 1
        return
    world.counts[f"{reader}: {'different' if faults else 'equal'}"] += 1
    yield from faults


_OF_STATES = ("wrong keys", "never read")
"""What is wrong where a restore warns that the state of a compacted topic is not exact."""


def _warned(storage: Storage, asked: Asked) -> bool:
    """Whether a restore without a point says that its state is not exact."""
    context = _context(storage, asked.point, asked.topic_id)
    seen = RestorePlanner(context).sketch()
    topics = [seen.archived.topics[topic.topic_id] for topic in seen.plan.topics]
    return any(
        "exact" in told or "its state is kept" in told
        for told in plan_point(context.archive, seen.archived, topics, None).warnings
    )


@dataclass
class Begun:
    """A restore that was begun: what it is of, and its first stream. `keys` are all in the partitions that it reads:
    what an erasure takes of them may be in what it has sent, for all that anybody knows."""

    asked: Asked
    given: Given
    run_id: str
    erased: int
    keys: frozenset[bytes]
    removals: tuple[int, int]


def begin_restore(world: World, point: str, number: int) -> None:
    """Plan a restore, and keep the plan and the stream."""
    if world.archive is None or not world.reference.points:
        return
    state = world.state()
    chance = Random(number)
    asked = {
        "newest": lambda: next(iter(_newest(world))),
        "run": lambda: chance.choice(list(_runs(world))),
        "time": lambda: chance.choice([*_moments(world, state, chance), next(iter(_newest(world)))]),
    }[point]()
    run_id = f"restore-{len(world.restores)}"
    try:
        given = started(world.store, asked, run_id)
    except LogkeepError:
        return
    keys = frozenset(rec.key for _, line, _ in asked.bounded() for rec in line.read.values())
    world.restores.append(Begun(asked, given, run_id, len(world.erased), keys, _removals(world)))


def _restores(world: World) -> Iterator[Fault]:
    """Start each restore that was begun again."""
    for begun in world.restores:
        since, removed = set(world.erased[begun.erased :]), begun.removals != _removals(world)
        erased = bool(since & begun.keys)
        features = frozenset({*world.had(), *(["erased since"] if erased else [])})
        asked = replace(begun.asked, kept=begun.asked.run and begun.asked.point["run"] in world.kept)
        try:
            again = started(world.store, begun.asked, begun.run_id)
        except LogkeepError as error:
            name = allowed(Refused(world, asked, error.message, features, erased, removed), error)
            world.counts[f"a second start: refused, {name or 'wrongly'}"] += 1
            if not name:
                text = f"{error.code}: {error.message}"
                yield Fault("refused", "a second start", begun.asked.name, text, features)
            continue
        if again.rows != begun.given.rows:
            before, now = (sum(map(len, given.rows.values())) for given in (begun.given, again))
            yield Fault("another stream", "a second start", begun.asked.name, f"{now} of {before} records", features)
        else:
            world.counts["a second start: equal"] += 1


def _removals(world: World) -> tuple[int, int]:
    """How often something was removed, or replaced by a generation."""
    return world.removals, len(world.state().generations)


def _targets(world: World) -> Iterator[Fault]:
    for name, target in world.targets.items():
        if not target.lines:
            continue
        yield from _target(world, name, target)


def _target(world: World, name: str, target: Target) -> Iterator[Fault]:
    archive = Archive.open(target.store)
    faults = verify(archive).faults
    if faults:
        yield Fault("damaged", f"verify of {name}", "the target", str(faults[0]), world.had())
    for topic_id in dict.fromkeys(key[0] for key in target.lines):
        asked = Asked("the target", target.lines, None, topic_id, ends=target.ends)
        yield from _asked(world, world.state(), target.store, f"conversion to {name}", asked)


class _Reader(LogkeepReader):
    """A reader of a storage in memory."""

    store: Storage

    def _storage(self) -> Storage:
        return self.store


def _spark(world: World, state: ArchiveState) -> Iterator[Fault]:
    """The rows of the Spark reader: the newest state, of every incarnation."""
    lines = world.reference.seen
    for topic_id in dict.fromkeys(key[0] for key in lines):
        asked = Asked("the newest", lines, None, topic_id)
        reader = _Reader(SourceOptions.parse({"path": world.store.uri, "topicId": topic_id}), _NO_SCHEMA)
        reader.store = world.store
        given = Given(topic_id=topic_id)
        for group in reader.partitions():
            assert isinstance(group, SegmentReads)
            for read in group.reads:
                key = (topic_id, read.entry.partition)
                for rows in read_rows(world.store, read):
                    found = [(rec.offset, rec.timestamp, rec.key, rec.value) for rec in rows[0]]
                    given.rows.setdefault(key, []).extend(found)
        world.store.delete([info.path for info in world.store.list("runs/reading.spark-")])  # it has ended
        faults = list(judge(world, state, "Spark", asked, given))
        if faults and not _warned(world.store, asked):
            yield from faults


def _erased_ranges(world: World, state: ArchiveState) -> Iterator[Fault]:
    """A reconciliation must not count what was erased as lost."""
    if "generation" in world.features:  # what it has read again since counts, and the cluster has erased it, too
        return
    for key, offsets in world.reference.erased.items():
        end = state.accounted_for(*key)[-1][1] if state.accounted_for(*key) else 0
        ranges = erased_ranges(state, key, end)
        snapshots = [(0, snapshot.end) for snapshot in state.snapshots.get(key, ())]
        there = [at for at in offsets if any(low <= at < high for low, high in (*state.kept(*key), *snapshots))]
        told = [at for at in there if not any(low <= at < high for low, high in ranges)]
        if told:
            text = f"offsets {told} were erased, and count as lost: only {ranges} are known"
            yield Fault("false loss", "reconciliation", "the newest", text, world.had())

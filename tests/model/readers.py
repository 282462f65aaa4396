"""Every kept point through every reader, compared with the reference.

A `Fault` is one difference. What may be refused stands in `ALLOWED`; whatever else is refused of a kept point is a
fault, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.moments import iso
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import LogkeepError
from logkeep_engine.restore.model.point import plan_point
from logkeep_engine.restore.planning.planner import RestorePlanner
from logkeep_engine.storage import Storage
from tests.model.asking import Asked, Fault
from tests.model.begun import begin, begun_again
from tests.model.others import compared, erased_as_lost, forgotten, inspected, spark_filtered, spark_given
from tests.model.positions import positions_at
from tests.model.previews import previewed
from tests.model.reference import Bounds, Key, Line, Rec, last_values, offset_of
from tests.model.refusals import Refused, allowed
from tests.model.restoring import Given, Row, context_of, expected_by_verification, restored
from tests.model.world import Target, World

# ---- what is right


def judge(world: World, state: ArchiveState, reader: str, asked: Asked, given: Given) -> Iterator[Fault]:
    """Compare what a reader gives with what is right."""
    features = world.had(asked.topic_ids)

    def fault(kind: str, text: str) -> Fault:
        return Fault(kind, reader, asked.name, text, features)

    for name, topic_id in given.topic_ids.items():
        expects = asked.expects.get(name, "")
        if expects and topic_id != expects and not _had_records(asked, expects, topic_id):
            yield fault("incarnation", f"{name}: that of {topic_id[:1]}, not of {expects[0]}")
            return
    lacks = {world.topic_of(key[0]).name for key, _, _ in asked.bounded()} - given.topic_ids.keys()
    if lacks:
        yield fault("lacks", f"topics {sorted(lacks)}")
    ids = set(given.topic_ids.values())
    for key in sorted({*given.rows, *(key for key in asked.lines if key[0] in ids)}):
        line = asked.lines.get(key)
        rows = given.rows.get(key, [])
        if line is None:
            if rows:
                yield fault("invented", f"{world.topic_of(key[0]).name} {key[1]}: {rows}")
            continue
        bounds = asked.bounds(key, line)
        for kind, text in _differences(world, state, asked, key, line, rows, bounds):
            yield fault(kind, f"{world.topic_of(key[0]).name} {key[1]}: {text}")


def _had_records(asked: Asked, expects: str, topic_id: str) -> bool:
    """Whether a newer incarnation had records before the time, though the point has none of them: of a transaction
    across it."""
    records = (rec for key, line in asked.lines.items() if key[0] == topic_id for rec in line.read.values())
    return topic_id > expects and any(rec.visible and rec.time < asked.moment for rec in records)


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
        if not rec.visible:
            yield "aborted", f"record {offset} is of an aborted transaction"
    outside = set(offsets) - {rec.offset for rec in _within(line, bounds, known.values())}
    if outside and all(known[offset].visible for offset in outside):
        yield "outside", f"offsets {sorted(outside)} lie outside of {bounds}"
    gone = world.gone(key, line, asked)
    if world.topic_of(key[0]).has_states:
        got, has_snapshots = [known[at] for at in offsets], bool(state.snapshots.get(key))
        yield from _wrong_keys(line, got, bounds, gone, world.settings.has_batches, has_snapshots)
    else:
        yield from _lacking(state, key, line, offsets, bounds, gone)


def _within(line: Line, bounds: Bounds, records: Iterable[Rec]) -> list[Rec]:
    return bounds.of(records, line.read.values())


def _describe_gone(state: ArchiveState, key: Key) -> Callable[[int], bool]:
    """Whether the archive says that retention has removed an offset."""
    ranges = [*state.removed.get(key, ()), *(item for b in state.branches.get(key, ()) for item in b.held.removed)]
    return lambda offset: any(start <= offset < end for start, end in ranges)


def _lacking(
    state: ArchiveState, key: Key, line: Line, offsets: Sequence[int], bounds: Bounds, gone: set[int]
) -> Iterator[tuple[str, str]]:
    text = _describe_gone(state, key)
    lacks = [rec.offset for rec in _within(line, bounds, line.read.values()) if rec.offset not in set(offsets)]
    unreported = [offset for offset in lacks if not text(offset)]
    needed = [offset for offset in lacks if offset not in gone]
    if unreported:
        yield "lacks", f"offsets {unreported} of {bounds}, and the archive does not say that they were removed"
    elif needed:
        yield "taken", f"offsets {needed} of {bounds}, which retention had to leave"


def _wrong_keys(
    line: Line, got: list[Rec], bounds: Bounds, gone: set[int], has_batches: bool, has_snapshots: bool
) -> Iterator[tuple[str, str]]:
    written = _within(line, bounds, line.written.values())
    right = last_values(written)
    there = last_values(_within(line, bounds, line.log.values()))
    found = last_values(got)
    wrong: dict[bytes, str] = {}
    doubtful: dict[bytes, str] = {}
    for name in sorted({*right, *found}):
        rec, had = right.get(name), found.get(name)
        if had == rec or ((line.cut or line.shorn) and had == there.get(name)):
            continue
        last = max((rec for rec in written if rec.key == name), key=offset_of, default=None)
        if line.shorn and last is not None and last.offset not in line.read:
            continue  # what had overwritten it was lost, and no run has seen that
        if last is not None and last.offset in gone | line.lost:
            continue
        if last is not None and last.offset not in line.read and any(at > last.offset for at in gone):
            continue  # it was gone before limits took what is after it, and the archive says that it has nothing there
        if bounds.since is not None and last is not None and _may_be_earlier(line, last, bounds.since, has_snapshots):
            continue
        if bounds.before is not None and last is not None and _left_no_trace(line, last, bounds.before, has_batches):
            continue
        text = f"{name.decode()}: {had and had.offset} instead of {rec and rec.offset}"
        (doubtful if last is not None and last.offset not in line.read else wrong)[name] = text
    if wrong:
        yield "wrong keys", "; ".join(wrong.values())
    elif doubtful:
        yield "never read", "; ".join(doubtful.values())


def _left_no_trace(line: Line, rec: Rec, before: int, has_batches: bool) -> bool:
    """docs/guides/restore-to-a-point.md, "A point that is not exact": whether a record was gone before a run came,
    which had times from before a point though records before it in the log are later, and so is what is left of its
    batch, which formats of records do not know."""
    rest = [other.time for other in line.read.values() if has_batches and other.batch == rec.batch]
    if rec.offset in line.read or min(rest, default=before) < before:
        return False
    return any(other.offset < rec.offset and other.time >= before for other in line.read.values())


def _may_be_earlier(line: Line, rec: Rec, since: int, has_snapshots: bool) -> bool:
    """Whether a record may be one of before a window for who reads a snapshot: it was overwritten, or its own time is
    before that of the window, for a snapshot does not know which transaction it is of; or the records were overwritten
    by which alone its transaction reaches into the window, or these are tombstones, which go in the end."""
    late = [other for other in line.written.values() if other.place == rec.place and other.time >= since]
    gone = all(other.value is None or _overwritten(line, other) for other in late)
    return _overwritten(line, rec) or (rec.time < since and (has_snapshots or gone))


def _overwritten(line: Line, rec: Rec) -> bool:
    return any(other.key == rec.key and other.offset > rec.offset for other in line.written.values() if other.visible)


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
    yield from _verified_archive(world, archive, "verify", "the archive", died=bool(world.died))
    if not state.successes() and not world.reference.points:
        return
    for asked in (*_runs(world), *_newest(world), *_moments(world, state, None if number is None else Random(number))):
        yield from _asked(world, state, world.store, "restore", asked)
    yield from _previews(world, None if number is None else Random(number))
    yield from begun_again(world)
    yield from _targets(world)
    yield from _beside(world, state, Random(number))
    yield from erased_as_lost(world, state)
    yield from forgotten(world, state)


_HOLE = "are neither archived nor recorded as lost"
"""The words of `verify` for what a run that died has not come to."""


def _verified_archive(world: World, archive: Archive, reader: str, name: str, *, died: bool) -> Iterator[Fault]:
    faults = [str(fault) for fault in verify(archive).faults]
    faults = [fault for fault in faults if not (died and _HOLE in fault)]
    if faults:
        yield Fault("damaged", reader, name, faults[0], world.had())


def _runs(world: World) -> Iterator[Asked]:
    for run, lines in world.reference.points.items():
        for topic_ids in incarnations_of(world, lines):
            yield Asked(f"run {run}", lines, {"run": run}, topic_ids, kept=run in world.kept, run=True)


def incarnations_of(world: World, lines: Iterable[Key]) -> Iterator[dict[str, str]]:
    """Incarnations of all topics, so that each is among them: topics that have fewer stay at their last."""
    found: dict[str, list[str]] = {}
    for topic_id in dict.fromkeys(key[0] for key in lines):
        found.setdefault(world.topic_of(topic_id).name, []).append(topic_id)
    for number in range(max(map(len, found.values()), default=0)):
        yield {name: ids[min(number, len(ids) - 1)] for name, ids in found.items()}


def _newest(world: World) -> Iterator[Asked]:
    lines = world.reference.seen
    yield Asked("the newest", lines)
    for topic_ids in incarnations_of(world, lines):
        yield Asked("incarnations " + "".join(topic_id[0] for topic_id in topic_ids.values()), lines, None, topic_ids)
    for branch_id, branch in world.reference.branches.items():
        if world.last_run in world.reference.points and not world.died:
            topic = world.topic_of(next(iter(branch))[0])
            beside = {key: line for key, line in lines.items() if key[0] in topic.ids}
            yield Asked("a branch", {**beside, **branch}, None, {topic.name: branch_id}, is_branch=True)


def _moments(world: World, state: ArchiveState, chance: Random | None) -> Iterator[Asked]:
    """Times and offsets of the newest state: one of each kind, or all of them."""
    lines = world.reference.seen
    moments = _times(world)
    for kind in ("asOf", "timestamp"):
        for moment in moments if chance is None else chance.sample(moments, min(1, len(moments))):
            asked = Asked(kind, lines, {kind: iso(moment)}, moment=moment)
            yield replace(asked, expects=_expected(world, state, asked))
    for low, high in _windows(moments, chance):
        window = {name: iso(time) for name, time in (("from", low), ("to", high)) if time is not None}
        point: dict[str, Any] = {"window": window}
        asked = Asked("a window", lines, point, moment=-1 if high is None else high, since=low, before=high)
        # Without an end it is the incarnation that the newest state would give.
        yield replace(asked, expects=_expected(world, state, asked)) if high else asked
    for key, line in lines.items():
        offsets = range(line.end + 1) if key in state.coverage else ()
        for offset in offsets if chance is None else chance.sample(offsets, min(1, len(offsets))):
            name = world.topic_of(key[0]).name
            point = {"offsets": [{"topic": name, "partition": key[1], "offset": offset}]}
            yield Asked("an offset", lines, point, {name: key[0]})


def _previews(world: World, chance: Random | None) -> Iterator[Fault]:
    """Ask what is shown of a time, after some of the actions, or of all times."""
    moments = _times(world)
    if chance is None:
        for moment in moments:
            yield from previewed(world, moment)
    elif moments and next(world.turns) % 4 == 0:  # it costs as much as three restores
        yield from previewed(world, chance.choice(moments))


def _times(world: World) -> list[int]:
    """The times of records, and those that follow them."""
    times = sorted({rec.time for line in world.reference.seen.values() for rec in line.read.values()})
    return [time + more for time in times for more in (0, 1) if time + more <= world.time]


def _windows(moments: Sequence[int], chance: Random | None) -> Iterator[tuple[int | None, int | None]]:
    """Windows of times: one with a beginning at least, or some of each kind."""
    if not moments:
        return
    pairs = [(low, high) for low in moments for high in moments if low < high]
    some = [*pairs[:: max(1, len(pairs) // 20)], *((low, None) for low in moments)]
    yield from (some if chance is None else [chance.choice(some)])


def _expected(world: World, state: ArchiveState, asked: Asked) -> dict[str, str]:
    """The newest incarnation of each topic of which the point has a record that is there still. A snapshot may leave
    out all that an incarnation had: then an older one may be taken, and none is expected."""
    found: dict[str, str] = {}
    doubtful: dict[str, str] = {}
    for key, line in asked.lines.items():
        gone, name = _describe_gone(state, key), world.topic_of(key[0]).name
        bounds = asked.bounds(key, line)
        within = _within(line, bounds, line.read.values())
        if any(not gone(rec.offset) for rec in within):
            last = last_values(_within(line, replace(bounds, since=None), line.read.values()))
            is_left = "snapshot" not in world.features or any(rec in within for rec in last.values())
            some = found if is_left else doubtful
            some[name] = max(some.get(name, ""), key[0])
    return {name: topic_id for name, topic_id in found.items() if doubtful.get(name, "") < topic_id}


def _asked(world: World, state: ArchiveState, storage: Storage, reader: str, asked: Asked) -> Iterator[Fault]:
    features = world.had(asked.topic_ids) | ({"kept"} if asked.kept and asked.run else set())
    try:
        given = restored(storage, asked)
    except LogkeepError as error:
        name = allowed(Refused(world, asked, error.message, features), error)
        world.counts[f"{reader}: refused, {name or 'wrongly'}"] += 1
        if not name:
            yield Fault("refused", reader, asked.name, f"{error.code}: {error.message}", features)
        elif len(alone := list(_alone(world, asked))) > 1:
            for one in alone:
                yield from _asked(world, state, storage, reader, one)
        return
    faults = list(judge(world, state, reader, asked, given))
    if not faults and reader == "restore":
        faults = list(_positions(world, asked, given))
        if not faults and next(world.turns) % 4 == 0:  # it costs as much as the restore
            faults = list(_verified(world, asked, given))
    if faults and asked.point is None and faults[0].kind in _OF_STATES and _warned(storage, asked):
        world.counts[f"{reader}: not exact, and says so"] += 1
        return
    world.counts[f"{reader}: {'different' if faults else 'equal'}"] += 1
    yield from faults


def _alone(world: World, asked: Asked) -> Iterator[Asked]:
    """The same of each topic alone: it may be only one that is refused."""
    names = dict.fromkeys(world.topic_of(key[0]).name for key in asked.lines)
    for name in asked.topic_ids or names:
        lines = {key: line for key, line in asked.lines.items() if world.topic_of(key[0]).name == name}
        yield replace(asked, lines=lines, topic_ids={name: asked.topic_ids.get(name, "")})


_OF_STATES = ("wrong keys", "never read")
"""The faults that are none where a restore warns that the state of a compacted topic is not exact."""


def _positions(world: World, asked: Asked, given: Given) -> Iterator[Fault]:
    """The positions of groups at a point."""
    ids = set(given.topic_ids.values())
    right = {where: offset for where, offset in positions_at(world, asked).items() if where[1] in ids}
    if given.groups != right and not asked.is_branch:
        yield Fault("positions", "restore", asked.name, f"{given.groups} instead of {right}", world.had())


def _verified(world: World, asked: Asked, given: Given) -> Iterator[Fault]:
    """A verification would expect in the target of a restore what the restore sends."""
    expected = expected_by_verification(world.store, asked)
    for key in {*expected, *given.rows}:
        times = [time for _, time, _, _ in given.rows.get(key, ()) if time is not None]
        sent = (len(times), min(times, default=-1), max(times, default=-1))
        if expected.get(key, (0, -1, -1)) != sent:
            text = f"{key}: records, first and last time {expected.get(key)}, and sent are {sent}"
            yield Fault("verification", "restore", asked.name, text, world.had())


def _warned(storage: Storage, asked: Asked) -> bool:
    """Whether a restore without a point says that its state is not exact."""
    context = context_of(storage, asked)
    seen = RestorePlanner(context).sketch()
    topics = [seen.archived.topics[topic.topic_id] for topic in seen.plan.topics]
    return any(
        "exact" in reported or "its state is kept" in reported
        for reported in plan_point(context.archive, seen.archived, topics, None).warnings
    )


def begin_restore(world: World, point: str, number: int, dies: int | None) -> None:
    """Begin a restore of a point of a kind."""
    if world.archive is None or not world.reference.points:
        return
    state = world.state()
    chance = Random(number)
    asked = {
        "newest": lambda: next(iter(_newest(world))),
        "run": lambda: chance.choice([*_runs(world), next(iter(_newest(world)))]),
        "time": lambda: chance.choice([*_moments(world, state, chance), next(iter(_newest(world)))]),
    }[point]()
    begin(world, asked, dies)


def _targets(world: World) -> Iterator[Fault]:
    for name, target in world.targets.items():
        if not target.lines:
            continue
        yield from _target(world, name, target)


def _target(world: World, name: str, target: Target) -> Iterator[Fault]:
    archive = Archive.open(target.store)
    yield from _verified_archive(world, archive, f"verify of {name}", "the target", died=bool(target.died))
    for topic_ids in incarnations_of(world, target.lines):
        asked = Asked("the target", target.lines, None, topic_ids, ends=target.ends)
        yield from _asked(world, world.state(), target.store, f"conversion to {name}", asked)


def _beside(world: World, state: ArchiveState, chance: Random) -> Iterator[Fault]:
    """Tell what Spark's source and the toolbox see of the newest state."""
    wholes = {}
    for topic_id in dict.fromkeys(key[0] for key in world.reference.seen):
        asked = Asked("the newest", world.reference.seen, None, {world.topic_of(topic_id).name: topic_id})
        given = wholes[topic_id] = spark_given(world, topic_id)
        faults = list(judge(world, state, "Spark", asked, given))
        if faults and not (faults[0].kind in _OF_STATES and _warned(world.store, asked)):
            yield from faults
        else:
            world.counts[f"Spark: {'not exact, and a restore says so' if faults else 'equal'}"] += 1
        yield from spark_filtered(world, given, chance)
    if not world.died:  # the toolbox shows what runs have archived that did not succeed, too
        with suppress(LogkeepError):
            newest = restored(world.store, Asked("the newest", world.reference.seen))
            some = [wholes[topic_id] for topic_id in newest.topic_ids.values() if topic_id in wholes]
            rows = {key: found for given in some for key, found in given.rows.items()}
            yield from compared(world, world.store, Given(rows, newest.topic_ids))
            yield from inspected(world, state, newest)

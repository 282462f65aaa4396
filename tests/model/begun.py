"""Restores that were begun, and are started again after each action: they may have been killed on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from logkeep_engine.contract.model import replace
from logkeep_engine.errors import LogkeepError
from logkeep_engine.restore.model.offset_map import FoundOffset, OffsetPlace
from tests.model.asking import Asked, Fault
from tests.model.refusals import Refused, allowed
from tests.model.restoring import Given, Row, brought, offset_maps, started
from tests.model.target import TargetCluster
from tests.model.world import World


@dataclass
class Begun:
    """A restore that was begun: what it is of, its first stream, and what it has written. `keys` are all in the
    partitions that it reads: what an erasure takes of them may be in what it has sent, for all that anybody knows."""

    asked: Asked
    given: Given
    run_id: str
    target: TargetCluster
    erased: int
    keys: frozenset[tuple[str, bytes]]
    removals: tuple[Any, ...]
    ended: bool = False


def begin(world: World, asked: Asked, dies: int | None) -> None:
    """Plan a restore, and keep the plan and the stream. One that `dies` writes to its target up to there."""
    run_id, target = f"restore-{len(world.restores)}", TargetCluster(world.store.step)
    try:
        if dies is not None:
            with world.dying(dies):
                brought(world.store, asked, run_id, target)
        given = started(world.store, asked, run_id)
    except LogkeepError:
        return
    keys = frozenset(
        (world.topic_of(key[0]).name, rec.key) for key, line, _ in asked.bounded() for rec in line.read.values()
    )
    world.restores.append(Begun(asked, given, run_id, target, len(world.erased), keys, _removals(world)))


def begun_again(world: World) -> Iterator[Fault]:
    """Start each restore that was begun again. The first time that this succeeds it comes to its end."""
    for begun in world.restores:
        since, removed = set(world.erased[begun.erased :]), begun.removals != _removals(world)
        erased = bool(since & begun.keys)
        if "merged" in world.features:  # what it brings may share a segment with other records
            erased = not {name for name, _ in since}.isdisjoint(name for name, _ in begun.keys)
        asked = replace(begun.asked, kept=begun.asked.run and (begun.asked.point or {}).get("run") in world.kept)
        features = set(world.had(asked.topic_ids))
        features |= ({"erased since"} if erased else set()) | ({"kept"} if asked.kept else set())
        try:
            again = started(world.store, begun.asked, begun.run_id)
        except LogkeepError as error:
            refused = Refused(world, asked, error.message, frozenset(features), erased, removed)
            name = allowed(refused, error)
            world.counts[f"a second start: refused, {name or 'wrongly'}"] += 1
            if not name:
                text = f"{error.code}: {error.message}"
                yield Fault("refused", "a second start", begun.asked.name, text, refused.features)
            continue
        if again.rows != begun.given.rows:
            before, now = (sum(map(len, given.rows.values())) for given in (begun.given, again))
            text = f"{now} of {before} records"
            yield Fault("another stream", "a second start", begun.asked.name, text, frozenset(features))
            continue
        world.counts["a second start: equal"] += 1
        if not begun.ended:
            yield from _come_to_its_end(world, begun)


def _come_to_its_end(world: World, begun: Begun) -> Iterator[Fault]:
    """Let a restore write what its target lacks, and compare that, and the offset maps, with the stream."""
    begun.ended = True
    had = sum(log.end for log in begun.target.logs.values())
    try:
        brought(world.store, begun.asked, begun.run_id, begun.target)
    except LogkeepError as error:
        text = f"{error.code}: {error.message}"
        yield Fault("refused", "a restore's tasks", begun.asked.name, text, world.had())
        return
    maps = offset_maps(world.store, begun.asked, begun.run_id)
    for key, rows in begun.given.rows.items():
        name = world.topic_of(key[0]).name
        log = begun.target.log(name, key[1])
        written = [(rec.offset, rec.timestamp, rec.key, rec.value) for rec in log.records()]
        if written != [(at, *row[1:]) for at, row in enumerate(rows)]:
            yield Fault("target", "a restore", begun.asked.name, f"{name} {key[1]}: {written} of {rows}", world.had())
        for offset in range(max((row[0] for row in rows), default=0) + 2):
            found, right = maps[key].find(offset), _place_of(rows, offset)
            if found != right:
                text = f"{name} {key[1]}: {offset} is at {found}, not at {right}"
                yield Fault("offset map", "a restore", begun.asked.name, text, world.had())
                break
    world.counts[f"restores that ended: {'continued' if had else 'at once'}"] += 1


def _place_of(rows: Sequence[Row], offset: int) -> FoundOffset:
    """Where a target from offset 0 on has what stands for a source offset."""
    at = next((at for at, row in enumerate(rows) if row[0] >= offset), None)
    if at is None:
        return FoundOffset(len(rows), OffsetPlace.END, None)
    source = rows[at][0]
    return FoundOffset(at, OffsetPlace.RECORD if source == offset else OffsetPlace.GAP, source)


def _removals(world: World) -> tuple[Any, ...]:
    """All that was removed, be it of lines that others have taken the place of, or replaced by a generation, and what
    of that is not deleted yet."""
    state = world.state()
    own = [state.own_facts(key) for key in state.partitions()]
    lines = tuple(tuple(one.removed) for facts in own for one in facts)
    # The world counts the snapshots that go of the current lines.
    snapshots = tuple(held.end for facts in own for one in facts[:-1] for held in one.snapshots)
    return world.removals, sum(item.number for item in state.generations.values()), lines, snapshots, state.unpurged

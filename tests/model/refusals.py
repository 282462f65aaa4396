"""The refusals that the documents promise, and when each of them is right. Anything else that is refused is a fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from logkeep_engine.errors import LogkeepError
from tests.model.asking import Asked, must_have
from tests.model.reference import HOUR, Horizon, Key
from tests.model.world import World

_LATE = HOUR // 30
"""The times of one batch, and of the run after it, differ by less."""


@dataclass(frozen=True)
class Refused:
    """A point that was refused, and what had happened before. `erased`, `removed`: something was erased, or removed,
    since the restore was begun."""

    world: World
    asked: Asked
    message: str
    features: frozenset[str]
    erased: bool = False
    removed: bool = True

    @property
    def kept(self) -> bool:
        """Whether a rule or a hold keeps the point, and the documents promise it."""
        return self.asked.run and self.asked.kept


@dataclass(frozen=True)
class Refusal:
    """A refusal: its code, a word of the message, the name by which it is counted, and when it is right."""

    code: str
    word: str
    name: str
    is_right: Callable[[Refused], bool]


def _before_horizon(refused: Refused) -> bool:
    """docs/guides/keep-an-archive.md, "Kept points of compacted topics": every point since the oldest kept one is
    exact, and so is each within maxAge. "Snapshot": of compact,delete each point above which nothing is gone. "What
    limits have taken of a compacted topic": it may be missing in kept points, too."""
    world, asked = refused.world, refused.asked
    if not world.settings.rules.is_set:
        return False
    for key, line, bounds in asked.bounded():
        lacks = _lacks_snapshot(refused, key, line.end if bounds.end is None else bounds.end, asked.moment)
        if refused.kept and not lacks:
            continue
        if not refused.kept and lacks and _is_log_gone(refused, key, bounds.end):
            return True
        taken = world.reference.taken.get(key, ())
        # With the first record of a time or later, it is gone where that time begins.
        if any(bounds.end is None or at < bounds.end + (asked.moment >= 0) for at in taken):
            return True
        horizon = world.reference.horizons.get(key, Horizon())
        if asked.moment >= 0:
            if asked.moment <= horizon.time + _LATE:
                return True
        elif (line.end if bounds.end is None else bounds.end) < horizon.offset:
            return True
    return False


def _lacks_snapshot(refused: Refused, key: Key, end: int, moment: int) -> bool:
    """Whether limits take from the topic, or took, and no snapshot of its line is of the point or older and has the
    whole log of the point after it. Of a time (-1: none) it is older if its records are."""
    # Snapshots that the state shows are of the last line.
    held = () if refused.features & {"branch", "generation"} else refused.world.state().snapshots.get(key, ())
    taken = refused.world.reference.taken.get(key, ())
    helps = (
        item.end <= end and (moment < 0 or item.time < moment) and not any(item.end <= at < end for at in taken)
        for item in held
    )
    return "compact and delete" in refused.features and not any(helps)


def _is_log_gone(refused: Refused, key: Key, end: int | None) -> bool:
    """Whether some of the log below an offset was removed, also while a snapshot stood for it that is gone since."""
    removed = refused.world.state().removed.get(key, ())
    return any(end is None or start < end for start, _ in removed)


def _before_exact(refused: Refused) -> bool:
    """docs/archive/changes.md, "Generations": points below the offset from which on a generation is exact."""
    said = re.search(r"is exact from offset (\d+) on", refused.message)
    lost = any(line.lost for _, line, _ in refused.asked.bounded())
    # Formats of records keep no markers: it is unknown whether compaction has taken what is missing.
    sparse = refused.features & {"generation", "cleaned", "erasure"} or not refused.world.settings.has_batches
    if refused.kept or said is None or not (lost or sparse):
        return False
    exact = int(said[1])
    for _, line, bounds in refused.asked.bounded():
        times = [rec.time for at, rec in (line.read | line.written).items() if at < exact]
        times += [time for at, time in line.marks.items() if at < exact]
        end = line.end if bounds.end is None else bounds.end
        # The catalog has the times of what was erased still.
        late = "erasure" in refused.features or max(times, default=-1) >= (bounds.before or 0)
        if end < exact or (bounds.before is not None and late):
            return True
    return False


def _replaced(refused: Refused) -> bool:
    """docs/guides/keep-an-archive.md, "Kept points": they stay, but for what docs/guides/erasure.md says of an erasure,
    and for what was over the limits when their runs ended."""
    lets = not refused.kept or _was_over(refused) or "erasure" in refused.features
    return "generation" in refused.features and lets


def _was_over(refused: Refused) -> bool:
    """Whether some of the point was over the limits when its run ended: no rule keeps that."""
    return any(line.gone for _, line, _ in refused.asked.bounded())


def _cut_off(refused: Refused) -> bool:
    """docs/archive/changes.md, "Generations": the branch, and the ends of earlier runs, are exact as before."""
    return "branch" in refused.features and any(line.cut for _, line, _ in refused.asked.bounded())


def _gone(refused: Refused) -> bool:
    """docs/guides/keep-an-archive.md, "A running restore keeps what it reads": one that was stopped may find objects
    deleted, unless the point is kept, and no snapshot stands for what it began with. An erasure deletes what retention
    has removed, too, without waiting for the grace."""
    lets = not refused.kept or _was_over(refused) or "snapshot" in refused.features
    return (refused.removed or refused.erased) and lets


def _erased(refused: Refused) -> bool:
    """docs/guides/erasure.md: a restore that was begun before an erasure of what it brings cannot continue."""
    return refused.erased


def _nothing(refused: Refused) -> bool:
    """An incarnation of which the point has no record, or none any more."""
    world, asked = refused.world, refused.asked
    gone = {(key, at) for key, line, _ in asked.bounded() for at in world.gone(key, line, asked)}
    return not must_have(asked, gone, lambda topic_id: world.topic_of(topic_id).has_states)


REFUSALS = (
    Refusal("InvalidSpec", "retention has removed the log, and its state is kept", "log removed", _before_horizon),
    Refusal("InvalidSpec", "is exact from offset", "not exact yet", _before_exact),
    Refusal("InvalidSpec", "has been gone since generation", "generation gone", _replaced),
    Refusal("InvalidSpec", "no point of it is exact", "exact nowhere", _cut_off),
    Refusal("SegmentsRemoved", "Retention has removed", "segments removed", _gone),
    Refusal("SegmentsRemoved", "it is unknown which incarnation has records", "incarnation unknown", _gone),
    Refusal(
        "ArchiveMismatch", "since it started, an erasure has removed records that it restores", "erased since", _erased
    ),
    Refusal("NoTopicMatches", "", "no records", _nothing),
)


def allowed(refused: Refused, error: LogkeepError) -> str:
    """The name of a refusal that the documents promise, "" for another one."""
    for item in REFUSALS:
        if error.code == item.code and item.word in error.message and item.is_right(refused):
            return item.name
    return ""

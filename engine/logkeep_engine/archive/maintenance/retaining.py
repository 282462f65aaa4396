"""Carries out the retention of a KafkaBackup: `retention` finds what goes, and `removal` removes it.

rules = RetentionRules.of(spec.retention, chosen)
writer.hold(with_spec_holds(writer.state.retention_holds, spec.retention.hold))
...
writer.end(RunOutcome.SUCCEEDED, groups=groups)
done = retain(writer, rules)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Self

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer, begin_run
from logkeep_engine.archive.maintenance.clock import checked_now
from logkeep_engine.archive.maintenance.points import KeepRules
from logkeep_engine.archive.maintenance.removal import Purged, Removed, purge, remove_expired
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.moments import moment
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import HOLD, RETENTION
from logkeep_engine.contract.patterns import NamePatterns
from logkeep_engine.contract.retention import RetainedTopics, Retention, RetentionHold
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import ArchiveFenced, BackupUnfinished, ClockDoubtful, LogkeepError, SpecError

log = logging.getLogger(__name__)
_SHOWN = 3  # topics that a warning names


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The limits, what is kept in addition to them, the ms after which objects are deleted, and whether something may
    go of a topic of this name. `chosen` None: of all topics."""

    limits: RetentionLimits
    keep: KeepRules
    grace: int
    chosen: Callable[[str], bool] | None = None

    @classmethod
    def of(cls, spec: Retention, chosen: Callable[[str], bool]) -> Self:
        """Return the rules that a spec gives. `chosen`: whether its `topics` choose a name."""
        age, keep = spec.max_age_seconds, spec.keep_for
        return cls(
            RetentionLimits(None if age is None else age * 1000, spec.max_bytes_int),
            KeepRules(spec.keep_runs or 0, keep.daily or 0, keep.weekly or 0, keep.monthly or 0),
            spec.grace_seconds * 1000,
            None if spec.topics is RetainedTopics.ALL else chosen,
        )

    @property
    def is_set(self) -> bool:
        """Whether there is a limit or a number of points."""
        return self.limits.is_set or self.keep.is_set

    def spared(self, state: ArchiveState) -> frozenset[str]:
        """Return the ids of the topics from which nothing may be removed."""
        if self.chosen is None:
            return frozenset()
        return frozenset(topic_id for topic_id, topic in state.topics.items() if not self.chosen(topic.name))

    def unchosen(self, state: ArchiveState) -> frozenset[str]:
        """Return the ids of the spared topics of which the archive holds something."""
        return self.spared(state).intersection(topic_id for topic_id, _ in (*state.segments, *state.snapshots))

    def describe_unchosen(self, state: ArchiveState) -> list[str]:
        """Return the warning for topics that the archive holds and that are spared."""
        names = sorted({state.topics[topic_id].name for topic_id in self.unchosen(state)})
        if not names or not self.is_set:
            return []
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return [
            f"retention leaves {so_many(len(names), 'topic')} of the archive alone that spec.topics does not choose: "
            f"{', '.join(names[:_SHOWN])}{more}. With spec.retention.topics: All its limits apply to them, too."
        ]


@dataclass(frozen=True, slots=True)
class RetentionDone:
    """The segments that were removed and purged, and in `notes` why some were not. `time` (ms) is that of the
    limits."""

    removed: Removed
    purged: Purged
    time: int
    notes: tuple[str, ...] = ()


def retain(writer: Writer, rules: RetentionRules) -> RetentionDone:
    """Remove what the rules do not keep, and delete the objects of what was removed long enough ago.

    Raises storage errors and ArchiveFenced before something was removed. What hinders a deletion is in the notes.
    """
    limits, now, notes = _by_the_clock(writer, rules.limits)
    spared = rules.spared(writer.state)
    notes += rules.describe_unchosen(writer.state)
    removed = remove_expired(writer, limits, now, rules.keep, spared)
    purged = Purged()
    try:
        purged = purge(writer, rules.grace)
    except ClockDoubtful as error:
        notes.append(f"objects of what was removed are not yet deleted: {error.message}")
    except ArchiveFenced:
        raise
    except LogkeepError as error:
        log.warning("%s", error)
        notes.append(f"retention could not be finished, the next run continues it: {error.message}")
    return RetentionDone(removed, purged, now, (*notes, *_describe_locks(purged)))


def _by_the_clock(writer: Writer, limits: RetentionLimits) -> tuple[RetentionLimits, int, list[str]]:
    """Return the limits, without that of age if the driver's clock may be wrong, the time now in ms, and what to
    report."""
    now = time.time_ns() // 1_000_000
    if limits.max_age is None:
        return limits, now, []
    try:
        return limits, checked_now(writer), []
    except ClockDoubtful as error:
        log.warning("%s", error)
        # Without limits of their own, points would be all that keeps something of topics that are only compacted.
        most = limits.max_bytes if limits.max_bytes is not None else _EVERYTHING
        return replace(limits, max_age=None, max_bytes=most), now, [f"nothing was removed by age: {error.message}"]


_EVERYTHING = 1 << 63


def _describe_locks(purged: Purged) -> list[str]:
    if not purged.locked:
        return []
    ends = [item.until for item in purged.locked if item.until is not None]
    until = f", the last until {moment(int(max(ends) * 1000))}" if ends else ""
    legal = sum(item.legal_hold for item in purged.locked)
    held = f", {legal} of them with a legal hold" if legal else ""
    kept = so_many(len(purged.locked), "removed object")
    return [f"the store keeps {kept} locked{until}{held}; a later run tries again: first {purged.locked[0].path}"]


def with_spec_holds(holds: Iterable[Hold], spec: RetentionHold) -> list[Hold]:
    """All holds, with those of a spec in place of the ones that it had before."""
    wanted = [Hold(HoldKind.TOPIC, pattern, HoldOrigin.SPEC) for pattern in spec.topics]
    wanted += [Hold(HoldKind.RUN, run_id, HoldOrigin.SPEC) for run_id in spec.runs]
    return [*(hold for hold in holds if hold.origin is not HoldOrigin.SPEC), *wanted]


def empty_holds(state: ArchiveState, coming: Iterable[str] = ()) -> list[str]:
    """The warnings for holds that keep nothing: on runs that have no state to keep, and on topics of which the archive
    has none, nor is one `coming`. A hold may be there before its run succeeds, or its topic is archived."""
    topics = [hold.name for hold in state.retention_holds if hold.kind is HoldKind.TOPIC]
    names = {*(topic.name for topic in state.topics.values()), *coming}
    held = [hold.name for hold in state.retention_holds if hold.kind is HoldKind.RUN]
    there = {run.run_id for run in (*state.successes(), *state.running)}
    return [
        f"the hold on run {name} protects nothing: the archive has no successful backup with this id"
        for name in held
        if name not in there
    ] + [
        f"the hold on topics {topics[at]!r} protects nothing: it matches the whole name of no archived topic"
        for at in NamePatterns(topics).unmatched(names)
    ]


def run_retention(archive: Archive, run_id: str, rules: RetentionRules, hold: RetentionHold) -> RetentionDone:
    """Retention as a run of its own: it becomes the archive's writer for that. Nothing is archived, and the end of the
    run is not a point.

    Raises BackupUnfinished if the last backup has not succeeded: readers see the archive as the one before has left
    it, and must find all of that. Raises ArchiveBusy, ArchiveFenced and storage errors.
    """
    refuse_unfinished(archive.load(), archive.storage.uri)
    with begin_run(archive, run_id, kind=RETENTION) as writer:
        try:
            refuse_unfinished(writer.state, archive.storage.uri)
            writer.hold(with_spec_holds(writer.state.retention_holds, hold))
            done = retain(writer, rules)
            done = replace(done, notes=(*done.notes, *empty_holds(writer.state)))
        except LogkeepError as error:
            writer.give_up(error, error.message)
            raise
        writer.end(RunOutcome.SUCCEEDED, f"removed {done.removed}")
        return done


def change_holds(archive: Archive, run_id: str, holds: Iterable[Hold], *, release: bool) -> tuple[Hold, ...]:
    """Add holds to the archive, or release them, in a run of its own; returns all that there are then.

    Raises SpecError for one to be released that is not there, or that a KafkaBackup has asked for.
    """
    with begin_run(archive, run_id, kind=HOLD) as writer:
        try:
            writer.hold(_changed_holds(writer.state.retention_holds, list(holds), release=release))
        except LogkeepError as error:
            writer.give_up(error, error.message)
            raise
        writer.end(RunOutcome.SUCCEEDED)
        return writer.state.retention_holds


def _changed_holds(before: Iterable[Hold], wanted: list[Hold], *, release: bool) -> list[Hold]:
    held = list(before)
    if not release:
        return [*held, *wanted]
    for hold in wanted:
        if hold in held:
            held.remove(hold)
        elif replace(hold, origin=HoldOrigin.SPEC) in held:
            raise SpecError(
                f"the {hold} belongs to a KafkaBackup", hint="Remove it from its spec.retention.hold, and run it."
            )
        else:
            raise SpecError(f"there is no {hold} to release", hint="`logkeep hold URI` lists all holds.")
    return held


def refuse_unfinished(state: ArchiveState, uri: str) -> None:
    """Raises BackupUnfinished unless the last backup has succeeded. Restores see the archive as an earlier run has left
    it then: what the unfinished run has replaced they still need."""
    backups = [run for run in state.runs.values() if not run.is_maintenance]
    last = max(backups, key=attrgetter("epoch"), default=None)
    if last is None or last.outcome is not RunOutcome.SUCCEEDED:
        what = "no run has archived anything yet" if last is None else f"run {last.run_id} has not succeeded"
        raise BackupUnfinished(
            f"Retention of the archive at {uri} waits: {what}.",
            hint="Run a backup until it succeeds: the archive is then complete.",
        )

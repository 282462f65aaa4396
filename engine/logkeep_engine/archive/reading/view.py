"""The choice of the state that a restore or a conversion sees: the state at the end of the last backup that succeeded,
or of a later one that failed after it had tried everything.

At that commit every partition is archived up to a last stable offset, except for the partitions that a failed run
names. The consumer groups are those of the last success. Segments that retention removed right after it are left out. A
later run adds segments out of order, so the view does not have them. If no backup has ended like that, the view is the
state at the newest commit and not `finished`. A restore refuses it, unless the user says that it is to be taken: the
cluster may have been lost during the first backup. In both cases it is known how transactions ended, see
`archive.reading.transactions`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Commit, RunEntry, RunOutcome
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.errors import ArchiveDamaged


@dataclass(frozen=True, slots=True)
class ArchiveView:
    """The state at `state.commit`; `warnings` say what of the archive is not in it, or why it may be incomplete.
    `finished`: a run has ended with it.
    """

    state: ArchiveState
    warnings: tuple[str, ...]
    finished: bool = True


def choose(archive: Archive) -> ArchiveView:
    """Return the view of a new restore or conversion. Raises ArchiveDamaged if the catalog is."""
    newest = archive.load()
    lost = tuple(f"the catalog has lost its last commits: {tail}" for tail in archive.lost_tails(newest))
    seen = _choose(archive, newest)
    return replace(seen, warnings=(*lost, *seen.warnings))


def at_end_of(archive: Archive, newest: ArchiveState, run_id: str) -> ArchiveView | None:
    """Return the state as a run has left it; None if it has neither succeeded nor tried everything. A success counts,
    whatever became of the run when it was begun again. The run's own retention, and snapshots that it has made, are
    part of it; segments that were removed since are in it. Raises ArchiveDamaged if the catalog is damaged."""
    run = newest.runs[run_id]
    end = end_of(archive, run.success or run, newest.commit)
    if end is None:
        return None
    left = with_care(archive, end, newest, of_others=False)
    return ArchiveView(state_at(archive, left, newest), _describe_partial(end))


def state_at(archive: Archive, commit: int, newest: ArchiveState) -> ArchiveState:
    """Return the state at a commit, with what erasures have left of its segments since: the objects that it named are
    gone."""
    return newest if commit == newest.commit else archive.load_at(commit).following(newest)


def end_of(archive: Archive, run: RunEntry, last: int) -> Commit | None:
    """Return the commit up to `last` that ended the attempt of a run at its epoch; None if a restore may not see the
    state at it. Epochs rise from commit to commit, so few are read. Raises ArchiveDamaged if the catalog is damaged."""
    later = bisect_right(range(last + 1), run.epoch, key=lambda number: archive.read_commit(number).epoch)
    for number in range(later - 1, -1, -1):
        found = archive.read_commit(number)
        if found.epoch != run.epoch or found.restorable:
            return found if found.epoch == run.epoch else None
    return None


def ends_of_runs(archive: Archive, commit: int) -> Iterator[Commit]:
    """The ends of runs that succeeded up to a commit, the newest first. Raises ArchiveDamaged if the catalog is
    damaged."""
    for found in archive.read_commits(range(commit, -1, -1)):
        if found.ends_backup:
            yield found


def _describe_partial(end: Commit) -> tuple[str, ...]:
    if not end.partial:
        return ()
    return (
        f"run {end.run_id} failed after it had archived all that it could; what it archived is used, with "
        f"the consumer groups of the last successful run: {end.message}",
    )


def _choose(archive: Archive, newest: ArchiveState) -> ArchiveView:
    end = _last_end(archive, newest.commit)
    if end is None:
        if newest.successes():
            raise ArchiveDamaged(
                f"The catalog at {archive.storage.uri} has a successful run, but no commit that ended it.",
                hint="Restore the catalog from a copy of the archive.",
            )
        text = "no backup of this archive has succeeded yet: what has been archived so far is used"
        return ArchiveView(newest, (text,) if newest.segments else (), finished=False)
    commit = with_care(archive, end, newest, of_others=True)
    state = state_at(archive, commit, newest)
    warnings = [*_describe_partial(end)]
    for run in newest.runs.values():
        before = state.runs.get(run.run_id)
        if not run.is_maintenance and run.segments > (before.segments if before is not None else 0):
            warnings.append(
                f"run {run.run_id} has not succeeded ({_word(run)}): what it has archived is left out, "
                f"the state is that of {'run ' + end.run_id if end.partial else 'the last successful run'}"
            )
    return ArchiveView(state, tuple(warnings))


def _word(run: RunEntry) -> str:
    return {RunOutcome.RUNNING: "still running, or dead", RunOutcome.FAILED: "failed"}.get(run.outcome, "taken over")


def _last_end(archive: Archive, commit: int) -> Commit | None:
    """Return the end of the last run that succeeded, or that failed after it had tried everything."""
    if commit < 0:
        return None
    # Read backwards: the end of the last run is the last commit, or the commits of a running one lie after it. There
    # may be thousands of them, so they are read ahead.
    for found in chain([archive.read_commit(commit)], archive.read_commits(range(commit - 1, -1, -1))):
        if found.restorable:
            return found
    return None


def with_care(archive: Archive, end: Commit, newest: ArchiveState, *, of_others: bool) -> int:
    """Return the last of the commits after the end of a run that only take care of what the run has left, or, with
    `of_others`, also of those of runs that do nothing else. Retention removes segments right after the end of a run, or
    in a run of its own, so the state that is left by it is as complete. So is one that an erasure leaves."""
    commit = end.number
    while commit < newest.commit:
        found = archive.read_commit(commit + 1)
        own = found.is_maintenance and (of_others or found.run_id == end.run_id)
        if not own and not (of_others and newest.runs[found.run_id].is_maintenance):
            break
        commit += 1
    return commit

"""Who continues a restore: the run that has begun it, or another one that has taken it over.

A run shows with its note that it is still running (`archive.catalog.run_note`), in place of its state. Who would
continue the run watches this note first.

Who takes a run over makes `runs/<its id>/taken-over.json`, on condition that there is none, and so one of several does.
The run itself looks for this object whenever it starts, after the first beat of its note. Who has made the object looks
at that note once more. So whichever of the two comes later sees the other one. The object is not part of the note: the
run overwrites that, and not every store overwrites on condition.

A driver that has slept in the meantime, and the tasks of a run, look for it while they run (`fence`).

A run that was taken over names the next one, and that one may have been taken over, too. A run that resumes continues
the last of them. If that one has died before it had a plan, the plan of an earlier one is taken.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from logkeep_engine.archive.catalog.run_note import ALIVE, SeenNote, watch
from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.errors import ArchiveDamaged, ObjectExists, ObjectMissing, ObjectTooLarge, RestoreBusy
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.storage import NOTE_BYTES
from logkeep_engine.stored import reading

log = logging.getLogger(__name__)

WATCH_SECONDS = 40.0
"""Four beats of the note of a run."""
FILE = "taken-over.json"
CLAIM = StoredDocument("claim of a run", 1, {"by": str}, most=NOTE_BYTES)
_ALTERED = "The object was altered. Find out which run continues this restore. If none does, delete the object."
_HINT = "See how that run ends. If it was deleted, continue in another KafkaRestore with ifTopicExists: Resume."


@dataclass
class RunClaim:
    """The claim of the run of `taker` on the run `last`. The newest plan is that of `planned`."""

    taker: RestoreState
    last: RestoreState
    planned: RestoreState
    _seen: bytes | None = field(default=None, init=False)

    @classmethod
    def after(cls, begun: RestoreState, taker: RestoreState) -> RunClaim:
        """Return the claim on the last run that continues `begun`, which may be that one. Raises ArchiveDamaged."""
        last = planned = begun
        passed = {begun.run_id}
        while (by := taken_over_by(last)) not in (None, taker.run_id):
            if by in passed:
                raise ArchiveDamaged(f"{last.name(FILE)}: runs have taken over one another", hint=_ALTERED)
            passed.add(str(by))
            last = last.of_run(str(by))
            if last.is_planned():
                planned = last
        return cls(taker, last, planned)

    def refuse_alive(self) -> None:
        """Raises RestoreBusy if a driver is still running, or has come to its end. A claim that an earlier start has
        made is dropped then."""
        try:
            if self.planned != self.last:
                refuse_alive(self.planned)
            self._seen = refuse_alive(self.last)
            _refuse_finished(self.last)
        except RestoreBusy:
            if taken_over_by(self.last) == self.taker.run_id:
                self._drop()
            raise

    def make(self) -> None:
        """Make the claim, after `refuse_alive`. Raises RestoreBusy if another run was faster, or the driver has
        started in the meantime."""
        try:
            self.last.storage.create(self.last.file(FILE), CLAIM.dumps({"by": self.taker.run_id}))
        except ObjectExists:
            by = taken_over_by(self.last)
            if by != self.taker.run_id:  # else an earlier start has made it, or the answer to this very call was lost
                raise _taken(self.last, by) from None
        if note_of(self.last) not in (self._seen, None):
            self._drop()
            raise busy(self.last)
        try:
            _refuse_finished(self.last)
        except RestoreBusy:
            self._drop()
            raise

    def _drop(self) -> None:
        self.last.storage.delete([self.last.file(FILE)])


def refuse_alive(state: RestoreState) -> bytes | None:
    """Return the note of a run whose driver is no longer running. If it has not said that it has ended, it is watched.
    A note that is gone says nothing: whoever has deleted it is not the run, which rewrites it.

    Raises RestoreBusy if it is still running.
    """
    first = note_of(state)
    if first is not None and _has_ended(first):
        return first
    if first is None and state.success() is not None:
        return None  # it wrote that last, and nothing after it; one that finds its work done has no note
    log.info(
        "run %s has not ended: watching for %.0f s whether its driver is still running", state.run_id, WATCH_SECONDS
    )
    now = watch(lambda: note_of(state) or first, first, WATCH_SECONDS)
    if now is not None and now != first and not _has_ended(now):
        raise busy(state)
    return now


def busy(state: RestoreState) -> RestoreBusy:
    """Return the error about a run whose driver is still running."""
    return RestoreBusy(
        f"Run {state.run_id} has started this restore, and its driver is still running; nothing was written.",
        hint="Wait for its end, or stop it: delete or suspend its KafkaRestore, or interrupt its command.",
    )


def note_of(state: RestoreState) -> bytes | None:
    """Return the note of a run as it is stored; None if it has none. What cannot be read as a note is watched like one:
    the driver of another version may write it."""
    try:
        return state.storage.read(state.file(ALIVE), most=NOTE_BYTES)
    except ObjectMissing:
        return None
    except ObjectTooLarge:  # no driver writes that, of whatever version
        return b""


def writer_of(state: RestoreState) -> str | None:
    """Return the driver that has written the note of a run; None if there is none, or it cannot be read."""
    try:
        return SeenNote.parse(note_of(state) or b"").writer
    except ValueError:
        return None


def _has_ended(note: bytes) -> bool:
    try:
        return SeenNote.parse(note).ended
    except ValueError:
        return False


def refuse_taken_over(state: RestoreState) -> None:
    """Raises RestoreBusy if another run continues this one."""
    by = taken_over_by(state)
    if by is not None:
        raise _taken(state, by)


def _refuse_finished(state: RestoreState) -> None:
    """Raises RestoreBusy if the run has succeeded: while it was watched, or before it could be found to have."""
    if state.success() is not None:
        raise RestoreBusy(
            f"Run {state.run_id} had started this restore, and has just finished it successfully; nothing was written.",
            hint="There is nothing to continue. Requested again, this restore ends with the result of that run.",
        )


def fenced(state: RestoreState, by: str) -> RestoreBusy:
    """Return the error of a run that was still running while another one has taken it over."""
    return RestoreBusy(
        f"Run {by} has taken over run {state.run_id}, whose driver had not shown for a while that it was "
        "still running. It has noticed this, and changes nothing more.",
        hint=_HINT,
    )


def started_again(state: RestoreState) -> RestoreBusy:
    """Return the error of a driver that was still running while its run was started again."""
    return RestoreBusy(
        f"Run {state.run_id} was started again while this driver was still running. It has noticed this, and changes "
        "nothing more.",
        hint="See how the driver that was started last ends.",
    )


def taken_over_by(state: RestoreState) -> str | None:
    """Return the run that continues this one, None if none does. Raises ArchiveMismatch and ArchiveDamaged."""
    try:
        data = state.storage.read(state.file(FILE), most=CLAIM.most)
    except ObjectMissing:
        return None
    with reading(CLAIM, data, state.name(FILE), hint=_ALTERED) as note:
        state.of_run(note["by"]).file(FILE)
        return str(note["by"])


def _taken(state: RestoreState, by: str | None) -> RestoreBusy:
    return RestoreBusy(
        f"Run {by} has taken over run {state.run_id}, and continues in its place; nothing was written.",
        hint=_HINT,
    )

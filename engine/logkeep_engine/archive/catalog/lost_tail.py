"""Are commits gone from the catalog's end? The catalog alone cannot show it: a shorter one is consistent, too.

    found = find_lost_tails(storage, archive_id, state, checkpoints, reload)
    for tail in found.lost: print(tail)

Witnesses are the heartbeat of a run, which says its epoch and its last commit, the plan of a run, which it stores after
its first commit, and the name of a checkpoint, which says up to which commit it goes. A run that finds a lost tail
steps over the epochs that it hears of, so that no name is used twice, and stores what it has found in its folder
(`lost-tail-<epoch>.json`): later commits take the numbers of the lost ones, and then no other witness may be left.
`verify` knows one more witness, the epoch in the name of a segment, since it lists `topics/`; that may be a million
objects, so a run that begins and a reader look at `runs/` only.

Heartbeats are read if the catalog does not know their run or knows it as unended, or if they were written last. An
older heartbeat of an ended run can only show commits that lie before others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from operator import attrgetter

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.facts import NO_COMMIT, RunOutcome
from logkeep_engine.archive.catalog.run_note import HEARTBEAT, SeenNote
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.stored import DocumentRefused, StoredDocument
from logkeep_engine.errors import ArchiveUnsigned, ObjectMissing, ObjectTooLarge
from logkeep_engine.storage import NOTE_BYTES, ObjectInfo, Storage

log = logging.getLogger(__name__)

_PLANS = ("plan.json", "convert-plan.json")  # see `beginnings`; a restore's plan has another name
_RECORD = "lost-tail-"
_READERS = 16
_LOST = StoredDocument(
    "record of lost commits",
    1,
    {"lost": [{"witness": str, "run_id": str, "epoch": int, "commit": int, "end": int, "found_by": str}]},
)
_LAST_WRITTEN = 16


@dataclass(frozen=True, slots=True)
class LostTail:
    """Commits that are gone, as a witness knows them. `commit` is the last that it knows of, NO_COMMIT if it does not
    say; `epoch` is 0 if it does not say. `end` is the catalog's last commit at the time when run `found_by` found out;
    `found_by` is "" if that is now."""

    witness: str
    run_id: str
    epoch: int
    commit: int
    end: int
    found_by: str = ""

    def __str__(self) -> str:
        if not self.run_id:
            knows = f"there is a checkpoint of commits up to {self.commit} at epoch {self.epoch}"
        elif self.commit != NO_COMMIT:
            knows = f"run {self.run_id} has committed up to commit {self.commit} at epoch {self.epoch}"
        else:
            knows = f"run {self.run_id} has begun" + (f" at epoch {self.epoch}" if self.epoch else "")
        ended = f"ended with commit {self.end} when run {self.found_by} began" if self.found_by else ""
        return (
            f"{knows}, but the catalog {ended or f'ends with commit {self.end}'}: what it committed after that is lost"
        )

    @property
    def key(self) -> tuple[str, int]:
        return self.run_id, self.epoch


@dataclass(frozen=True, slots=True)
class FoundTails:
    """`epoch` is the highest epoch that any witness names. `lost` are all lost tails, `new` are those of them that no
    run has recorded yet."""

    epoch: int
    lost: tuple[LostTail, ...]
    new: tuple[LostTail, ...]


def find_lost_tails(
    storage: Storage,
    archive_id: str,
    state: ArchiveState,
    checkpoints: Iterable[tuple[int, int, ObjectInfo]],
    reload: Callable[[], ArchiveState],
    *,
    thorough: bool = False,
) -> FoundTails:
    """Look for witnesses against `state`; `checkpoints` are those that were listed when it was loaded. If there is one,
    `reload` must give the state again, since a run may have begun in the meantime. `thorough`: read every heartbeat.
    """
    listed = _list_runs(storage)
    beats = _read_beats(storage, archive_id, _worth_reading(listed.heartbeats, state, thorough))
    ahead = list(checkpoints)
    found = [*_against(state, beats, listed.planned, ahead)]
    if found:
        found = [*_against(reload(), beats, listed.planned, ahead)]
    records = [tail for path in listed.records for tail in _read_record(storage, path)]
    known = {tail.key for tail in records}
    new = tuple(tail for tail in found if tail.key not in known)
    epochs = [beat.epoch for beat in beats.values()] + [epoch for _, epoch, _ in ahead]
    return FoundTails(max([state.epoch, *epochs]), (*records, *new), new)


def store_record(storage: Storage, run_id: str, epoch: int, tails: Sequence[LostTail]) -> None:
    """Store for good what the run that is about to begin at `epoch` has found."""
    if tails:
        found = [asdict(replace(tail, found_by=run_id)) for tail in tails]
        storage.put(names.run_file(run_id, f"{_RECORD}{epoch:010d}.json"), _LOST.dumps({"lost": found}))


@dataclass(slots=True)
class _Runs:
    """The witnesses under `runs/`: heartbeats by run id, runs that have stored a plan, records of earlier finds."""

    heartbeats: dict[str, ObjectInfo]
    planned: set[str]
    records: list[str]


def _list_runs(storage: Storage) -> _Runs:
    runs = _Runs({}, set(), [])
    for info in storage.list(names.RUNS):
        run_id, _, name = info.path.removeprefix(names.RUNS).partition("/")
        if name == HEARTBEAT:
            runs.heartbeats[run_id] = info
        elif name in _PLANS:
            runs.planned.add(run_id)
        elif name.startswith(_RECORD):
            runs.records.append(info.path)
    return runs


def _worth_reading(heartbeats: dict[str, ObjectInfo], state: ArchiveState, thorough: bool) -> dict[str, str]:
    """Return the paths of the heartbeats that are read, by run id."""
    last = sorted(heartbeats.values(), key=attrgetter("modified"))[-_LAST_WRITTEN:]
    newest = {info.path for info in last}
    return {
        run_id: info.path
        for run_id, info in heartbeats.items()
        if thorough
        or info.path in newest
        or (run := state.runs.get(run_id)) is None
        or run.outcome is RunOutcome.RUNNING
    }


def _read_beats(storage: Storage, archive_id: str, paths: dict[str, str]) -> dict[str, SeenNote]:
    """Return the heartbeats by run id. Those of another archive, which may have lain here before, are left out."""

    def read(path: str) -> SeenNote | None:
        try:
            found = SeenNote.parse(storage.read(path, most=NOTE_BYTES))
            if not found.epoch:
                raise ValueError("it names no epoch")
            return found
        except ObjectMissing:
            return None
        except (ValueError, ObjectTooLarge) as error:
            log.warning("%s/%s is not a heartbeat: %s", storage.uri, path, error)
            return None
        except ArchiveUnsigned as error:  # also one of an archive that lay here before
            log.warning("left out: %s", error.message)
            return None

    if not paths:
        return {}
    with ThreadPoolExecutor(min(_READERS, len(paths)), thread_name_prefix="logkeep-beats") as pool:
        beats = zip(paths, pool.map(read, paths.values()), strict=True)
        return {run_id: beat for run_id, beat in beats if beat is not None and beat.archive_id == archive_id}


def _against(
    state: ArchiveState, beats: dict[str, SeenNote], planned: set[str], checkpoints: list[tuple[int, int, ObjectInfo]]
) -> Iterator[LostTail]:
    for number, epoch, info in checkpoints:
        if number > state.commit:  # the checkpoint could not be read: else the state would be at its commit
            yield LostTail(info.path, "", epoch, number, state.commit)
    for run_id, beat in sorted(beats.items()):
        if _is_beyond(state, run_id, beat, run_id in planned):
            yield LostTail(names.run_file(run_id, HEARTBEAT), run_id, beat.epoch, beat.commit, state.commit)
    for run_id in sorted(planned - set(state.runs) - set(beats)):
        yield LostTail(f"{names.RUNS}{run_id}/", run_id, 0, NO_COMMIT, state.commit)


def _is_beyond(state: ArchiveState, run_id: str, beat: SeenNote, planned: bool) -> bool:
    """Tells whether the run has committed what the catalog does not know. A heartbeat alone does not say so: it is
    written before the first commit, and the run may have been killed in between."""
    run = state.runs.get(run_id)
    if beat.commit > state.commit:
        return True
    if run is not None and run.epoch >= beat.epoch:
        return False
    return beat.commit != NO_COMMIT or (run is None and planned)


def _read_record(storage: Storage, path: str) -> list[LostTail]:
    try:
        return [LostTail(**tail) for tail in _LOST.loads(storage.read(path))["lost"]]
    except ObjectMissing:
        return []
    except DocumentRefused as error:
        log.warning("%s/%s cannot be read: %s", storage.uri, path, error)
        return []
    except ArchiveUnsigned as error:
        log.warning("left out: %s", error.message)
        return []

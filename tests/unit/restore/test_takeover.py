"""A run is not taken over once it has succeeded: nothing is left to continue with."""

import json
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.run_note import ALIVE, RunNote
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import RestoreBusy
from logkeep_engine.restore.claim import takeover
from logkeep_engine.restore.claim.takeover import FILE, RunClaim
from logkeep_engine.restore.model.state import RESULT, RestoreState
from logkeep_engine.restore.planning.restored_before import RestoreKey
from logkeep_engine.restore.planning.resuming import finished_before
from logkeep_engine.storage import LocalStorage

DONE = "Run first had started this restore, and has just finished it successfully; nothing was written"


@pytest.fixture
def first(tmp_path: Path) -> RestoreState:
    """A run whose driver is going on."""
    state = RestoreState(LocalStorage(tmp_path.as_uri()), "first")
    RunNote(state.storage, state.run_id).write(ended=False)
    return state


def succeed(state: RestoreState) -> None:
    result = RunResult(
        run_id=state.run_id, kind="KafkaRestore", outcome="Succeeded", exit_code=0, start_time=1.0, end_time=2.0
    )
    state.storage.put(state.file(RESULT), result.to_json().encode())


def claimed(state: RestoreState) -> bool:
    return bool(state.storage.list(state.file(FILE)))


def test_a_run_that_succeeds_while_it_is_watched_is_left_alone(
    first: RestoreState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def comes_to_its_end(_: float) -> None:
        succeed(first)
        RunNote(first.storage, first.run_id).write(ended=True)

    monkeypatch.setattr("logkeep_engine.archive.catalog.run_note.time.sleep", comes_to_its_end)
    claim = RunClaim.after(first, first.of_run("second"))
    with pytest.raises(RestoreBusy, match=DONE):
        claim.refuse_alive()
    assert not claimed(first)


def test_a_claim_on_a_run_that_has_succeeded_is_dropped(first: RestoreState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver has slept in front of its last step."""
    monkeypatch.setattr(takeover, "WATCH_SECONDS", 0.0)
    claim = RunClaim.after(first, first.of_run("second"))
    claim.refuse_alive()
    succeed(first)
    with pytest.raises(RestoreBusy, match=DONE):
        claim.make()
    assert not claimed(first)


def test_the_last_run_of_a_chain_counts_whichever_is_noted(first: RestoreState, tmp_path: Path) -> None:
    """A driver that woke up has noted itself after the run that has taken it over."""
    settings = RestoreKey(None, "digest", "archive", "cluster")
    note = {"format": 1, "runId": "first"}
    first.storage.put(settings.path, json.dumps(note).encode())
    taken = {"format": 1, "by": "second"}
    first.storage.put(first.file(FILE), json.dumps(taken).encode())
    third = first.of_run("third")
    assert finished_before(settings, third) is None
    succeed(first.of_run("second"))
    found = finished_before(settings, third)
    assert found is not None
    assert found.run_id == "second"


# What this version cannot read: of a later one, or cut short.
UNREADABLE = (b'{"format":2,"writer":"a","beat":%d,"ended":false}', b'{"format":1,"writer":"a","beat":%d')


@pytest.mark.parametrize("note", UNREADABLE)
def test_a_run_whose_note_cannot_be_read_is_watched(
    first: RestoreState, monkeypatch: pytest.MonkeyPatch, note: bytes
) -> None:
    beats = iter(range(100))

    def beat(_: float) -> None:
        first.storage.put(first.file(ALIVE), note % next(beats))

    beat(0.0)
    monkeypatch.setattr("logkeep_engine.archive.catalog.run_note.time.sleep", beat)
    claim = RunClaim.after(first, first.of_run("second"))
    with pytest.raises(RestoreBusy, match="its driver is still running"):
        claim.refuse_alive()


@pytest.mark.parametrize("note", UNREADABLE)
def test_a_note_that_cannot_be_read_and_changes_after_the_claim_ends_it(
    first: RestoreState, monkeypatch: pytest.MonkeyPatch, note: bytes
) -> None:
    monkeypatch.setattr(takeover, "WATCH_SECONDS", 0.0)
    first.storage.put(first.file(ALIVE), note % 1)
    claim = RunClaim.after(first, first.of_run("second"))
    claim.refuse_alive()
    first.storage.put(first.file(ALIVE), note % 2)
    with pytest.raises(RestoreBusy, match="its driver is still running"):
        claim.make()
    assert not claimed(first)


def test_a_run_whose_note_is_damaged_and_stays_so_is_taken_over(
    first: RestoreState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "WATCH_SECONDS", 0.0)
    first.storage.put(first.file(ALIVE), b"{")
    claim = RunClaim.after(first, first.of_run("second"))
    claim.refuse_alive()
    claim.make()
    assert claimed(first)


@pytest.mark.parametrize("at_first", [True, False])
def test_a_note_that_was_deleted_does_not_say_that_the_driver_is_dead(
    first: RestoreState, monkeypatch: pytest.MonkeyPatch, at_first: bool
) -> None:
    """The driver writes it again with its next beat."""
    note, path = RunNote(first.storage, first.run_id), first.file(ALIVE)
    steps = iter([lambda: None, lambda: first.storage.delete([path]), lambda: None, note.beat])
    if at_first:
        first.storage.delete([path])
    monkeypatch.setattr("logkeep_engine.archive.catalog.run_note.time.sleep", lambda _: next(steps)())
    with pytest.raises(RestoreBusy, match="its driver is still running"):
        RunClaim.after(first, first.of_run("second")).refuse_alive()


def test_a_run_whose_note_was_deleted_and_stays_so_is_taken_over(
    first: RestoreState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(
        "logkeep_engine.archive.catalog.run_note.time.sleep", lambda _: first.storage.delete([first.file(ALIVE)])
    )
    claim = RunClaim.after(first, first.of_run("second"))
    claim.refuse_alive()
    claim.make()
    assert claimed(first)

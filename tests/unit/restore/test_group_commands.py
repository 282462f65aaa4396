"""Positions are not taken back while the restore continues that may set them again."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logkeep_engine.archive.catalog.run_note import RunNote
from logkeep_engine.contract.restore_spec import RestoreGroups
from logkeep_engine.errors import RestoreBusy, SpecError
from logkeep_engine.restore.claim.takeover import FILE
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.run.group_commands import RestoredGroups
from logkeep_engine.storage import LocalStorage


@pytest.mark.parametrize("goes_on", ["first", "second"])
def test_a_rollback_waits_for_the_end_of_the_run_and_of_the_one_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes_on: str
) -> None:
    state = RestoreState(LocalStorage(tmp_path.as_uri()), "first")
    if goes_on == "second":
        RunNote(state.storage, state.run_id).write(ended=True)
        state.storage.put(state.file(FILE), json.dumps({"format": 1, "by": "second"}).encode())
    note = RunNote(state.storage, goes_on)
    note.write(ended=False)
    monkeypatch.setattr("logkeep_engine.archive.catalog.run_note.time.sleep", lambda _: note.write(ended=False))
    context: Any = SimpleNamespace(run_id="first", state=state, cluster_id="cluster")
    run = RestoredGroups(context, begun=True)
    with pytest.raises(RestoreBusy, match=f"Run {goes_on} has started this restore, and its driver is still running"):
        run.rollback(RestoreGroups())
    note.write(ended=True)
    with pytest.raises(SpecError, match="this restore has no run first"):
        run.rollback(RestoreGroups())
    monkeypatch.setattr("logkeep_engine.restore.claim.stored_plan.stored_plan", lambda state: object())
    with pytest.raises(SpecError, match="has changed no position"):
        run.rollback(RestoreGroups())

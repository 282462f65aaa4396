"""How a restore logs in to the place of its state, and what it says of notes there that it cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.documents import ArchiveInfo
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import RESTORE
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch, CredentialsMissing
from logkeep_engine.restore.cluster_state.step import noted_before_acls
from logkeep_engine.restore.model.state import ACLS_SENT, RESULT, RestoreState, open_state
from logkeep_engine.restore.run.restoring import note_failure
from logkeep_engine.storage import LocalStorage
from tests.unit.operator.world import restore_spec

INFO = ArchiveInfo("archive-1", "cluster-1", "2026-01-01T00:00:00Z", "logkeep")
IDENTITY: dict[str, Any] = {"credentials": {"workloadIdentity": {}}}
SECRET = {"credentials": {"secretRef": {"name": "writer"}}}


@pytest.mark.parametrize(
    ("archive", "state", "missing"),
    [
        (IDENTITY, {}, "storage.credentials.workloadIdentity"),
        (SECRET, {}, "storage.credentials.secretRef"),
        ({}, IDENTITY, "state.credentials.workloadIdentity"),
        (IDENTITY, SECRET, "state.credentials.secretRef names Secret 'writer', but LOGKEEP_STATE_ACCESS_KEY_ID"),
    ],
)
def test_a_state_without_credentials_is_reached_as_the_archive_is(
    archive: dict[str, Any], state: dict[str, Any], missing: str, tmp_path: Path
) -> None:
    source = {"storage": {"uri": "s3://archive", **archive}}
    spec = parse_restore(restore_spec(source=source, state={"uri": "s3://state", **state}))
    with pytest.raises(CredentialsMissing) as refused:
        open_state("restore-1", spec, Archive(LocalStorage(tmp_path.as_uri()), INFO), {})
    assert str(refused.value).startswith(missing)


@pytest.mark.parametrize("data", [b"", b'{"format": 99}', b'{"format": 1, "runId": "r", "nameOfALaterVersion": 1}'])
def test_a_result_that_cannot_be_read_is_named(data: bytes, tmp_path: Path) -> None:
    state = RestoreState(LocalStorage(tmp_path.as_uri()), "restore-1")
    assert state.success() is None
    state.storage.put(state.file(RESULT), data)
    with pytest.raises(ArchiveMismatch, match=r"runs/restore-1/result\.json: this version cannot read it") as refused:
        state.success()
    assert "a newer one" in refused.value.hint


@pytest.mark.parametrize(
    "data", [b"[]", b"{", b'{"facts": null, "warnings": []}', b'{"format": 1, "facts": {"acls": -1}, "warnings": []}']
)
def test_a_note_of_acls_that_cannot_be_read_is_named(data: bytes, tmp_path: Path) -> None:
    state = RestoreState(LocalStorage(tmp_path.as_uri()), "restore-1")
    assert noted_before_acls(state) is None
    state.storage.put(state.file(ACLS_SENT), b'{"format": 1, "facts": null, "warnings": []}')
    assert noted_before_acls(state) is None
    state.storage.put(state.file(ACLS_SENT), data)
    with pytest.raises(ArchiveDamaged, match=r"runs/restore-1/acls-sent\.json: not a note before ACLs"):
        noted_before_acls(state)


def test_a_failure_is_noted_but_not_where_another_driver_has_noted_success(tmp_path: Path) -> None:
    state = RestoreState(LocalStorage(tmp_path.as_uri()), "restore-1")
    begun = RunResult(run_id="restore-1", kind=RESTORE, outcome="Failed", exit_code=1, start_time=1.0, end_time=2.0)
    note_failure(state, replace(begun, message="first"))
    note_failure(state, replace(begun, message="second"))
    noted = state.result_in(RESULT)
    assert noted is not None
    assert (noted.outcome, noted.message) == ("Failed", "second")
    done = replace(begun, outcome="Succeeded", exit_code=0)
    state.storage.put(state.file(RESULT), done.to_json().encode())
    note_failure(state, begun)
    assert state.success() == done

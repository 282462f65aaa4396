"""How a restore logs in to the place of its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.spec import parse_restore
from logkeep_engine.errors import CredentialsMissing
from logkeep_engine.restore.state import open_state
from logkeep_engine.storage import LocalStorage
from tests.unit.operator.world import restore_spec

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
        open_state("restore-1", spec, LocalStorage(tmp_path.as_uri()), {})
    assert str(refused.value).startswith(missing)

"""A segment of batches on a disk: in which order its objects are there, and what one waits for another."""

import os
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.storage import open_uri
from tests.unit.archive.build import Batch, write_segment


def test_indexes_are_durable_before_the_log_is_seen_and_all_three_are_synced_in_four_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def noting(call: str, real: Any) -> Any:
        def noted(what: Any, *more: Any) -> None:
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(more[0])
            real(what, *more)
            calls.append(f"{call} {Path(path).suffix if os.path.isfile(path) else 'folder'}")

        return noted

    storage = open_uri(f"file://{tmp_path}")
    write_segment(storage, [Batch(0).encode()])
    for call in ("fsync", "replace"):
        monkeypatch.setattr(os, call, noting(call, getattr(os, call)))
    write_segment(storage, [Batch(offset).encode() for offset in range(10, 100, 10)])
    assert calls.index("replace .index") < calls.index("replace .timeindex") < calls.index("fsync folder")
    assert calls.index("fsync folder") < calls.index("replace .log") < len(calls) - 1
    assert calls[-1] == "fsync folder"
    assert calls.count("fsync folder") == 2, "one sync of the folder for both indexes, one for the log"
    assert sum(call.startswith("fsync") for call in calls) == 5

"""The rate of earlier restores. Each keeps its result next to its plan: bytes, and the time from beginning to end.

The newest that has moved enough to be meaningful counts, one into the same cluster before one into another.
"""

from __future__ import annotations

from collections.abc import Iterator

from logkeep_engine.archive.maintenance import rates
from logkeep_engine.archive.maintenance.rates import MeasuredRun
from logkeep_engine.archive.names import RUNS
from logkeep_engine.contract.names import RESTORE
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.stored import DocumentRefused
from logkeep_engine.errors import ObjectMissing
from logkeep_engine.restore.model.state import RESULT, RestoreState

_RESULTS_READ = 50


def measured_restore(state: RestoreState, cluster_id: str) -> MeasuredRun | None:
    """Return the restore that says most about one into the cluster, None if there is none."""
    found = [
        result
        for result in _results(state)
        if result.kind == RESTORE
        and result.outcome == "Succeeded"
        and result.earlier_run is None
        and result.bytes >= rates.LEAST_BYTES
        and result.end_time > result.start_time
    ]
    told = max(found, key=lambda result: (result.cluster_id == cluster_id, result.end_time), default=None)
    if told is None:
        return None
    what = "into this cluster" if told.cluster_id == cluster_id else f"into cluster {told.cluster_id}"
    return MeasuredRun(told.run_id, what, told.bytes, told.end_time - told.start_time, int(told.end_time * 1000))


def _results(state: RestoreState) -> Iterator[RunResult]:
    """Yield the newest results of runs. What cannot be read says nothing."""
    there = [info for info in state.storage.list(RUNS) if info.path.endswith(f"/{RESULT}")]
    for info in sorted(there, key=lambda info: info.modified, reverse=True)[:_RESULTS_READ]:
        try:
            yield RunResult.from_json(state.storage.read(info.path))
        except (ObjectMissing, DocumentRefused):
            continue

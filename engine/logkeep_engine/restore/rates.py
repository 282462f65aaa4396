"""The expected time of a restore, from the rates of earlier ones.

Every restore keeps its result beside its plan: bytes, and the time from its beginning to its end. The newest that has
moved enough to tell counts, one into the same cluster before one into another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from logkeep_engine.archive.moments import moment
from logkeep_engine.archive.names import RUNS
from logkeep_engine.contract.names import RESTORE
from logkeep_engine.contract.run import ContractError, RunResult
from logkeep_engine.contract.values import human_bytes
from logkeep_engine.errors import ObjectMissing
from logkeep_engine.restore.state import RESULT, RestoreState

LEAST_BYTES = 64 << 20
"""Of less, the start of a run takes most of the time."""

DEFAULT_RATE = 50_000_000
DEFAULT_START_SECONDS = 15

_RESULTS_READ = 50


@dataclass(frozen=True, slots=True)
class ExpectedTime:
    """`seconds` for a whole restore, at `rate` bytes a second. `told`: where the rate is from."""

    seconds: int
    rate: int
    told: str


def expected_time(size: int, state: RestoreState, cluster_id: str, limit: int | None) -> ExpectedTime:
    """The expected time of a restore of `size` bytes into the cluster, with `spec.limits.bytesPerSecond`, if set."""
    found = _telling(state, cluster_id)
    if found is None:
        rate, start = DEFAULT_RATE, DEFAULT_START_SECONDS
        told = (
            f"a default, {human_bytes(DEFAULT_RATE)}/s after {DEFAULT_START_SECONDS} s: no restore of "
            f"{human_bytes(LEAST_BYTES)} or more is noted in {state.storage.uri}"
        )
    else:
        seconds = found.end_time - found.start_time
        rate, start = int(found.bytes / seconds), 0
        where = "this cluster" if found.cluster_id == cluster_id else f"cluster {found.cluster_id}"
        told = (
            f"measured by run {found.run_id} into {where}, which ended at {moment(int(found.end_time * 1000))}: "
            f"{human_bytes(found.bytes)} in {seconds:.0f} s"
        )
    if limit is not None and limit < rate:
        rate, told = limit, f"spec.limits.bytesPerSecond, which is less than {told}"
    return ExpectedTime(start + math.ceil(size / max(1, rate)), rate, told)


def _telling(state: RestoreState, cluster_id: str) -> RunResult | None:
    """The result that tells most about a restore into the cluster."""
    found = [
        result
        for result in _results(state)
        if result.kind == RESTORE
        and result.outcome == "Succeeded"
        and result.earlier_run is None
        and result.bytes >= LEAST_BYTES
        and result.end_time > result.start_time
    ]
    return max(found, key=lambda result: (result.cluster_id == cluster_id, result.end_time), default=None)


def _results(state: RestoreState) -> Iterator[RunResult]:
    """The newest results of runs. What cannot be read says nothing."""
    there = [info for info in state.storage.list(RUNS) if info.path.endswith(f"/{RESULT}")]
    for info in sorted(there, key=lambda info: info.modified, reverse=True)[:_RESULTS_READ]:
        try:
            yield RunResult.from_json(state.storage.read(info.path))
        except (ObjectMissing, ContractError):
            continue

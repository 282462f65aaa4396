"""Whether the CRDs have all fields that this operator reads and writes.

Helm never changes CRDs, so after an upgrade they may be those of an earlier version. The API server drops the fields
that they lack, and says nothing: a run that a status should name is started again and again, and a dry run becomes a
run. So the operator does nothing until they are applied. It compares fields and no number of a version, since fields
are what gets lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from logkeep_engine.contract.names import APPLY_CRDS, PLURALS
from logkeep_operator.api import GROUP
from logkeep_operator.api.fields import Fields, keeps_more, known_fields, lacking
from logkeep_operator.cluster import KubernetesCluster
from logkeep_operator.errors import ApiUnavailable
from logkeep_operator.metrics import Metrics

log = logging.getLogger(__name__)

FRESH_SECONDS = 60.0
OUTDATED_SECONDS = 5.0
_SHOWN = 3


class Crds:
    """The knowledge about the CRDs. Safe to use from several threads."""

    def __init__(
        self, cluster: KubernetesCluster, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._served: dict[str, Fields] = {}
        self._problem = ""
        self._asked: float | None = None

    def problem(self) -> str:
        """Say what the CRDs lack and what to do, empty if they lack nothing. Raises ApiError while it is unknown."""
        with self._lock:
            now = self._clock()
            lasts = OUTDATED_SECONDS if self._problem else FRESH_SECONDS
            if self._asked is None or now - self._asked >= lasts:
                self._served = self._cluster.served_fields()
                self._note(problem_of(self._served))
                self._asked = now
            return self._problem

    def doubt(self) -> None:
        """Ask again before the next look: something was not stored as it was sent."""
        with self._lock:
            self._asked = None

    def would_lose(self, kind: str, body: Mapping[str, Any]) -> bool:
        """Return whether a write of the object would delete fields that are stored and that its CRD does not show."""
        return keeps_more(body["metadata"], self._served.get(kind, {}))

    def _note(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.error("%s", problem)
        elif self._problem and not problem:
            log.warning("the CRDs have all fields now: work continues")
        self._problem = problem
        self._metrics.crds_outdated(bool(problem))


def problem_of(served: Mapping[str, Fields]) -> str:
    """Say what the CRDs lack and what to do, empty if they lack nothing. Raises ApiUnavailable if one is not published
    yet."""
    missing = [kind for kind in PLURALS if kind not in served]
    if missing:
        raise ApiUnavailable(f"the API server has not published the fields of {', '.join(missing)} yet")
    lost = {PLURALS[kind]: list(lacking(served[kind], known_fields(kind))) for kind in PLURALS}
    lines = [f"{plural}.{GROUP} lacks {_some(paths)}" for plural, paths in lost.items() if paths]
    if not lines:
        return ""
    return (
        f"The CRDs in this cluster are older than this operator: {'; '.join(lines)}. The API server would silently "
        f"drop these fields, so nothing is started, changed or deleted. Apply the CRDs of this version: {APPLY_CRDS}"
    )


def _some(paths: list[str]) -> str:
    shown = ", ".join(paths[:_SHOWN])
    return shown if len(paths) <= _SHOWN else f"{shown} and {len(paths) - _SHOWN} more"

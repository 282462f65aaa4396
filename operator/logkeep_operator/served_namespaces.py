"""Which namespaces the operator can serve. Each stands alone: one whose RoleBinding is missing is reported, the others
continue."""

from __future__ import annotations

import logging
import threading

from logkeep_operator.metrics import Metrics

log = logging.getLogger(__name__)

RETRY_MAX_SECONDS = 30.0


def retry_pause(failures: int) -> float:
    """Seconds to wait after this many failures in a row."""
    # The exponent is bounded, since 2.0 ** 1024 raises OverflowError.
    return float(min(2.0 ** min(failures - 1, 10), RETRY_MAX_SECONDS))


class ServedNamespaces:
    """Remembers for each namespace what could not be read at the last attempt, and says so once. For any thread."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lost: dict[str | None, dict[str, str]] = {}
        self._lock = threading.Lock()

    def lost(self, namespace: str | None, what: str, why: str) -> None:
        """Note that the namespace cannot be read. The caller tries again."""
        with self._lock:
            known = self._lost.setdefault(namespace, {})
            news = known.get(what) != why
            known[what] = why
            self._metrics.namespace_served(namespace, False)
        if news:
            log.warning("%s: %s cannot be read, tried again: %s", _name(namespace), what, why)

    def found(self, namespace: str | None, what: str) -> None:
        """Note that the namespace was read."""
        with self._lock:
            known = self._lost.setdefault(namespace, {})
            news = known.pop(what, None) is not None
            self._metrics.namespace_served(namespace, not known)
        if news:
            log.info("%s: %s can be read again", _name(namespace), what)


def _name(namespace: str | None) -> str:
    return f"namespace {namespace}" if namespace is not None else "all namespaces"

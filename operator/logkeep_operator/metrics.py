"""The metrics of the operator for Prometheus. Counters count from the operator's start; gauges are read again from the
resources."""

from __future__ import annotations

from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from logkeep_operator.api import Key, Status
from logkeep_operator.api.status import parse_timestamp


class Metrics:
    """The operator's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._keys: set[Key] = set()
        self._started = Counter(
            "logkeep_runs_started_total", "Runs that were started.", ["kind", "namespace"], registry=self.registry
        )
        self._finished = Counter(
            "logkeep_runs_finished_total",
            "Runs that ended, by outcome.",
            ["kind", "namespace", "outcome"],
            registry=self.registry,
        )
        self._last_success = Gauge(
            "logkeep_last_success_timestamp_seconds",
            "When a run of the resource last succeeded; 0 if none ever did.",
            ["kind", "namespace", "name"],
            registry=self.registry,
        )
        self._created = Gauge(
            "logkeep_resource_created_timestamp_seconds",
            "When the resource was created.",
            ["kind", "namespace", "name"],
            registry=self.registry,
        )
        self._ready = Gauge(
            "logkeep_resource_ready",
            "1 if the resource's condition Ready is True, else 0.",
            ["kind", "namespace", "name"],
            registry=self.registry,
        )
        self._errors = Counter(
            "logkeep_reconcile_errors_total",
            "Reconciliations that failed and are tried again.",
            ["kind"],
            registry=self.registry,
        )
        self._events_failed = Counter(
            "logkeep_events_failed_total",
            "Kubernetes Events that could not be written, by their reason.",
            ["namespace", "reason"],
            registry=self.registry,
        )
        self._namespace_served = Gauge(
            "logkeep_namespace_served",
            "1 if all that the operator needs to read in the namespace can be read, else 0; * for the whole cluster.",
            ["namespace"],
            registry=self.registry,
        )
        self._leader = Gauge(
            "logkeep_leader",
            "1 in the replica of the operator that acts, 0 in those that wait.",
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "logkeep_reconcile_duration_seconds", "How long a reconciliation took.", registry=self.registry
        )
        self.queue_depth = Gauge(
            "logkeep_reconcile_queue_depth", "Resources that wait for a worker now.", registry=self.registry
        )

    def serve(self, port: int) -> None:
        """Serve /metrics from a thread of its own."""
        start_http_server(port, registry=self.registry)

    def run_started(self, key: Key) -> None:
        """A run has been started for the first time."""
        self._started.labels(key.kind, key.namespace).inc()

    def run_finished(self, key: Key, outcome: str) -> None:
        """A run has ended."""
        self._finished.labels(key.kind, key.namespace, outcome).inc()

    def reconcile_failed(self, key: Key) -> None:
        """A reconciliation failed and is tried again."""
        self._errors.labels(key.kind).inc()

    def event_failed(self, key: Key, reason: str) -> None:
        """An Event could not be written; it is lost."""
        self._events_failed.labels(key.namespace, reason).inc()

    def leading(self, acts: bool) -> None:
        """Whether this replica acts."""
        self._leader.set(1 if acts else 0)

    def namespace_served(self, namespace: str | None, served: bool) -> None:
        """Whether the namespace can be read; None is the whole cluster."""
        self._namespace_served.labels(namespace or "*").set(1 if served else 0)

    def seen(self, key: Key, status: Status, created: datetime | None) -> None:
        """Show the state of a resource, as its status has it."""
        self._keys.add(key)
        success = parse_timestamp(status.last_success_time)
        self._last_success.labels(*key).set(success.timestamp() if success is not None else 0)
        if created is not None:
            self._created.labels(*key).set(created.timestamp())
        ready = status.condition("Ready")
        self._ready.labels(*key).set(1 if ready is not None and ready.status == "True" else 0)

    def shown(self, namespace: str | None) -> list[Key]:
        """The resources that have series, of a namespace or of all."""
        return [key for key in self._keys.copy() if namespace in (None, key.namespace)]

    def gone(self, key: Key) -> None:
        """The resource was deleted: its series end."""
        self._keys.discard(key)
        for gauge in (self._last_success, self._created, self._ready):
            gauge.remove_by_labels({"kind": key.kind, "namespace": key.namespace, "name": key.name})

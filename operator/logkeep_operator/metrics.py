"""The metrics of the operator for Prometheus. Counters count from the operator's start; gauges are read again from the
resources."""

from __future__ import annotations

import math
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, MetricsHandler

from logkeep_engine.contract.names import KAFKA_ARCHIVE
from logkeep_engine.contract.values import parse_timestamp
from logkeep_operator.api import KINDS, DrillStatus, Key, Status, StatusOutcome
from logkeep_operator.serving import serve


class Metrics:
    """The operator's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._keys: set[Key] = set()
        self._started = self._counter("logkeep_runs_started_total", "Runs that were started.", "kind", "namespace")
        self._finished = self._counter(
            "logkeep_runs_finished_total", "Runs that ended, by outcome.", "kind", "namespace", "outcome"
        )
        self._last_success = self._of_resource(
            "logkeep_last_success_timestamp_seconds",
            "When a run of the resource last succeeded; 0 if none ever did.",
        )
        self._recoverable = self._of_resource(
            "logkeep_last_recoverable_timestamp_seconds",
            (
                "status.recovery.lastTime: everything until then can be restored, except in topics that are behind; "
                "0 if unknown."
            ),
        )
        self._deadline = self._of_resource(
            "logkeep_retention_deadline_timestamp_seconds",
            "status.retention.deadline: from then on records that are not archived may be deleted; +Inf if unknown.",
        )
        self._stored = self._of_resource(
            "logkeep_archive_stored_bytes",
            "status.archive.storedBytes: bytes of the objects that hold the records of the archive.",
        )
        self._good_drill = self._of_resource(
            "logkeep_last_good_drill_timestamp_seconds",
            "When a drill of the backup's archive last succeeded; 0 if none ever did.",
        )
        self._recovery = self._of_resource(
            "logkeep_drill_recovery_seconds",
            "status.drill.recoverySeconds: how long the last measured drill took to restore all; NaN if unknown.",
        )
        self._describe_care()
        self._created = self._of_resource(
            "logkeep_resource_created_timestamp_seconds", "When the resource was created."
        )
        self._ready = self._of_resource(
            "logkeep_resource_ready", "1 if the resource's condition Ready is True, else 0."
        )
        self._errors = self._counter(
            "logkeep_reconcile_errors_total", "Reconciliations that failed and are tried again.", "kind"
        )
        for kind in (*KINDS, KAFKA_ARCHIVE):
            self._errors.labels(kind)  # without a series of 0 before it, the first error has no increase
        self._events_failed = self._counter(
            "logkeep_events_failed_total",
            "Kubernetes Events that could not be written, by their reason.",
            "namespace",
            "reason",
        )
        self._namespace_served = self._gauge(
            "logkeep_namespace_served",
            "1 if the operator can read everything that it needs in the namespace, else 0; * for the whole cluster.",
            "namespace",
        )
        self._crds_outdated = self._gauge(
            "logkeep_crds_outdated",
            "1 if the CRDs lack fields that this operator needs, so that it does nothing, else 0.",
        )
        self._leader = self._gauge(
            "logkeep_leader", "1 in the replica of the operator that acts, 0 in those that wait."
        )
        self.queue_depth = self._gauge("logkeep_reconcile_queue_depth", "Resources that wait for a worker now.")
        self.reconcile_seconds = Histogram(
            "logkeep_reconcile_duration_seconds", "How long a reconciliation took.", registry=self.registry
        )

    def _describe_care(self) -> None:
        self._unpurged = self._of_resource(
            "logkeep_archive_waiting_bytes",
            "status.archive.retention.waitingBytes: bytes of removed objects still there, for their grace or locked.",
        )
        self._locked = self._of_resource(
            "logkeep_archive_locked_objects",
            "status.archive.retention.locked.objects: removed objects that the store refuses to delete.",
        )
        self._points = self._of_resource(
            "logkeep_archive_kept_points", "status.archive.retention.points: runs that retention keeps restorable."
        )
        self._stale = self._of_resource(
            "logkeep_stale_keys",
            "status.reconcile.stale: keys alive in the archive and gone from the cluster; NaN if never compared.",
        )
        self._missing = self._of_resource(
            "logkeep_missing_keys",
            "status.reconcile.missing: keys whose last record the archive lacks; NaN if never compared.",
        )
        self._compared = self._of_resource(
            "logkeep_keys_compared_timestamp_seconds",
            "status.reconcile.endTime: when keys of the archive were last compared with the cluster; 0 if never.",
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _of_resource(self, name: str, text: str) -> Gauge:
        """Return a gauge with a series for each resource."""
        return self._gauge(name, text, *Key._fields)

    def serve(self, port: int) -> None:
        """Serve /metrics from a thread of its own."""
        serve(port, MetricsHandler.factory(self.registry))

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

    def crds_outdated(self, outdated: bool) -> None:
        """Whether the CRDs are those of an earlier version."""
        self._crds_outdated.set(1 if outdated else 0)

    def leading(self, acts: bool) -> None:
        """Whether this replica acts."""
        self._leader.set(1 if acts else 0)

    def namespace_served(self, namespace: str | None, served: bool) -> None:
        """Whether the namespace can be read; None is the whole cluster."""
        self._namespace_served.labels(namespace or "*").set(1 if served else 0)

    def seen(self, key: Key, status: Status, created: datetime | None) -> None:
        """Show the state of a resource, as its status has it."""
        self._keys.add(key)
        # Without a series of 0 before it, the first run that ends has no increase.
        self._started.labels(key.kind, key.namespace)
        for outcome in StatusOutcome:
            self._finished.labels(key.kind, key.namespace, outcome.value)
        success = parse_timestamp(status.last_success_time)
        self._last_success.labels(*key).set(success.timestamp() if success is not None else 0)
        if key.is_backup:
            self._backup_seen(key, status)
        if created is not None:
            self._created.labels(*key).set(created.timestamp())
        ready = status.condition("Ready")
        self._ready.labels(*key).set(1 if ready is not None and ready.status == "True" else 0)

    def _backup_seen(self, key: Key, status: Status) -> None:
        recovery, retention, archive = status.recovery, status.retention, status.archive
        last = parse_timestamp(recovery.last_time) if recovery is not None else None
        deadline = parse_timestamp(retention.deadline) if retention is not None else None
        self._recoverable.labels(*key).set(last.timestamp() if last is not None else 0)
        self._deadline.labels(*key).set(deadline.timestamp() if deadline is not None else math.inf)
        self._stored.labels(*key).set((archive.stored_bytes or 0) if archive is not None else 0)
        drill = status.drill or DrillStatus()
        good = parse_timestamp(drill.last_good_time)
        self._good_drill.labels(*key).set(good.timestamp() if good is not None else 0)
        self._recovery.labels(*key).set(math.nan if drill.recovery_seconds is None else drill.recovery_seconds)
        self._care_seen(key, status)

    def _care_seen(self, key: Key, status: Status) -> None:
        """Show what the archive keeps and removes, and what was found when its keys were compared."""
        kept = status.archive.retention if status.archive is not None else None
        self._unpurged.labels(*key).set(kept.waiting_bytes if kept is not None else 0)
        self._locked.labels(*key).set(kept.locked.objects if kept is not None and kept.locked is not None else 0)
        self._points.labels(*key).set(kept.points if kept is not None else 0)
        found = status.reconcile
        compared = parse_timestamp(found.end_time) if found is not None else None
        self._compared.labels(*key).set(compared.timestamp() if compared is not None else 0)
        stale, missing = (found.stale, found.missing) if found is not None else (None, None)
        self._stale.labels(*key).set(math.nan if stale is None else stale)
        self._missing.labels(*key).set(math.nan if missing is None else missing)

    def _of_backups(self) -> tuple[Gauge, ...]:
        of_care = (self._unpurged, self._locked, self._points, self._stale, self._missing, self._compared)
        return self._recoverable, self._deadline, self._stored, self._good_drill, self._recovery, *of_care

    def shown(self, namespace: str | None) -> list[Key]:
        """Return the resources that have series, of a namespace or of all."""
        # A copy: other threads see resources meanwhile.
        return [key for key in self._keys.copy() if namespace in (None, key.namespace)]

    def gone(self, key: Key) -> None:
        """The resource was deleted: its series end."""
        self._keys.discard(key)
        for gauge in (self._last_success, self._created, self._ready, *self._of_backups()):
            gauge.remove_by_labels(key._asdict())

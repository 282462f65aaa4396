"""Gather what is, ask `reconcile` what to do, do it: one resource at a time, from any thread.

Nothing is remembered between two calls, so the operator may be killed at any moment. The order of a plan's parts
makes that safe: children first (idempotent by name), events next (a repeated one is counted), the status last.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from logkeep_operator.api import Key, Resource
from logkeep_operator.cluster import Cluster
from logkeep_operator.errors import ApiRefused, Conflict
from logkeep_operator.metrics import Metrics
from logkeep_operator.reconcile import (
    Action,
    Create,
    DeleteConfigMap,
    DeleteJob,
    EnsureAccess,
    JobState,
    Observed,
    Plan,
    PodState,
    SuspendJob,
    documents,
    is_settled,
    job_state,
    own_pods,
    reconcile,
    refused,
)
from logkeep_operator.reconcile.trouble import STUCK_AFTER, stuck_pods
from logkeep_operator.resources import ROLE_DRIVER, access_objects
from logkeep_operator.settings import EngineSettings

log = logging.getLogger(__name__)


class Controller:
    """Reconciles single resources against a cluster."""

    def __init__(self, cluster: Cluster, engine: EngineSettings, metrics: Metrics) -> None:
        self._cluster = cluster
        self._engine = engine
        self._metrics = metrics

    def reconcile(self, key: Key) -> float | None:
        """Do what is to be done; seconds until it should be looked at again, None to wait for an event. Raises
        ApiError."""
        with self._metrics.reconcile_seconds.time():
            resource = self._cluster.resource(key)
            if resource is None:
                self._metrics.gone(key)
                return None
            self._metrics.seen(key, resource.status, resource.created)
            now = datetime.now(UTC)
            if is_settled(resource, now):
                return None
            plan = reconcile(self.observe(resource, now), now, self._engine)
            try:
                return self._carry_out(resource, plan)
            except Conflict as conflict:
                log.debug("%s: %s", key, conflict)
                return 0.5

    def unsettled(self, namespaces: Sequence[str]) -> list[Key]:
        """All resources that may need something."""
        now = datetime.now(UTC)
        keys = []
        for resource in self._cluster.resources(namespaces):
            self._metrics.seen(resource.key, resource.status, resource.created)
            if not is_settled(resource, now):
                keys.append(resource.key)
        return keys

    def observe(self, resource: Resource, now: datetime) -> Observed:
        """The resource and what belongs to it. Children of an earlier resource of the same name are left out."""
        key = resource.key
        jobs = {job.run_id: job for job in map(job_state, self._own("Job", resource))}
        pods = own_pods(self._cluster.children("Pod", key), key.name)
        backup_ref = (resource.spec.get("source") or {}).get("backupRef") if key.kind == "KafkaRestore" else None
        name = backup_ref.get("name") if isinstance(backup_ref, dict) else None
        return Observed(
            resource=resource,
            jobs=jobs,
            pods=pods,
            documents=documents(self._own("ConfigMap", resource)),
            backup=self._cluster.resource(Key("KafkaBackup", key.namespace, name)) if name else None,
            warnings=self._warnings(key, jobs, pods, now),
        )

    def _own(self, kind: str, resource: Resource) -> list[dict[str, Any]]:
        return [
            body
            for body in self._cluster.children(kind, resource.key)
            if any(owner.get("uid") == resource.uid for owner in body["metadata"].get("ownerReferences") or ())
        ]

    def _warnings(self, key: Key, jobs: dict[str, JobState], pods: Sequence[PodState], now: datetime) -> dict[str, str]:
        """Events are read only about what does not get on."""
        found: dict[str, str | None] = {}
        for job in jobs.values():
            alive = any(pod.alive and pod.run_id == job.run_id and pod.role == ROLE_DRIVER for pod in pods)
            young = job.created is not None and now - job.created < STUCK_AFTER
            if not (alive or young or job.finished or job.suspended or job.deleting):
                found[job.name] = self._cluster.newest_warning(key.namespace, "Job", job.name)
        for pod in stuck_pods(pods, now)[:3]:
            found[pod.name] = self._cluster.newest_warning(key.namespace, "Pod", pod.name)
        return {name: message for name, message in found.items() if message}

    def _carry_out(self, resource: Resource, plan: Plan) -> float | None:
        key = resource.key
        for action in plan.actions:
            try:
                self._act(key.namespace, action)
            except ApiRefused as error:
                # The status must say why nothing happens; the work queue tries again, later and later.
                self._finish(resource, refused(resource, str(error), datetime.now(UTC)))
                raise
        self._finish(resource, plan)
        if plan.started:
            self._metrics.run_started(key)
        if plan.finished is not None:
            self._metrics.run_finished(key, plan.finished)
        return plan.requeue_after

    def _finish(self, resource: Resource, plan: Plan) -> None:
        for event in plan.events:
            log.info("%s: %s: %s", resource.key, event.reason, event.message)
            self._cluster.event(resource, event.type, event.reason, event.message, event.run_id)
        if plan.status is not None:
            self._cluster.write_status(resource, plan.status)
            self._metrics.seen(resource.key, plan.status, resource.created)

    def _act(self, namespace: str, action: Action) -> None:
        cluster = self._cluster
        match action:
            case EnsureAccess():
                for body in access_objects(action.namespace):
                    if body["kind"] == "ServiceAccount":
                        cluster.create(body)  # whose annotations (a cloud's role, say) are the user's
                    else:
                        cluster.apply(body)
            case Create():
                cluster.create(action.body)
            case SuspendJob():
                cluster.suspend_job(namespace, action.name, action.suspend)
            case DeleteJob():
                cluster.delete("Job", namespace, action.name, action.uid)
            case DeleteConfigMap():
                cluster.delete("ConfigMap", namespace, action.name)

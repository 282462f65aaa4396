"""The controller reads the cluster, asks `reconcile` what to do, and does it: one resource at a time, from any thread.

Nothing that a decision needs is remembered between two calls, so the operator may be killed at any moment. The order of
a plan makes that safe: first the children, which have fixed names, then the status. Events come last: one that the API
refuses is logged and counted, and stops nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import BACKUP, KAFKA_ARCHIVE
from logkeep_engine.contract.objects import is_name
from logkeep_engine.contract.references import StrimziRef
from logkeep_operator.api import KINDS, Key, Resource
from logkeep_operator.api.backup_run import RequestedRun
from logkeep_operator.cluster import KubernetesCluster
from logkeep_operator.crds import Crds
from logkeep_operator.driver_slots import DriverSlots
from logkeep_operator.errors import ApiError, ApiRefused, Conflict, NameTaken, NotStored
from logkeep_operator.event_filter import EventFilter
from logkeep_operator.kafka_archives import KafkaArchives
from logkeep_operator.metrics import Metrics
from logkeep_operator.reconcile import (
    Action,
    Create,
    DeleteConfigMap,
    DeleteJob,
    DeletePod,
    EnsureAccess,
    EnsureNetworkPolicy,
    Event,
    FoundKafka,
    JobState,
    Observed,
    Plan,
    PodState,
    SuspendJob,
    answers_without_backup,
    documents,
    holds_place,
    is_at_rest,
    job_state,
    outdated,
    own_config_maps,
    own_jobs,
    own_pods,
    reconcile,
    refused,
    wake_after_rest,
)
from logkeep_operator.reconcile.problems import STUCK_AFTER, stuck_pods
from logkeep_operator.reconcile.step import API_REFUSED, NAME_TAKEN
from logkeep_operator.requested_runs import RequestedRuns
from logkeep_operator.resources import ROLE_DRIVER, access_objects, difference, is_earlier_binding, network_policy
from logkeep_operator.settings import Concurrency, EngineSettings
from logkeep_operator.shared_archives import SharedArchives
from logkeep_operator.snapshot import ResourceReader, ResourceSnapshot

log = logging.getLogger(__name__)

OUTDATED_LOOK_SECONDS = 30.0


class Controller:
    """Reconciles single resources against a cluster. `wake` is called for a resource whose turn it is to have a
    driver."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        engine: EngineSettings,
        metrics: Metrics,
        slots: DriverSlots | None = None,
        wake: Callable[[Key], None] = lambda key: None,
    ) -> None:
        self._cluster = cluster
        self._engine = engine
        self._metrics = metrics
        self._wake = wake
        self.slots = slots if slots is not None else DriverSlots(Concurrency(), ())
        self.seen = EventFilter()
        self.sharing = SharedArchives()
        self.archives = KafkaArchives(cluster, engine, metrics, self.sharing, wake)
        self.requested = RequestedRuns(cluster)
        self.crds = Crds(cluster, metrics)
        self._bound: set[str] = set()

    def reconcile(self, key: Key) -> float | None:
        """Do what is to be done. Returns the seconds until the resource must be looked at again, None to wait for an
        event. Raises ApiError."""
        try:
            return self._look(key)
        except NotStored:
            self.crds.doubt()
            self.slots.stand_back(key)
            raise
        except Exception:
            self.slots.stand_back(key)
            raise
        finally:
            self.wake_due()

    def wake_due(self) -> None:
        """Wake those whose turn it is to have a driver."""
        for key in self.slots.due():
            self._wake(key)

    def _look(self, key: Key) -> float | None:
        with self._metrics.reconcile_seconds.time():
            if key.kind == KAFKA_ARCHIVE:
                return self._look_at_archive(key)
            # A KafkaBackupRun with an invalid spec names no KafkaBackup.
            resource = self._cluster.resource(key) if is_name(key.name) else None
            now = self._cluster.now()
            requested = self.requested.of(key, now)
            problem = self.crds.problem()
            try:
                if resource is None:
                    self._look_in_vain(key, requested if not problem else (), now)
                    return None
                self._metrics.seen(key, resource.status, resource.created)
                self.seen.note(resource)
                self.sharing.note(resource)
                self.archives.note(resource)
                if not requested and is_at_rest(resource, now):
                    self.slots.leave(key)
                    return wake_after_rest(resource, now)
                if problem:
                    return self._tell_outdated(resource, problem, now)
                plan = self._decide(replace(self.observe(resource, now), requested=requested), now)
                return self._carry_out(resource, plan)
            except Conflict as conflict:
                log.debug("%s: %s", key, conflict)
                return 0.5  # another writer was faster: what was decided is out of date

    def _look_at_archive(self, key: Key) -> float | None:
        """Bring the status of a KafkaArchive up to date. Its own CRD may lack fields, too."""
        if self.crds.problem():
            return OUTDATED_LOOK_SECONDS
        try:
            self.archives.look(key, self._cluster.now())
        except Conflict as conflict:
            log.debug("%s: %s", key, conflict)
            return 0.5
        return None

    def _look_in_vain(self, key: Key, requested: tuple[RequestedRun, ...], now: datetime) -> None:
        """Forget a resource that is gone, and answer those who ask for a run of it."""
        self._metrics.gone(key)
        self.seen.forget(key)
        self.sharing.forget(key)
        self.archives.forget(key)
        self.slots.forget(key)
        self.requested.carry_out(key.namespace, answers_without_backup(requested, key, now))

    def _tell_outdated(self, resource: Resource, problem: str, now: datetime) -> float:
        """Say in the status, or in an Event alone, why nothing is done about a resource. A write of the status would
        delete for good what a newer CRD has let in and this one hides: a value that was answered, or `dryRun`."""
        key = resource.key
        self.slots.leave(key)
        if (plan := outdated(resource, problem, now)).status is None:
            return OUTDATED_LOOK_SECONDS
        body = self._cluster.find(key.kind, key.namespace, key.name)
        if body is not None:
            status = None if self.crds.would_lose(key.kind, body) else plan.status
            self._finish(resource, replace(plan, status=status))
        return OUTDATED_LOOK_SECONDS

    def _decide(self, observed: Observed, now: datetime) -> Plan:
        """Return the plan for a resource. One that begins a driver has taken a place before."""
        key = observed.resource.key
        self.slots.found(key, running=holds_place(observed, now))
        plan = reconcile(observed, now, self._engine)
        if plan.waits_since is not None:
            return reconcile(observed, now, self._engine, self.slots.enter(key, plan.waits_since))
        self.slots.stand_back(key)
        return plan

    def _foresee(self, observed: Observed, now: datetime, mark: int) -> Plan:
        """Return the plan for a resource in a snapshot: it takes no place."""
        key = observed.resource.key
        self.slots.found(key, running=holds_place(observed, now), mark=mark)
        plan = reconcile(observed, now, self._engine)
        if plan.waits_since is None:
            self.slots.stand_back(key, mark)
            return plan
        return reconcile(observed, now, self._engine, self.slots.wait(key, plan.waits_since, mark))

    def unsettled(self, namespace: str | None) -> list[tuple[Key, float]]:
        """Return the resources that need a look, now or later, each with the seconds until then. Namespace None stands
        for the whole cluster."""
        self.crds.problem()  # looked at, logged and counted also where there is no resource
        mark = self.slots.mark()
        requested = self.requested.all(namespace, self._cluster.now())
        snapshot = ResourceSnapshot(
            self._cluster, namespace, lambda one: one.key in requested or self._may_need_something(one)
        )
        now = self._cluster.now()
        # Those that were deleted while no watch saw it: a look takes their series away, on which alerts would fire.
        found = [(key, 0.0) for key in self._metrics.shown(namespace) if key not in snapshot.resources]
        found += [(key, 0.0) for key, some in requested.items() if self._lacks_backup(snapshot, key, some, now)]
        found += [(key, 0.0) for key in snapshot.left_out]
        for resource in snapshot.resources.values():
            self.sharing.note(resource)
            self.archives.note(resource)
        found += [
            (key, 0.0) for key in self.archives.unsettled(snapshot.archives.values(), snapshot.resources.values(), now)
        ]
        for key, resource in snapshot.resources.items():
            self._metrics.seen(key, resource.status, resource.created)
            if snapshot.is_short(key):
                found.append((key, 0.0))
                continue
            if key not in snapshot.wanted:
                self.slots.leave(key, mark)
                wake = wake_after_rest(resource, now)
                found += [(key, wake)] if wake is not None else []
                continue
            try:
                observed = replace(self.observe(resource, now, snapshot), requested=requested.get(key, ()))
                plan = self._foresee(observed, now, mark)
            except Exception as error:  # one resource holds up no others: a look of its own fails, later and later
                log.warning("%s: %s: %s", key, type(error).__name__, error)
                found.append((key, 0.0))
                continue
            if plan.actions or plan.status is not None or plan.answers or plan.drilled is not None:
                found.append((key, 0.0))
            elif plan.requeue_after is not None:
                found.append((key, plan.requeue_after))
        unread = {key for key in snapshot.left_out if key.kind in KINDS}
        self.slots.counted(namespace, {*snapshot.resources, *unread}, mark)
        self.wake_due()
        return found

    def _lacks_backup(
        self, snapshot: ResourceSnapshot, key: Key, requested: tuple[RequestedRun, ...], now: datetime
    ) -> bool:
        """Return whether those who ask for a run of a backup that does not exist are to be told so."""
        return key not in snapshot.resources and bool(answers_without_backup(requested, key, now))

    def _may_need_something(self, resource: Resource) -> bool:
        try:
            return not is_at_rest(resource, self._cluster.now())
        except Exception:  # a look of its own says why it cannot be judged
            return True

    def observe(self, resource: Resource, now: datetime, source: ResourceReader | None = None) -> Observed:
        """Return the resource and what belongs to it. Children of an earlier resource of the same name are left out."""
        key = resource.key
        source = source if source is not None else self._cluster
        jobs = {job.run_id: job for job in map(job_state, own_jobs(source.children("Job", key), resource))}
        pods = own_pods(source.children("Pod", key), key.name)
        name = _backup_of(resource)
        return Observed(
            resource=resource,
            jobs=jobs,
            pods=pods,
            documents=documents(own_config_maps(source.children("ConfigMap", key), resource)),
            backup=source.resource(Key(BACKUP, key.namespace, name)) if name is not None else None,
            warnings=_warnings(source, key, jobs, pods, now),
            kafka=_strimzi_kafka(source, resource),
            archive_owner=self.sharing.owner_instead_of(resource) if key.is_backup else None,
        )

    def _carry_out(self, resource: Resource, plan: Plan) -> float | None:
        key = resource.key
        self._renew_access(resource)
        for action in plan.actions:
            try:
                self._act(key.namespace, action)
            except ApiRefused as error:
                self.slots.leave(key)
                if _has_deleted_others(plan, action) and not isinstance(error, NameTaken):
                    raise Conflict(f"{error}: a quota counts what was just deleted for a moment longer") from error
                # The status must say why nothing happens; the work queue tries again, later and later.
                reason = NAME_TAKEN if isinstance(error, NameTaken) else API_REFUSED
                self._finish(resource, refused(resource, reason, str(error), self._cluster.now()))
                raise
            except ApiError:
                if plan.waits_since is not None:
                    self.slots.leave(key)  # the next look sees whether there is a Job after all
                raise
        self._finish(resource, plan)
        self.requested.carry_out(key.namespace, plan.answers)
        if plan.drilled is not None:
            self._cluster.write_status(plan.drilled.backup, plan.drilled.status)
            self.archives.told(plan.drilled.backup, plan.drilled.status)
            self._tell(plan.drilled.backup, plan.drilled.event)
        return plan.requeue_after

    def _finish(self, resource: Resource, plan: Plan) -> None:
        key = resource.key
        if plan.status is not None:
            # Before the write, whose event may come before its answer.
            self.seen.note(resource, plan.status)
            self.sharing.note(resource, plan.status)
            self._cluster.write_status(resource, plan.status)
            self._metrics.seen(key, plan.status, resource.created)
            self.archives.told(resource, plan.status)
        if plan.started:
            self._metrics.run_started(key)
        if plan.finished is not None:
            self._metrics.run_finished(key, plan.finished)
        for event in plan.events:
            self._tell(resource, event)

    def _tell(self, resource: Resource, event: Event) -> None:
        log.info("%s: %s: %s", resource.key, event.reason, event.message)
        try:
            self._cluster.event(resource, event.type, event.reason, event.message, event.run_id)
        except ApiError as error:
            log.warning("%s: the Event %s could not be written: %s", resource.key, event.reason, error)
            self._metrics.event_failed(resource.key, event.reason)

    def _act(self, namespace: str, action: Action) -> None:
        cluster = self._cluster
        match action:
            case EnsureAccess():
                self._ensure_access(action.namespace)
            case EnsureNetworkPolicy():
                cluster.create(network_policy(action.namespace))
            case Create():
                if not cluster.create(action.body):
                    self._compare(action.body)
            case SuspendJob():
                cluster.suspend_job(namespace, action.name, action.suspend)
            case DeleteJob():
                cluster.delete("Job", namespace, action.name, action.uid)
            case DeleteConfigMap():
                cluster.delete("ConfigMap", namespace, action.name)
            case DeletePod():
                try:
                    cluster.delete("Pod", namespace, action.name, action.uid)
                except ApiRefused as error:  # it is in no one's way, and the next look tries again
                    log.warning("%s/%s: this pod is not needed and stays: %s", namespace, action.name, error)

    def _compare(self, wanted: dict[str, Any]) -> None:
        """Raises NameTaken if the object that has the name of a run's child is another one."""
        kind, metadata = wanted["kind"], wanted["metadata"]
        found = self._cluster.find(kind, metadata["namespace"], metadata["name"])
        if found is None:
            raise Conflict(f"{kind} {metadata['name']} was there and is gone")
        wrong = difference(wanted, found)
        if wrong is not None:
            raise NameTaken(
                f"{kind} {metadata['name']} exists already but is not the one that this run needs: {wrong}. Nothing "
                f"is started. Find out who created it, and delete it: kubectl -n {metadata['namespace']} delete "
                f"{kind.lower()} {metadata['name']}"
            )

    def _ensure_access(self, namespace: str) -> None:
        """Make the accounts of drivers and executors, and the binding that gives drivers their rights. An account that
        is there has nothing that decides over rights in Kubernetes. It gets annotations that it lacks: those that it
        has (a cloud's role, say) are the user's."""
        annotations = self._engine.account_annotations
        for body in access_objects(namespace, self._engine.driver_role, annotations):
            if body["kind"] == "ServiceAccount":
                if not self._cluster.create(body) and annotations:
                    self._cluster.annotate("ServiceAccount", namespace, body["metadata"]["name"], annotations)
            else:
                self._bind(body)

    def _bind(self, body: dict[str, Any]) -> None:
        """Apply a RoleBinding. Its subjects become ours. The API does not let the role of one be changed, so one that
        an installation under another name, or with other namespaces, has left is made again."""
        metadata = body["metadata"]
        try:
            self._cluster.apply(body)
        except ApiRefused as error:
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            found = self._cluster.find("RoleBinding", metadata["namespace"], metadata["name"])
            if found is not None and not is_earlier_binding(found):
                raise NameTaken(
                    f"RoleBinding {metadata['name']} exists already and binds another role than "
                    f"{body['roleRef']['name']}, so drivers would have other rights: {error} Nothing is started. Find "
                    f"out who created it, and delete it: kubectl -n {metadata['namespace']} delete rolebinding "
                    f"{metadata['name']}",
                    error.status,
                ) from error
            self._bind_again(body, found)

    def _bind_again(self, body: dict[str, Any], found: dict[str, Any] | None) -> None:
        """Replace a RoleBinding that is ours. After a crash between both steps, the next look makes it."""
        metadata = body["metadata"]
        if found is not None:
            role = found["roleRef"]
            log.warning(
                "%s: RoleBinding %s binds %s %s, of another installation: it is created again for %s %s",
                metadata["namespace"], metadata["name"], role["kind"], role["name"],
                body["roleRef"]["kind"], body["roleRef"]["name"],
            )  # fmt: skip
            self._cluster.delete("RoleBinding", metadata["namespace"], metadata["name"], found["metadata"]["uid"])
        if not self._cluster.create(body):
            raise Conflict(f"RoleBinding {metadata['name']} was created again by another client")

    def _renew_access(self, resource: Resource) -> None:
        """Let a driver that is running have its rights from this installation, if it had them from another one. The
        role that the operator binds changes with its process only, so each namespace is looked at once."""
        run, namespace = resource.status.run, resource.key.namespace
        if run is None or run.outcome is not None or namespace in self._bound:
            return
        *_, body = access_objects(namespace, self._engine.driver_role)
        found = self._cluster.find("RoleBinding", namespace, body["metadata"]["name"])
        if found is not None and found["roleRef"] != body["roleRef"] and is_earlier_binding(found):
            self._bind_again(body, found)
        self._bound.add(namespace)


def _has_deleted_others(plan: Plan, refused: Action) -> bool:
    """Return whether the plan has deleted ConfigMaps before the first object that it makes, which the API has refused.
    The next look has none left to delete. Of a later object it may have those that this plan has made."""
    before = plan.actions[: plan.actions.index(refused)]
    is_first = isinstance(refused, Create) and not any(isinstance(action, Create) for action in before)
    return is_first and any(isinstance(action, DeleteConfigMap) for action in before)


def _backup_of(resource: Resource) -> str | None:
    """Return the name of the KafkaBackup that a KafkaRestore names. The API is asked for no other name: `reconcile`
    says what is wrong with one that is invalid."""
    reference = (resource.spec.get("source") or {}).get("backupRef") if resource.key.is_restore else None
    name = reference.get("name") if isinstance(reference, dict) else None
    return name if is_name(name) else None


def _strimzi_kafka(source: ResourceReader, resource: Resource) -> FoundKafka | None:
    """Strimzi's resource that the spec names. It may be in a namespace where the operator has no rights."""
    cluster = resource.spec.get("cluster") or {}
    try:
        reference = StrimziRef.model_validate(cluster.get("strimzi"))
    except ValueError:  # there is none, or `reconcile` will say what is wrong with it
        return None
    try:
        return FoundKafka(source.strimzi_kafka(reference.namespace or resource.key.namespace, reference.name))
    except ApiRefused as error:
        return FoundKafka(refused=str(error))


def _warnings(
    source: ResourceReader, key: Key, jobs: dict[str, JobState], pods: Sequence[PodState], now: datetime
) -> dict[str, str]:
    """Read events only about Jobs and pods that do not get on."""
    found: dict[str, str | None] = {}
    for job in jobs.values():
        alive = any(pod.alive and pod.run_id == job.run_id and pod.role == ROLE_DRIVER for pod in pods)
        young = job.created is not None and now - job.created < STUCK_AFTER
        if not (alive or young or job.finished or job.suspended or job.deleting):
            found[job.name] = source.newest_warning(key.namespace, "Job", job.name)
    for pod in stuck_pods(pods, now)[:3]:
        found[pod.name] = source.newest_warning(key.namespace, "Pod", pod.name)
    return {name: message for name, message in found.items() if message}

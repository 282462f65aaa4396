"""The start of a run: what must be so before its driver may begin, and the objects that are made for it then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import BACKUP_RUN, KAFKA_ARCHIVE
from logkeep_engine.contract.request_files import hash_of_config_map
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.contract.values import parse_timestamp
from logkeep_engine.contract.visible import visible
from logkeep_operator.api import Condition, Resource, RunStatus, Status
from logkeep_operator.api.archive import store_of
from logkeep_operator.api.resource import ANNOTATION_RUN, ANNOTATION_RUN_AGAIN
from logkeep_operator.reconcile import conditions
from logkeep_operator.reconcile.backup_runs import requests_hash
from logkeep_operator.reconcile.observed import JobState, Observed, RunOrigin
from logkeep_operator.reconcile.plan import Create, DeleteConfigMap, DeleteJob, EnsureAccess, EnsureNetworkPolicy
from logkeep_operator.reconcile.queue import RunQueue, place_of
from logkeep_operator.reconcile.runs import WantedRun, is_dry_run, is_release, wanted_run
from logkeep_operator.reconcile.schedule import goes_on, scheduled_times, with_times
from logkeep_operator.reconcile.stale_keys import reconciles
from logkeep_operator.reconcile.step import Step
from logkeep_operator.reconcile.strimzi import kafka_access
from logkeep_operator.reconcile.waiting import BACKUP_RECHECK_SECONDS, Waiting, archive_place
from logkeep_operator.resources import (
    ANNOTATION_RUN_KEY,
    LABEL_KUEUE,
    ROLE_DRIVER,
    RunToStart,
    config_map_names,
    config_maps,
    is_topics_name,
    job,
    needs_access_objects,
    request_name,
)
from logkeep_operator.settings import EngineSettings

# ---- requested

# Words for what asked for a run: `requestedBy` of its request, its result and the status, and in an event.
#
# The operator knows which input was new when it started the run. It does not know who wrote the input. The value of
# an annotation is a claim by a user who may write the resource; the API server's audit log knows the user.


MAX_CLAIM = 128
"""Characters of an annotation's value that are kept."""
_MAX_NAMED = 5


def requested_by(observed: Observed, wanted: WantedRun) -> str:
    """Return the words for it: the reasons that are new, or the resource's spec if none of them is."""
    resource, before = observed.resource, observed.resource.status
    found = [
        *_annotation(resource, before, wanted),
        *_asked(observed, before, wanted),
        *_schedule(resource, before, wanted),
    ]
    return ", ".join(found) or f"spec of {resource.key.kind} {resource.key.namespace}/{resource.key.name}"


def _annotation(resource: Resource, before: Status, wanted: WantedRun) -> list[str]:
    handled = before.last_handled_run if resource.key.is_backup else before.last_handled_run_again
    if not wanted.trigger or wanted.trigger == handled:
        return []
    name = ANNOTATION_RUN if resource.key.is_backup else ANNOTATION_RUN_AGAIN
    claim = visible(wanted.trigger)
    return [f"annotation {name}: {claim if len(claim) <= MAX_CLAIM else claim[: MAX_CLAIM - 1] + '…'}"]


def _asked(observed: Observed, before: Status, wanted: WantedRun) -> list[str]:
    if wanted.requested is None or wanted.requested == before.last_handled_backup_runs:
        return []
    namespace = observed.resource.key.namespace
    waiting = sorted(f"{BACKUP_RUN} {namespace}/{one.name}" for one in observed.requested if one.pending)
    more = [f"{len(waiting) - _MAX_NAMED} more"] if len(waiting) > _MAX_NAMED else []
    return [*waiting[:_MAX_NAMED], *more]


def _schedule(resource: Resource, before: Status, wanted: WantedRun) -> list[str]:
    if wanted.scheduled is None or wanted.scheduled == before.last_schedule_time:
        return []
    return [f"schedule of {resource.key.kind} {resource.key.namespace}/{resource.key.name}, due {wanted.scheduled}"]


Spec = KafkaBackupSpec | KafkaRestoreSpec

WAIT_SECONDS = 3.0
OWNED_SECONDS = 60.0
# A driver that reported success but does not go (a thread that hangs) would hold its pods for ever.
STUCK_JOB_AFTER = timedelta(seconds=120)
_NOTHING_WRONG = frozenset({"RunStarted", "Pending", "Running", "Queued", "WaitingForPreviousRun"})


class Starting(Step):
    """A resource whose spec is valid, and the run that it requests. `turns` says whether its driver may begin."""

    def __init__(self, observed: Observed, now: datetime, spec: Spec, engine: EngineSettings, turns: RunQueue) -> None:
        super().__init__(observed, now)
        self.turns = turns
        self.spec = spec
        self.engine = engine
        self.times = scheduled_times(self.resource, spec, now)
        waiting = requests_hash(observed.requested) if not goes_on(self.before) else None
        self.wanted = wanted_run(self.resource, spec, self.times.due, waiting)
        self.stands = self._success_stands(waiting)
        self.status = with_times(self.status, self.before.last_schedule_time, self.times.next)

    def _success_stands(self, waiting: str | None) -> bool:
        """Return whether the wanted run waits or runs for the schedule alone, and all else that is asked for was
        done."""
        last, ready = self.before.run, self.before.condition("Ready")
        if last is None or ready is None or ready.status != "True":
            return False
        if last.outcome is not None:
            return self.times.due is not None and wanted_run(self.resource, self.spec, None, waiting).id == last.id
        return last.id == self.wanted.id  # only a run of the schedule has begun with Ready as it was

    def on_its_way(self, reason: str, message: str) -> tuple[Condition, ...]:
        """Return the conditions while the run waits or is running."""
        if self.stands and reason in _NOTHING_WRONG:
            return conditions.scheduled_run(reason, message)
        return conditions.reconciling(reason, message)

    def _waits_since(self) -> datetime | None:
        """Return the time since which a run is on its way, None if the status shows none."""
        for kind in ("Reconciling", conditions.SCHEDULED_RUN):
            found = self.before.condition(kind)
            if found is not None and found.status == "True":
                return parse_timestamp(found.last_transition_time)
        return None

    def create(self, wanted: WantedRun) -> None:
        """Make everything that a run needs, in an order in which a crash leaves nothing half made. Raises Waiting."""
        self._refuse_another_owner()
        self._wait_for_others(wanted.id)
        run = self.run_to_start(wanted.id, self._origin(wanted))
        found = self.job(wanted.id)
        if found is None:
            self.take_turn()
        self.actions += [DeleteConfigMap(name) for name in self._superseded_config_maps(wanted.id)]
        if needs_access_objects(self.spec.spark):
            self.actions.append(EnsureAccess(self.resource.key.namespace))
        if self.engine.network_policies:
            self.actions.append(EnsureNetworkPolicy(self.resource.key.namespace))
        if found is not None:
            self.actions += [Create(body) for body in self._lost_config_maps(run, found)]
        else:
            old = self._useless_config_maps(wanted.id)
            kept = set(self.documents(wanted.id).config_maps) - set(old)
            bodies = [body for body in config_maps(run) if body["metadata"]["name"] not in kept]
            self.actions += [DeleteConfigMap(name) for name in old]
            # The Job comes last: its pod mounts the ConfigMaps, and would hang without them.
            self.actions += [Create(body) for body in (*bodies, job(run))]
        self.actions += [DeleteConfigMap(name) for name in self._emitted_config_maps(wanted.id)]

    def _earlier_config_maps(self, run_id: str) -> Iterator[str]:
        """Yield the ConfigMaps of all other runs whose end is reported."""
        ended = {entry.run_id for entry in self.before.history}
        for other, documents in self.observed.documents.items():
            # A report that the history does not know is of a run that a newer status shows: this one is old.
            if other != run_id and (other in ended or documents.result is None):
                yield from documents.config_maps

    def _superseded_config_maps(self, run_id: str) -> list[str]:
        """Return those that go before a run gets its own: where a quota counts them, there is room for no more."""
        return [name for name in self._earlier_config_maps(run_id) if not is_topics_name(name)]

    def _emitted_config_maps(self, run_id: str) -> list[str]:
        """Return those with what a restore has written for its user. They stay until the next run has all that it
        needs."""
        return [name for name in self._earlier_config_maps(run_id) if is_topics_name(name)]

    def _useless_config_maps(self, run_id: str) -> list[str]:
        """Return the ConfigMaps of a run without a Job that are not for the Job which is made now. Driver and executors
        get what the spec says now, and an old request cannot be changed. Before the status shows the run, nothing that
        is there is its driver's."""
        names, run = self.documents(run_id).config_maps, self.before.run
        if run is None or run.id != run_id:
            return list(names)
        return [name for name in names if name == request_name(self.resource.key.name, run_id)]

    def _lost_config_maps(self, run: RunToStart, found: JobState) -> list[dict[str, Any]]:
        """Return the ConfigMaps of a run with a Job that are not there. Raises Waiting if the request cannot be made
        again as it was, since then the Job must go: its driver takes no other."""
        there = self.documents(run.id).config_maps
        lost = [body for body in config_maps(run) if body["metadata"]["name"] not in there]
        request = request_name(self.resource.key.name, run.id)
        changed = [b for b in lost if b["metadata"]["name"] == request and hash_of_config_map(b) != found.request_hash]
        if changed and not found.finished:
            self.actions.append(DeleteJob(found.name, found.uid))
            message = (
                f"ConfigMap {request} was deleted and the spec has changed since; Job {found.name} is created again."
            )
            raise Waiting("WaitingForPreviousRun", message, False, WAIT_SECONDS)
        return [body for body in lost if body not in changed]

    def take_turn(self) -> None:
        """Continue if it is the run's turn to have a driver. Raises Waiting."""
        if self.turns.concurrency.kueue and LABEL_KUEUE in self.spec.run_policy.job_labels:
            return  # Kueue has a queue of its own, and suspends the Job
        self.waits_since = self._waits_since() or self.now
        place = place_of(self.turns, self.resource.key, self.waits_since)
        if place is not None:
            raise Waiting("Queued", place.message, False, None)  # a run that gives a place away wakes the next

    def _origin(self, wanted: WantedRun) -> dict[str, str]:
        """Return the annotations of the run's children. They show the run if the status does not learn of it."""
        ids = [self.before.run.id] if self.before.run is not None else []
        ids += [entry.run_id for entry in self.before.history]
        previous = next((run_id for run_id in ids if run_id != wanted.id), "")
        by = self.requested_by(wanted)
        return RunOrigin(wanted.key, wanted.trigger, previous, wanted.scheduled, wanted.requested, by).annotations()

    def requested_by(self, wanted: WantedRun) -> str:
        """Say what asked for the run, as it was reported when the run was first started: its Job may be gone since."""
        last = self.before.run
        if last is not None and last.id == wanted.id and last.requested_by is not None:
            return last.requested_by
        return requested_by(self.observed, wanted)

    def _wait_for_others(self, run_id: str) -> None:
        """Wait until no other driver lives: none of an earlier run, and none of this run whose Job is gone."""
        if any(isinstance(action, DeleteJob) for action in self.actions):
            raise Waiting("WaitingForPreviousRun", "The previous run is being stopped.", False, WAIT_SECONDS)
        for other in self.observed.jobs.values():
            if other.run_id == run_id and not other.deleting:
                continue
            if other.finished and not other.deleting:
                continue
            if not other.deleting and self._is_over(other):
                self.actions.append(DeleteJob(other.name, other.uid))
            raise Waiting("WaitingForPreviousRun", f"Job {other.name} has not ended yet.", False, WAIT_SECONDS)
        for pod in self.observed.pods:
            if pod.role == ROLE_DRIVER and pod.alive and not (pod.run_id == run_id and self.job(run_id) is not None):
                message = f"Driver pod {pod.name} of a deleted Job has not ended yet."
                raise Waiting("WaitingForPreviousRun", message, False, WAIT_SECONDS)

    def _is_over(self, other: JobState) -> bool:
        """Return whether the run of a Job has ended long enough ago although its pod has not. The time counts from the
        moment at which the operator began to wait, which was after that end."""
        if all(entry.run_id != other.run_id for entry in self.status.history):
            return False
        since = self._waits_since()
        return since is not None and self.now - since > STUCK_JOB_AFTER

    def run_to_start(self, run_id: str, annotations: dict[str, str]) -> RunToStart:
        """Return the run with what the spec refers to. Raises Waiting if something of it is not there."""
        last = self.before.run
        begun = (last is not None and not is_dry_run(last.key)) or self.job(self.wanted.id) is not None
        storage, raw = archive_place(self.observed, self.spec, self.engine, begun=begun)
        self._refuse_another_store(run_id, raw)
        kafka = kafka_access(self.spec.cluster, self.resource.key.namespace, self.observed.kafka)
        reconcile = reconciles(self.before, self.spec, self.now)
        knows = self.resource if self.resource.key.is_backup else self.observed.backup
        archive = knows.status.archive if knows is not None else None
        anchor = archive.anchor_at(storage.uri) if archive is not None else None
        if self.resource.key.is_restore:
            anchor = anchor or self.resource.archive_anchor
        release = is_release(annotations.get(ANNOTATION_RUN_KEY))
        return RunToStart(
            self.resource, run_id, self.spec, storage, raw, self.engine, kafka, annotations, reconcile, anchor, release
        )

    def _refuse_another_store(self, run_id: str, storage: Mapping[str, object]) -> None:
        """Raises Waiting if a restore has begun where it has its state, and its archive is looked for elsewhere now: in
        a copy of the archive it would begin once more, and append what it has appended."""
        run, noted, spec = self.before.run, self.before.archive, self.spec
        if run is None or run.id != run_id or is_dry_run(run.key) or noted is None or noted.uri is None:
            return
        if not isinstance(spec, KafkaRestoreSpec) or spec.state is not None:
            return
        if noted.is_at(str(storage["uri"])) and noted.store == store_of(storage):
            return
        named = "storage" if spec.source.backup_ref is None else "backupRef"
        named = "archiveRef" if self.resource.archive_ref is not None else named
        before, now = (_place_named(noted.uri, noted.store), _place_named(str(storage["uri"]), store_of(storage)))
        message = (
            f"spec.source.{named}: run {run_id} has begun with {before}, and has its state there; {now} is another "
            "place, where it would restore once more. Name the place of before again, or create another KafkaRestore."
        )
        raise Waiting("InvalidSpec", message, True, BACKUP_RECHECK_SECONDS, stalled=True)

    def _refuse_another_owner(self) -> None:
        """Raises Waiting if another KafkaBackup has the archive, without a consent to take it over. A dry run
        writes nothing, and says it itself."""
        owner = self.observed.archive_owner
        if owner is None or self.spec.dry_run or self.resource.take_over is not None:
            return
        named = self.resource.archive_ref is not None
        field, other = ("spec.archiveRef", KAFKA_ARCHIVE) if named else ("spec.storage", "storage.uri")
        message = (
            f"{field}: KafkaBackup {owner.name} writes this archive: no run is started. Name another {other}. To hand "
            "the archive over, suspend or delete the other KafkaBackup first, and give this one the annotation "
            "logkeep.dev/take-over with the status.archive.anchor of the other."
        )
        raise Waiting("ArchiveOwned", message, True, OWNED_SECONDS)

    def make_lost_config_maps(self, run: RunStatus) -> None:
        """Make ConfigMaps again that were deleted: a driver that starts again mounts its request, and a running driver
        writes its progress. Raises Waiting."""
        there = self.documents(run.id).config_maps
        if set(config_map_names(self.resource.key.name, run.id, self.spec)) <= set(there):
            return
        again = self.run_to_start(run.id, self.observed.jobs[run.id].origin.annotations())
        lost = self._lost_config_maps(again, self.observed.jobs[run.id])
        self.actions += [Create(body) for body in lost]
        names = [body["metadata"]["name"] for body in lost]
        message = f"ConfigMap {' and '.join(names)} of the run was deleted and is created again."
        self.event("Warning", "ConfigMapRecreated", message, run.id)

    def note_reasons(self) -> None:
        """Note for which annotation, which time of the schedule and which KafkaBackupRuns the wanted run was
        started."""
        if isinstance(self.spec, KafkaBackupSpec):
            wanted = self.wanted
            handled = replace(self.status, last_handled_run=wanted.trigger, last_handled_backup_runs=wanted.requested)
            self.status = with_times(handled, self.wanted.scheduled, self.times.after_start)
        else:
            handled = replace(self.status, last_handled_run_again=self.wanted.trigger)
            self.status = with_times(handled, self.wanted.scheduled, self.times.after_start)


def _place_named(uri: str, store: str | None) -> str:
    return uri if store is None else f"{uri} at {store}"

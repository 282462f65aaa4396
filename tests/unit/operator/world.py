"""A cluster as data: one resource and its children. `step` reconciles once and carries the plan out on the data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from logkeep_engine.contract.facts.progress import PartitionProgress
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.request_files import hash_of_job
from logkeep_engine.contract.run import Progress, RunResult
from logkeep_operator.api import Key, Resource, Status
from logkeep_operator.api.backup_run import RequestedRun
from logkeep_operator.reconcile import (
    AdoptRequestedRun,
    AnswerRequestedRun,
    Create,
    DeleteConfigMap,
    DeleteJob,
    DeletePod,
    DeleteRequestedRun,
    Documents,
    FoundKafka,
    JobState,
    Observed,
    Plan,
    PodState,
    RunOrigin,
    RunQueue,
    SuspendJob,
    reconcile,
)
from logkeep_operator.resources import is_progress_name
from logkeep_operator.settings import EngineSettings

START = datetime(2026, 11, 21, 8, 0, 0, tzinfo=UTC)
ENGINE = EngineSettings(
    "registry.example/engine:1",
    allowed_images=("*",),
    allowed_accounts=("*",),
    allowed_endpoints=("*", "http://*"),
)


def backup_spec(**changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "cluster": {"bootstrapServers": ["kafka:9092"]},
        "topics": {"include": ["orders.*"]},
        "storage": {"uri": "s3://bucket/prefix", "credentials": {"secretRef": {"name": "s3"}}},
    }
    return spec | changes


def backup_of_its_own(name: str, **changes: Any) -> dict[str, Any]:
    """The spec of one of several KafkaBackups: each has an archive of its own."""
    storage = {"uri": f"s3://bucket/{name}", "credentials": {"secretRef": {"name": "s3"}}}
    return backup_spec(storage=storage) | changes


def restore_spec(**changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "source": {"backupRef": {"name": "nightly"}},
        "cluster": {"bootstrapServers": ["kafka:9092"]},
    }
    return spec | changes


def origin(body: dict[str, Any]) -> RunOrigin:
    """The facts that the child says of its run."""
    said = body["metadata"]["annotations"]
    return RunOrigin.of({"annotations": said})


def resource(kind: str, spec: dict[str, Any], **changes: Any) -> Resource:
    name = "nightly" if kind == "KafkaBackup" else "again"
    made = Resource(Key(kind, "team", name), f"uid-of-{name}", 1, False, spec, Status())
    return replace(made, **changes)


class World:
    """Time passes by `pass_time` only."""

    def __init__(self, kind: str = "KafkaBackup", spec: dict[str, Any] | None = None) -> None:
        default = backup_spec() if kind == "KafkaBackup" else restore_spec()
        self.resource = resource(kind, default if spec is None else spec)
        self.now = START
        self.jobs: dict[str, JobState] = {}
        self.pods: list[PodState] = []
        self.documents: dict[str, Documents] = {}
        self.backup: Resource | None = None
        self.turns = RunQueue()
        self.warnings: dict[str, str] = {}
        self.kafka: FoundKafka | None = None
        self.events: list[tuple[str, str]] = []
        self.created: list[dict[str, Any]] = []
        self.requested: list[RequestedRun] = []
        self.archive_owner: Key | None = None
        self.drill_events: list[tuple[str, str]] = []  # events about the backup of a restore

    @property
    def status(self) -> Status:
        return self.resource.status

    @property
    def run_id(self) -> str:
        assert self.status.run is not None
        return self.status.run.id

    def pass_time(self, **how: float) -> None:
        self.now += timedelta(**how)

    def edit(self, **spec: Any) -> None:
        """Change the spec as a user does."""
        generation = self.resource.generation + 1
        self.resource = replace(self.resource, spec={**self.resource.spec, **spec}, generation=generation)

    def annotate(self, value: str, name: str = "logkeep.dev/run") -> None:
        """Ask for another run, or to retry the one that failed."""
        self.resource = replace(self.resource, annotations={name: value})

    def retry(self, value: str) -> None:
        """Ask to retry the run that failed."""
        self.annotate(value, "logkeep.dev/retry")

    def collect(self) -> None:
        """Pods without their Job go, as the garbage collector does it."""
        self.pods = [pod for pod in self.pods if pod.run_id in self.jobs]

    def step(self, *, conflict: bool = False, answered: bool = True) -> Plan:
        """Reconcile once and do what the plan says; with `conflict` the status is not taken, and without `answered` no
        KafkaBackupRun is told."""
        observed = Observed(self.resource, self.jobs, self.pods, self.documents, self.backup, self.warnings, self.kafka)
        observed = replace(observed, requested=tuple(self.requested), archive_owner=self.archive_owner)
        plan = reconcile(observed, self.now, ENGINE, self.turns)
        for action in plan.actions:
            match action:
                case Create(body=body):
                    self.created.append(body)
                    run_id = body["metadata"]["labels"]["logkeep.dev/run"]
                    if body["kind"] == "Job" and run_id not in self.jobs:
                        name = body["metadata"]["name"]
                        made = JobState(name, f"uid-of-{name}", run_id, created=self.now, origin=origin(body))
                        self.jobs[run_id] = replace(made, request_hash=hash_of_job(body))
                    if body["kind"] == "ConfigMap":
                        self.create_config_map(run_id, body)
                case DeleteJob(name=name):
                    self.jobs = {key: job for key, job in self.jobs.items() if job.name != name}
                case SuspendJob(name=name, suspend=suspend):
                    found = next(job for job in self.jobs.values() if job.name == name)
                    self.jobs[found.run_id] = replace(found, suspended=suspend, by_operator=suspend)
                case DeleteConfigMap(name=name):
                    self.delete_config_map(name)
                case DeletePod(name=name):
                    self.pods = [pod for pod in self.pods if pod.name != name]
        self.events += [(event.type, event.reason) for event in plan.events]
        if plan.status is not None and not conflict:
            self.resource = replace(self.resource, status=plan.status)
        if answered and not conflict:
            self.answer(plan)
            if plan.drilled is not None:
                self.backup = replace(plan.drilled.backup, status=plan.drilled.status)
                self.drill_events.append((plan.drilled.event.type, plan.drilled.event.reason))
        return plan

    def ask(self, name: str, ttl: int = 3600) -> None:
        """Ask for a run with a KafkaBackupRun."""
        metadata = {"namespace": "team", "name": name, "uid": f"uid-of-{name}"}
        spec = {"backupRef": {"name": "nightly"}, "ttlSecondsAfterFinished": ttl}
        self.requested.append(RequestedRun.from_object({"metadata": metadata, "spec": spec}))

    def answer(self, plan: Plan) -> None:
        """Do what the plan says about the KafkaBackupRuns."""
        known = {one.name: one for one in self.requested}
        for answer in plan.answers:
            match answer:
                case AnswerRequestedRun(requested=requested, status=status):
                    known[requested.name] = replace(known[requested.name], status=status)
                case AdoptRequestedRun(requested=requested, uid=uid):
                    known[requested.name] = replace(known[requested.name], owners=frozenset({uid}))
                case DeleteRequestedRun(name=name):
                    del known[name]
        self.requested = list(known.values())

    def create_config_map(self, run_id: str, body: dict[str, Any]) -> None:
        """Make it, or leave the one that is there."""
        known = self.documents.get(run_id, Documents())
        names = tuple(dict.fromkeys((*known.config_maps, body["metadata"]["name"])))
        made = known.created or self.now
        self.documents[run_id] = replace(known, config_maps=names, created=made, origin=origin(body))

    def delete_config_map(self, name: str) -> None:
        """Delete it, with the documents in it."""
        for run_id, known in list(self.documents.items()):
            if name in known.config_maps:
                left = replace(known, config_maps=tuple(other for other in known.config_maps if other != name))
                if is_progress_name(name):
                    left = replace(left, progress=None, result=None, written=None)
                self.documents[run_id] = left
        self.documents = {run_id: known for run_id, known in self.documents.items() if known.config_maps}

    def settle(self) -> None:
        """Reconcile until nothing changes; that must not take long, or two steps undo each other."""
        for _ in range(6):
            plan = self.step()
            if plan.status is None and not plan.actions and not plan.answers and plan.drilled is None:
                return
        raise AssertionError(f"does not settle: {plan}")

    def job_is(self, **changes: Any) -> None:
        """The Job controller says so about the run's Job."""
        self.jobs[self.run_id] = replace(self.jobs[self.run_id], **changes)

    def driver(self, phase: str = "Running", **more: Any) -> None:
        """The run's driver pod is as given; an earlier one of the same name is replaced."""
        name = more.pop("name", "driver-pod")
        self.pods = [pod for pod in self.pods if pod.name != name]
        self.pods.append(PodState(name, self.run_id, "driver", phase, created=self.now, **more))

    def executor(self, number: int, phase: str = "Running", **more: Any) -> None:
        """An executor pod of the run."""
        name = f"driver-pod-exec-{number}"
        self.pods = [pod for pod in self.pods if pod.name != name]
        self.pods.append(PodState(name, self.run_id, "executor", phase, created=self.now, **more))

    def reports(self, progress: Progress | None = None, result: RunResult | None = None) -> None:
        """The driver writes to the run's ConfigMap."""
        known = self.documents.get(self.run_id, Documents())
        self.documents[self.run_id] = replace(
            known, progress=progress or known.progress, result=result or known.result, written=self.now
        )

    def complete(self) -> None:
        """The run succeeds and its pod goes."""
        self.reports(result=self.result())
        self.job_is(active=0, complete=True)
        self.driver("Succeeded", exit_code=0)
        self.settle()

    def progress(self, **changes: Any) -> Progress:
        shown = (
            PartitionProgress(topic="orders", partition=0, start=100, end=1100, at=600, records=500, bytes=5000),
            PartitionProgress(topic="orders", partition=1, start=0, end=100, at=100, records=100, bytes=900),
        )
        known: dict[str, Any] = {
            "run_id": self.run_id,
            "phase": "Running",
            "start_time": START.timestamp(),
            "update_time": self.now.timestamp(),
            "topics": 1,
            "partitions": 2,
            "partitions_done": 1,
            "records": 600,
            "bytes": 5900,
            "offsets_done": 600,
            "offsets_total": 1100,
            "partitions_shown": shown,
        }
        return Progress(**(known | changes))

    def result(self, **changes: Any) -> RunResult:
        known: dict[str, Any] = {
            "run_id": changes.get("run_id") or self.run_id,
            "kind": self.resource.key.kind,
            "outcome": "Succeeded",
            "exit_code": 0,
            "start_time": START.timestamp(),
            "end_time": self.now.timestamp(),
            "topics": 1,
            "partitions": 2,
            "records": 1100,
            "bytes": 10900,
            "archive_id": "a1",
            "cluster_id": "k1",
            "epoch": 3,
            "commit": 7,
        }
        return RunResult(**(known | changes))

    def failed_result(self, **changes: Any) -> RunResult:
        known = {
            "outcome": "Failed",
            "exit_code": 1,
            "error_code": "BrokerUnavailable",
            "message": "No broker answers at kafka:9092.",
            "archive_id": "",
        }
        return self.result(**(known | changes))

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason."""
        found = self.status.condition(kind)
        assert found is not None, f"no condition {kind} in {self.status}"
        return found.status, found.reason

    def message(self, kind: str = "Ready") -> str:
        found = self.status.condition(kind)
        assert found is not None
        return found.message

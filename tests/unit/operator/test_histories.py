"""Random histories of a resource: users, drivers, conflicts, a second operator with an old view, deletions by hand.

No history leads to two drivers or two Jobs at once, to a report that is deleted before the status tells of it, to a
resource that never comes to rest, or to an exception. A report counts only while a Job or the status names its run:
whoever takes away both has taken the report.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from logkeep_engine.contract.facts.dry_run import DryRunReport
from logkeep_engine.contract.facts.outcome import LossFact
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunResult
from logkeep_operator.api import Resource, Status
from logkeep_operator.reconcile import (
    Action,
    Create,
    DeleteConfigMap,
    DeleteJob,
    JobState,
    Observed,
    Plan,
    PodState,
    SuspendJob,
    reconcile,
)
from tests.examples import number
from tests.unit.operator.world import ENGINE, World, origin, restore_spec

HISTORIES = number(300, deep=6000)
KEPT = 10  # runs in the history

OPERATIONS = (
    *("look",) * 3,
    *("end",) * 2,
    *("conflict", "remember", "late_operator", "edit", "ask", "suspend", "break_spec", "driver", "fail"),
    *("delete_job", "collect", "time", "wipe", "dry_run"),
)


class Troubled(World):
    """A resource with its children, to which anything may happen. Raises AssertionError when a promise is broken."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.wipes = seed % 2 == 1
        kind = self.random.choice(["KafkaBackup", "KafkaBackup", "KafkaRestore"])
        archive = {"storage": {"uri": "s3://bucket/prefix"}}
        dry: dict[str, Any] = {"dryRun": True} if seed % 3 == 0 else {}
        super().__init__(kind, None if kind == "KafkaBackup" else restore_spec(source=archive, **dry))
        self.dry: dict[str, bool] = {}
        self.remembered = self.resource
        self.number = 0
        self.disowned: set[str] = set()

    @property
    def is_backup(self) -> bool:
        return self.resource.key.kind == "KafkaBackup"

    # ---- the operator

    def reconcile(self, seen: Resource, *, conflict: bool = False) -> Plan:
        """Once, with this view of the resource; its status is taken if the view is the newest and nobody writes."""
        known = Observed(seen, dict(self.jobs), list(self.pods), dict(self.documents), self.backup, {})
        plan = reconcile(known, self.now, ENGINE)
        for action in plan.actions:
            self._carry_out(action)
        if plan.status is not None and not conflict and seen == self.resource:
            self.resource = replace(seen, status=plan.status)
        return plan

    def _carry_out(self, action: Action) -> None:
        match action:
            case Create(body=body):
                self._create(body)
            case DeleteJob(uid=uid):
                self.jobs = {run_id: job for run_id, job in self.jobs.items() if job.uid != uid}
            case SuspendJob(name=name, suspend=suspend):
                for run_id, job in self.jobs.items():
                    if job.name == name:
                        self.jobs[run_id] = replace(job, suspended=suspend, by_operator=suspend)
            case DeleteConfigMap(name=name):
                for run_id, documents in self.documents.items():
                    if name in documents.config_maps and name.endswith("-progress"):
                        assert self._is_reported(run_id), f"the report of {run_id} is deleted, and nothing tells of it"
                        self.documents[run_id] = replace(documents, result=None, progress=None)
                self.delete_config_map(name)

    def _create(self, body: dict[str, Any]) -> None:
        metadata = body["metadata"]
        run_id, name = metadata["labels"]["logkeep.dev/run"], metadata["name"]
        if body["kind"] == "Job" and run_id not in self.jobs:
            assert not any(pod.alive and pod.role == "driver" for pod in self.pods), "two drivers"
            assert all(job.finished for job in self.jobs.values()), "two Jobs"
            self.number += 1
            uid, held = f"uid-{self.number}", body["spec"]["suspend"]
            made = JobState(name, uid, run_id, created=self.now, origin=origin(body), suspended=held, by_operator=held)
            self.jobs[run_id] = made
        if body["kind"] == "ConfigMap":
            self.create_config_map(run_id, body)
        if "request.json" in (body.get("data") or {}):
            dry = json.loads(body["data"]["request.json"])["spec"].get("dryRun", False)
            assert self.dry.setdefault(run_id, dry) == dry, "a run that is dry at one time and writes at another"

    def _is_reported(self, run_id: str) -> bool:
        """Whether the history tells of the report and of its loss. A failure without loss says nothing that is lost."""
        report = self.documents[run_id].result
        if report is None or run_id in self.disowned or (report.outcome == "Failed" and not report.loss_total):
            return True
        entries = [entry for entry in self.status.history if entry.run_id == run_id]
        if not entries:
            return len(self.status.history) >= KEPT
        return not report.loss_total or any(
            entry.outcome != "Replaced" or "missing" in (entry.message or "") for entry in entries
        )

    # ---- what happens

    def happens(self) -> None:
        """Something."""
        getattr(self, f"_{self.random.choice(OPERATIONS)}")()

    def _look(self) -> None:
        self.reconcile(self.resource)

    def _conflict(self) -> None:
        self.reconcile(self.resource, conflict=True)

    def _remember(self) -> None:
        self.remembered = self.resource

    def _late_operator(self) -> None:
        """A look with an old view of the resource, and all that the API has by now of its children. The Lease stops
        such an operator in time; here it may still act, and drop reports of runs that came after its view."""
        if self.remembered != self.resource:
            self.disowned |= self._unnamed(self.remembered.status)
            self.reconcile(self.remembered, conflict=True)

    def _edit(self) -> None:
        if self.is_backup:
            self.edit(topics={"include": [f"t{self.random.randint(0, 2)}"]})

    def _dry_run(self) -> None:
        """The API server lets a restore that has begun not be a dry run again."""
        if self.is_backup:
            self.edit(dryRun=self.random.random() < 0.4)
        elif self.resource.spec.get("dryRun"):
            field, value = self.random.choice([("dryRun", False), ("ifTopicExists", "Append"), ("verify", "Full")])
            self.edit(**{field: value})

    def _ask(self) -> None:
        self.number += 1
        (self.annotate if self.is_backup else self.retry)(str(self.number))

    def _suspend(self) -> None:
        self.edit(suspend=self.random.random() < 0.4)

    def _break_spec(self) -> None:
        if self.is_backup and self.random.random() < 0.3:
            self.edit(topics={"include": ["("]})

    def _driver(self) -> None:
        waiting = [job for job in self.jobs.values() if not job.finished and not job.suspended]
        if waiting and not any(pod.alive for pod in self.pods):
            self.number += 1
            run_id = self.random.choice(waiting).run_id
            self.pods.append(PodState(f"pod-{self.number}", run_id, "driver", "Running", created=self.now))

    def _end(self) -> None:
        self._driver_ends(well=True)

    def _fail(self) -> None:
        self._driver_ends(well=False)

    def _driver_ends(self, *, well: bool) -> None:
        """It writes its report, if there is a ConfigMap, and its pod ends; so does the Job after some failures."""
        pod = next((pod for pod in self.pods if pod.alive), None)
        if pod is None:
            return
        job = self.jobs.get(pod.run_id)
        report = self._report(pod.run_id, well=well and job is not None, stopped=job is None)
        documents = self.documents.get(pod.run_id)
        if documents is not None and any(name.endswith("-progress") for name in documents.config_maps):
            self.documents[pod.run_id] = replace(documents, result=report, written=self.now)
        self.pods.remove(pod)
        if job is None:
            return
        phase, message = "Succeeded" if well else "Failed", report.to_termination_message(4096)
        self.pods.append(replace(pod, phase=phase, exit_code=0 if well else 1, termination_message=message))
        gives_up = not well and self.random.random() < 0.6
        failure = ("BackoffLimitExceeded", "") if gives_up else None
        ended = replace(job, complete=well, failed=job.failed + (not well), failure=failure, ended=self.now)
        self.jobs[pod.run_id] = ended

    def _report(self, run_id: str, *, well: bool, stopped: bool) -> RunResult:
        facts: dict[str, Any] = {"run_id": run_id}
        if well and self.dry[run_id]:
            return self._found(run_id)
        if self.random.random() < 0.5:
            self.number += 10
            loss = LossFact(
                topic="orders",
                partition=0,
                start=self.number,
                end=self.number + 10,
                reason="retention overtook the reader",
            )
            facts |= {"loss": (loss,), "loss_total": 1, "loss_offsets": 10}
        return self.result(**facts) if well else self.failed_result(exit_code=130 if stopped else 1, **facts)

    def _found(self, run_id: str) -> RunResult:
        """The report of a dry run."""
        report = DryRunReport(refused=self.number % 2)
        return self.result(run_id=run_id, outcome="DryRun", dry_run=report, records=0, commit=-1)

    def _delete_job(self) -> None:
        if self.jobs and self.random.random() < 0.4:
            del self.jobs[self.random.choice(list(self.jobs))]
            self._disown()

    def _collect(self) -> None:
        self.pods = [pod for pod in self.pods if pod.run_id in self.jobs or pod.alive]

    def _time(self) -> None:
        self.pass_time(seconds=self.random.choice([1, 30, 130, 700]))

    def _wipe(self) -> None:
        if self.wipes and self.random.random() < 0.3:
            self.resource = replace(self.resource, status=Status())
            self._disown()

    def _disown(self) -> None:
        """Note the reports of runs that nothing names, now that somebody has deleted a Job or the status."""
        self.disowned |= self._unnamed(self.status)

    def _unnamed(self, status: Status) -> set[str]:
        """The runs with ConfigMaps that neither this status nor a Job names."""
        named = {entry.run_id for entry in status.history} | ({status.run.id} if status.run is not None else set())
        return self.documents.keys() - named - self.jobs.keys()

    # ---- the end

    def comes_to_rest(self) -> None:
        """Nobody interferes any more: drivers do as they are told, and the last run succeeds."""
        self.edit(suspend=False, dryRun=False)
        if self.is_backup:
            self.edit(topics={"include": ["t1"]})
        for look in range(80):
            self.pods = [pod for pod in self.pods if self._goes_on(pod)]
            self.pass_time(seconds=5)
            plan = self.reconcile(self.resource)
            run = self.status.run
            if plan.status is None and not plan.actions and run is not None and run.outcome is not None:
                break
            if look % 6 == 5 and run is not None and run.outcome is None and run.id in self.jobs:
                self._succeeds(run.id)
        else:
            raise AssertionError(f"does not come to rest: {self.status}")
        assert all(self._is_reported(run_id) for run_id in self.documents), "nothing tells of a report"
        assert not self.dry[self.run_id], "a dry run is taken for the run that is wanted"

    def _goes_on(self, pod: PodState) -> bool:
        job = self.jobs.get(pod.run_id)
        return job is not None and not (pod.alive and (job.suspended or job.finished))

    def _succeeds(self, run_id: str) -> None:
        if not self.jobs[run_id].finished:
            report = self._found(run_id) if self.dry[run_id] else self.result(run_id=run_id)
            self.documents[run_id] = replace(self.documents[run_id], result=report)
            self.jobs[run_id] = replace(self.jobs[run_id], complete=True, ended=self.now)


@pytest.mark.deep
@pytest.mark.parametrize("part", range(HISTORIES // 50))
def test_whatever_happens_no_promise_is_broken(part: int) -> None:
    for seed in range(part * 50, part * 50 + 50):
        world = Troubled(seed)
        try:
            for _ in range(world.random.randint(10, 60)):
                world.happens()
            world.comes_to_rest()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise

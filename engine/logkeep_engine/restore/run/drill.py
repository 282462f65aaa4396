"""One drill from beginning to end, in the driver: a restore into topics of its own, which it deletes again.

An attempt never continues where an earlier one stopped: it deletes what that one has left, and begins again, with
topics of other names. So tasks that have outlived their driver write to no topic of a later attempt, and the measured
times are those of one restore without a pause. The state of an attempt lies in `runs/<run id>.<token>/`, like that of a
restore. In `runs/<run id>/` lie

    started.json     as with every restore
    drill.json       the report: what was restored, how long it took, what the verification has found
    result.json      the end, for people: a drill that is started again is done again, since nothing shows that it was

and `runs/open-drills/<run id>.<token>.json` names the topics that may be there (`drill_topics`).
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from typing import Any

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.run_note import RunNote
from logkeep_engine.archive.reports import create_report
from logkeep_engine.contract.drill import DrillSpec
from logkeep_engine.contract.facts.outcome import DrillFacts, VerificationFacts
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import MAX_LIST, RunResult
from logkeep_engine.errors import LogkeepError, RecordsDiffer, RecordsNotVerified
from logkeep_engine.kafka.connection import connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.report import bounded_warnings
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.drill_cycle import DrillCycle
from logkeep_engine.restore.model.drill_scope import TOKEN_DIGITS, DrillScope
from logkeep_engine.restore.model.point_preview import tell
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.planning.check import DAMAGE
from logkeep_engine.restore.planning.planner import RestorePlanner
from logkeep_engine.restore.planning.rights import check_may_delete
from logkeep_engine.restore.run.drill_topics import NOT_KNOWN, DrillTopics, OpenDrill, open_drills
from logkeep_engine.restore.run.restoring import RestoreRun
from logkeep_engine.restore.run.run_facts import facts_of_run
from logkeep_engine.restore.sending.count import count_all
from logkeep_engine.restore.sending.partitions import restore_open_partitions
from logkeep_engine.restore.sending.without_records import refuse_without_records
from logkeep_engine.restore.sending.work import with_task
from logkeep_engine.restore.topics.targets import CreatedTopics
from logkeep_engine.restore.verification.step import DOCUMENT, PAGE, verify_restored
from logkeep_engine.restore.verification.task import Verdict

log = logging.getLogger(__name__)

FORMAT = 1
REPORT = "drill.json"


class DrillRun(RestoreRun):
    """One drill."""

    _measured: DrillFacts | None = None

    @property
    def _name(self) -> str:
        return f"{self._request.namespace}/{self._request.name}"

    @property
    def _resource(self) -> str:
        return self._name if self._request.namespace else ""

    @property
    def _drill(self) -> DrillSpec:
        return self._spec.drill or DrillSpec()

    def _restore(self) -> None:
        archive, state = self._open()
        self._check_run_id(state)
        state.begin(archive)  # whatever is noted of an earlier end: nothing in the cluster bears it out
        self._begun = archive, state
        connection = connection_from(self._spec.cluster, self._environ)
        with ControlPlane(connection) as control:
            self._control = control
            cluster_id = control.cluster_id()
            connection = replace(connection, cluster_id=cluster_id)
            control.only(cluster_id)
            reported = self._delete_leftovers(control, state, cluster_id)
            cycle = self._cycle(archive, state)
            token = secrets.token_hex(TOKEN_DIGITS // 2)
            scope = DrillScope(self._drill.prefix, token, cycle, owner=self._name)
            attempt = f"{self._run_id}.{scope.token}"
            context = RestoreContext(
                run_id=attempt,
                spec=self._spec,
                archive=archive,
                state=state.of_run(attempt),
                cluster_id=cluster_id,
                control=control,
                connection=connection,
                runner_factory=self._runner_factory,
                reporter=self._reporter,
                expect=self._expect,
                drill=scope,
            )
            with RunNote(state.storage, state.run_id) as note:
                done = self._perform_drill(context, super().result(), note)
            self._done = replace(done, warnings=bounded_warnings([*reported, *done.warnings]))

    def result(self) -> RunResult:
        """Return the result of the run that has succeeded; else that of a failed run, with what was found."""
        found = super().result()
        return found if found.drill is not None else replace(found, drill=self._measured)

    def _perform_drill(self, context: RestoreContext, begun: RunResult, note: RunNote) -> RunResult:
        planned = RestorePlanner(context).load_or_make()
        note.knows(planned.plan.known_commit)
        assert context.drill is not None
        topics = DrillTopics(
            context.state.storage,
            OpenDrill(
                self._run_id,
                self._resource,
                context.cluster_id,
                context.drill,
                time.time(),
                {topic.target: NOT_KNOWN for topic in planned.plan.topics},
            ),
        )
        tell(context, planned)
        check_may_delete(context.connection, [topic.target for topic in planned.plan.topics])
        try:
            done, facts = self._restore_and_verify(context, planned, topics, begun)
            done = replace(
                done, warnings=(*_describe_left(self._run_id, topics.delete(context.control)), *done.warnings)
            )
        except BaseException as error:
            _clean_up(context, topics, error)
            raise
        assert done.drill is not None
        written = self._write_report(context, planned, topics, done, facts)
        self._measured = replace(done.drill, report=written)
        _forget(context.state)
        _raise_unless_verified(facts)
        scope = topics.drill.scope
        if scope.cycle is not None and scope.sample is not None:
            scope.cycle.after(scope.sample).store(context.state.storage)
        return replace(done, drill=self._measured, end_time=time.time())

    def _restore_and_verify(
        self, context: RestoreContext, planned: Planned, topics: DrillTopics, begun: RunResult
    ) -> tuple[RunResult, VerificationFacts]:
        """Do the steps of a restore with a verification, in their order."""
        plan, scope = planned.plan, topics.drill.scope
        topics.announce()
        created = CreatedTopics(context.control, planned.archived, self._spec.topics, scope.mark)
        created.create(plan, fresh=True)
        topics.remember(context.control)
        summaries = restore_open_partitions(context, planned)
        recovered = time.time()
        context.reporter.phase("Finishing")
        summaries = count_all(context, planned, summaries)
        refuse_without_records(context, planned, summaries)
        self._verification = facts = verify_restored(context, planned)
        verified = time.time()
        warnings = [*plan.warnings, *created.finish(plan, fresh=True)]
        done = facts_of_run(begun, context, planned, summaries)
        measured = DrillFacts(
            recovery_seconds=max(0.0, round(recovered - self._start_time, 3)),
            verified_seconds=max(0.0, round(verified - self._start_time, 3)),
            partitions=sum(1 for _ in with_task(planned)),
            records=done.records,
            bytes=done.bytes,
            report="",
            cold_segments=scope.cold_segments,
            **_of_cycle(scope),
        )
        reported = replace(done, warnings=tuple(warnings), verification=facts, drill=measured, offset_map="")
        return reported, facts

    def _write_report(
        self,
        context: RestoreContext,
        planned: Planned,
        topics: DrillTopics,
        done: RunResult,
        facts: VerificationFacts,
    ) -> str:
        """Write the report of the drill, and return its URI. Reports of earlier drills stay."""
        measured = done.drill
        assert measured is not None
        body: dict[str, Any] = {
            "format": FORMAT,
            "runId": self._run_id,
            "resource": self._resource,
            "archiveId": done.archive_id,
            "commit": done.commit,
            "clusterId": done.cluster_id,
            "startTime": self._start_time,
            "recoverySeconds": measured.recovery_seconds,
            "verifiedSeconds": measured.verified_seconds,
            "outcome": facts.outcome,
            "message": facts.message,
            "partitions": measured.partitions,
            "records": measured.records,
            "bytes": measured.bytes,
            "total": measured.total,
            "cycle": measured.cycle,
            "drilled": measured.drilled,
            "runs": measured.runs,
            "coldSegments": measured.cold_segments,
            "verification": context.state.name(DOCUMENT),
            "page": context.state.name(PAGE),
            "warnings": list(done.warnings),
            "columns": ["source", "topicId", "target", "targetId"],
            "topics": [
                [topic.source, topic.topic_id, topic.target, topics.drill.topics[topic.target]]
                for topic in planned.plan.topics
            ],
        }
        state = context.state.of_run(self._run_id)
        content = json.dumps(body, indent=1, ensure_ascii=False).encode()
        return state.name(create_report(state.storage, self._run_id, REPORT, content))

    def _cycle(self, archive: Archive, state: RestoreState) -> DrillCycle | None:
        """Return the cycle of sampled drills, None for one that restores everything."""
        if self._drill.part is None:
            return None
        return DrillCycle(self._name, archive.info.archive_id, self._drill.part).load(state.storage)

    def _delete_leftovers(self, control: ControlPlane, state: RestoreState, cluster_id: str) -> list[str]:
        """Delete what earlier attempts of this run, or dead runs of this resource, have left. Returns what the user
        should know of others."""
        lines = []
        for drill in open_drills(state.storage):
            names = ", ".join(sorted(drill.topics)[:MAX_LIST])
            own = drill.run_id == self._run_id or (self._resource and drill.resource == self._resource)
            if own and drill.scope.prefix != self._drill.prefix:
                lines.append(f"run {drill.run_id} has left topics of another prefix, to be deleted by hand: {names}")
            elif own and drill.cluster_id == cluster_id:
                log.info("deleting topics that run %s has left: %s", drill.run_id, names)
                scope = replace(drill.scope, owner=self._name)
                left = DrillTopics(state.storage, replace(drill, scope=scope)).delete(control)
                lines += _describe_left(drill.run_id, left)
                if not left:
                    _forget(state.of_run(f"{drill.run_id}.{drill.scope.token}"))
            elif own:
                lines.append(f"run {drill.run_id} has left topics in Kafka cluster {drill.cluster_id}: {names}")
            else:
                log.info("run %s of %s may have topics: %s", drill.run_id, drill.resource or "the command line", names)
        return lines


def _describe_left(run_id: str, left: list[str]) -> list[str]:
    """Return the warning about topics that were not deleted, since nothing shows that a drill has created them."""
    if not left:
        return []
    names = ", ".join(left[:MAX_LIST])
    return [
        f"topics of run {run_id} do not carry its mark and were left: {names}: look at them, and delete them by hand"
    ]


def _of_cycle(scope: DrillScope) -> dict[str, int]:
    """Return the facts about the cycle, as it is when this drill is good."""
    cycle, sample = scope.cycle, scope.sample
    if cycle is None or sample is None:
        return {}
    after = cycle.after(sample)
    return {
        "total": sample.total,
        "cycle": after.number,
        "drilled": min(sample.total, len(after.done)),
        "runs": cycle.runs(sample.total),
    }


def _clean_up(context: RestoreContext, topics: DrillTopics, error: BaseException) -> None:
    """Delete the topics of an attempt that has failed or was interrupted. What is left is named in the error."""
    try:
        with ControlPlane(context.connection) as control:  # the other one may have been left in mid-question
            text = " ".join(_describe_left(topics.drill.run_id, topics.delete(control)))
        _forget(context.state)
    except LogkeepError as problem:
        left = ", ".join(sorted(topics.drill.topics)[:MAX_LIST])
        text = f"The topics of the drill could not be deleted ({problem.message}): {left}"
    if text:
        log.warning("%s", text)
        if isinstance(error, LogkeepError):
            error.message = f"{error.message} {text}"


def _forget(state: RestoreState) -> None:
    """Delete what an attempt has kept to continue; the verification stays."""
    kept = [state.file(name) for name in (DOCUMENT, PAGE, DAMAGE)]
    paths = [info.path for info in state.storage.list(state.folder)]
    state.storage.delete([path for path in paths if path not in kept])


def _raise_unless_verified(facts: VerificationFacts) -> None:
    hint = f"All that was found is in {facts.report}. The topics of the drill are deleted."
    if facts.outcome == Verdict.DIFFERENT:
        raise RecordsDiffer(f"the restored topics of the drill differ from the archive: {facts.message}", hint=hint)
    if facts.outcome != Verdict.VERIFIED:
        raise RecordsNotVerified(f"the drill has not proved everything: {facts.message}", hint=hint)

"""The release of held topics by the operator, in the driver: the run that holds them is started again when
`spec.topics.holdFor` is over.

    result = run_release(request, spec, reporter, os.environ)

It changes what `logkeep release` changes. The stored result of the restore stays as it is, and is that of the release,
too: only what it says of held topics is new.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from logkeep_engine.archive.moments import moment
from logkeep_engine.contract.facts.outcome import HeldTopics
from logkeep_engine.contract.facts.values import time_of
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.restored_topics import TopicRetention
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.errors import (
    BrokerUnavailable,
    LogkeepError,
    Refused,
    SpecError,
)
from logkeep_engine.frame import DriverRun
from logkeep_engine.kafka.effective import applied_topic_configs
from logkeep_engine.log.cleanup import (
    BROKER_RETENTION_KEYS,
    is_deleted,
    least_kept,
)
from logkeep_engine.report import Reporter
from logkeep_engine.restore.claim.stored_plan import refuse_unknown
from logkeep_engine.restore.claim.takeover import RunClaim, refuse_alive
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.selection import shown
from logkeep_engine.restore.model.state import HELD_NOTE, RESULT, counted_ids
from logkeep_engine.restore.model.topics import HELD, own_configs
from logkeep_engine.restore.planning.planner import RestorePlanner
from logkeep_engine.restore.run.opening import open_run
from logkeep_engine.restore.topics.held_topics import held_until
from logkeep_engine.restore.topics.hold_notes import Retention, held_by_ended, is_released, note_released, noted
from logkeep_engine.restore.topics.retention import (
    RestoredTopic,
    RetentionLoss,
    TargetRetention,
    going,
    lacks_own,
    released_configs,
    source_defaults,
)


class ReleaseOutcome(StrEnum):
    """The outcome of a topic. `ReleasedBefore`: it has the retention that it is to have. `NotHeld`: it was given
    another one, or another run holds it. `Gone`: it was deleted, or another topic has its name. The topic
    is left as it is then."""

    RELEASED = "Released"
    RELEASED_BEFORE = "ReleasedBefore"
    NOT_HELD = "NotHeld"
    GONE = "Gone"


@dataclass(frozen=True, slots=True)
class ReleasedTopic:
    """A topic of a restore, with the retention that it gets, and the records that it deletes then at most."""

    topic: str
    outcome: ReleaseOutcome
    retention: Retention
    goes: RetentionLoss | None

    def to_json(self) -> dict[str, Any]:
        """Return the row of a document."""
        goes = self.goes
        return {
            "topic": self.topic,
            "outcome": self.outcome.value,
            "retention": dict(self.retention),
            "deletesAtMost": 0 if goes is None else goes.records,
            "oldest": None if goes is None else moment(goes.oldest) or None,
        }


_HAVE_IT = (ReleaseOutcome.RELEASED, ReleaseOutcome.RELEASED_BEFORE)


def run_release(
    request: RunRequest, spec: KafkaRestoreSpec, reporter: Reporter, environ: Mapping[str, str]
) -> RunResult:
    """Release the topics that the run of the request holds. Its result says how many have their retention now, and
    which have not.

    Never raises for what happens in a run: every error becomes a result with its exit code.
    """
    return _Release(request, spec, reporter, environ).perform()


def released(found: Sequence[ReleasedTopic]) -> HeldTopics:
    """Return the topics that a run has held, after their release."""
    left = [f"{item.topic}: {item.outcome.value}" for item in found if item.outcome not in _HAVE_IT]
    names = sorted(item.topic for item in found)
    return HeldTopics(
        topics=len(found),
        topic_list=tuple(names),
        released=len(found) - len(left),
        not_released_list=tuple(sorted(left)),
        released_time=time_of(time.time()),
    )


class _Release(DriverRun):
    """The release of the topics of one run."""

    def __init__(
        self, request: RunRequest, spec: KafkaRestoreSpec, reporter: Reporter, environ: Mapping[str, str]
    ) -> None:
        super().__init__(request.run_id, request.kind, time.time(), request.requested_by)
        self._spec = spec
        self._anchor = request.anchor
        self._reporter = reporter
        self._environ = environ
        self._done: RunResult | None = None

    def execute(self) -> None:
        self._reporter.phase("Finishing")
        with open_run(self._spec, self._run_id, self._environ, self._anchor) as context:
            found, done = release(context, in_time=True), context.state.success()
        if done is not None:  # else nothing would have been released
            self._done = replace(done, held_topics=released(found))

    def result(self) -> RunResult:
        return self._done or super().result()

    def give_up(self, error: BaseException, result: RunResult) -> None:
        """Note nothing: what brokers say of the topics tells what is left to do."""


def release(context: RestoreContext, *, dry_run: bool = False, in_time: bool = False) -> list[ReleasedTopic]:
    """Give the topics of a run their retention; with `dry_run` only tell what would become of them. A release that was
    interrupted is done again. One that was done is noted: another run may hold the topics since. With `in_time`
    nothing is released before `spec.topics.holdFor` is over.

    Raises SpecError if the run has not succeeded or holds nothing, Refused if it is too early, RestoreBusy if the run
    is still running, StateAltered if what is noted of it is not borne out, and what brokers raise.
    """
    context, planned = _planned(context, in_time=in_time)
    target = least_kept(context.control.configs_of_brokers(BROKER_RETENTION_KEYS))
    own = context.control.topic_configs([topic.target for topic in planned.plan.topics])
    wanted = _retentions(context, planned, target, own)
    outcomes, found = _outcomes(context, planned, own, wanted), []
    for topic in planned.plan.topics:
        outcome, retention = outcomes[topic.target], wanted[topic.target]
        goes = None
        if outcome is ReleaseOutcome.RELEASED:
            then = {key: value for key, value in own[topic.target].items() if key not in HELD}
            then |= {key: value for key, value in retention.items() if value is not None}
            restored = RestoredTopic.of_plan(planned.archived, topic)
            now_ms = int(time.time() * 1000)
            goes = going(planned.archived, restored, TargetRetention.of(then, target), planned.plan.point, now_ms)
        found.append(ReleasedTopic(topic.target, outcome, retention, goes))
    if not dry_run:
        _apply(context, [item for item in found if item.outcome is ReleaseOutcome.RELEASED])
        note_released(context.state)
    return found


def _planned(context: RestoreContext, *, in_time: bool) -> tuple[RestoreContext, Planned]:
    """Return the context and the plan of the run that has written the topics."""
    state = context.state
    try:
        state.file(RESULT)
    except ValueError as error:
        raise SpecError(str(error), hint="Name the run of a restore.") from error
    if context.spec.topics.retention is not TopicRetention.HOLD:
        raise SpecError(
            "spec.topics.retention: only a restore with Hold holds topics",
            hint="Give the command the file of the restore that the run was started with.",
        )
    refuse_alive(RunClaim.after(state, state).last)
    done = state.success()
    if done is None:
        refuse_unknown(state)
        raise SpecError(
            f"run {context.run_id} has not succeeded: its topics may lack records",
            hint="Let the run end. To give it up, set retention.ms and retention.bytes on its topics by hand: "
            f"{state.name(HELD_NOTE)} has the values of those that existed before.",
        )
    if in_time:
        _refuse_early(context.spec, done)
    run_id = done.earlier_run or done.run_id
    context = replace(context, run_id=run_id, state=state.of_run(run_id))
    return context, RestorePlanner(context).load_claimed(found=done.earlier_run is not None)


def _refuse_early(spec: KafkaRestoreSpec, done: RunResult) -> None:
    until = held_until(spec, done)
    if until is None:
        raise SpecError(
            "spec.topics.holdFor: without it topics are held until you release them",
            hint="Set the field, or use `logkeep release`.",
        )
    now = time.time()
    if now < until:
        raise Refused(
            f"run {done.run_id} holds its topics until {moment(until * 1000)}, and this node's clock says "
            f"{moment(int(now * 1000))}: nothing was released",
            hint="Compare the clocks of the nodes. To release the topics earlier, use `logkeep release`.",
        )


def _retentions(
    context: RestoreContext, planned: Planned, target: Mapping[str, str], own: Mapping[str, Mapping[str, str]]
) -> dict[str, Retention]:
    """Return the retention that each topic gets. `own` are the configurations that were set on the topics themselves.
    Raises SpecError if it cannot be known."""
    topics, wanted = planned.plan.topics, context.spec.topics.configs
    before = noted(context.state, [topic for topic in topics if not topic.created])
    source, unknown = source_defaults(context.archive, planned.archived, context.spec.point)
    found: dict[str, Retention] = {}
    for topic in topics:
        entry = planned.archived.topics[topic.topic_id]
        if topic.created and unknown and lacks_own(entry, wanted):
            raise SpecError(
                f"topic {topic.target} has no retention of its own, but {unknown[0]}",
                hint="Set retention.ms and retention.bytes on the topic by hand: it is then no longer held.",
            )
        is_new = topic.created
        found[topic.target] = released_configs(entry, wanted, source, target) if is_new else before[topic.target]
        archived, there = own_configs(entry.configs, wanted), {**target, **own.get(topic.target, {})}
        if is_new and not is_deleted(archived) and is_deleted(there):
            found[topic.target] = HELD  # the cluster has not taken the policy that deletes nothing
    return found


def _outcomes(
    context: RestoreContext,
    planned: Planned,
    own: Mapping[str, Mapping[str, str]],
    wanted: Mapping[str, Retention],
) -> dict[str, ReleaseOutcome]:
    """Return the outcome of each topic. `own` are the configurations that were set on the topics themselves, `wanted`
    what the release gives them."""
    topics = planned.plan.topics
    ids = counted_ids(context.state) | {topic.target: topic.target_id for topic in topics if topic.target_id}
    there = context.control.topic_ids(topic.target for topic in topics)
    before = is_released(context.state)
    others = held_by_ended(context, there, own)
    found = {}
    for topic in topics:
        name = topic.target
        if name not in own or name not in there or ids.get(name, there[name]) != there[name]:
            found[name] = ReleaseOutcome.GONE
        elif HELD.items() <= own[name].items() and not before and name not in others:
            found[name] = ReleaseOutcome.RELEASED
        else:  # another run may hold it; a release that was interrupted has done a part of them
            done = all(own[name].get(key) == value for key, value in wanted[name].items())
            found[name] = ReleaseOutcome.RELEASED_BEFORE if done else ReleaseOutcome.NOT_HELD
    return found


def _apply(context: RestoreContext, topics: list[ReleasedTopic]) -> None:
    for number, item in enumerate(topics):
        values = {key: value for key, value in item.retention.items() if value is not None}
        try:
            context.control.alter_topic_configs(item.topic, values, sorted(set(item.retention) - set(values)))
        except LogkeepError as error:
            if number and error.exit_code == ExitCode.REFUSED:  # which says that nothing was changed
                error.exit_code = ExitCode.INCOMPLETE
            raise
    _, late = applied_topic_configs(context.control, {item.topic: dict(item.retention) for item in topics})
    if late:
        raise BrokerUnavailable(
            f"{shown(late)}: the retention was set, but the brokers still report another one.",
            hint="Look at retention.ms and retention.bytes of the topics once the brokers are healthy.",
        )

"""The run that has done a restore before, found by what the restore asks for.

A KafkaRestore that is deleted and created again, as GitOps does it, is another resource and so another run. It must not
restore again what has been restored. So a run first notes its id in `runs/of-<digest>/restore.json` in place of its
state. The digest is over the name of the restore, everything that decides what is restored to where, the archive and
the Kafka cluster. The note says no more than which run it was: how that run ended is in its own `result.json`, which is
there before a success is reported.

A Kafka cluster that was lost may be made again under its old id: Strimzi does so, and installations that write the id
down. Its topics are gone then. And a user who may write to the place of the state could have put a note there. So a
run that finds that a restore was done derives its plan again, and asks the brokers whether they have what it says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from logkeep_engine.archive.names import check_run_id, run_file
from logkeep_engine.contract.restore_spec import IfTopicExists, KafkaRestoreSpec
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import ObjectMissing, RestoreUnfinished, TargetChanged, by_place
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.restore.model.context import Planned
from logkeep_engine.restore.model.plan import NO_TASK, RestorePlan, spec_digest
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.sending.evidence import lacking
from logkeep_engine.storage import NOTE_BYTES
from logkeep_engine.stored import reading

RUN_NOTE = StoredDocument("note of a run", 1, {"runId": str}, most=NOTE_BYTES)
FILE = "restore.json"


@dataclass(frozen=True)
class RestoreKey:
    """The key by which the run of a restore is found: what is restored, from which archive, to which cluster.

    `name` is the resource's, with the value for which it is asked to run again. None: whatever resource asks for it,
    and whatever it does with topics that are there.
    """

    name: str | None
    spec_digest: str
    archive_id: str
    cluster_id: str

    @classmethod
    def of(cls, spec: KafkaRestoreSpec, archive_id: str, cluster_id: str, name: str | None = None) -> RestoreKey:
        """Make the key of a restore that the resource `name` asks for, or of one that anybody has begun."""
        if name is None:
            spec = spec.model_copy(update={"if_topic_exists": IfTopicExists.FAIL, "confirm": ()})
        return cls(name, spec_digest(spec), archive_id, cluster_id)

    @property
    def path(self) -> str:
        """The object that names the run of this restore."""
        named = () if self.name is None else (self.name,)
        digest = hashlib.sha256("\0".join((*named, self.spec_digest, self.archive_id, self.cluster_id)).encode())
        return run_file(f"{'begun' if self.name is None else 'of'}-{digest.hexdigest()[:32]}", FILE)


def begin(asked: RestoreKey, state: RestoreState, if_topic_exists: IfTopicExists) -> RunResult | None:
    """Return the result of the run that has done this restore before. If there is none, the run of `state` is noted as
    the one that does it.

    Raises as `found_before`.
    """
    known = noted_run(asked.path, state)
    result = _result_of(known, asked, state, if_topic_exists)
    if result is None and known != state.run_id:
        state.storage.put(asked.path, RUN_NOTE.dumps({"runId": state.run_id}))
    return result


def found_before(asked: RestoreKey, state: RestoreState, if_topic_exists: IfTopicExists) -> RunResult | None:
    """Return the result of the run that has done this restore before, None if there is none. Nothing is noted.

    Raises RestoreUnfinished if another run has begun to append and has not succeeded: what it has written is not known
    to this run, which would write it again.
    """
    return _result_of(noted_run(asked.path, state), asked, state, if_topic_exists)


def _result_of(
    known: str | None, asked: RestoreKey, state: RestoreState, if_topic_exists: IfTopicExists
) -> RunResult | None:
    if known is not None and known != state.run_id:
        other = state.of_run(known)
        result = other.success()
        if result is not None and result.archive_id == asked.archive_id:
            return result
        if if_topic_exists is IfTopicExists.APPEND and other.is_planned():
            raise RestoreUnfinished(
                f"Run {known} of {asked.name} has begun to append to its topics and has not succeeded. It is unknown "
                "to this run what that one has written, and it would write it again.",
                hint=f"Finish that run with `logkeep restore --run-id {known}`, or continue it in another KafkaRestore "
                "with ifTopicExists: Resume. Or request a separate run with a new value of the annotation "
                "logkeep.dev/run-again, after you have looked at the topics.",
            )
    return None


def check_still_there(earlier: RunResult, planned: Planned, ids: Mapping[str, str], control: ControlPlane) -> None:
    """Check that the cluster has what the `earlier` run says that it has restored: the topics of its plan, each with at
    least as many records as the archive gives it. `ids` are those of the topics that it has noted.

    Raises TargetChanged: topics were deleted since, this is another cluster with the same id, or the note that
    the restore was done is forged.
    """
    plan = planned.plan
    there = control.topic_ids(topic.target for topic in plan.topics)
    lost = lost_topics(plan, there)
    topics = so_many(len(plan.topics), "topic")
    are = "is" if len(lost) == 1 else "are"
    what = f"of its {topics} {len(lost)} {are} not there, the first is {lost[0]!r}" if lost else ""
    if not what and earlier.records:
        starts = {
            (topic.target, part.target): part.start
            for topic in plan.topics
            for part in topic.partitions
            if part.producer_id != NO_TASK
        }
        ends = control.latest_offsets(starts)
        if all(ends.get(where, 0) <= start for where, start in starts.items()):
            what = f"its {topics} {'holds' if len(plan.topics) == 1 else 'hold'} nothing of it"
    what = what or lacking(planned, control)
    others = other_topics(ids, there)
    if not what and others:
        what = f"topic {others[0]!r} is not the one that it has filled"
    if what:
        raise TargetChanged(
            f"run {earlier.run_id} has done this restore into Kafka cluster {plan.cluster_id}, but {what}",
            hint="Topics have been deleted since, the cluster was created again under its old id, or the "
            "state of the restore was altered. To restore once more, "
            + by_place("give the annotation logkeep.dev/run-again a new value.", "take another --run-id."),
        )


def lost_topics(plan: RestorePlan, there: Mapping[str, str]) -> list[str]:
    """Return the targets of a plan that are not `there`, the ids of topics by their names, or have another id than the
    plan."""
    return [
        topic.target
        for topic in plan.topics
        if topic.target not in there or topic.target_id not in ("", there[topic.target])
    ]


def other_topics(ids: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return the topics that have other ids `there` than a run has noted."""
    return sorted(name for name, topic_id in ids.items() if there.get(name, topic_id) != topic_id)


def noted_run(path: str, state: RestoreState) -> str | None:
    """Return the run that an object in place of the state names, if it is there. Raises ArchiveMismatch and
    ArchiveDamaged."""
    try:
        data = state.storage.read(path, most=RUN_NOTE.most)
    except ObjectMissing:
        return None
    hint = "The object was altered. Find out whether this restore was done before. If it was not, delete the object."
    with reading(RUN_NOTE, data, f"{state.storage.uri}/{path}", hint=hint) as note:
        check_run_id(note["runId"])
        return str(note["runId"])

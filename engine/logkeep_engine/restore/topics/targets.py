"""Creates topics with a working configuration, gives them their own at the end, and checks that topics that were there
before are still the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.restored_topics import RestoreTopics
from logkeep_engine.errors import BrokerUnavailable, Refused, TargetChanged, TopicExists, TopicGone
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.effective import applied_topic_configs
from logkeep_engine.kafka.topics import NewTopicPlan
from logkeep_engine.kafka.witnesses import Fate
from logkeep_engine.log.cleanup import POLICY, RETENTION_KEYS
from logkeep_engine.restore.model.plan import RestorePlan, TopicPlan
from logkeep_engine.restore.model.topics import (
    MARK_KEY,
    describe_refused_key,
    ending_configs,
    final_configs,
    kept_instead,
    topic_facts,
    topic_segments,
    working_configs,
)
from logkeep_engine.restore.topics.replacing import delete_replaced
from logkeep_engine.restore.topics.retention import RestoredTopic, TargetRetention, going

_PATIENCE = 30.0
_PAUSE = 0.2


class CreatedTopics:
    """The topics that one run creates, as `spec.topics` says. `mark` is set besides, from the creation on, and
    stays."""

    def __init__(
        self,
        control: ControlPlane,
        state: ArchiveState,
        wanted: RestoreTopics,
        mark: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._control = control
        self._state = state
        self._wanted = wanted
        self._mark = mark

    def create(self, plan: RestorePlan, *, fresh: bool) -> None:
        """Create the topics with a configuration that takes every batch as it is and deletes nothing.

        Topics that they replace are deleted first. If the plan is not `fresh`, an earlier start of the run may have
        created some. Raises TopicExists for a topic that another client has created.
        """
        delete_replaced(self._control, plan)
        wanted = self.wanted(plan.topics)
        if not fresh:
            wanted = self.missing(wanted)
        deadline = time.monotonic() + _PATIENCE
        while wanted:
            try:
                self._control.create_topics(wanted)
            except TopicExists:
                if fresh or time.monotonic() > deadline:
                    raise
                # The controller knows what an earlier start has created; the broker that was asked may learn it later.
                time.sleep(_PAUSE)
                wanted = self.missing(wanted)
            else:
                return

    def wanted(self, topics: Iterable[TopicPlan]) -> list[NewTopicPlan]:
        """Return those of the topics that this run creates, with the configuration that they get at first."""
        return [
            NewTopicPlan(topic.target, topic.partition_count, topic.replication_factor, self._working(topic))
            for topic in topics
            if topic.created
        ]

    def own(self, topic: TopicPlan) -> dict[str, str]:
        """Return the configuration that a created topic gets at the end."""
        return ending_configs(self._state.topics[topic.topic_id].configs, self._wanted)

    def missing(self, wanted: Sequence[NewTopicPlan]) -> list[NewTopicPlan]:
        """Return the topics of these that brokers do not know. Raises TopicExists for one that this run has not
        created."""
        there = {topic.name: len(topic.partitions) for topic in self._control.topics()}
        configs = self._control.topic_configs([topic.name for topic in wanted if topic.name in there])
        missing = []
        for topic in wanted:
            if topic.name not in configs:
                missing.append(topic)
            elif there[topic.name] != topic.partitions or not topic.configs.items() <= configs[topic.name].items():
                raise TopicExists(
                    f"topic {topic.name!r} exists, and this restore has not created it: its partitions or its "
                    "configuration differ",
                    hint="Delete it and start the run again, or begin a new restore under another name.",
                )
        return missing

    def finish(self, plan: RestorePlan, *, fresh: bool) -> list[str]:
        """Give created topics their own configuration; returns what the user should know of it. If the plan is not
        `fresh`, only topics that still carry the working configuration are changed: an earlier start has finished the
        others, or the run has not created them, whatever its state says."""
        created = [topic for topic in plan.topics if topic.created]
        lines, working = ([], created) if fresh else self._divided(created)
        warnings, set_keys = self._set_own_configs(working)
        warnings = [*lines, *warnings]
        nothing: dict[str, str | None] = {}
        own = {topic.target: set_keys.get(topic.target, nothing) for topic in plan.topics}
        configs, late = applied_topic_configs(self._control, own)
        warnings += [
            f"topic {name}: its configuration was set, but the brokers still report another one: check its "
            f"{', '.join(RETENTION_KEYS)} before you use it"
            for name in late
        ]
        warnings += self._describe_deletions(plan, configs)
        for topic in created:
            wanted = self._state.topics[topic.topic_id].replication_factor
            if topic.replication_factor < wanted and self._wanted.replication_factor is None:
                warnings.append(
                    f"topic {topic.target}: {topic.replication_factor} replicas instead of {wanted}: an earlier "
                    "version planned this run, and counted only the brokers that were alive then"
                )
        return warnings

    def _describe_deletions(self, plan: RestorePlan, configs: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Return the warnings about records that topics delete by the configuration that brokers report, except those
        that the plan has. A drill deletes its topics, and has them in its plan alone."""
        if self._mark:
            return []
        found, now_ms = [], int(time.time() * 1000)
        before = self._control.topic_configs([topic.target for topic in plan.topics if not topic.created])
        for topic in plan.topics:
            there = configs.get(topic.target, {})
            own = self.own(topic) if topic.created else before.get(topic.target, {})
            retention = TargetRetention.of({key: value for key, value in there.items() if key in own}, there)
            restored = RestoredTopic.of_plan(self._state, topic)
            goes = going(self._state, restored, retention, plan.point, now_ms) if there else None
            if goes is not None and not any(known.startswith(goes.why) for known in plan.warnings):
                found.append(str(goes))
        return found

    def _divided(self, created: Sequence[TopicPlan]) -> tuple[list[str], list[TopicPlan]]:
        """Return the topics of these that still carry the working configuration, by the key that is taken from it last,
        and warnings about others that do not have the configuration that they should get."""
        configs = self._control.topic_configs([topic.target for topic in created])
        warnings, working = [], []
        for topic in created:
            there = configs.get(topic.target, {})
            if there.get(MARK_KEY) == self._working(topic)[MARK_KEY]:
                working.append(topic)
            elif other := sorted(key for key, value in self.own(topic).items() if there.get(key) != value):
                warnings.append(
                    f"topic {topic.target}: its configuration is not the one that this restore has given it, so it was "
                    f"left as it is; {', '.join(other)} would differ"
                )
        return warnings, working

    def _set_own_configs(self, created: Sequence[TopicPlan]) -> tuple[list[str], dict[str, dict[str, str | None]]]:
        """Set on each topic its own configuration. Returns a warning for each key that could not be set, and, by
        topic, the keys of RETENTION_KEYS that were set (None: taken back to the default).
        """
        warnings: list[str] = []
        set_keys: dict[str, dict[str, str | None]] = {}
        for topic in created:
            wanted = {**self.own(topic), **self._mark}
            own, gone = final_configs(wanted, self._working(topic))
            refused: dict[str, str] = {}
            try:
                self._control.alter_topic_configs(topic.target, own, gone)
            except Refused:
                own, gone, refused = self._set_one_by_one(topic.target, own, gone)
                warnings += refused.values()
            changed = {**own, **dict.fromkeys(gone)}
            set_keys[topic.target] = {
                key: changed[key] for key in RETENTION_KEYS if key in changed and key not in refused
            }
        return warnings, set_keys

    def _set_one_by_one(
        self, name: str, own: Mapping[str, str], gone: Sequence[str]
    ) -> tuple[dict[str, str], list[str], dict[str, str]]:
        """Set as much as the cluster knows and allows of the topic's configuration. Returns the keys that were set or
        tried, those that were taken back to the default, and a warning for each key that could not be set.
        """
        warnings: dict[str, str] = {}
        wanted = dict(own)
        # The policy comes first: whether the cluster takes it says which retention the topic needs.
        for key in sorted(own, key=lambda key: (key == MARK_KEY, key != POLICY)):
            try:
                self._control.alter_topic_configs(name, {key: wanted[key]})
            except Refused as error:
                warnings[key] = describe_refused_key(name, key, own, error.message)
                wanted |= kept_instead(key, own)
        left = [key for key in gone if key not in wanted]
        self._control.alter_topic_configs(name, {key: wanted[key] for key in wanted if key not in own}, left)
        return wanted, left, warnings

    def _working(self, topic: TopicPlan) -> dict[str, str]:
        facts = topic_facts(topic_segments(self._state, self._state.topics[topic.topic_id]))
        return {**working_configs(facts), **self._mark}


def check_created(control: ControlPlane, topics: Sequence[NewTopicPlan]) -> None:
    """Check that topics of these names can be created with this configuration, which the user has chosen for all of
    them.

    Raises Refused for the key that brokers do not take, TargetUnsuitable and BrokerUnavailable for replicas that there
    cannot be. Nothing is created.
    """
    if not topics:
        return
    largest = max(topics, key=lambda topic: topic.replication_factor)
    control.check_replicas(largest.name, largest.replication_factor)
    first = replace(topics[0], partitions=1)
    problem = control.refusal(first) if first.configs else None
    if not isinstance(problem, Refused):
        return  # any other problem is reported when it is created
    for key, value in first.configs.items():
        alone = control.refusal(replace(first, configs={key: value}))
        if isinstance(alone, Refused):
            problem = alone
            break
    raise Refused(
        f"spec.topics.configs.override: {problem.message} Nothing was written.",
        hint="Change the key or its value: the cluster does not take it for a topic.",
    ) from problem


def check_same(control: ControlPlane, plan: RestorePlan) -> None:
    """Check that topics that were there before the run are still the same.

    Records go with the topic to which they were written, and another topic of its name may have the same offsets and
    leader epochs.

    Raises TargetChanged, TopicGone, and BrokerUnavailable if it cannot be known.
    """
    ids = {topic.target: topic.target_id for topic in plan.topics if topic.target_id}
    check_ids(control, ids, "this restore was planned for")


def check_ids(control: ControlPlane, ids: Mapping[str, str], which: str) -> None:
    """Check that the topics of these names still have these ids. `which` says to people which topic each was.

    Raises as `check_same`.
    """
    if not ids:
        return
    for name, standing in control.standings(ids).items():
        if standing.fate is Fate.RECREATED:
            raise TargetChanged(
                f"topic {name!r} is not the topic {which} ({ids[name]}): it was deleted and created again",
                hint="Start a new restore under another run id. Delete before it what this one may have written to "
                "the topic since.",
            )
        if standing.fate is Fate.GONE:
            raise TopicGone(
                f"topic {name!r} is gone: it is the topic {which}",
                hint="It was deleted: start a new restore under another run id.",
            )
        if standing.fate is Fate.NOT_KNOWN or standing.contested:
            reason = standing.reason or "brokers do not agree on its topic id"
            raise BrokerUnavailable(
                f"It is unknown whether topic {name!r} is the topic {which}: {reason}.",
                hint="Check that the brokers are healthy and that this user may describe the topic, then start the "
                "same run again: it continues from here.",
            )

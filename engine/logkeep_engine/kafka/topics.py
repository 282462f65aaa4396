"""Topics of a cluster: which there are, their configurations, and how they are created and deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, NewTopic, ResourceType

from logkeep_engine import collector
from logkeep_engine.errors import (
    BrokerRefused,
    BrokerUnavailable,
    LogkeepError,
    Refused,
    TargetUnsuitable,
    TopicExists,
)
from logkeep_engine.kafka.admin import UNREACHABLE, Admin
from logkeep_engine.kafka.codes import GONE, RETRIABLE, Code
from logkeep_engine.kafka.queries import TopicView, delete_topics
from logkeep_engine.kafka.retry import BrokerTrouble
from logkeep_engine.kafka.survey import Survey, in_parts
from logkeep_engine.log.cleanup import is_compacted

log = logging.getLogger(__name__)

_TOPICS_A_REQUEST = 500
# The library gives the number, its types say the member. To make a member of each number takes as long as the answer.
_OWN = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
_OF_BROKERS = frozenset(
    number
    for source in (
        ConfigSource.DYNAMIC_BROKER_CONFIG,
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        ConfigSource.STATIC_BROKER_CONFIG,
    )
    for number in (source, source.value)
)
_NO_WAIT_MS = 1000  # brokers may answer before all topics are gone: whoever deletes them looks
_CONTROLLER_ATTEMPTS = 4  # for a change that only the controller can make, within the time for one question


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """`leader` and `replicas` are broker ids; leader -1 if there is none now."""

    id: int
    leader: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """`topic_id` as Kafka prints it (URL-safe base64, 22 characters); partitions by rising id. `readable` is False
    where a broker that was asked for all topics says that the user may not read it, and `deletable` where it says that
    the user may not delete it.
    """

    name: str
    topic_id: str
    partitions: tuple[PartitionInfo, ...]
    replication_factor: int
    internal: bool
    readable: bool = True
    deletable: bool = True


@dataclass(frozen=True, slots=True)
class NewTopicPlan:
    """`replication_factor` -1 takes the broker's default."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


class TopicAdmin(Admin):
    """Questions and orders about topics."""

    def topics(self) -> list[TopicInfo]:
        """All topics this user may describe, by name."""
        found, silent = self.list_topics()
        self._refuse_silent(silent)
        return found

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Topic ids by name; names without a topic are absent."""
        return {topic.name: topic.topic_id for topic in self._describe(sorted(set(names)))}

    def list_topics(self, names: Sequence[str] | None = None) -> tuple[list[TopicInfo], dict[str, str]]:
        """The topics with these names that exist, or all topics, by name. Besides, the topics that a broker knows but
        cannot describe, with the reason.
        """

        async def ask(survey: Survey) -> list[TopicView]:
            views = await survey.topics(names)
            for view in views:
                if view.code in RETRIABLE and survey.time_left():
                    raise BrokerTrouble(f"topic {view.name!r}: {Code.name_of(view.code)}")
            return views

        with collector.paused():
            views = self._ask(ask, "list topics" if names is None else "describe topics")
            for view in views:
                if view.code != Code.NONE and view.code not in GONE | RETRIABLE:
                    problem = KafkaException(KafkaError(view.code))
                    raise self._error(problem, f"describe topic {view.name!r} (ACL DESCRIBE)")
            found = [_topic_info(view) for view in views if view.code == Code.NONE]
            silent = {view.name: Code.name_of(view.code) for view in views if view.code in RETRIABLE}
            return found, silent

    def undescribable(self, names: Sequence[str]) -> list[str]:
        """The topics among these that the user may not describe (ACL DESCRIBE), whether they exist or not."""
        views = self._ask(lambda survey: survey.topics(names), "describe topics")
        return [view.name for view in views if view.code == Code.TOPIC_AUTHORIZATION_FAILED]

    def _describe(self, names: Sequence[str]) -> list[TopicInfo]:
        found, silent = self.list_topics(names)
        self._refuse_silent(silent)
        return found

    def _refuse_silent(self, silent: Mapping[str, str]) -> None:
        for name, reason in silent.items():
            raise BrokerUnavailable(
                f"Cannot describe topic {name!r}: {reason}. Tried for {self._timeout:.0f} s.",
                hint="Check that the brokers are healthy.",
            )

    def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The configurations that were set on each topic itself, and `cleanup.policy` also if the brokers' default
        compacts the topic. Other defaults of the brokers are left out.

        Needs the ACL DESCRIBE_CONFIGS on the topics.
        """
        return {
            topic: dict(
                sorted(
                    (name, entry.value)
                    for name, entry in entries.items()
                    if entry.value is not None and (is_own(entry) or is_compacted({name: entry.value}))
                )
            )
            for topic, entries in self.config_entries(names)
        }

    def config_entries(self, names: Iterable[str]) -> Iterator[tuple[str, Mapping[str, ConfigEntry]]]:
        """Everything that brokers say of the configuration of each topic, by name; topics that are gone are absent.

        Needs the ACL DESCRIBE_CONFIGS on the topics.
        """
        self._connect()
        for part in in_parts(sorted(set(names)), _TOPICS_A_REQUEST):
            answers = self._each(
                lambda wanted: self._client().describe_configs(wanted, request_timeout=self._attempt_timeout()),
                [ConfigResource(ResourceType.TOPIC, name) for name in part],
                lambda resource: f"read the configuration of topic {resource.name!r} (ACL DESCRIBE_CONFIGS)",
            )
            for resource, entries in answers.items():
                yield resource.name, entries

    def broker_configs(self, names: Collection[str]) -> dict[str, str]:
        """The values that a broker has for these keys, and topics by default. Empty if no broker tells: that needs the
        ACL DESCRIBE_CONFIGS on the cluster."""
        return _values(self._broker_entries() or {}, names)

    def configs_of_brokers(self, names: Collection[str]) -> list[dict[str, str]]:
        """The same of each broker that tells. They differ while somebody changes one after the other, or where somebody
        has forgotten one."""
        return [_values(entries, names) for entries in self._told_entries()]

    def broker_settings(self, wanted: Callable[[str], bool]) -> dict[str, str] | None:
        """The values that somebody has set for the brokers, of the keys that are wanted, as the first broker has them;
        None if no broker tells. Secrets are never told."""
        entries = self._broker_entries()
        if entries is None:
            return None
        return {
            name: entry.value
            for name, entry in sorted(entries.items())
            if wanted(name) and entry.value is not None and not entry.is_sensitive and entry.source in _OF_BROKERS
        }

    def _broker_entries(self) -> Mapping[str, ConfigEntry] | None:
        """The configuration of the first broker that tells it, None if none does."""
        return next(self._told_entries(), None)

    def _told_entries(self) -> Iterator[Mapping[str, ConfigEntry]]:
        """The configurations of the brokers that tell theirs."""
        for node in sorted(self._cluster().nodes, key=lambda node: int(node.id)):
            broker = ConfigResource(ResourceType.BROKER, str(node.id))
            asked = self._client().describe_configs([broker], request_timeout=self._attempt_timeout())
            entries, problem = self._outcome(asked[broker])
            if problem is None:
                yield entries
            else:
                log.info("broker %s does not report its configuration: %s", node.id, problem)

    def create_topics(self, plans: Sequence[NewTopicPlan]) -> dict[str, str]:
        """Create the topics, wait until every partition has a leader, and return their ids.

        Raises TopicExists, TargetUnsuitable (more replicas than brokers), Refused (a configuration or a name is not
        accepted); the topics that were not refused are created all the same.
        """
        self._connect()
        for part in in_parts(plans, _TOPICS_A_REQUEST):
            problems = self._ask_to_create(part)
            if problems:
                raise self._not_created(*problems[0]) from problems[0][1]
        return self._wait_for_leaders({plan.name: plan.partitions for plan in plans})

    def refused_topics(self, plans: Sequence[NewTopicPlan]) -> dict[str, LogkeepError]:
        """The topics among these that could not be created now, with the errors that `create_topics` would raise.
        Nothing is created."""
        self._connect()
        return {
            plan.name: self._not_created(plan, problem)
            for part in in_parts(plans, _TOPICS_A_REQUEST)
            for plan, problem in self._ask_to_create(part, validate_only=True)
        }

    def _ask_to_create(
        self, plans: Sequence[NewTopicPlan], *, validate_only: bool = False
    ) -> list[tuple[NewTopicPlan, KafkaException]]:
        """Those that were refused, with the reason. With `validate_only` the controller creates none."""
        asked = [
            NewTopic(
                plan.name,
                num_partitions=plan.partitions,
                replication_factor=plan.replication_factor,
                config=dict(plan.configs),
            )
            for plan in plans
        ]
        if not validate_only:
            self._permit()
        futures = self._client().create_topics(
            asked, operation_timeout=self._timeout, request_timeout=self._timeout, validate_only=validate_only
        )
        outcomes = [(plan, self._outcome(futures[plan.name])[1]) for plan in plans]
        refused = [(plan, problem) for plan, problem in outcomes if problem is not None]
        if not validate_only and len(refused) < len(outcomes):
            self.note_change()
        return refused

    def unconfigurable(self, names: Sequence[str]) -> list[str]:
        """The topics among these, whether they exist or not, whose configuration the user may not change. Nothing is
        changed."""
        self._connect()
        found = []
        for part in in_parts(sorted(set(names)), _TOPICS_A_REQUEST):
            entry = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
            wanted = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in part]
            futures = self._client().incremental_alter_configs(
                wanted, validate_only=True, request_timeout=self._timeout / _CONTROLLER_ATTEMPTS
            )
            for resource, future in futures.items():
                _, problem = self._outcome(future)
                if problem is not None and problem.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    found.append(resource.name)
        return found

    def _not_created(self, plan: NewTopicPlan, problem: KafkaException) -> LogkeepError:
        error: KafkaError = problem.args[0]
        match error.code():
            case KafkaError.TOPIC_ALREADY_EXISTS:
                return TopicExists(
                    f"Topic {plan.name!r} exists already.", hint="Rename it in the restore, delete it, or append to it."
                )
            case KafkaError.INVALID_REPLICATION_FACTOR:
                return self._too_few_brokers(plan.name, plan.replication_factor, error, self.known_brokers())
            case KafkaError.INVALID_CONFIG | KafkaError.POLICY_VIOLATION | KafkaError.TOPIC_EXCEPTION:
                settings = ", ".join(f"{name}={value}" for name, value in sorted(plan.configs.items())) or "none"
                reason = str(error.str()).rstrip(".")
                old = reason.startswith("Unknown topic config name: message.timestamp.")
                return Refused(
                    f"Topic {plan.name!r} was refused: {reason}.",
                    hint="Restores need Kafka 3.6 or newer." if old else f"Its configuration was: {settings}.",
                )
            case KafkaError.INVALID_PARTITIONS:
                return Refused(f"Topic {plan.name!r} cannot have {plan.partitions} partitions: {error.str()}.")
            case _:
                return self._error(problem, f"create topic {plan.name!r} (ACL CREATE)")

    def refusal(self, plan: NewTopicPlan) -> LogkeepError | None:
        """The error with which this topic would not be created, if brokers name one now. Nothing is created."""
        return self.refused_topics([plan]).get(plan.name)

    def known_brokers(self) -> frozenset[int]:
        """Ids of the brokers that the cluster has, also of those that are down. Controllers older than 4.0 do not tell
        them: then it is those that are alive, and those that have a replica of a topic."""
        registered = self.registered()
        if registered is not None:
            return registered
        found = {int(node.id) for node in self._cluster().nodes}
        for topic in self.list_topics()[0]:
            found.update(*(part.replicas for part in topic.partitions))
        return frozenset(found)

    def check_replicas(self, name: str, replicas: int) -> None:
        """Raises if no topic `name` with so many replicas can be created now: TargetUnsuitable if the cluster has fewer
        brokers, BrokerUnavailable if some are down and have not come back in time.

        Controllers count brokers that have died, and not those that were shut down.
        """
        self._connect()
        limits = self._connection.limits
        began = time.monotonic()
        known: frozenset[int] | None = None
        while True:
            futures = self._client().create_topics(
                [NewTopic(name, num_partitions=1, replication_factor=replicas)],
                validate_only=True,
                request_timeout=self._timeout,
            )
            _, problem = self._outcome(futures[name])
            error: KafkaError | None = None if problem is None else problem.args[0]
            if error is None or error.code() != KafkaError.INVALID_REPLICATION_FACTOR:
                return  # what else there may be is told when it is created
            known = self.known_brokers() if known is None else known
            if len(known) < replicas or time.monotonic() - began > limits.outage:
                raise self._too_few_brokers(name, replicas, error, known)
            time.sleep(limits.control_pause)

    def _too_few_brokers(self, name: str, replicas: int, error: KafkaError, known: frozenset[int]) -> LogkeepError:
        message = f"Topic {name!r} cannot have {replicas} replicas: {error.str()}"
        fewer = "If fewer replicas will do, set spec.topics.replicationFactor to fewer."
        if len(known) < replicas:
            return TargetUnsuitable(message, hint=f"Brokers of the cluster: {len(known)}. {fewer}")
        alive = self.broker_count()
        return BrokerUnavailable(
            message,
            hint=f"The cluster has {len(known)} brokers, and {alive} are alive: wait for the others, and try again. "
            f"{fewer}",
        )

    def _wait_for_leaders(self, wanted: Mapping[str, int]) -> dict[str, str]:
        deadline = time.monotonic() + self._timeout
        ids: dict[str, str] = {}
        while True:
            for topic in self._describe([name for name in wanted if name not in ids]):
                led = all(part.leader >= 0 for part in topic.partitions)
                if len(topic.partitions) == wanted[topic.name] and led:
                    ids[topic.name] = topic.topic_id
            missing = sorted(set(wanted) - set(ids))
            if not missing:
                return ids
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"Topic {missing[0]!r} was created, but not all of its partitions have a leader "
                    f"after {self._timeout:.0f} s.",
                    hint="Check that the brokers are healthy.",
                )
            time.sleep(self._connection.limits.control_pause)

    def alter_topic_configs(self, name: str, set: Mapping[str, str], delete: Iterable[str] = ()) -> None:
        """Set some configurations of a topic and take others back to the default; the rest stays.

        Raises TopicGone, Refused (a configuration is not accepted; none is changed then).
        """
        entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in set.items()]
        entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in delete]
        if not entries:
            return
        self._connect()
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        what = f"change the configuration of topic {name!r} (ACL ALTER_CONFIGS)"
        deadline = time.monotonic() + self._timeout
        while True:
            self._permit()
            futures = self._client().incremental_alter_configs(
                [resource], request_timeout=self._timeout / _CONTROLLER_ATTEMPTS
            )
            _, problem = self._outcome(futures[resource])
            if problem is None:
                self.note_change()
                return
            error: KafkaError = problem.args[0]
            if error.code() not in UNREACHABLE or time.monotonic() > deadline:
                break
            self._begin_again()  # librdkafka keeps waiting for the controller that it knows, even if that has died
        if error.code() in (KafkaError.INVALID_CONFIG, KafkaError.INVALID_REQUEST, KafkaError.POLICY_VIOLATION):
            raise Refused(
                f"Cannot {what}: {error.str()}.",
                hint="Tried to set " + ", ".join(f"{entry.name}={entry.value}" for entry in entries) + ".",
            ) from problem
        raise self._error(problem, what) from problem

    def delete_topic_ids(self, topics: Mapping[str, str]) -> None:
        """Delete the topics with these ids, by name, and wait until they are gone. Another topic that has the name of
        one of them stays, and so does each that is gone already.

        Raises BrokerRefused, and BrokerUnavailable if one of them is still there after the time for a question.
        """
        names = {topic_id: name for name, topic_id in topics.items()}
        for part in in_parts(sorted(names), _TOPICS_A_REQUEST):
            self._permit()
            self._ask(partial(_delete, names=names, ids=part), "delete topics")
            self.note_change()
        deadline = time.monotonic() + self._timeout
        while left := sorted(name for name, there in self.topic_ids(topics).items() if there == topics[name]):
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"Topic {left[0]!r} was deleted, and brokers still report it after {self._timeout:.0f} s.",
                    hint="Check that the brokers are healthy.",
                )
            time.sleep(self._connection.limits.control_pause)


async def _delete(survey: Survey, *, names: Mapping[str, str], ids: Sequence[str]) -> None:
    """Delete topics by their ids. `names` has the name of each id, for messages."""
    node = survey.pool.any_node()  # brokers hand the request to the controller
    answer = await survey.pool.ask(node, delete_topics(ids, timeout_ms=_NO_WAIT_MS))
    for topic_id in ids:
        code = answer.codes.get(topic_id, Code.REQUEST_TIMED_OUT)
        if code in (Code.NONE, *GONE):
            continue
        told = f"delete topic {names[topic_id]!r}: {Code.name_of(code)}"
        if code == Code.NOT_CONTROLLER or code in RETRIABLE:
            raise BrokerTrouble(told)
        raise BrokerRefused(
            f"Cannot {told}.",
            hint="Give the user the ACL DELETE on the topic, and let the brokers have delete.topic.enable=true.",
        )


def _topic_info(view: TopicView) -> TopicInfo:
    partitions = tuple(
        PartitionInfo(number, part.leader, part.replicas) for number, part in sorted(view.partitions.items())
    )
    replicas = max((len(part.replicas) for part in partitions), default=0)
    return TopicInfo(view.name, view.topic_id, partitions, replicas, view.internal, view.readable, view.deletable)


def _values(entries: Mapping[str, ConfigEntry], names: Iterable[str]) -> dict[str, str]:
    found = ((name, entries[name].value) for name in names if name in entries)
    return {name: value for name, value in found if value is not None}


def is_own(entry: ConfigEntry) -> bool:
    """Whether the value was set on the topic itself, and is no default of the brokers."""
    return entry.source in _OWN

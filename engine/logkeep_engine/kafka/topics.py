"""Topics of a cluster: which there are, their configurations, and how they are created and deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from logkeep_engine import collector
from logkeep_engine.errors import (
    BrokerRefused,
    BrokerUnavailable,
    LogkeepError,
    Refused,
    TargetUnsuitable,
    TopicExists,
)
from logkeep_engine.kafka.admin import ATTEMPTS, Admin
from logkeep_engine.kafka.codes import GONE, PASSING, RETRIABLE, UNREACHABLE, Code
from logkeep_engine.kafka.configs import (
    BROKER,
    TOPIC,
    ConfigEntry,
    DescribedConfigs,
    describe_configs,
)
from logkeep_engine.kafka.queries import TopicView
from logkeep_engine.kafka.retry import RetriableError
from logkeep_engine.kafka.survey import Survey, in_parts
from logkeep_engine.kafka.topic_requests import DeletedTopics, create_topics, delete_topics
from logkeep_engine.log.cleanup import is_compacted

log = logging.getLogger(__name__)

_TOPICS_A_REQUEST = 500
_SILENT = int(Code.REQUEST_TIMED_OUT), "the broker did not answer"  # about a topic that its answer leaves out
_NO_WAIT_MS = 1000  # brokers may answer before all topics are gone: whoever deletes them looks


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
        """Return the topics with these names that exist, or all topics, by name. Besides, the topics that a broker
        knows but cannot describe, with the reason.
        """

        async def ask(survey: Survey) -> list[TopicView]:
            views = await survey.topics(names)
            for view in views:
                if view.code in RETRIABLE and survey.time_left():
                    raise RetriableError(f"topic {view.name!r}: {Code.name_of(view.code)}")
            return views

        with collector.paused():
            views = self._ask(ask, "list topics" if names is None else "describe topics")
            for view in views:
                if view.code != Code.NONE and view.code not in GONE | RETRIABLE:
                    raise self._error(view.code, f"describe topic {view.name!r} (ACL DESCRIBE)")
            found = [_topic_info(view) for view in views if view.code == Code.NONE]
            silent = {view.name: Code.name_of(view.code) for view in views if view.code in RETRIABLE}
            return found, silent

    def undescribable(self, names: Sequence[str]) -> list[str]:
        """Return the topics among these that the user may not describe (ACL DESCRIBE), whether they exist or not."""
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
        """Return the configurations that were set on each topic itself, and `cleanup.policy` also if the brokers'
        default compacts the topic. Other defaults of the brokers are left out.

        Needs the ACL DESCRIBE_CONFIGS on the topics.
        """
        return {
            topic: dict(
                sorted(
                    (name, entry.value)
                    for name, entry in entries.items()
                    if entry.value is not None and (entry.own or is_compacted({name: entry.value}))
                )
            )
            for topic, entries in self.config_entries(names)
        }

    def config_entries(self, names: Iterable[str]) -> Iterator[tuple[str, Mapping[str, ConfigEntry]]]:
        """Yield everything that brokers say of the configuration of each topic, by name; topics that are gone are
        absent, after brokers had the time to learn of them.

        Needs the ACL DESCRIBE_CONFIGS on the topics.
        """
        for part in in_parts(sorted(set(names)), _TOPICS_A_REQUEST):
            answer = self._ask(partial(_describe_configs, topics=part), "read configurations of topics")
            for name in part:
                if (TOPIC, name) in answer.entries:
                    yield name, answer.entries[TOPIC, name]
                    continue
                code, reason = answer.refused.get((TOPIC, name), _SILENT)
                if code not in GONE:
                    what = f"read the configuration of topic {name!r} (ACL DESCRIBE_CONFIGS)"
                    raise self._error(code, what, reason)

    def broker_configs(self, names: Collection[str]) -> dict[str, str]:
        """Return the values that a broker has for these keys, and topics by default. Empty if no broker reports it:
        that needs the ACL DESCRIBE_CONFIGS on the cluster."""
        return _values(self._broker_entries() or {}, names)

    def configs_of_brokers(self, names: Collection[str]) -> list[dict[str, str]]:
        """Return the same of each broker that reports it. They differ while they are changed one after the other, or if
        one was forgotten."""
        return [_values(entries, names) for entries in self._reported_entries()]

    def broker_settings(self, wanted: Callable[[str], bool]) -> dict[str, str] | None:
        """Return the values that were set for the brokers, of the requested keys, as the first broker has them; None
        if no broker reports them. Secrets are never reported."""
        entries = self._broker_entries()
        if entries is None:
            return None
        return {
            name: entry.value
            for name, entry in sorted(entries.items())
            if wanted(name) and entry.value is not None and not entry.secret and entry.of_brokers
        }

    def _broker_entries(self) -> Mapping[str, ConfigEntry] | None:
        """Return the configuration of the first broker that reports it, None if none does."""
        return next(self._reported_entries(), None)

    def _reported_entries(self) -> Iterator[Mapping[str, ConfigEntry]]:
        """Yield the configurations of the brokers that report theirs."""
        for node in sorted(self._cluster().brokers):
            try:
                yield self._ask(partial(_broker_entries, node=node), f"read the configuration of broker {node}")
            except LogkeepError as error:
                log.info("broker %s does not report its configuration: %s", node, error.message)

    def create_topics(self, plans: Sequence[NewTopicPlan]) -> dict[str, str]:
        """Create the topics, wait until every partition has a leader, and return their ids.

        Raises TopicExists, TargetUnsuitable (more replicas than brokers), Refused (a configuration or a name is not
        accepted); the topics that were not refused are created all the same.
        """
        for part in in_parts(plans, _TOPICS_A_REQUEST):
            for refusal in self._ask_to_create(part):
                raise self._not_created(*refusal)
        return self._wait_for_leaders({plan.name: plan.partitions for plan in plans})

    def refused_topics(self, plans: Sequence[NewTopicPlan]) -> dict[str, LogkeepError]:
        """Return the topics among these that could not be created now, with the errors that `create_topics` would
        raise. Nothing is created."""
        return {
            plan.name: self._not_created(plan, code, reason)
            for part in in_parts(plans, _TOPICS_A_REQUEST)
            for plan, code, reason in self._ask_to_create(part, validate_only=True)
        }

    def _ask_to_create(
        self, plans: Sequence[NewTopicPlan], *, validate_only: bool = False
    ) -> list[tuple[NewTopicPlan, int, str]]:
        """Return those that were refused, with the code and the reason. With `validate_only` the controller creates
        none.

        Raises BrokerUnavailable if the answer to an order was lost: given again, it would be refused for the very
        topics that it has created.
        """
        wanted = [(plan.name, plan.partitions, plan.replication_factor, plan.configs) for plan in plans]
        call = create_topics(wanted, timeout_ms=int(self._timeout * 1000), only_check=validate_only)

        def lost(trouble: RetriableError) -> None:
            if not validate_only:
                raise BrokerUnavailable(
                    f"It is unknown whether topics were created: {trouble.reason}.",
                    hint="Check that the brokers are healthy, then start the same run again.",
                ) from trouble

        reported = self._order(
            call,
            "create topics",
            # one topic that has another outcome may have been created
            lambda answer: answer.results.values() if len({code for code, _ in answer.results.values()}) == 1 else (),
            passing=frozenset({Code.NOT_CONTROLLER}),
            attempts=1,
            only_check=validate_only,
            lost=lost,
        ).results
        answers = [(plan, *reported.get((TOPIC, plan.name), _SILENT)) for plan in plans]
        refused = [item for item in answers if item[1] != Code.NONE]
        if not validate_only and len(refused) < len(answers):
            self.note_change()
        return refused

    def unconfigurable(self, names: Sequence[str]) -> list[str]:
        """Return the topics among these, whether they exist or not, whose configuration the user may not change.
        Nothing is changed."""
        found, what = [], "check who may change the configuration"
        for part in in_parts(sorted(set(names)), _TOPICS_A_REQUEST):
            wanted = [((TOPIC, name), {"retention.ms": "-1"}) for name in part]
            reported = self._alter(wanted, what, only_check=True)
            for name in part:
                if (TOPIC, name) not in reported:
                    raise self._error(_SILENT[0], f"{what} of topic {name!r}", _SILENT[1])
                if reported[TOPIC, name][0] == Code.TOPIC_AUTHORIZATION_FAILED:
                    found.append(name)
        return found

    def _not_created(self, plan: NewTopicPlan, code: int, reason: str) -> LogkeepError:
        reason = reason.rstrip(".") or Code.name_of(code)
        match code:
            case Code.TOPIC_ALREADY_EXISTS:
                return TopicExists(
                    f"Topic {plan.name!r} exists already.", hint="Rename it in the restore, delete it, or append to it."
                )
            case Code.INVALID_REPLICATION_FACTOR:
                return self._too_few_brokers(plan.name, plan.replication_factor, reason, self.known_brokers())
            case Code.INVALID_CONFIG | Code.POLICY_VIOLATION | Code.INVALID_TOPIC_EXCEPTION:
                settings = ", ".join(f"{name}={value}" for name, value in sorted(plan.configs.items())) or "none"
                old = reason.startswith("Unknown topic config name: message.timestamp.")
                return Refused(
                    f"Topic {plan.name!r} was refused: {reason}.",
                    hint="Restores need Kafka 3.6 or newer." if old else f"Its configuration was: {settings}.",
                )
            case Code.INVALID_PARTITIONS:
                return Refused(f"Topic {plan.name!r} cannot have {plan.partitions} partitions: {reason}.")
            case _:
                return self._error(code, f"create topic {plan.name!r} (ACL CREATE)", reason)

    def refusal(self, plan: NewTopicPlan) -> LogkeepError | None:
        """Return the error with which this topic would not be created, if brokers name one now. Nothing is created."""
        return self.refused_topics([plan]).get(plan.name)

    def known_brokers(self) -> frozenset[int]:
        """Return ids of the brokers that the cluster has, also of those that are down. Controllers older than 4.0 do
        not report them: then it is those that are alive, and those that have a replica of a topic."""
        registered = self.registered()
        if registered is not None:
            return registered
        found = set(self._cluster().brokers)
        for topic in self.list_topics()[0]:
            found.update(*(part.replicas for part in topic.partitions))
        return frozenset(found)

    def check_replicas(self, name: str, replicas: int) -> None:
        """Raises if no topic `name` with this many replicas can be created now: TargetUnsuitable if the cluster has
        fewer brokers, BrokerUnavailable if some are down and have not come back in time.

        Controllers count brokers that have died, and not those that were shut down.
        """
        limits = self._connection.limits
        began = time.monotonic()
        known: frozenset[int] | None = None
        while True:
            plan = NewTopicPlan(name, 1, replicas)
            refused = self._ask_to_create([plan], validate_only=True)
            if not refused or refused[0][1] != Code.INVALID_REPLICATION_FACTOR:
                return  # any other problem is reported when it is created
            known = self.known_brokers() if known is None else known
            if len(known) < replicas or time.monotonic() - began > limits.outage:
                raise self._too_few_brokers(name, replicas, refused[0][2], known)
            time.sleep(limits.control_pause)

    def _too_few_brokers(self, name: str, replicas: int, reason: str, known: frozenset[int]) -> LogkeepError:
        message = f"Topic {name!r} cannot have {replicas} replicas: {reason.rstrip('.')}."
        fewer = "If fewer replicas are enough, lower spec.topics.replicationFactor."
        if len(known) < replicas:
            return TargetUnsuitable(message, hint=f"Brokers of the cluster: {len(known)}. {fewer}")
        alive = self.broker_count()
        return BrokerUnavailable(
            message,
            hint=f"The cluster has {len(known)} brokers, and only {alive} are alive: wait for the others, and "
            f"try again. {fewer}",
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
        values: dict[str, str | None] = {**set, **dict.fromkeys(delete)}
        if not values:
            return
        what = f"change the configuration of topic {name!r} (ACL ALTER_CONFIGS)"
        reported = self._alter([((TOPIC, name), values)], what)
        code, reason = reported.get((TOPIC, name), _SILENT)
        if code == Code.NONE:
            self.note_change()
            return
        if code in (Code.INVALID_CONFIG, Code.INVALID_REQUEST, Code.POLICY_VIOLATION):
            raise Refused(
                f"Cannot {what}: {(reason or Code.name_of(code)).rstrip('.')}.",
                hint="Tried to set " + ", ".join(f"{key}={value}" for key, value in values.items()) + ".",
            )
        raise self._error(code, what, reason)

    def delete_topic_ids(self, topics: Mapping[str, str]) -> None:
        """Delete the topics with these ids, by name, and wait until they are gone. Another topic that has the name of
        one of them stays, and so does each that is gone already.

        Raises BrokerRefused, and BrokerUnavailable if one of them is still there after the time for a question.
        """
        names = {topic_id: name for name, topic_id in topics.items()}
        for part in in_parts(sorted(names), _TOPICS_A_REQUEST):
            call = delete_topics(part, timeout_ms=_NO_WAIT_MS)
            order = partial(_deleted, ids=part, names=names)
            codes = self._order(call, "delete topics", order, passing=PASSING).codes
            self.note_change()
            for topic_id in part:
                code = codes[topic_id]
                if code not in (Code.NONE, *GONE):
                    raise BrokerRefused(
                        f"Cannot delete topic {names[topic_id]!r}: {Code.name_of(code)}.",
                        hint="Give the user the ACL DELETE on the topic, and set delete.topic.enable=true on the "
                        "brokers.",
                    )
        deadline = time.monotonic() + self._timeout
        while left := sorted(name for name, there in self.topic_ids(topics).items() if there == topics[name]):
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"Topic {left[0]!r} was deleted, and brokers still report it after {self._timeout:.0f} s.",
                    hint="Check that the brokers are healthy.",
                )
            time.sleep(self._connection.limits.control_pause)


def _deleted(answer: DeletedTopics, *, ids: Sequence[str], names: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield the outcome of each topic. One that the answer leaves out is asked for again."""
    for topic_id in ids:
        yield answer.codes.get(topic_id, Code.REQUEST_TIMED_OUT), f"topic {names[topic_id]!r}"


async def _describe_configs(survey: Survey, *, topics: Sequence[str]) -> DescribedConfigs:
    """Return the configurations of topics, as a broker knows them that is asked again while it may get better: one that
    has just started may not know a topic yet."""
    node = survey.pool.any_node()
    answer = await survey.pool.ask(node, describe_configs((TOPIC, name) for name in topics), survey.patience / ATTEMPTS)
    for name in topics:
        if (TOPIC, name) not in answer.entries:
            code, reason = answer.refused.get((TOPIC, name), _SILENT)
            seconds = survey.pool.limits.unknown if code in GONE else survey.patience
            if code in UNREACHABLE | GONE and survey.time_left(seconds):
                raise RetriableError(f"{survey.pool.name(node)} says of topic {name!r} {Code.describe(code, reason)}")
    return answer


async def _broker_entries(survey: Survey, *, node: int) -> Mapping[str, ConfigEntry]:
    """Return the configuration of a broker, which it reports itself. Raises BrokerRefused if it does not."""
    answer = await survey.pool.ask(node, describe_configs([(BROKER, str(node))]), survey.patience / ATTEMPTS)
    for code, reason in answer.refused.values():
        raise BrokerRefused(f"{survey.pool.name(node)} says {Code.describe(code, reason)}.")
    return next(iter(answer.entries.values()), {})


def _topic_info(view: TopicView) -> TopicInfo:
    partitions = tuple(
        PartitionInfo(number, part.leader, part.replicas) for number, part in sorted(view.partitions.items())
    )
    replicas = max((len(part.replicas) for part in partitions), default=0)
    return TopicInfo(view.name, view.topic_id, partitions, replicas, view.internal, view.readable, view.deletable)


def _values(entries: Mapping[str, ConfigEntry], names: Iterable[str]) -> dict[str, str]:
    found = ((name, entries[name].value) for name in names if name in entries)
    return {name: value for name, value in found if value is not None}

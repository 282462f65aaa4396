"""Topics, configurations, offsets and groups: the control plane, on librdkafka's admin client.

    with ControlPlane(connection) as control:
        for topic in control.topics(): ...

Synchronous. Requests for thousands of topics are cut into pieces. What vanishes while it is asked about is absent from
the answer: a caller that needs it compares.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import (
    ConsumerGroupType,
    KafkaError,
    KafkaException,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from logkeep_engine import collector
from logkeep_engine.errors import (
    BrokerRefused,
    BrokerUnavailable,
    LogkeepError,
    Refused,
    TargetUnsuitable,
    TopicExists,
    TopicGone,
)
from logkeep_engine.kafka.brokers import BrokerPool, Patience, Trouble
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import Connection
from logkeep_engine.kafka.positions import Position, commit_positions, committed_positions
from logkeep_engine.kafka.protocol import EARLIEST, GONE, LATEST, RETRIABLE, Code
from logkeep_engine.kafka.queries import TopicView, Where
from logkeep_engine.kafka.survey import Answers, Ended, Survey
from logkeep_engine.kafka.witnesses import Finding, Standing, Witnesses

T = TypeVar("T")

log = logging.getLogger(__name__)

ESTIMATE_SECONDS = 15.0
_TOPICS_A_REQUEST = 500
_CONNECT_TIMEOUT = 15.0  # of the first question, which also finds out whether there is anybody
_LEAST_SETUP_MS = 1_000  # librdkafka takes no less

_CONTROLLER_ATTEMPTS = 4  # of what only the controller can do, within the time for one question

# librdkafka repeats a failed connection several times a second; what matters reaches the caller as an error.
_librdkafka_log = logging.getLogger("logkeep_engine.kafka.librdkafka")
_librdkafka_log.setLevel(logging.CRITICAL)

_AUTHORIZATION = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_UNREACHABLE = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_CONTROLLER,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    }
)
_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_HAS_MEMBERS = frozenset(
    {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "STALE_MEMBER_EPOCH", "FENCED_MEMBER_EPOCH"}
)
_NO_SUCH_GROUP = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID})


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """`leader` and `replicas` are broker ids; leader -1 if there is none now."""

    id: int
    leader: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """`topic_id` as Kafka prints it (URL-safe base64, 22 characters); partitions by rising id. `readable` is False
    where a broker that was asked for all topics says that the user may not read it.
    """

    name: str
    topic_id: str
    partitions: tuple[PartitionInfo, ...]
    replication_factor: int
    internal: bool
    readable: bool = True


@dataclass(frozen=True, slots=True)
class Bounds:
    """A partition's log start, and the offset below which all transactions are decided, as the leader of `leader_epoch`
    gives it."""

    start: int
    end: int
    leader_epoch: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A committed position: `offset` is the next record to read. `leader_epoch` is -1 if the group did not say."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """`notes` says which groups vanished or had no positions."""

    offsets: tuple[GroupOffset, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotSet:
    """A position that the coordinator has refused; `error` is the protocol's name of the reason."""

    position: GroupOffset
    error: str

    @property
    def has_members(self) -> bool:
        """Somebody is a member of the group: who commits for it must be one."""
        return self.error in _HAS_MEMBERS


@dataclass(frozen=True, slots=True)
class NewTopicPlan:
    """`replication_factor` -1 takes the broker's default."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


class ControlPlane:
    """A context manager; nothing is sent before the first question.

    Every method raises BrokerUnavailable when brokers cannot be reached or do not answer within `timeout` seconds, by
    default those of the connection's limits (with the addresses and the last reason), and BrokerRefused at once when
    login, certificates or ACLs are not accepted.
    """

    def __init__(
        self, connection: Connection, *, timeout: float | None = None, connect_timeout: float | None = None
    ) -> None:
        connection.aiokafka_config()  # certificate files that cannot be used: our error, not librdkafka's
        self._connection = connection
        limits = connection.limits
        self._timeout = timeout = limits.control if timeout is None else timeout
        self._connect_timeout = min(_CONNECT_TIMEOUT, timeout) if connect_timeout is None else connect_timeout
        self._problem: KafkaError | None = None
        self._connected = False
        self._config: dict[str, Any] = {
            **connection.librdkafka_config(),
            "client.id": "logkeep",
            "error_cb": self._on_error,
            "logger": _librdkafka_log,
            "log.connection.close": False,
            "socket.timeout.ms": int(timeout * 1000),
            "socket.connection.setup.timeout.ms": max(_LEAST_SETUP_MS, int(limits.connect * 1000)),
            "reconnect.backoff.ms": int(limits.pause * 1000),
            "reconnect.backoff.max.ms": int(limits.longest_pause * 1000),
        }
        try:
            self._admin = self._new_admin()
        except KafkaException as error:
            raise BrokerRefused(f"The Kafka client refuses its configuration: {error.args[0].str()}.") from error

    def _new_admin(self) -> AdminClient:
        """A client that knows nothing yet: one that was used keeps asking a controller that died."""
        return AdminClient(self._config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.poll(0)

    # ---- the cluster

    def cluster_id(self) -> str:
        """The cluster's id."""
        return str(self._cluster().cluster_id)

    def only(self, cluster_id: str) -> None:
        """From now on believe no broker of another cluster what it says of topics and offsets."""
        self._connection = replace(self._connection, cluster_id=cluster_id)

    def broker_count(self) -> int:
        """How many brokers are alive."""
        return len(self._cluster().nodes)

    def registered(self) -> frozenset[int] | None:
        """Ids of the brokers that the controller knows, also of those that are down; None if the brokers are older than
        4.0, which do not tell.
        """
        return self._ask(lambda survey: survey.registered(), "ask for the registered brokers")

    def _cluster(self) -> Any:
        return self._retry(
            lambda: self._admin.describe_cluster(request_timeout=self._request_timeout()), "describe the cluster"
        )

    # ---- topics

    def topics(self, include_internal: bool = True) -> list[TopicInfo]:
        """All topics this user may describe, by name."""
        found, silent = self.list_topics()
        self._refuse_silent(silent)
        return [topic for topic in found if include_internal or not topic.internal]

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Topic ids by name; names without a topic are absent."""
        return {topic.name: topic.topic_id for topic in self._describe(sorted(set(names)))}

    def list_topics(self, names: Sequence[str] | None = None) -> tuple[list[TopicInfo], dict[str, str]]:
        """The topics of these names that exist, or all, by name; and those of which a broker knows but which it cannot
        describe, with the reason.
        """

        async def ask(survey: Survey) -> list[TopicView]:
            views = await survey.topics(names)
            for view in views:
                if view.code in RETRIABLE and survey.time_left():
                    raise Trouble(f"topic {view.name!r}: {Code.name_of(view.code)}")
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
        """Those of these topics that the user may not describe (ACL DESCRIBE), whether they exist or not."""
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

    def _ask(self, question: Callable[[Survey], Awaitable[T]], what: str) -> T:
        """The answer to a question on the engine's own connections, asked again while brokers are out of reach."""
        self._connect()

        async def ask() -> T:
            async with BrokerPool(self._connection, self._connection.limits) as pool:
                patience = Patience(replace(pool.limits, outage=self._timeout), what)
                survey = Survey(pool, self._timeout)
                while True:
                    try:
                        return await question(survey)
                    except Trouble as trouble:
                        await patience.wait(trouble)

        return _in_a_loop(ask())

    def topic_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """What was set on each topic itself, and `cleanup.policy` also where the brokers' default compacts the topic.
        Their other defaults are left out.

        Needs the ACL DESCRIBE_CONFIGS on the topics.
        """
        return {
            topic: {
                name: entry.value
                for name, entry in sorted(entries.items())
                if entry.value is not None and (_is_own(entry) or _compacts(name, entry.value))
            }
            for topic, entries in self.config_entries(names)
        }

    def config_entries(self, names: Iterable[str]) -> Iterator[tuple[str, Mapping[str, ConfigEntry]]]:
        """Everything that brokers say of the configuration of each topic, by name; topics that are gone are absent.

        Needs the ACL DESCRIBE_CONFIGS on the topics.
        """
        self._connect()
        for part in _parts(sorted(set(names)), _TOPICS_A_REQUEST):
            answers = self._each(
                lambda wanted: self._admin.describe_configs(wanted, request_timeout=self._attempt_timeout()),
                [ConfigResource(ResourceType.TOPIC, name) for name in part],
                lambda resource: f"read the configuration of topic {resource.name!r} (ACL DESCRIBE_CONFIGS)",
            )
            for resource, entries in answers.items():
                yield resource.name, entries

    def create_topics(self, plans: Sequence[NewTopicPlan]) -> dict[str, str]:
        """Create the topics, wait until every partition has a leader, and return their ids.

        Raises TopicExists, TargetUnsuitable (more replicas than brokers), Refused (a configuration or a name is not
        accepted); the topics that were not refused are created all the same.
        """
        self._connect()
        for part in _parts(plans, _TOPICS_A_REQUEST):
            asked = [
                NewTopic(
                    plan.name,
                    num_partitions=plan.partitions,
                    replication_factor=plan.replication_factor,
                    config=dict(plan.configs),
                )
                for plan in part
            ]
            futures = self._admin.create_topics(asked, operation_timeout=self._timeout, request_timeout=self._timeout)
            problems = [
                (plan, problem) for plan in part if (problem := self._outcome(futures[plan.name])[1]) is not None
            ]
            if problems:
                raise self._not_created(*problems[0]) from problems[0][1]
        return self._wait_for_leaders({plan.name: plan.partitions for plan in plans})

    def _not_created(self, plan: NewTopicPlan, problem: KafkaException) -> LogkeepError:
        error: KafkaError = problem.args[0]
        match error.code():
            case KafkaError.TOPIC_ALREADY_EXISTS:
                return TopicExists(
                    f"Topic {plan.name!r} exists already.", hint="Rename it in the restore, delete it, or append to it."
                )
            case KafkaError.INVALID_REPLICATION_FACTOR:
                return self._too_few_brokers(plan.name, plan.replication_factor, error, self.registered())
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
                return self._error(problem, f"create topic {plan.name!r}")

    def check_replicas(self, name: str, replicas: int) -> None:
        """Raises if no topic `name` with so many replicas can be created now: TargetUnsuitable if the cluster has fewer
        brokers, BrokerUnavailable if some are down (or that is not known) and have not come back in time.

        Controllers count brokers that have died, and not those that were shut down.
        """
        self._connect()
        limits = self._connection.limits
        began = time.monotonic()
        while True:
            futures = self._admin.create_topics(
                [NewTopic(name, num_partitions=1, replication_factor=replicas)],
                validate_only=True,
                request_timeout=self._timeout,
            )
            _, problem = self._outcome(futures[name])
            error: KafkaError | None = None if problem is None else problem.args[0]
            if error is None or error.code() != KafkaError.INVALID_REPLICATION_FACTOR:
                return  # what else there may be is told when it is created
            registered = self.registered()
            patience = self._timeout if registered is None else limits.outage
            missing = registered is not None and len(registered) < replicas
            if missing or time.monotonic() - began > patience:
                raise self._too_few_brokers(name, replicas, error, registered)
            time.sleep(limits.control_pause)

    def _too_few_brokers(
        self, name: str, replicas: int, error: KafkaError, registered: frozenset[int] | None
    ) -> LogkeepError:
        message = f"Topic {name!r} cannot have {replicas} replicas: {error.str()}"
        fewer = "If fewer replicas will do, set spec.topics.replicationFactor to fewer."
        if registered is not None and len(registered) < replicas:
            return TargetUnsuitable(message, hint=f"Brokers of the cluster: {len(registered)}. {fewer}")
        known = "" if registered is None else f"{len(registered)} are registered, and "
        return BrokerUnavailable(
            message, hint=f"{known}{self.broker_count()} brokers are alive: wait for the others, and try again. {fewer}"
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
        what = f"change the configuration of topic {name!r}"
        deadline = time.monotonic() + self._timeout
        while True:
            futures = self._admin.incremental_alter_configs(
                [resource], request_timeout=self._timeout / _CONTROLLER_ATTEMPTS
            )
            _, problem = self._outcome(futures[resource])
            if problem is None:
                return
            error: KafkaError = problem.args[0]
            if error.code() not in _UNREACHABLE or time.monotonic() > deadline:
                break
            # librdkafka goes on waiting for the broker that it knows as the controller, also when that has died.
            self._admin = self._new_admin()
        if error.code() in (KafkaError.INVALID_CONFIG, KafkaError.INVALID_REQUEST, KafkaError.POLICY_VIOLATION):
            raise Refused(
                f"Cannot {what}: {error.str()}.",
                hint="Tried to set " + ", ".join(f"{entry.name}={entry.value}" for entry in entries) + ".",
            ) from problem
        raise self._error(problem, what) from problem

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics and wait until they are gone; names without a topic are fine."""
        self._connect()
        for part in _parts(names, _TOPICS_A_REQUEST):
            self._each(
                lambda wanted: self._admin.delete_topics(
                    wanted, operation_timeout=self._timeout, request_timeout=self._timeout
                ),
                part,
                lambda name: f"delete topic {name!r}",
            )
        deadline = time.monotonic() + self._timeout
        while self._describe(names) and time.monotonic() < deadline:
            time.sleep(self._connection.limits.control_pause)

    # ---- offsets and sizes

    def earliest_offsets(self, partitions: Iterable[Where]) -> dict[Where, int]:
        """Log start offsets; partitions that are gone are absent."""
        return self._offsets(partitions, EARLIEST, committed=False)

    def latest_offsets(self, partitions: Iterable[Where]) -> dict[Where, int]:
        """High watermarks; partitions that are gone are absent."""
        return self._offsets(partitions, LATEST, committed=False)

    def last_stable_offsets(self, partitions: Iterable[Where]) -> dict[Where, int]:
        """All transactions below these offsets are decided; partitions that are gone are absent."""
        return self._offsets(partitions, LATEST, committed=True)

    def bounds(self, partitions: Iterable[Where]) -> Answers[Bounds]:
        """Log starts, and after them last stable offsets. Whoever gives no answer that can be used is named, with the
        reason: nothing is raised for it.
        """
        wanted = list(partitions)

        async def ask(survey: Survey) -> Answers[Bounds]:
            starts = await survey.offsets(wanted, EARLIEST)
            ends = await survey.led_offsets(starts.found, LATEST, committed=True)
            return Answers(
                {where: Bounds(starts.found[where], *end) for where, end in ends.found.items()},
                starts.unknown | ends.unknown,
                starts.silent | ends.silent,
            )

        return self._ask(ask, "list offsets")

    def standings(self, topics: Mapping[str, str]) -> dict[str, Standing]:
        """The fates of these topic ids, by the topic's name: every living broker is asked."""
        return self._witness(topics, lambda witnesses: witnesses.standings())

    def findings(self, partitions: Mapping[Where, str]) -> dict[Where, Finding]:
        """The truth about these partitions of topic ids: every living broker is asked, and the leader in sync."""
        ids = {topic: topic_id for (topic, _), topic_id in partitions.items()}
        return self._witness(ids, lambda witnesses: witnesses.findings(partitions))

    def _witness(self, topics: Mapping[str, str], question: Callable[[Witnesses], Awaitable[T]]) -> T:
        async def ask(survey: Survey) -> T:
            return await question(Witnesses(survey.pool, survey.patience, topics))

        return self._ask(ask, "ask all brokers")

    def epoch_ends(self, wanted: Mapping[Where, int | None]) -> Answers[Ended]:
        """Where leader epochs have ended in the logs of the partitions' leaders; None asks for the leader's own epoch,
        which ends where its log does. For thousands of partitions it is a request for each leader.
        """
        return self._ask(lambda survey: survey.epoch_ends(wanted), "ask for leader epochs")

    def _offsets(self, partitions: Iterable[Where], timestamp: int, *, committed: bool) -> dict[Where, int]:
        wanted = sorted(set(partitions))
        answers = self._ask(lambda survey: survey.offsets(wanted, timestamp, committed=committed), "list offsets")
        for (topic, partition), reason in answers.silent.items():
            raise BrokerUnavailable(
                f"Cannot list offsets of topic {topic!r} partition {partition}: {reason}. "
                f"Tried for {self._timeout:.0f} s.",
                hint="Check that the partition has a leader and that the brokers can be reached from here.",
            )
        return answers.found

    def partition_bytes(self, topics: Iterable[TopicInfo]) -> dict[tuple[str, int], int]:
        """Bytes on disk of each partition's leader replica, an estimate: what brokers tell within ESTIMATE_SECONDS.
        Partitions without a leader, or of brokers that do not answer, are absent.

        Raises BrokerRefused without the ACL DESCRIBE on the cluster.
        """
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic in topics:
            for part in topic.partitions:
                if part.leader >= 0:
                    by_leader.setdefault(part.leader, {}).setdefault(topic.name, []).append(part.id)

        found: dict[Where, int] = {}
        limits = replace(self._connection.limits, request=ESTIMATE_SECONDS, outage=ESTIMATE_SECONDS / 2)

        async def one(client: RawClient, broker: int, wanted: Mapping[str, Sequence[int]]) -> None:
            try:
                found.update(await client.replica_bytes(broker, wanted))
            except BrokerUnavailable as error:
                log.info("sizes are not known: %s", error.message)

        async def ask() -> None:
            try:
                async with asyncio.timeout(ESTIMATE_SECONDS), RawClient(self._connection, limits=limits) as client:
                    await asyncio.gather(*(one(client, *item) for item in by_leader.items()))
            except (TimeoutError, BrokerUnavailable) as error:
                log.info("sizes are not known: %s", str(error) or "the brokers are slow")

        _in_a_loop(ask())  # librdkafka has no DescribeLogDirs
        return found

    # ---- groups

    def groups(self) -> list[str]:
        """Ids of all consumer groups, classic and new (KIP-848), that this user may describe."""
        what = "list consumer groups"
        deadline = time.monotonic() + self._timeout
        while True:
            answer = self._retry(
                lambda: self._admin.list_consumer_groups(request_timeout=self._attempt_timeout()), what
            )
            if not answer.errors:
                break
            # Some coordinator did not answer: its groups would be missing.
            problem = answer.errors[0]
            problem = problem if isinstance(problem, KafkaException) else KafkaException(problem)
            if problem.args[0].code() not in _UNREACHABLE or time.monotonic() > deadline:
                raise self._error(problem, what) from problem
            time.sleep(self._connection.limits.control_pause)
        kinds = (ConsumerGroupType.CLASSIC, ConsumerGroupType.CONSUMER, ConsumerGroupType.UNKNOWN)
        return sorted(group.group_id for group in answer.valid if getattr(group, "type", kinds[0]) in kinds)

    def group_offsets(self, group_ids: Iterable[str]) -> GroupOffsets:
        """All positions of these groups as they are committed now. Groups that vanished are noted, not an error."""
        self._connect()
        groups = sorted(set(group_ids))
        found = self._positions(groups)
        notes = tuple(
            f"Consumer group {group!r} vanished or has no committed offsets."
            for group in groups
            if not found.get(group)
        )
        return GroupOffsets(tuple(item for group in groups for item in found.get(group, ())), notes)

    def _positions(self, groups: Sequence[str]) -> dict[str, list[GroupOffset]]:
        """By group, sorted; without groups that vanished."""
        deadline = time.monotonic() + self._timeout
        found: dict[str, list[GroupOffset]] = {}
        left = list(groups)
        while left:
            answers = _in_a_loop(committed_positions(self._connection, left))
            again: list[str] = []
            for group in left:
                answer = answers[group]
                if answer.code == KafkaError.NO_ERROR:
                    found[group] = sorted(
                        (
                            GroupOffset(
                                group, item.topic, item.partition, item.offset, item.leader_epoch, item.metadata
                            )
                            for item in answer.positions
                        ),
                        key=lambda item: (item.topic, item.partition),
                    )
                elif answer.code in _UNREACHABLE and time.monotonic() <= deadline:
                    again.append(group)
                elif answer.code not in _NO_SUCH_GROUP:
                    what = f"read the offsets of consumer group {group!r} (ACL DESCRIBE on the group and its topics)"
                    raise self._error(KafkaException(KafkaError(answer.code)), what)
            left = again
            if left:
                time.sleep(self._connection.limits.control_pause)
        return found

    def set_group_offsets(self, offsets: Iterable[GroupOffset]) -> list[NotSet]:
        """Commit positions for their groups; returns those that were refused: above all those of groups with members.

        What was committed before is replaced. Needs the ACL READ on the groups and the topics.
        """
        self._connect()
        deadline = time.monotonic() + self._timeout
        refused: list[NotSet] = []
        left = list(offsets)
        while left:
            wanted: dict[str, list[Position]] = {}
            for item in left:
                position = Position(item.topic, item.partition, item.offset, item.leader_epoch, item.metadata)
                wanted.setdefault(item.group_id, []).append(position)
            codes = _in_a_loop(commit_positions(self._connection, wanted))
            again: list[GroupOffset] = []
            for item in left:
                code = codes[item.group_id].get((item.topic, item.partition), KafkaError.COORDINATOR_NOT_AVAILABLE)
                if code == KafkaError.NO_ERROR:
                    continue
                # A coordinator may hear of a new topic later than the others.
                if code in _UNREACHABLE or code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    again.append(item)
                else:
                    refused.append(NotSet(item, KafkaError(code).name()))
            left = again
            if left and time.monotonic() > deadline:
                first = left[0]
                code = codes[first.group_id].get((first.topic, first.partition), KafkaError.COORDINATOR_NOT_AVAILABLE)
                what = f"set the offsets of consumer group {first.group_id!r} (ACL READ on the group and its topics)"
                raise self._error(KafkaException(KafkaError(code)), what)
            if left:
                time.sleep(self._connection.limits.control_pause)
        return refused

    # ---- asking

    def _on_error(self, error: KafkaError) -> None:
        # Called from poll(). One that is fatal for a login stays; others are kept to explain a timeout.
        if self._problem is None or not _is_refusal(self._problem):
            self._problem = error

    def _connect(self) -> None:
        """Reach a broker once before questions that cannot be interrupted."""
        if not self._connected:
            self._cluster()

    def _request_timeout(self) -> float:
        return self._timeout if self._connected else self._connect_timeout

    def _attempt_timeout(self) -> float:
        """The time for a question that librdkafka may ask of a broker that has just died: the next attempt asks
        another."""
        return self._request_timeout() / 3

    def _outcome(self, future: Future[Any]) -> tuple[Any, KafkaException | None]:
        """The result or the broker's error.

        Raises BrokerRefused as soon as librdkafka learns that it may not log in.
        """
        while not wait([future], timeout=0.05).done:
            self._admin.poll(0)
            if self._problem is not None and _is_refusal(self._problem) and not self._connected:
                raise self._refusal(self._problem)
        try:
            result = future.result()
        except KafkaException as error:
            self._admin.poll(0)
            return None, error
        self._connected = True
        self._problem = None
        return result, None

    def _retry(self, ask: Any, what: str) -> Any:
        """One question, asked again while the broker says that it may pass."""
        deadline = time.monotonic() + self._request_timeout()
        while True:
            result, problem = self._outcome(ask())
            if problem is None:
                return result
            if problem.args[0].code() not in _UNREACHABLE or time.monotonic() > deadline:
                raise self._error(problem, what) from problem
            time.sleep(self._connection.limits.control_pause)
            self._admin = self._new_admin()

    def _each(self, ask: Any, wanted: Sequence[T], what: Any, *, absent: frozenset[int] = _GONE) -> dict[T, Any]:
        """One question with an answer for each of `wanted`; those that may pass are asked again, those that are gone
        left out.
        """
        deadline = time.monotonic() + self._timeout
        answers: dict[T, Any] = {}
        left = list(wanted)
        while left:
            futures: dict[T, Future[Any]] = ask(left)
            again: list[T] = []
            for item in left:
                result, problem = self._outcome(futures[item])
                if problem is None:
                    answers[item] = result
                    continue
                code = problem.args[0].code()
                if code in absent:
                    continue
                if code not in _UNREACHABLE or time.monotonic() > deadline:
                    raise self._error(problem, what(item)) from problem
                again.append(item)
            left = again
            if left:
                time.sleep(self._connection.limits.control_pause)
                self._admin = self._new_admin()
        return answers

    # ---- errors

    def _error(self, problem: KafkaException, what: str) -> LogkeepError:
        error: KafkaError = problem.args[0]
        if _is_refusal(error):
            return self._refusal(error)
        if self._problem is not None and _is_refusal(self._problem):
            return self._refusal(self._problem)
        if error.code() in _AUTHORIZATION:
            return BrokerRefused(
                f"The broker does not let this user {what}: {error.name()}.", hint="Give the user the ACL."
            )
        if error.code() in _GONE:
            return TopicGone(f"Cannot {what}: the topic does not exist.", hint="It was deleted meanwhile.")
        if error.code() in _UNREACHABLE or error.retriable():
            servers = ", ".join(self._connection.bootstrap)
            last = f"; last problem: {self._problem.str()}" if self._problem is not None else ""
            return BrokerUnavailable(
                f"Cannot {what}: no answer from {servers}: {error.str()}{last}.",
                hint="Check spec.cluster.bootstrapServers, security.protocol, the network path and the brokers.",
            )
        return BrokerRefused(f"Cannot {what}: {error.name()}: {error.str()}.")

    def _refusal(self, error: KafkaError) -> BrokerRefused:
        servers = ", ".join(self._connection.bootstrap)
        if error.code() == KafkaError._SSL:
            return BrokerRefused(
                f"The TLS handshake with {servers} failed: {error.str()}.",
                hint="Check the ca.crt in the Secret of spec.cluster.security.tls.caSecretRef, the client certificate, "
                "and spec.cluster.security.protocol.",
            )
        return BrokerRefused(
            f"{servers} refused user {self._connection.username!r}: {error.str()}.",
            hint="Check the username and password in the Secret of spec.cluster.security.sasl.secretRef, and its "
            "mechanism.",
        )


def _is_refusal(error: KafkaError) -> bool:
    if error.code() == KafkaError._SSL:
        # `routines::` comes from OpenSSL itself; without it a connection broke during the handshake.
        return "routines::" in error.str()
    return bool(
        error.code()
        in (
            KafkaError._AUTHENTICATION,
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError.UNSUPPORTED_SASL_MECHANISM,
            KafkaError.ILLEGAL_SASL_STATE,
        )
    )


def _topic_info(view: TopicView) -> TopicInfo:
    partitions = tuple(
        PartitionInfo(number, part.leader, part.replicas) for number, part in sorted(view.partitions.items())
    )
    replicas = max((len(part.replicas) for part in partitions), default=0)
    return TopicInfo(view.name, view.topic_id, partitions, replicas, view.internal, view.readable)


def _is_own(entry: ConfigEntry) -> bool:
    return ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG


def _compacts(name: str, value: str) -> bool:
    return name == "cleanup.policy" and "compact" in value


def _in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Its result, in an event loop and thread of its own: the caller may be inside a loop."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, work).result()


def _parts(items: Iterable[T], most: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while part := list(islice(iterator, most)):
        yield part

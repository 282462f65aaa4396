"""Questions to a cluster, through librdkafka's admin client or the engine's own connections.

A question is asked again while brokers are out of reach. Errors name the resource's field.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from logkeep_engine.contract.model import replace
from logkeep_engine.errors import BrokerRefused, BrokerUnavailable, LogkeepError, TopicGone
from logkeep_engine.kafka.brokers import ADVERTISED, BrokerPool
from logkeep_engine.kafka.connection import KafkaConnection, told_authorities, told_login
from logkeep_engine.kafka.features import finalized_features
from logkeep_engine.kafka.kept_pool import KeptPool, Question, ask_once
from logkeep_engine.kafka.retry import BrokerTrouble, Patience
from logkeep_engine.kafka.survey import Survey

T = TypeVar("T")

_CONNECT_TIMEOUT = 15.0  # for the first question, which also finds out whether any broker answers
_LOOK_SECONDS = 5.0  # for a look at which brokers can be reached, after a question that none has answered
_SHOWN = 3
_LEAST_SETUP_MS = 1_000  # librdkafka takes no less
_REST_SECONDS = 2.0
"""Behind so long a rest a question gets a new client. A used one keeps asking the broker that it knows as the
controller, also when that has died, and takes a whole processor for it until the question's time is over."""

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
UNREACHABLE = frozenset(
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


class Admin:
    """A context manager; nothing is sent before the first question. Within it, questions that follow each other share
    connections; without it, each opens its own.

    Every method raises BrokerUnavailable when brokers cannot be reached or do not answer within `timeout` seconds, by
    default those of the connection's limits (with the addresses and the last reason), and BrokerRefused when login,
    certificates or ACLs are not accepted. Before the first answer a refusal is told at once. Later it may pass, as one
    by a broker that starts, and it is told when the time is over.

    One thread asks at a time.
    """

    def __init__(
        self, connection: KafkaConnection, *, timeout: float | None = None, connect_timeout: float | None = None
    ) -> None:
        connection.tls()  # certificate files that cannot be used: our error, not librdkafka's
        self._connection = connection
        limits = connection.limits
        self._timeout = timeout = limits.control if timeout is None else timeout
        self._connect_timeout = min(_CONNECT_TIMEOUT, timeout) if connect_timeout is None else connect_timeout
        self._problem: KafkaError | None = None
        self._connected = False
        self._kept: KeptPool | None = None
        self._permit: Callable[[], None] = lambda: None
        self.changed = False
        """Whether the cluster has been changed, by an order that it has confirmed, or by what `note_change` tells."""
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
        self._asked_at = time.monotonic()
        self._admin = self._new_admin()

    def _new_admin(self) -> AdminClient:
        """A client that knows nothing yet. A used one keeps asking a controller that has died.

        It reads the certificate files, which may have been renewed. Raises CredentialsMissing if they cannot be used.
        """
        try:
            return AdminClient(self._config)
        except KafkaException as error:
            self._connection.tls()  # certificate files that cannot be used: this names them
            raise BrokerRefused(f"The Kafka client refuses its configuration: {error.args[0].str()}.") from error

    def _client(self) -> AdminClient:
        """The client for a question that follows now."""
        now = time.monotonic()
        if now - self._asked_at > _REST_SECONDS:
            self._admin = self._new_admin()
        self._asked_at = now
        return self._admin

    def __enter__(self) -> Self:
        self._kept = KeptPool()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kept, self._kept = self._kept, None
        try:
            self._admin.poll(0)
        finally:
            if kept is not None:
                kept.close()

    # ---- the cluster

    def cluster_id(self) -> str:
        """The cluster's id."""
        return str(self._cluster().cluster_id)

    def only(self, cluster_id: str) -> None:
        """From now on ignore what brokers of another cluster say about topics and offsets."""
        self._connection = replace(self._connection, cluster_id=cluster_id)

    def only_while(self, permit: Callable[[], None]) -> None:
        """From now on ask `permit` before each change of the cluster. It raises if this process must make none."""
        self._permit = permit

    def note_change(self) -> None:
        """Note that the cluster is changed, or may be."""
        self.changed = True

    def broker_count(self) -> int:
        """How many brokers are alive."""
        return len(self._cluster().nodes)

    def registered(self) -> frozenset[int] | None:
        """Ids of the brokers that the controller knows, also of those that are down; None if the brokers are older than
        4.0, which do not tell.
        """
        return self._ask(lambda survey: survey.registered(), "ask for the registered brokers")

    def features(self) -> dict[str, int]:
        """The finalized features of the cluster, by name; none if its brokers do not tell them. A feature that is
        absent has level 0."""

        async def ask(survey: Survey) -> dict[str, int]:
            node, call = survey.pool.any_node(), finalized_features()
            if not await survey.pool.speaks(node, call):
                return {}
            return dict((await survey.pool.ask(node, call)).levels)

        return self._ask(ask, "ask for finalized features")

    # ---- asking

    def _cluster(self) -> Any:
        return self._retry(
            lambda: self._client().describe_cluster(request_timeout=self._request_timeout()), "describe the cluster"
        )

    def _ask(self, question: Callable[[Survey], Awaitable[T]], what: str) -> T:
        """The answer to a question on the engine's own connections, asked again while brokers are out of reach."""
        self._connect()

        async def ask(pool: BrokerPool) -> T:
            patience = Patience(replace(pool.limits, outage=self._timeout), what)
            survey = Survey(pool, self._timeout)
            while True:
                try:
                    return await question(survey)
                except BrokerTrouble as trouble:
                    await patience.wait(trouble)

        return self._on_a_pool(ask)

    def _on_a_pool(self, question: Question[T]) -> T:
        kept = self._kept  # another thread may leave the context meanwhile
        if kept is None:
            return in_a_loop(ask_once(self._connection, question))
        return kept.ask(self._connection, question)

    def _on_error(self, error: KafkaError) -> None:
        # Called from poll(). One that is fatal for a login stays; others are kept to explain a timeout. Where brokers
        # end connections, as one that wants a login or TLS does, librdkafka only says "0/2 brokers are down".
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return
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

        Raises BrokerRefused as soon as librdkafka learns that it may not log in, before the first answer.
        """
        client = self._admin  # its questions would end with it
        while not wait([future], timeout=0.05).done:
            client.poll(0)
            if self._problem is not None and _is_refusal(self._problem) and not self._connected:
                raise self._refusal(self._problem)
        self._asked_at = time.monotonic()  # the rest begins behind the answer
        try:
            result = future.result()
        except KafkaException as error:
            client.poll(0)
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
            if problem.args[0].code() not in UNREACHABLE or time.monotonic() > deadline:
                raise self._error(problem, what) from problem
            self._begin_again()

    def _begin_again(self) -> None:
        """Wait for a while; the next question goes to a client that knows nothing of the brokers."""
        time.sleep(self._connection.limits.control_pause)
        self._admin = self._new_admin()

    def _each(self, ask: Any, wanted: Sequence[T], what: Any) -> dict[T, Any]:
        """Ask a question that has an answer for each of `wanted`. Items whose failure may pass are asked for again, and
        items that are gone are left out.
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
                if code in _GONE:
                    continue
                if code not in UNREACHABLE or time.monotonic() > deadline:
                    raise self._error(problem, what(item)) from problem
                again.append(item)
            left = again
            if left:
                self._begin_again()
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
        if error.code() in UNREACHABLE or error.retriable():
            servers = ", ".join(self._connection.bootstrap)
            unreachable, silent = self._out_of_reach()
            if unreachable:
                return BrokerUnavailable(
                    f"Cannot {what}: a broker of {servers} answers, and names addresses of brokers that cannot be "
                    f"reached from here: {unreachable}.",
                    hint=ADVERTISED,
                )
            problem_seen = silent if self._problem is None else self._problem.str()
            last = f"; last problem: {problem_seen}" if problem_seen else ""
            return BrokerUnavailable(
                f"Cannot {what}: no answer from {servers}: {error.str()}{last}.",
                hint="Check the addresses, the security protocol, the network path and the brokers.",
            )
        return BrokerRefused(f"Cannot {what}: {error.name()}: {error.str()}.")

    def _out_of_reach(self) -> tuple[str, str]:
        """The brokers that cannot be reached under the addresses that they advertise, with the reasons; "" if there are
        none. And the reason if no broker says which there are, "" if one does."""
        limits = self._connection.limits
        once = replace(self._connection, limits=replace(limits, connect=min(limits.connect, _LOOK_SECONDS), outage=0))
        try:
            found = [*in_a_loop(ask_once(once, BrokerPool.out_of_reach)).values()]
        except (BrokerTrouble, LogkeepError) as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, BrokerTrouble):
                cause = cause.__cause__
            return "", "" if cause is None else cause.reason
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return "; ".join(found[:_SHOWN]) + more, ""

    def _refusal(self, error: KafkaError) -> BrokerRefused:
        servers = ", ".join(self._connection.bootstrap)
        if error.code() == KafkaError._SSL:
            return BrokerRefused(
                f"The TLS handshake with {servers} failed: {error.str()}.",
                hint=f"Check the authorities {told_authorities()}, the client certificate, and the security protocol.",
            )
        return BrokerRefused(
            f"{servers} refused user {self._connection.username!r}: {error.str()}.",
            hint=f"Check the user and the password {told_login()}, and the SASL mechanism.",
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


def in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Its result, in an event loop and thread of its own: the caller may be inside a loop."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, work).result()

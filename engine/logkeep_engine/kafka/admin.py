"""Questions to a cluster and orders, on the engine's own connections.

A question is asked again while brokers are out of reach. Errors name the resource's field.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from logkeep_engine.errors import BrokerRefused, BrokerUnavailable, LogkeepError, TopicGone
from logkeep_engine.kafka.brokers import ADVERTISED, BrokerPool
from logkeep_engine.kafka.codes import GONE, UNREACHABLE, Code
from logkeep_engine.kafka.configs import Resource, alter_configs
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.encoding import Call
from logkeep_engine.kafka.features import finalized_features
from logkeep_engine.kafka.kept_pool import KeptPool, Question, ask_once
from logkeep_engine.kafka.queries import ClusterView
from logkeep_engine.kafka.retry import Patience, RetriableError
from logkeep_engine.kafka.survey import Survey

T = TypeVar("T")
R = TypeVar("R")

_CONNECT_TIMEOUT = 15.0  # for the first question, which also finds out whether any broker answers
_SHOWN = 3
ATTEMPTS = 3  # within the time for one question: a broker that hangs leaves time for another one

_AUTHORIZATION = frozenset(
    {Code.TOPIC_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED}
)


class Admin:
    """A context manager; nothing is sent before the first question. Within it, questions that follow each other share
    connections; without it, each opens its own.

    Every method raises BrokerUnavailable when brokers cannot be reached or do not answer within `timeout` seconds, by
    default those of the connection's limits (with the addresses and the last reason), and BrokerRefused when login,
    certificates or ACLs are not accepted.

    One thread asks at a time.
    """

    def __init__(
        self, connection: KafkaConnection, *, timeout: float | None = None, connect_timeout: float | None = None
    ) -> None:
        connection.tls()  # certificate files that cannot be used: before anything is asked
        self._connection = connection
        self._timeout = timeout = connection.limits.control if timeout is None else timeout
        self._connect_timeout = min(_CONNECT_TIMEOUT, timeout) if connect_timeout is None else connect_timeout
        self._connected = False
        self._kept: KeptPool | None = None
        self._permit: Callable[[], None] = lambda: None
        self.changed = False
        """Whether the cluster has been changed, by an order that it has confirmed, or by what `note_change` reports."""

    def __enter__(self) -> Self:
        self._kept = KeptPool()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    # ---- the cluster

    def cluster_id(self) -> str:
        """Return the cluster's id."""
        return self._cluster().cluster_id

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
        """Return how many brokers are alive."""
        return len(self._cluster().brokers)

    def registered(self) -> frozenset[int] | None:
        """Return ids of the brokers that the controller knows, also of those that are down; None if the brokers are
        older than 4.0, which do not report them.
        """
        return self._ask(lambda survey: survey.registered(), "ask for the registered brokers")

    def features(self) -> dict[str, int]:
        """Return the finalized features of the cluster, by name; none if its brokers do not report them. A feature that
        is absent has level 0."""

        async def ask(survey: Survey) -> dict[str, int]:
            node, call = survey.pool.any_node(), finalized_features()
            if not await survey.pool.speaks(node, call):
                return {}
            return dict((await survey.pool.ask(node, call)).levels)

        return self._ask(ask, "ask for finalized features")

    # ---- asking

    def _cluster(self) -> ClusterView:
        """Return the cluster as a broker knows it that has heard of it: one that has just started may not."""

        async def ask(survey: Survey) -> ClusterView:
            view = await survey.pool.describe([])
            if not view.cluster_id or not view.brokers:
                raise RetriableError("a broker answers that does not know the cluster yet")
            return view

        return self._ask(ask, "describe the cluster")

    def _ask(self, question: Callable[[Survey], Awaitable[T]], what: str) -> T:
        """Return the answer to a question, asked again while brokers are out of reach. The first question also finds
        out whether brokers can be reached under the addresses that they advertise."""
        first = not self._connected
        seconds = self._connect_timeout if first else self._timeout

        async def ask(pool: BrokerPool) -> T:
            patience = Patience(replace(pool.limits, outage=seconds), what)
            survey = Survey(pool, self._timeout)
            while True:
                try:
                    if first:
                        await self._refuse_out_of_reach(pool)
                    return await question(survey)
                except RetriableError as trouble:
                    await patience.wait(trouble)

        answer = self._on_a_pool(ask, seconds)
        self._connected = True
        return answer

    def _alter(
        self, wanted: Sequence[tuple[Resource, Mapping[str, str | None]]], what: str, *, only_check: bool = False
    ) -> Mapping[Resource, tuple[int, str]]:
        """Change configurations of any resources: the code and the reason of each. The same change does no harm twice,
        so it is made again when its answer is lost. `only_check`: nothing is changed."""

        call = alter_configs(wanted, only_check=only_check)
        return self._order(call, what, lambda answer: answer.results.values(), only_check=only_check).results

    def _order(
        self,
        call: Call[R],
        what: str,
        outcomes: Callable[[R], Iterable[tuple[int, str]]],
        *,
        passing: frozenset[Code] = UNREACHABLE,
        attempts: int = ATTEMPTS,
        only_check: bool = False,
        lost: Callable[[RetriableError], None] = lambda _: None,
    ) -> R:
        """Return the controller's answer to an order, which is given again where one of the `outcomes` in the answer, a
        code and a reason each, is one of those that are `passing`.

        An order whose answer is lost may have been carried out: `lost` raises if it must not be given again. The permit
        is asked each time that the order is given, and right before. `attempts` share the time for one question, so one
        that the controller needs long for has a single one. `only_check`: the order changes nothing.
        """

        async def ask(survey: Survey) -> R:
            pool, node = survey.pool, await survey.pool.controller()
            await pool.connected(node, 0)  # until here nothing was sent, and all may be tried again
            if not only_check:
                await asyncio.to_thread(self._permit)  # it reads from the storage
            try:
                answer = await pool.ask(node, call, survey.patience / attempts)
            except RetriableError as trouble:
                lost(trouble)
                raise
            for code, reason in outcomes(answer):
                if code in passing:
                    raise RetriableError(f"{pool.name(node)} says {Code.describe(code, reason)}")
            return answer

        return self._ask(ask, what)

    async def _refuse_out_of_reach(self, pool: BrokerPool) -> None:
        """Raises RetriableError if no broker can be reached under the address that it advertises, BrokerRefused."""
        if await pool.reaches_one():
            return
        found = [*(await pool.out_of_reach()).values()]
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise RetriableError(
            f"a broker of {', '.join(self._connection.bootstrap)} answers, but names addresses of brokers that cannot "
            f"be reached from here: {'; '.join(found[:_SHOWN])}{more}",
            hint=ADVERTISED,
        )

    def _on_a_pool(self, question: Question[T], reach: float) -> T:
        kept = self._kept  # another thread may leave the context meanwhile
        if kept is None:
            return in_a_loop(ask_once(self._connection, question, reach))
        return kept.ask(self._connection, question, reach)

    # ---- errors

    def _error(self, code: int, what: str, reason: str = "") -> LogkeepError:
        """Return the error for a code with which brokers do not do `what`. `reason` is in their own words."""
        name = Code.name_of(code)
        if code in _AUTHORIZATION:
            return BrokerRefused(f"The broker does not let this user {what}: {name}.", hint="Give the user the ACL.")
        if code in GONE:
            return TopicGone(f"Cannot {what}: the topic does not exist.", hint="It was deleted in the meantime.")
        text = Code.describe(code, reason.rstrip("."))
        if code in UNREACHABLE:
            servers = ", ".join(self._connection.bootstrap)
            return BrokerUnavailable(
                f"Cannot {what}: no answer from {servers}: {text}.",
                hint="Check the addresses, the security protocol, the network path and the brokers.",
            )
        return BrokerRefused(f"Cannot {what}: {text}.")


def in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Return its result, in an event loop and thread of its own: the caller may be inside a loop."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, work).result()

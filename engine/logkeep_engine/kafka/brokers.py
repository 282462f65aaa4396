"""Connections to brokers, and who leads which partition.

`BrokerPool` keeps a few connections to each broker, and the metadata of the topics that were asked for. A broker serves
the requests of one connection one after another, so on a single one a fetch that waits for data would hold up a
produce.

A request has one of three outcomes: an answer; `RetriableError`, which may pass, so that the caller asks again
(`Patience` says for how long); or an error of `errors`.

An address may lead to a broker of another cluster, by a name or a port that was moved, and topics there may
have the same names. So each connection asks which cluster it has reached before anything is sent through it.

No library's client is used: those ask for topics in a way that creates them, and for the metadata of the whole cluster
when a connection breaks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TypeVar, cast

from logkeep_engine.contract.values import host_port
from logkeep_engine.errors import (
    BrokerRefused,
    BrokerUnavailable,
    CredentialsMissing,
    KafkaLoginRefused,
    KafkaLoginUnavailable,
    LogkeepError,
    by_place,
)
from logkeep_engine.kafka import protocol
from logkeep_engine.kafka.buffers import Buffers
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.encoding import Call, VersionMissing
from logkeep_engine.kafka.opening import open_broker, reason_of
from logkeep_engine.kafka.queries import METADATA, METADATA_VERSIONS, ClusterView, describe_topics
from logkeep_engine.kafka.retry import Patience, RetriableError, joined, raise_for
from logkeep_engine.kafka.wire import Wire

R = TypeVar("R")

LANES = 4  # 1 to 4 fetch, the next 4 produce, then 2 for padding; 0 has the small questions
ANSWER_SECONDS = 10.0
"""A broker that has not answered a small question by then hangs; another may know or lead by now."""
# The process keeps them: a worker does one task after another, and each task would touch fresh memory.
_BUFFERS = Buffers()
ADVERTISED = (
    "Check that the broker is running, and that the address can be resolved and reached from here: it is the one that "
    "the broker advertises to its clients (advertised.listeners). If it belongs to another network, use the "
    "bootstrap address of a listener that advertises one of this network."
)
MISROUTED = (
    "Check where this address leads: the name, the port, and anything that forwards connections. It must be a "
    "broker of the cluster that spec.cluster.bootstrapServers names."
)
_AT_ONCE_SECONDS = 1.0  # a broker that is well takes milliseconds
_IDLE_SECONDS = 540  # below the broker's connections.max.idle.ms of 10 minutes


@dataclass(frozen=True, slots=True)
class Leader:
    node: int
    epoch: int


@dataclass(frozen=True, slots=True)
class _Topic:
    asked: float
    metadata: protocol.TopicMetadata | None


class BrokerPool:
    """An async context manager; entering it connects. All of it belongs to the event loop that entered it.

    Entering raises BrokerUnavailable if no bootstrap address answers within `reach` seconds, by default
    `limits.outage` (all are tried at once), BrokerRefused at once if the credentials or certificates are not accepted.
    """

    def __init__(self, connection: KafkaConnection, limits: Limits, *, reach: float | None = None) -> None:
        self.limits = limits
        self._reach = limits.outage if reach is None else reach
        self._connection = connection
        connection.tls()  # certificate files that cannot be used: before anything is asked
        # Brokers by id; bootstrap addresses have the ids -1, -2 and so on.
        self._bootstrap = {-1 - i: _host_port(address) for i, address in enumerate(connection.bootstrap)}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._cluster_id = connection.cluster_id  # that of the brokers; "": it is not known yet
        self._open: dict[tuple[int, int], Wire] = {}
        self._opening: dict[tuple[int, int], asyncio.Lock] = {}
        self._topics: dict[str, _Topic] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._muted_until: dict[int, float] = {}

    async def __aenter__(self) -> Self:
        patience = Patience(
            replace(self.limits, outage=self._reach), f"reach a Kafka broker of {', '.join(self._connection.bootstrap)}"
        )
        try:
            while True:
                try:
                    await self._enter()
                    return self
                except RetriableError as trouble:
                    await patience.wait(trouble)
        except BrokerUnavailable as error:
            await self.close()
            if isinstance(error, KafkaLoginUnavailable):
                raise
            raise BrokerUnavailable(
                error.message,
                hint="Check the addresses, the security protocol and the network path "
                + by_place("from this pod.", "from here."),
            ) from error
        except BaseException:
            await self.close()
            raise

    async def _enter(self) -> None:
        """Connect to the bootstrap address that answers first, and learn the brokers.

        Raises RetriableError, BrokerRefused.
        """
        attempts = {node: asyncio.create_task(self._connect(node, 0)) for node in self._bootstrap}
        failures: list[BaseException] = []
        try:
            for done in asyncio.as_completed(attempts.values()):
                try:
                    await done
                    break
                except (RetriableError, LogkeepError) as failure:
                    failures.append(failure)
            else:
                for refusal in failures:
                    if isinstance(refusal, LogkeepError):
                        raise refusal
                raise joined([failure for failure in failures if isinstance(failure, RetriableError)])
            await self._refresh([])
        finally:
            for task in attempts.values():
                task.cancel()
            await asyncio.gather(*attempts.values(), return_exceptions=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        closing = [wire.close() for wire in self._open.values()]
        self._open.clear()
        if closing:
            # A peer that vanished never confirms the end of a TLS session.
            await asyncio.wait(closing, timeout=1)

    def is_of(self, connection: KafkaConnection) -> bool:
        """Take this connection for that of the pool from now on, if it differs only in its cluster id, and that is what
        the brokers have said. Returns whether it does. A bootstrap address may have said nothing: it is left."""
        if not self._cluster_id or replace(self._connection, cluster_id=self._cluster_id) != connection:
            return False
        self._connection = connection
        for key in [key for key in self._open if key[0] < 0]:
            self._open.pop(key).close()
        return True

    async def answers(self) -> bool:
        """Return whether a broker of the right cluster answers at once. Learns the brokers again, as entering does."""
        try:
            async with asyncio.timeout(_AT_ONCE_SECONDS):
                await self._refresh([])
        except (TimeoutError, RetriableError, LogkeepError):
            return False
        return True

    async def reaches_one(self) -> bool:
        """Return whether a broker can be reached under the address that it advertises: the first one that is tried, or
        any other. Raises BrokerRefused."""
        first = next((node for node in self._nodes() if node in self._brokers), None)
        if first is None:
            return True  # a broker that has just started names none
        try:
            await self._connect(first, 0)
        except RetriableError:
            return len(await self.out_of_reach()) < len(self._brokers)
        return True

    async def out_of_reach(self) -> dict[int, str]:
        """Return why the brokers that the cluster names cannot be reached, each under the address that it advertises;
        those that can are absent. Raises RetriableError if no broker says which there are, BrokerRefused."""

        async def reason(node: int) -> str:
            try:
                await self._connect(node, 0)
            except RetriableError as trouble:
                return trouble.reason
            return ""

        await self._refresh([])
        nodes = sorted(self._brokers)
        reasons = await asyncio.gather(*map(reason, nodes))
        return {node: why for node, why in zip(nodes, reasons, strict=True) if why}

    # ---- requests

    async def send(self, node: int, lane: int, call: Call[R]) -> R:
        """Ask a broker; waits first if it throttles this client. Raises RetriableError, BrokerRefused."""
        return await (await self.post(node, lane, call))

    async def post(self, node: int, lane: int, call: Call[R]) -> Awaitable[R]:
        """Write the request now, in the order of calls, and hand back what waits for the answer.

        Requests posted to one node and lane are served in this order unless the connection breaks in between.
        """
        pause = self._muted_until.get(node, 0.0) - asyncio.get_running_loop().time()
        if pause > 0:
            await asyncio.sleep(pause)
        wire = await self._connect(node, lane)
        try:
            answer = wire.send(call)
        except VersionMissing as error:
            raise self._too_old(node, error) from error
        except OSError as error:
            raise RetriableError(f"{self.name(node)}: {reason_of(error)}") from error
        return self._answer(node, answer)

    async def _answer(self, node: int, answer: Awaitable[R]) -> R:
        try:
            result = await answer
        except TimeoutError as error:
            raise RetriableError(
                f"{self.name(node)} did not answer within {self.limits.request:.0f} s", timed_out=True
            ) from error
        except OSError as error:
            raise RetriableError(f"{self.name(node)}: {reason_of(error)}") from error
        throttle_ms = cast(int, getattr(result, "throttle_ms", 0))
        if throttle_ms > 0:
            # Since KIP-219 the broker answers at once and stops reading from the connection for this long.
            until = asyncio.get_running_loop().time() + throttle_ms / 1000
            self._muted_until[node] = max(until, self._muted_until.get(node, 0.0))
        return result

    async def speaks(self, node: int, call: Call[R]) -> bool:
        """Return whether the broker takes requests of this version. Raises RetriableError, BrokerRefused."""
        return (await self._connect(node, 0)).speaks(call)

    async def ask(self, node: int, call: Call[R], seconds: float = ANSWER_SECONDS) -> R:
        """Ask a small question. A broker that does not answer it at once hangs: then its connection is given up, so
        that others are asked before it. Raises RetriableError, BrokerRefused.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self.send(node, 0, call)
        except TimeoutError as error:
            wire = self._open.pop((node, 0), None)
            if wire is not None:
                wire.close(TimeoutError(f"no answer within {seconds:.0f} s"))
            raise RetriableError(f"{self.name(node)} did not answer within {seconds:.0f} s", timed_out=True) from error

    async def version(self, node: int, api_key: int) -> int:
        """Return the highest version of a request that a broker takes, -1 if it takes none.

        Raises RetriableError, BrokerRefused.
        """
        return (await self._connect(node, 0)).highest(api_key)

    async def connected(self, node: int, lane: int) -> None:
        """Open the connection, so that the next `post` writes without delay. Raises RetriableError, BrokerRefused."""
        await self._connect(node, lane)

    async def _connect(self, node: int, lane: int) -> Wire:
        key = (node, lane)
        wire = self._open.get(key)
        if wire is not None and _usable(wire):
            return wire
        if node not in self._brokers and node not in self._bootstrap:  # a coordinator that has just come back
            await self._refresh([])
        async with self._opening.setdefault(key, asyncio.Lock()):
            wire = self._open.get(key)
            if wire is not None and _usable(wire):
                return wire
            if wire is not None:
                wire.close()
                del self._open[key]
            address = self._brokers.get(node) or self._bootstrap.get(node)
            if address is None:
                raise RetriableError(f"broker {node} is not in the cluster's metadata")
            try:
                hint = None if node < 0 else ADVERTISED
                wire = await open_broker(self.name(node), address, self._connection, self.limits, _BUFFERS, hint)
            except VersionMissing as error:
                raise self._too_old(node, error) from error
            except (CredentialsMissing, KafkaLoginRefused) as error:
                raise self._maybe_renewed(error) from error
            await self._check_wire(node, wire)
            self._open[key] = wire
            return wire

    def _maybe_renewed(self, error: LogkeepError) -> Exception:
        """Return what a refused login means. In a run that has logged in before, somebody has renewed a password or a
        certificate, and the file with the new one comes a minute later: until then it is asked again."""
        if not self._cluster_id or not self._connection.may_be_renewed:
            return error
        return RetriableError(error.message.rstrip("."), hint=error.hint, refused=error)

    async def _check_wire(self, node: int, wire: Wire) -> None:
        """Find out which cluster a new connection has reached, and close it if that is another one. Raises
        RetriableError, BrokerRefused."""
        if not self._cluster_id:
            return
        try:
            async with asyncio.timeout(min(self.limits.request, ANSWER_SECONDS)):
                answer = await wire.send(protocol.metadata([]))
            self._check_cluster(node, answer.cluster_id)
        except VersionMissing as error:
            wire.close()
            raise self._too_old(node, error) from error
        except TimeoutError as error:
            wire.close(error)
            raise RetriableError(
                f"{self.name(node)} did not say which cluster it belongs to", timed_out=True
            ) from error
        except OSError as error:
            wire.close()
            raise self._not_connected(node, f": {reason_of(error)}") from error
        except BaseException:
            wire.close()
            raise

    def _not_connected(self, node: int, why: str) -> RetriableError:
        reason = self.name(node) + why
        return RetriableError(reason) if node < 0 else RetriableError(reason, hint=ADVERTISED)

    def name(self, node: int) -> str:
        """For messages: `broker 3 (host:9092)`."""
        address = self._brokers.get(node) or self._bootstrap.get(node)
        where = host_port(*address) if address else "address unknown"
        return where if node < 0 else f"broker {node} ({where})"

    def _too_old(self, node: int, error: VersionMissing) -> BrokerRefused:
        return BrokerRefused(
            f"{self.name(node)} does not fit this engine: {error}.",
            hint="Backups need Kafka 2.8 or newer, restores 3.6 or newer.",
        )

    # ---- metadata

    async def leader(self, topic: str, partition: int, *, newer_than: float = -1.0) -> Leader:
        """Return the partition's leader from metadata asked for after the loop time `newer_than`.

        Raises RetriableError, BrokerRefused.
        """
        known = self._topics.get(topic)
        if known is None or known.asked <= newer_than:
            async with self._asking.setdefault(topic, asyncio.Lock()):
                known = self._topics.get(topic)
                if known is None or known.asked <= newer_than:
                    await self._refresh([topic])
                    known = self._topics[topic]
        return self._leader_in(known.metadata, topic, partition)

    async def ask_leader(self, topic: str, partition: int, what: str, ask: Callable[[Leader], Awaitable[R]]) -> R:
        """Ask the leader of a partition, and the next one, until one answers.

        `ask` puts the question to a leader; it raises RetriableError for an answer that may get better. `what` follows
        "Cannot " in messages. Raises TopicGone, BrokerUnavailable, BrokerRefused, and what `ask` raises.
        """
        patience = Patience(self.limits, f"{what} topic {topic!r} partition {partition}")
        newer_than = -1.0
        while True:
            try:
                return await ask(await self.leader(topic, partition, newer_than=newer_than))
            except RetriableError as trouble:
                newer_than = await patience.wait(trouble)

    def _leader_in(self, metadata: protocol.TopicMetadata | None, topic: str, partition: int) -> Leader:
        code = metadata.code if metadata else Code.UNKNOWN_TOPIC_OR_PARTITION
        found = metadata.partitions.get(partition) if metadata else None
        if code == Code.NONE and found is None:
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
        if code != Code.NONE:
            self.forget(topic)
            raise_for(code, topic, partition, "find the leader of", "DESCRIBE", "")
        assert found is not None
        if found.leader < 0:
            self.forget(topic)
            raise RetriableError("it has no leader")
        return Leader(found.leader, found.leader_epoch)

    def forget(self, topic: str) -> None:
        self._topics.pop(topic, None)

    async def _refresh(self, topics: list[str]) -> None:
        asked = asyncio.get_running_loop().time()
        call = protocol.metadata(topics)

        async def ask(node: int) -> protocol.Metadata:
            answer = await self.ask(node, call)
            self._check_cluster(node, answer.cluster_id)
            return answer

        answer = await self._ask_any(ask)
        self._learn(answer.brokers, answer.cluster_id)
        for topic in topics:
            self._topics[topic] = _Topic(asked, answer.topics.get(topic))

    async def describe(self, names: Sequence[str] | None) -> ClusterView:
        """These topics, or all, as the first broker knows them that answers. Raises RetriableError, BrokerRefused."""

        async def ask(node: int) -> ClusterView:
            if names is not None:
                return await self._view(node, names)
            call = describe_topics(None, version=await self._metadata_version(node))
            view = await self.ask(node, call, self.limits.request)
            self._check_cluster(node, view.cluster_id)
            return view

        view = await self._ask_any(ask)
        self._learn(view.brokers, view.cluster_id)
        return view

    def _learn(self, brokers: dict[int, tuple[str, int]], cluster_id: str) -> None:
        """Keep what an answer says of the cluster: the brokers that it names must be of the same one."""
        if brokers:
            self._brokers = brokers
            self._cluster_id = self._connection.cluster_id or cluster_id

    async def describe_to_all(self, names: Sequence[str]) -> tuple[dict[int, ClusterView], dict[int, str]]:
        """These topics as each living broker knows them, and the brokers that did not answer, with the reason. A broker
        counts as living if any broker takes it for living. Raises RetriableError if no broker answers, BrokerRefused.
        """
        await self.describe([])
        views: dict[int, ClusterView] = {}
        silent: dict[int, str] = {}
        while left := [node for node in self._brokers if node not in views and node not in silent]:
            answers = await asyncio.gather(*(self._view(node, names) for node in left), return_exceptions=True)
            for node, answer in zip(left, answers, strict=True):
                if isinstance(answer, RetriableError):
                    silent[node] = answer.reason
                elif isinstance(answer, BaseException):
                    raise answer
                elif node not in answer.brokers:  # it has just started, and has not heard of its own cluster
                    silent[node] = f"{self.name(node)} does not know the cluster yet"
                else:
                    views[node] = answer
                    self._brokers = answer.brokers | self._brokers
        return views, silent

    async def _view(self, node: int, names: Sequence[str]) -> ClusterView:
        view = await self.ask(node, describe_topics(names, version=await self._metadata_version(node)))
        self._check_cluster(node, view.cluster_id)
        return view

    def _check_cluster(self, node: int, cluster_id: str) -> None:
        """Raises RetriableError if a broker is of another cluster: its topics are others, whatever their names."""
        wanted = self._connection.cluster_id or (self._cluster_id if node >= 0 else "")
        if wanted and cluster_id and cluster_id != wanted:
            raise RetriableError(
                f"{self.name(node)} belongs to Kafka cluster {cluster_id}, not to {wanted}", hint=MISROUTED
            )

    async def _metadata_version(self, node: int) -> int:
        """Return the version in which a broker is asked for metadata. Raises RetriableError, BrokerRefused."""
        lowest, highest = METADATA_VERSIONS
        return max(lowest, min(highest, await self.version(node, METADATA)))

    async def _ask_any(self, ask: Callable[[int], Awaitable[R]]) -> R:
        failures: list[RetriableError] = []
        for node in self._nodes():
            try:
                return await ask(node)
            except RetriableError as trouble:
                failures.append(trouble)
        raise joined(failures, "no broker answers: ")

    def _nodes(self) -> Iterator[int]:
        """Connected brokers first, then the others, then the bootstrap addresses (all brokers may have new ones)."""
        connected = {node for (node, _), wire in self._open.items() if wire.connected()}
        brokers = list(self._brokers)
        random.shuffle(brokers)  # the sort below leaves equals as they are, so small questions spread
        order = sorted([*brokers, *self._bootstrap], key=lambda node: (node not in connected, node < 0))
        return iter(order)

    async def controller(self) -> int:
        """Return the broker for orders that only the controller carries out, asked for now. Without ZooKeeper it is any
        broker: it hands orders on. Raises RetriableError, BrokerRefused."""
        view = await self.describe([])
        return view.controller if view.controller in view.brokers else self.any_node()

    def any_node(self) -> int:
        """Return a broker for requests that any broker serves."""
        return next(self._nodes())


def _usable(wire: Wire) -> bool:
    return wire.connected() and wire.idle_for() < _IDLE_SECONDS


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)

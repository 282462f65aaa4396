"""Topics, configurations, offsets and groups: the control plane.

    with ControlPlane(connection) as control:
        for topic in control.topics(): ...

Synchronous. Requests for thousands of topics are cut into pieces. What vanishes while it is asked about is absent from
the answer: a caller that needs it compares.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from logkeep_engine.contract.model import replace
from logkeep_engine.errors import BrokerUnavailable
from logkeep_engine.kafka.admin import in_a_loop
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.groups import GroupAdmin
from logkeep_engine.kafka.protocol import EARLIEST, LATEST
from logkeep_engine.kafka.queries import Where
from logkeep_engine.kafka.resource_configs import ConfigAdmin
from logkeep_engine.kafka.survey import Answers, Ended, Survey
from logkeep_engine.kafka.topics import TopicAdmin, TopicInfo
from logkeep_engine.kafka.users import UserAdmin
from logkeep_engine.kafka.witnesses import Finding, TopicStanding, Witnesses

T = TypeVar("T")

log = logging.getLogger(__name__)

ESTIMATE_SECONDS = 15.0

_PRODUCE, _OF_KAFKA_3_7 = 0, 10  # a request, and its highest version in Kafka 3.7 (KIP-951)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A partition's log start, and the offset below which all transactions are decided, as the leader of `leader_epoch`
    gives it."""

    start: int
    end: int
    leader_epoch: int = field(default=-1, compare=False)


class ControlPlane(TopicAdmin, GroupAdmin, UserAdmin, ConfigAdmin):
    """Everything that planning asks of a cluster, and orders: see `Admin` for how it asks and what it raises."""

    def latest_offsets(self, partitions: Iterable[Where]) -> dict[Where, int]:
        """High watermarks; partitions that are gone are absent. Raises BrokerUnavailable if a partition's leader does
        not answer."""
        answers = self.high_watermarks(sorted(set(partitions)))
        for (topic, partition), reason in answers.silent.items():
            raise BrokerUnavailable(
                f"Cannot list offsets of topic {topic!r} partition {partition}: {reason}. "
                f"Tried for {self._timeout:.0f} s.",
                hint="Check that the partition has a leader and that the brokers can be reached from here.",
            )
        return answers.found

    def high_watermarks(self, partitions: Iterable[Where]) -> Answers[int]:
        """High watermarks. A broker that does not answer is named, with the reason: nothing is raised for it."""
        wanted = list(partitions)
        return self._ask(lambda survey: survey.offsets(wanted, LATEST), "list offsets")

    def bounds(self, partitions: Iterable[Where]) -> Answers[Bounds]:
        """Log starts, and after them last stable offsets. A broker without a usable answer is named, with the
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

    def record_times(self, wanted: Mapping[Where, int]) -> Answers[int | None]:
        """Return the time of the first record of each partition that is not older than the time given, in ms since the
        epoch; None if it has none. Open transactions count. A broker that does not answer is named, with the reason."""
        return self._ask(lambda survey: survey.record_times(wanted), "list offsets")

    def standings(self, topics: Mapping[str, str]) -> dict[str, TopicStanding]:
        """Return the fates of these topic ids, by the topic's name: every living broker is asked."""
        return self._witness(topics, lambda witnesses: witnesses.standings())

    def findings(self, partitions: Mapping[Where, str]) -> dict[Where, Finding]:
        """Return the truth about these partitions of topic ids: every living broker is asked, and the leader in
        sync."""
        ids = {topic: topic_id for (topic, _), topic_id in partitions.items()}
        return self._witness(ids, lambda witnesses: witnesses.findings(partitions))

    def caps_replicas_in_sync(self) -> bool:
        """Return whether a partition requires no more replicas in sync than it has, whatever its min.insync.replicas
        says, as since Kafka 3.7 (KAFKA-15583)."""

        async def ask(survey: Survey) -> bool:
            return await survey.pool.version(survey.pool.any_node(), _PRODUCE) >= _OF_KAFKA_3_7

        return self._ask(ask, "ask for versions")

    def _witness(self, topics: Mapping[str, str], question: Callable[[Witnesses], Awaitable[T]]) -> T:
        async def ask(survey: Survey) -> T:
            return await question(Witnesses(survey.pool, survey.patience, topics))

        return self._ask(ask, "ask all brokers")

    def epoch_ends(self, wanted: Mapping[Where, int | None]) -> Answers[Ended]:
        """Return where leader epochs have ended in the logs of the partitions' leaders; None asks for the leader's own
        epoch, which ends where its log does. For thousands of partitions it is a request for each leader.
        """
        return self._ask(lambda survey: survey.epoch_ends(wanted), "ask for leader epochs")

    def partition_bytes(self, topics: Iterable[TopicInfo]) -> dict[tuple[str, int], int]:
        """Bytes on disk of each partition's leader replica, an estimate: what brokers report within ESTIMATE_SECONDS.
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
                log.info("sizes are unknown: %s", error.message)

        async def ask() -> None:
            try:
                async with asyncio.timeout(ESTIMATE_SECONDS), RawClient(self._connection, limits=limits) as client:
                    await asyncio.gather(*(one(client, *item) for item in by_leader.items()))
            except (TimeoutError, BrokerUnavailable) as error:
                log.info("sizes are unknown: %s", str(error) or "the brokers are slow")

        in_a_loop(ask())
        return found

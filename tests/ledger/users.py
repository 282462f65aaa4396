"""The group of a round and a quota, which a cluster that has lost everything has no more."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.user_requests import Quota
from tests.cluster.kafka_cluster import KafkaCluster
from tests.cluster.process import NotReady, wait_until

_RATE = 1e9  # bytes per second: it slows nobody down


class Users:
    """A quota of the round's own, for the client id `group`, and the group of that name."""

    def __init__(self, cluster: KafkaCluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._quota = Quota((("client-id", group),), "producer_byte_rate", _RATE)

    def begin(self) -> None:
        """Set the quota; returns when brokers know it."""
        self._set(_RATE)
        wait_until(self._is_set, 60, "the quota of a round")

    def forget(self) -> None:
        """Take away the quota and the group; returns when brokers know neither."""
        self._set(None)
        wait_until(lambda: not self._is_set(), 60, "the end of a quota")
        wait_until(self._is_group_gone, 60, f"the end of group {self._group}")

    def problems(self) -> Iterator[str]:
        """Says of the quota if it has not come back. Brokers may learn of it late."""
        try:
            wait_until(self._is_set, 30, "the quota")
        except NotReady:
            yield f"the quota {self._quota} has not come back"

    def _control(self) -> ControlPlane:
        return ControlPlane(KafkaConnection(tuple(self._cluster.addresses)))

    def _set(self, rate: float | None) -> None:
        with self._control() as control:
            assert control.set_quotas([self._quota._replace(value=rate)]) == []

    def _is_set(self) -> bool:
        with self._control() as control:
            return self._quota in (control.quotas().items or ())

    def _is_group_gone(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, "log_level": 3})
        try:
            admin.delete_consumer_groups([self._group], request_timeout=30)[self._group].result(60)
        except KafkaException as problem:  # a coordinator may not know its groups yet
            error: KafkaError = problem.args[0]
            return error.code() == KafkaError.GROUP_ID_NOT_FOUND
        return False

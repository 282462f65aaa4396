"""The KafkaBackupRuns that ask for something, so that a look at any other KafkaBackup needs not read them.

Which backups have some is remembered from events and resyncs only to spare calls: what is decided about them is always
read from the API.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import islice

from logkeep_engine.contract.names import BACKUP_RUN
from logkeep_operator.api import Key
from logkeep_operator.api.backup_run import RequestedRun
from logkeep_operator.bounds import MAX_REQUESTED
from logkeep_operator.cluster import KubernetesCluster
from logkeep_operator.reconcile import AdoptRequestedRun, Answer, AnswerRequestedRun, DeleteRequestedRun, wants_look


class RequestedRuns:
    """Safe to use from several threads."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._keys: set[Key] = set()

    def note(self, requested: RequestedRun) -> None:
        """Note that it was made. The next look at its backup reads it."""
        self._keys.add(requested.key)

    def of(self, key: Key, now: datetime) -> tuple[RequestedRun, ...]:
        """Return those of a KafkaBackup that ask for something, the first of them if there are very many."""
        if key not in self._keys:
            return ()
        self._keys.discard(key)  # before they are read: one that is made meanwhile is noted again
        asking = (
            one for one in self._cluster.requested_runs(key.namespace) if one.key == key and wants_look([one], now)
        )
        found = tuple(islice(asking, MAX_REQUESTED))
        if found:
            self._keys.add(key)
        return found

    def all(self, namespace: str | None, now: datetime) -> dict[Key, tuple[RequestedRun, ...]]:
        """Return those that ask for something, by their KafkaBackup, of a namespace or of the whole cluster."""
        grouped: dict[Key, list[RequestedRun]] = defaultdict(list)
        for one in self._cluster.requested_runs(namespace):
            if wants_look([one], now) and len(grouped[one.key]) < MAX_REQUESTED:
                grouped[one.key].append(one)
        found = {key: tuple(some) for key, some in grouped.items() if some}
        self._keys.update(found)
        return found

    def carry_out(self, namespace: str, answers: Sequence[Answer]) -> None:
        """Do what a plan says about them."""
        for answer in answers:
            match answer:
                case AnswerRequestedRun():
                    self._cluster.answer_requested_run(answer.requested, answer.status)
                case AdoptRequestedRun():
                    self._cluster.adopt_requested_run(answer.requested, answer.uid)
                case DeleteRequestedRun():
                    self._cluster.delete(BACKUP_RUN, namespace, answer.name, answer.uid)

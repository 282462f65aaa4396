"""The queue of runs that wait for a driver. At most this many runs have one at a time, in all and in a namespace, and
the run that has waited longest comes first.

A run that waits has no pods: it takes no room that the executors of another run need. A namespace that is full holds up
no other namespace. A namespace without a limit of its own has a share of the places where other namespaces have
resources. `driver_slots` remembers who runs and who waits; this module decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from logkeep_operator.api import Key
from logkeep_operator.reconcile.observed import Observed
from logkeep_operator.resources import ROLE_DRIVER
from logkeep_operator.settings import Concurrency

NO_LIMIT = 0
_NO_LIMITS = Concurrency()
# A driver that has not come to run by then waits for help (an image, a Secret, a node): others may go first.
GIVES_WAY_AFTER = timedelta(minutes=5)
# Positions up to the first number are reported exactly. After it a status changes seldom, however many runs wait.
_POSITIONS = (10, 20, 50, 100, 200, 500, 1000)


class Waiter(NamedTuple):
    """A resource whose run waits for its turn."""

    since: datetime
    key: Key


@dataclass(frozen=True)
class RunQueue:
    """The runs of the operator. `counted` is False until the operator knows those that were there when it started.
    `namespaces` have resources."""

    concurrency: Concurrency = _NO_LIMITS
    running: frozenset[Key] = frozenset()
    waiting: frozenset[Waiter] = frozenset()
    counted: bool = True
    namespaces: frozenset[str] = frozenset()

    def most(self, namespace: str) -> int:
        """Return the most runs of a namespace, or NO_LIMIT."""
        most = self.concurrency.of(namespace)
        if most is not None:
            return most
        return self.concurrency.share if self.namespaces - {namespace} else NO_LIMIT


@dataclass(frozen=True)
class QueuePlace:
    """A place in the queue. `namespace` is the one that is full, None if the operator is. `share`: the namespace has no
    limit but its share."""

    position: int
    running: int
    most: int
    namespace: str | None = None
    share: bool = False

    @property
    def message(self) -> str:
        """The place in words."""
        if self.position == 0:
            return "The operator has just started and counts the runs in progress. The run begins after that."
        limit = "maxConcurrentRuns of the operator"
        if self.namespace is not None:
            limit = f"maxConcurrentRuns of namespace {self.namespace}"
        if self.share:
            limit = f"the share of namespace {self.namespace}, besides others,"
        return (
            f"The run waits for its turn at position {_in_words(self.position)}: {self.running} runs are in progress, "
            f"and {limit} is {self.most}."
        )


UNCOUNTED = QueuePlace(0, 0, 0)


def place_of(turns: RunQueue, key: Key, since: datetime) -> QueuePlace | None:
    """Return the place at which the run of a resource waits, None if it is its turn."""
    if key in turns.running:
        return None
    if not turns.counted:
        return UNCOUNTED
    me = Waiter(since, key)
    waiting = sorted({me, *(other for other in turns.waiting if other.key != key)})
    ahead: list[Waiter] = []
    for waiter, full in _decided(turns, waiting):
        if waiter == me:
            return None if full is None else _place(turns, ahead, me, full)
        if full is not None:
            ahead.append(waiter)
    raise AssertionError("a waiter is among those that wait")


def due(turns: RunQueue) -> list[Key]:
    """Return the resources whose turn it is, in their order."""
    if not turns.counted:
        return []
    waiting = sorted(waiter for waiter in turns.waiting if waiter.key not in turns.running)
    return [waiter.key for waiter, full in _decided(turns, waiting) if full is None]


def holds_place(observed: Observed, now: datetime) -> bool:
    """Return whether a driver of the resource runs or is on its way. A driver that does not come to run gives way after
    a time, and so does one on a node that has gone silent."""
    for job in observed.jobs.values():
        if job.finished or job.suspended or job.deleting:
            continue
        if job.started is None or now - job.started < GIVES_WAY_AFTER:
            return True
    ready = observed.resource.status.condition("Ready")
    silent = ready is not None and ready.reason == "NoProgress"
    drivers = [pod for pod in observed.pods if pod.role == ROLE_DRIVER and pod.alive]
    return any(
        (pod.phase == "Running" and not silent) or (pod.created is not None and now - pod.created < GIVES_WAY_AFTER)
        for pod in drivers
    )


def _decided(turns: RunQueue, waiting: list[Waiter]) -> Iterator[tuple[Waiter, str | None]]:
    """Each waiter in its order, with what is full for it: None if it may begin, an empty string for the operator, or
    the name of its namespace."""
    total = len(turns.running)
    of_namespace = Counter(key.namespace for key in turns.running)
    for waiter in waiting:
        namespace = waiter.key.namespace
        if NO_LIMIT < turns.most(namespace) <= of_namespace[namespace]:
            yield waiter, namespace
        elif NO_LIMIT < turns.concurrency.operator <= total:
            yield waiter, ""
        else:
            total += 1
            of_namespace[namespace] += 1
            yield waiter, None


def _place(turns: RunQueue, ahead: list[Waiter], me: Waiter, full: str) -> QueuePlace:
    namespace = me.key.namespace
    if full:
        before = sum(other.key.namespace == namespace for other in ahead)
        running = sum(key.namespace == namespace for key in turns.running)
        share = turns.concurrency.of(namespace) is None
        return QueuePlace(before + 1, running, turns.most(namespace), namespace, share)
    return QueuePlace(len(ahead) + 1, len(turns.running), turns.concurrency.operator)


def _in_words(position: int) -> str:
    below = [bound for bound in _POSITIONS if bound < position]
    return f"above {below[-1]}" if below else str(position)

"""Trouble with a broker that may pass, how long it is waited for, and errors that mean more than trouble."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from logkeep_engine.errors import BrokerRefused, BrokerUnavailable, LogkeepError, TopicGone
from logkeep_engine.kafka.codes import GONE, RETRIABLE, Code
from logkeep_engine.kafka.connection import Limits

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.01  # the leader of a topic that was just created is ready within milliseconds


class RetriableError(Exception):
    """A failure that may pass. `gone`: the broker does not know the topic or partition.

    If it does not pass, it becomes `refused`, where there is one, or else an `error` with this `hint`.
    """

    def __init__(
        self,
        reason: str,
        *,
        gone: bool = False,
        timed_out: bool = False,
        error: type[BrokerUnavailable] = BrokerUnavailable,
        hint: str = "Check that the partition has a leader and that the brokers can be reached from here.",
        refused: LogkeepError | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.gone = gone
        self.timed_out = timed_out
        self.error = error
        self.hint = hint
        self.refused = refused


def joined(troubles: Sequence[RetriableError], before: str = "") -> RetriableError:
    """Return the troubles with several brokers as one. It means what the first of them means that is about a login,
    which is the same for all brokers."""
    reasons = "; ".join(dict.fromkeys(trouble.reason for trouble in troubles))
    for trouble in troubles:
        if trouble.refused is not None or trouble.error is not BrokerUnavailable:
            return RetriableError(before + reasons, error=trouble.error, hint=trouble.hint, refused=trouble.refused)
    return RetriableError(before + reasons)


class Patience:
    """Waits between attempts, longer each time, with jitter; raises when the limits are used up.

    After an attempt that succeeds, take a new Patience: limits count from the first trouble.
    """

    def __init__(self, limits: Limits, what: str) -> None:
        self._limits = limits
        self._what = what
        self._since: float | None = None
        self._gone_since: float | None = None
        self._pause = min(limits.pause, _FIRST_PAUSE)

    async def wait(self, trouble: RetriableError) -> float:
        """Sleep, or raise TopicGone or BrokerUnavailable.

        Returns the loop time of the trouble, to ask for newer metadata.
        """
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
            _log.info("cannot %s: %s; trying again", self._what, trouble.reason)
        # Another trouble in between says nothing of the topic: it must be unknown without a break.
        if not trouble.gone:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now
        if self._gone_since is not None and now - self._gone_since >= self._limits.unknown:
            raise TopicGone(
                f"Cannot {self._what}: {trouble.reason}, for {self._limits.unknown:.0f} s.",
                hint="The topic was deleted, or deleted and created again; a new run finds what is there now.",
            ) from trouble
        if trouble.refused is not None:
            if now - self._since >= max(self._limits.outage, self._limits.renewal):
                raise trouble.refused from trouble
        elif now - self._since >= self._limits.outage:
            raise trouble.error(
                f"Cannot {self._what}: {trouble.reason}. Tried for {self._limits.outage:.0f} s.", hint=trouble.hint
            ) from trouble
        # Tasks that lost a broker together must not all come back at one moment.
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(self._pause * 2, self._limits.longest_pause)
        return now


def raise_for(code: int, topic: str, partition: int, what: str, operation: str, broker: str) -> None:
    """Raise what an error code means for every kind of request: RetriableError, BrokerRefused.

    Returns for codes with a meaning of their own.
    """
    said = f"{broker} says {Code.name_of(code)}" if broker else Code.name_of(code)
    if code in GONE:
        raise RetriableError(said, gone=True)
    if code in RETRIABLE:
        raise RetriableError(said)
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        raise BrokerRefused(
            f"Cannot {what} topic {topic!r} partition {partition}: {said}.",
            hint=f"Give the user the ACL {operation} on topic {topic!r}.",
        )
    if code == Code.CLUSTER_AUTHORIZATION_FAILED:
        raise BrokerRefused(
            f"Cannot {what} topic {topic!r} partition {partition}: {said}.",
            hint=f"Give the user the ACL {operation} on the cluster.",
        )


def refused(code: int, topic: str, partition: int, what: str, broker: str) -> BrokerRefused:
    """Return the error for a code that no broker should answer."""
    return BrokerRefused(
        f"Cannot {what} topic {topic!r} partition {partition}: {broker} says {Code.name_of(code)}.",
        hint="See the broker's log.",
    )

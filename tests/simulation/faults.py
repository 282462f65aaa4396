"""Lies that the simulated brokers tell, and when.

A lie waits until so many questions that it fits have been asked, then it is told so many times, or until the cluster is
healed. `docs/simulation.md` says for each where a real broker was seen to tell it, or which part of its source does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock

from tests.simulation.protocol import Api

FOREVER = 1 << 30


class Kind(StrEnum):
    """A fault: a lie that a broker tells, or harm that it does."""

    # a whole request
    DROPPED = "connection dropped before the request"
    LOST_ANSWER = "answer lost"
    SILENCE = "no answer"
    SLOW = "slow answer"
    CUT_ANSWER = "connection dropped inside the answer"
    THROTTLED = "throttled"
    # one partition, or one topic, of an answer
    CODE = "error code"
    EMPTY = "empty answer below the last stable offset"
    LATE_WATERMARK = "late high watermark"
    OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE inside the log"
    FLIPPED = "flipped byte in a batch"
    CUT_BATCH = "batch cut short"
    DUPLICATED = "batches twice in one answer"
    ABORTED_MISSING = "aborted transaction left out of the list"
    NO_OFFSET = "offset -1 without an error"
    STALE_OFFSET = "end offset of an earlier time"
    UNKNOWN_TOPIC = "topic unknown for a while"
    NO_LEADER = "no leader"
    STALE_LEADER = "leader of an earlier time"
    MISSING_BROKER = "broker missing in metadata"
    APPENDED_WITH_ERROR = "batch written, error answered"
    FORGOTTEN_PRODUCER = "producer forgotten"
    MADE_WITH_ERROR = "topic created, error answered"


OF_REQUESTS = frozenset({Kind.DROPPED, Kind.LOST_ANSWER, Kind.SILENCE, Kind.SLOW, Kind.CUT_ANSWER, Kind.THROTTLED})


@dataclass(slots=True)
class Lie:
    """`after`: questions that fit and are answered honestly first. `times`: how often it is told. `code`: of the
    protocol, for CODE. None fits every broker, topic or partition."""

    kind: Kind
    api: Api
    after: int = 0
    times: int = 1
    code: int = 0
    node: int | None = None
    topic: str | None = None
    partition: int | None = None
    used: int = 0

    def __str__(self) -> str:
        where = "".join(
            f" {name} {value}"
            for name, value in (("broker", self.node), ("topic", self.topic), ("partition", self.partition))
            if value is not None
        )
        code = f" {self.code}" if self.kind is Kind.CODE else ""
        often = "until healed" if self.times >= FOREVER else f"{self.times} times"
        return f"{self.api.name}: {self.kind.value}{code}{where}, after {self.after}, {often}"

    def fits(self, api: Api, node: int, topic: str | None, partition: int | None) -> bool:
        return (
            self.api is api
            and self.node in (None, node)
            and (self.topic is None or self.topic == topic)
            and (self.partition is None or partition is None or self.partition == partition)
        )


@dataclass(slots=True)
class Lies:
    """Those that may be told now; `used` counts by request and kind. Safe for several threads."""

    active: list[Lie] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def of_request(self, api: Api, node: int) -> Lie | None:
        """The lie for a whole request, if it is time for one."""
        return self._take(api, node, None, None, OF_REQUESTS)

    def of_part(
        self, api: Api, node: int, topic: str, partition: int | None, kinds: Iterable[Kind] | None = None
    ) -> Lie | None:
        """The lie for a topic or partition of an answer, if it is time for one."""
        wanted = frozenset(Kind) - OF_REQUESTS if kinds is None else frozenset(kinds)
        return self._take(api, node, topic, partition, wanted)

    def _take(
        self, api: Api, node: int, topic: str | None, partition: int | None, kinds: frozenset[Kind]
    ) -> Lie | None:
        with self._lock:
            for lie in self.active:
                if lie.kind not in kinds or not lie.fits(api, node, topic, partition):
                    continue
                if lie.after > 0:
                    lie.after -= 1
                    continue
                lie.times -= 1
                lie.used += 1
                if lie.times == 0:
                    self.active.remove(lie)
                self.used[f"{api.name}: {lie.kind.value}"] += 1
                return lie
        return None

    def heal(self) -> None:
        """The brokers tell only the truth from now on."""
        with self._lock:
            self.active.clear()

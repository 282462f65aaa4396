"""Finds out whether there are no records at some offsets, or whether the broker has not read them.

A broker with tiered storage answers without records and without error when a read of its remote store takes longer than
`remote.fetch.max.wait.ms`, when the store has a hiccup, and while its quota for remote reads is used up: such an answer
looks like one from where compaction has left nothing. Repeating it proves nothing. This does:

- The next batch. A fetch that is bounded by the high watermark instead of the last stable offset brings the next batch
  of the log, wherever it lies. If it begins at or after the end of the range, then nothing lies before it.
- The local log's end. The leader itself reads from its own disk there (its local log begins at or before these
  offsets), has no batch up to its high watermark, and none at its last offset either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logkeep_engine.errors import RecordsWithheld
from logkeep_engine.kafka.connection import Limits
from logkeep_engine.kafka.retry import Patience, RetriableError
from logkeep_engine.log.batch import parse_header

if TYPE_CHECKING:
    from logkeep_engine.kafka.fetch import Fetcher
    from logkeep_engine.kafka.fetched import Fetched

_SLOW_STORE = (
    "The brokers' remote store is too slow or failing: raise remote.fetch.max.wait.ms (500 by default), and "
    "remote.log.manager.fetch.max.bytes.per.second if it is set. What was not read is not recorded: the next run "
    "tries it again."
)
_SILENT_LOG = (
    "The broker's own log may say why it does not read there. What was not read is not recorded: the next run tries "
    "it again."
)


class EmptyAnswers:
    """The answers without records that a reader of one partition gets in a row."""

    def __init__(
        self, fetcher: Fetcher, limits: Limits, topic: str, partition: int, topic_id: str | None = None
    ) -> None:
        self._fetcher = fetcher
        self._limits = limits
        self._topic = topic
        self._partition = partition
        self._topic_id = topic_id
        self._patience: Patience | None = None
        self._local_start: int | None = None

    def over(self) -> None:
        """Records have come."""
        self._patience = None

    async def proved(self, fetched: Fetched, position: int, end: int) -> bool:
        """Return whether the log itself shows that it has no batch in [position, end).

        `fetched` is the answer without records at `position`. Raises what `Fetcher.fetch` raises.
        """
        local = await self._fetcher.local_start(self._topic, self._partition)
        self._local_start = local[0] if local else None
        if local is not None and local[0] > position:
            return False
        later = await self._first_at(position)
        if later.data:
            begins = parse_header(later.data).base_offset
            later.release()
            return begins >= end
        if later.high_watermark - 1 > position:
            last = await self._first_at(later.high_watermark - 1)
            if last.data:
                last.release()
                return False
        # One leader must have said all of it: the local log of another one may begin elsewhere.
        return later.high_watermark >= end and (local is None or local[1] == fetched.leader_epoch == later.leader_epoch)

    async def wait(self, position: int, end: int) -> None:
        """Pause before the next attempt. Raises RecordsWithheld if there were records to be had for too long."""
        if self._patience is None:
            self._patience = Patience(
                self._limits, f"read topic {self._topic!r} partition {self._partition} from offset {position}"
            )
        remote = self._local_start is not None and self._local_start > position
        where = f"; they are in its remote store, the local log begins at {self._local_start}" if remote else ""
        await self._patience.wait(
            RetriableError(
                f"the leader answers without records, although its log reaches offset {end}{where}",
                error=RecordsWithheld,
                hint=_SLOW_STORE if remote else _SILENT_LOG,
            )
        )

    async def _first_at(self, offset: int) -> Fetched:
        """Return the first batch that ends after `offset`, if the leader brings one at once."""
        return await self._fetcher.fetch(
            self._topic,
            self._partition,
            offset,
            max_bytes=1,  # a batch that is larger comes whole all the same (KIP-74)
            max_wait_ms=0,
            topic_id=self._topic_id,
            committed=False,
        )

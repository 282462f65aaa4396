"""The search for the markers of transactions that are open at the end of a piece.

All that was read lay below the last stable offset, so each of its transactions was decided, and its marker lies
somewhere after its records, below the high watermark. A format of records must know the marker before it writes (see
`pieces.records.RecordReader`). In Kafka's format the marker comes by with the next piece, or the next run.
"""

from __future__ import annotations

import asyncio
import logging

from logkeep_engine.backup.model.plan import Piece
from logkeep_engine.backup.pieces.writer import PieceWriter
from logkeep_engine.errors import OffsetOutOfRange, RecordsWithheld, TopicGone
from logkeep_engine.kafka.client import Fetched, RawClient
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import BatchHeader, runs
from logkeep_engine.log.records import ControlType, control_type

log = logging.getLogger(__name__)

_LOOK_BYTES = 1 << 20
_CONTROL = 0x20  # bit 5: markers and the like, not data


async def find_ends(client: RawClient, writer: PieceWriter, throttle: Throttle) -> dict[int, tuple[bool, int]]:
    """Find out whether the transaction of each producer in `writer.undecided` was aborted, and where its marker lies.

    A producer is absent if the log has lost the marker meanwhile (retention, a topic that is gone): the list of the
    fetch decides then. Raises RecordsWithheld if no marker comes for `Limits.outage`, and what a fetch raises.
    """
    piece, limits = writer.piece, writer.limits
    search = _Search(set(writer.undecided), writer.looked_until)
    loop = asyncio.get_running_loop()
    since = loop.time()
    while search.wanted:
        try:
            fetched = await client.fetch(
                piece.topic,
                piece.partition,
                search.at,
                max_bytes=_LOOK_BYTES,
                topic_id=piece.topic_id,
                committed=False,
            )
        except (OffsetOutOfRange, TopicGone) as error:
            log.warning("%s: the ends of %d transactions are unknown: %s", piece.where, len(search.wanted), error)
            break
        await throttle.pace(len(fetched.data))
        if search.look(fetched):
            since = loop.time()
        elif loop.time() - since >= limits.outage:
            raise _without_end(piece, search)
        else:
            await asyncio.sleep(limits.pause)
    return search.found


class _Search:
    """Searches from offset `at` on for the markers of the `wanted` producers."""

    def __init__(self, wanted: set[int], at: int) -> None:
        self.wanted = wanted
        self.at = at
        self.found: dict[int, tuple[bool, int]] = {}

    def look(self, fetched: Fetched) -> bool:
        """Take an answer; returns whether it had anything new."""
        before = self.at
        for headers in runs(fetched.data, checked=True):
            for number in headers.with_bits(_CONTROL):
                position, header = headers[number]
                if header.base_offset >= self.at and header.producer_id in self.wanted:
                    self._note(header, control_type(fetched.data, position))
        self.at = max(self.at, fetched.next_offset)
        fetched.release()
        return self.at > before

    def _note(self, header: BatchHeader, kind: ControlType) -> None:
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            self.found[header.producer_id] = kind is ControlType.ABORT, header.last_offset
        if kind in (ControlType.ABORT, ControlType.COMMIT, ControlType.OTHER):  # the last: it was emptied
            self.wanted.discard(header.producer_id)


def _without_end(piece: Piece, search: _Search) -> RecordsWithheld:
    return RecordsWithheld(
        f"T{piece.where[1:]}: the transaction of producer {min(search.wanted)} has no end up to offset {search.at}, "
        "although the broker returned its records as decided.",
        hint="A replica that has just become the leader may lag. Everything before the transaction was archived. "
        "Run again.",
    )

"""The batches of a live log that a consumer of committed records sees."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, pairwise

from logkeep_engine.kafka.fetched import Fetched
from logkeep_engine.log.batch import Headers, runs
from logkeep_engine.log.records import ControlType, control_type
from logkeep_engine.log.transactions import TRANSACTIONAL_OR_CONTROL


class CommittedBatches:
    """Leaves out control batches and aborted transactions. It takes the answers of one stream, in order."""

    def __init__(self) -> None:
        self._aborting: set[int] = set()
        self._waiting: deque[tuple[int, int]] = deque()
        self._begun: dict[int, int] = {}  # by producer: where the last one begins that was handed out

    def of(self, fetched: Fetched, end: int) -> Iterator[Headers]:
        """Yield the batches of an answer that are seen and begin below offset `end`. Each CRC is checked. Raises as
        `log.batch.runs`."""
        if fetched.aborted:
            # Each answer that reaches into a transaction names it again.
            fresh = {(producer, first) for producer, first in fetched.aborted if first > self._begun.get(producer, -1)}
            self._waiting = deque(sorted(chain(self._waiting, fresh), key=lambda item: item[1]))
            self._begun |= sorted(fresh, key=lambda item: item[1])
        for headers in runs(fetched.data, end, checked=True):
            yield from self._seen(fetched.data, headers)

    def _seen(self, data: memoryview, headers: Headers) -> Iterator[Headers]:
        hidden = [-1]  # so that what comes before the first hidden batch is a stretch, too
        for number in headers.with_bits(TRANSACTIONAL_OR_CONTROL):
            position, header = headers[number]
            while self._waiting and self._waiting[0][1] <= header.last_offset:
                self._aborting.add(self._waiting.popleft()[0])
            if header.is_control:
                hidden.append(number)
                if control_type(data, position) is ControlType.ABORT:
                    # Its marker ends the transaction: the producer's next one may be committed.
                    self._aborting.discard(header.producer_id)
            elif header.producer_id in self._aborting:
                hidden.append(number)
        for before, number in pairwise((*hidden, len(headers))):
            if number > before + 1:
                yield headers[before + 1 : number]

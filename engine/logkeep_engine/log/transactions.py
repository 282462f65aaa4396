"""Which transactions of a partition are open, and which were aborted: the `.txnindex` from the log alone.

Source of facts: apache/kafka `ProducerAppendInfo.java`, `ProducerStateManager.java` (lastStableOffset).
"""

from __future__ import annotations

from collections.abc import Mapping

from logkeep_engine.log.batch import BatchHeader, Buffer
from logkeep_engine.log.records import ControlType, control_type
from logkeep_engine.log.segment import AbortedTxn


class TransactionTracker:
    """Follows the batches of one partition in the order of the log.

    `open_transactions` (producer id to the first offset of its open transaction) is what was open where the log
    starts. Without it a transaction that began earlier seems to begin with its first batch seen, or, if only its
    marker is seen, not to exist.
    """

    def __init__(self, open_transactions: Mapping[int, int] | None = None) -> None:
        self._open = dict(open_transactions or {})

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """Producer id to the base offset of the first batch of its open transaction."""
        return dict(self._open)

    def observe(self, buf: Buffer, pos: int, header: BatchHeader) -> AbortedTxn | None:
        """Take note of the batch at `pos`; the aborted transaction, if it is the abort marker of one that wrote to
        this partition.
        """
        if header.is_control:
            return self._complete(buf, pos, header)
        if header.is_transactional:
            self._open.setdefault(header.producer_id, header.base_offset)
        return None

    def _complete(self, buf: Buffer, pos: int, header: BatchHeader) -> AbortedTxn | None:
        kind = control_type(buf, pos)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return None
        first_offset = self._open.pop(header.producer_id, None)
        if kind is ControlType.COMMIT or first_offset is None:
            return None
        last_offset = header.last_offset
        stable = min(self._open.values(), default=last_offset + 1)
        return AbortedTxn(header.producer_id, first_offset, last_offset, stable)

"""Compacts the batches of one partition: of each key the last record survives. The kernel does the work.

    while compactor.begin():
        for stretch in dirty:
            compactor.note(True, stretch)
        if compactor.is_divided: ...  # the same with the clean section
    compactor.begin_copy()
    for stretch in clean:
        write(compactor.copy(False, stretch))
    ...  # the same with the dirty section

The clean section is what was compacted before, so it has each key once; the dirty one is the log behind it. A batch
that loses nothing keeps its bytes; another is built anew with the offsets, times, headers and producer fields that it
had. Batches of magic 0 and 1 become batches of magic 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from logkeep_kernel import Compaction

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.codec import listed_rows, packed_batch
from logkeep_engine.log.key_comparison import new_secret
from logkeep_engine.log.memory import task_bytes, unpacked_most
from logkeep_engine.log.transactions import Spans

_HINT = (
    "Compaction looks into every batch. Give tasks more memory with LOGKEEP_TASK_MEMORY (256Mi unless it is set; one "
    "batch may unpack to a twelfth of it), or leave the topic's log as it is (compactedTopics: Log)."
)


class Compactor:
    """Compacts one partition. Tombstones whose delete horizon is `now` (ms) or lies before it go; those that have none
    yet get `horizon`. Records of the transactions `aborted`, control batches and empty batches go."""

    def __init__(self, *, now: int, horizon: int, aborted: Spans, map_bytes: int | None = None) -> None:
        self._compaction = Compaction(
            secret=new_secret(),
            map_bytes=task_bytes() * 5 // 8 if map_bytes is None else map_bytes,
            unpacked=unpacked_most(),
            now=now,
            horizon=horizon,
            aborted=aborted.rows(),
        )

    def begin(self) -> bool:
        """Begin the next pass over both sections. False: no key needs one any more."""
        return self._compaction.begin()

    @property
    def is_divided(self) -> bool:
        """Whether not all keys fit into memory, so that each pass must note the clean section, too."""
        return self._compaction.is_divided

    def begin_copy(self) -> None:
        """Begin to copy both sections from their beginnings."""
        self._compaction.begin_copy()

    def note(self, dirty: bool, stretch: memoryview) -> None:
        """Note batches that lie back to back, whose CRCs were checked.

        Raises CorruptBatch if records are not what their header says, and BatchTooLarge for a batch that cannot be
        unpacked in a task's memory.
        """

        def note(batches: memoryview, at: int) -> tuple[int, str]:
            return self._compaction.note(dirty, batches, at)

        self._passed(stretch, note)

    def copy(self, dirty: bool, stretch: memoryview) -> Iterator[memoryview]:
        """Whole batches of what survives of batches that were noted: copies, or views on the stretch. Raises as
        `note`."""
        copied: list[memoryview] = []

        def copy(batches: memoryview, at: int) -> tuple[int, str]:
            made, behind, stop = self._compaction.copy(dirty, batches, at)
            for item in made:
                copied.append(batches[item[0] : item[1]] if isinstance(item, tuple) else memoryview(item))
            return behind, stop

        at = 0
        while at < len(stretch):
            at = self._passed(stretch, copy, at)
            yield from copied
            copied.clear()

    @property
    def records(self) -> int:
        """Records that were copied."""
        return self._compaction.counts[0]

    @property
    def tombstones(self) -> int:
        """Tombstones among them."""
        return self._compaction.counts[1]

    def _passed(self, stretch: memoryview, work: Callable[[memoryview, int], tuple[int, str]], at: int = 0) -> int:
        """Do the work from `at` on, until all is done or enough. Returns the position behind what was done."""
        while True:
            at, stop = work(stretch, at)
            if stop in ("end", "enough"):
                return at
            header = parse_header(stretch, at)
            batch = stretch[at : at + header.size]
            if stop == "large":
                raise BatchTooLarge(
                    f"The batch at offset {header.base_offset} unpacks to more than {unpacked_most()} bytes.",
                    hint=_HINT,
                )
            _, stop = work(memoryview(_as_plain(batch)), 0)
            if stop not in ("end", "enough"):
                raise CorruptBatch(
                    f"The batch at offset {header.base_offset} is damaged: its records do not fit together."
                )
            at += header.size


def _as_plain(batch: memoryview) -> bytes:
    """The records of a batch that the kernel does not take, as a batch of magic 2 that it does: of magic 0 or 1, or
    readable only for a more lenient decompressor. Raises as `listed_rows`."""
    header = parse_header(batch)
    made, _, _ = packed_batch(
        [listed_rows(batch, header)],
        codec=header.codec,
        base_offset=header.base_offset,
        dense=False,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        leader_epoch=header.leader_epoch,
    )
    return made

"""Compacts the batches of one partition: of each key the last record survives. The kernel does the work.

    while compactor.begin():
        for stretch in dirty:
            compactor.note(True, stretch)
        if compactor.is_divided: ...  # the same with the clean section
    compactor.begin_copy()
    for stretch in clean:
        write(compactor.copy(False, stretch))
    ...  # the same with the dirty section

The clean section is what was compacted before, so it has each key once; the dirty one is the log after it. A batch
that loses nothing keeps its bytes; another is rebuilt with the offsets, times, headers and producer fields that it had.
Batches of magic 0 and 1 become batches of magic 2.

Several tasks may compact one partition together, each a range of its offsets, which is its dirty section:

    compactor.note(True, stretch)           # of each stretch
    compactor.finish_notes()                # `on_keys` has got blocks of its keys by then
    compactor.marks()

`KeyLookup` finds among the blocks of all ranges the records that a later range replaces. Then a compactor with the
marks of the first (`mark`) copies the range.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import logkeep_kernel
from logkeep_kernel import Compaction, KnownKeys

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.codec import listed_rows, packed_batch
from logkeep_engine.log.key_comparison import KeySecret, new_secret
from logkeep_engine.log.memory import task_bytes, unpacked_most
from logkeep_engine.log.transactions import Spans

_HINT = (
    "Compaction looks into every batch. Give tasks more memory with LOGKEEP_TASK_MEMORY (256Mi unless it is set; one "
    "batch may unpack to a twelfth of it), or leave the topic's log as it is (compactedTopics: Log)."
)


PAIR_BYTES = logkeep_kernel.PAIR_BYTES
"""The bytes that a block has for each of its keys: a hash, and the number of the record in its range."""

KEY_BUCKETS = logkeep_kernel.KEY_BUCKETS
"""This many shares of all hashes a block is divided into."""

_NO_SPANS = Spans()

OnKeys = Callable[[bytes, bytes], None]
"""Takes a block of keys, and for each bucket where it ends in the block, in keys (`ends_of`)."""


def ends_of(packed: bytes) -> array[int]:
    """Return where the buckets of a block end, in keys."""
    return array("I", packed)


class KeyLookup:
    """The keys of some buckets, from the last block of a partition to the first."""

    def __init__(self) -> None:
        self._known = KnownKeys(_map_bytes())

    def known_of(self, keys: bytes) -> bytes:
        """Return the numbers (four bytes each) of the records of a block whose keys a later block has. Raises
        MemoryError if there are more keys than `most_keys` to look up."""
        return self._known.known_of(keys)

    @staticmethod
    def most_keys() -> int:
        """This many keys can be looked up at once."""
        return KnownKeys.most_keys(_map_bytes())


def _map_bytes() -> int:
    return task_bytes() * 5 // 8


def _block_bytes() -> int:
    """Return the map of a range, from which blocks are made: they are copied, and then written."""
    return task_bytes() // 4


class Compactor:
    """Compacts one partition. Tombstones whose delete horizon is `now` (ms) or lies before it go; those that have none
    yet get `horizon`. Records of the transactions `aborted`, control batches and empty batches go. Batches of the
    transactions `undecided`, whose markers lie at later offsets, stay as they are, and what they would replace stays
    too; batches of others are of no transaction any more.

    With a `shared` secret it is one of several: it has a range of the partition, and `on_keys` takes blocks of keys.
    """

    def __init__(
        self,
        *,
        now: int,
        horizon: int,
        aborted: Spans,
        undecided: Spans = _NO_SPANS,
        map_bytes: int | None = None,
        shared: KeySecret | None = None,
        on_keys: OnKeys | None = None,
    ) -> None:
        if map_bytes is None:
            map_bytes = _map_bytes() if shared is None else _block_bytes()
        self._on_keys = on_keys
        self._compaction = Compaction(
            secret=shared or new_secret(),
            map_bytes=map_bytes,
            unpacked=unpacked_most(),
            now=now,
            horizon=horizon,
            aborted=aborted.rows(),
            open=undecided.rows(),
            spills=shared is not None,
        )

    def begin(self) -> bool:
        """Begin the next pass over both sections. False: no key needs one any more."""
        return self._compaction.begin()

    @property
    def is_divided(self) -> bool:
        """Whether not all keys fit into memory, so that each pass must note the clean section, too."""
        return self.shares > 1

    @property
    def shares(self) -> int:
        """The keys of the pass are one of this many shares: there are about as many passes."""
        return self._compaction.parts

    def begin_copy(self) -> None:
        """Begin to copy both sections from their beginnings."""
        self._compaction.begin_copy()

    def note(self, dirty: bool, stretch: memoryview) -> None:
        """Note batches that lie back to back, whose CRCs were checked.

        Raises CorruptBatch if records are not what their header says, and BatchTooLarge for a batch that cannot be
        unpacked in a task's memory.
        """

        def note(batches: memoryview, at: int) -> tuple[int, str]:
            following, stop = self._compaction.note(dirty, batches, at)
            self._hand_out(rest=False)
            return following, stop

        at = 0
        while at < len(stretch):
            at = self._passed(stretch, note, at)

    def finish_notes(self) -> None:
        """Hand out the last keys of a range."""
        self._hand_out(rest=True)

    def _hand_out(self, *, rest: bool) -> None:
        if self._on_keys is not None:
            for keys, ends in self._compaction.take_pairs(rest):
                self._on_keys(keys, array("I", ends).tobytes())

    def marks(self) -> tuple[bytes, bytes]:
        """Return the records of a range that a later one of it replaces, and those that are tombstones: a bit for
        each."""
        return self._compaction.marks()

    def mark(self, dead: bytes, tombstones: bytes, replaced: bytes) -> None:
        """Take over the marks of a range, and what `KeyLookup` found in it. Then it can be copied."""
        self._compaction.mark(dead, tombstones, replaced)

    def copy(self, dirty: bool, stretch: memoryview) -> Iterator[memoryview]:
        """Whole batches of what survives of batches that were noted: copies, or views on the stretch. Raises as
        `note`."""
        copied: list[memoryview] = []

        def copy(batches: memoryview, at: int) -> tuple[int, str]:
            made, following, stop = self._compaction.copy(dirty, batches, at)
            for item in made:
                copied.append(batches[item[0] : item[1]] if isinstance(item, tuple) else memoryview(item))
            return following, stop

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
        """Tombstones among them, without those of `undecided` transactions."""
        return self._compaction.counts[1]

    def _passed(self, stretch: memoryview, work: Callable[[memoryview, int], tuple[int, str]], at: int = 0) -> int:
        """Do the work from `at` on, until all is done or enough. Returns the position after what was done."""
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
    """Return the records of a batch that the kernel does not take, as a batch of magic 2 that it does: of magic 0 or 1,
    or readable only for a more lenient decompressor. Raises as `listed_rows`."""
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

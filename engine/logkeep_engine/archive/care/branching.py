"""Makes the old ends of partitions branches of the archive (see `branches`): copies first, then one commit.

branch_off(writer, forks)

If the run is killed before the commit, the archive is as it was, with objects that no commit names. After the commit
everything has moved.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Branching
from logkeep_engine.archive.catalog.lineage import UNKNOWN, Fork
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.archive.writing.log_writer import LogSegment
from logkeep_engine.contract.spec import Compression
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.log.batch import Stretch
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import Storage

log = logging.getLogger(__name__)


def branch_off(writer: Writer, forks: Iterable[Fork]) -> None:
    """Make branches of the archived offsets from these forks on. A fork that has a branch is left out. Raises what
    `Writer.commit` and the storage raise, and ArchiveDamaged if a segment across a fork cannot be read."""
    state, storage = writer.state, writer.archive.storage
    branchings: list[Branching] = []
    copies: list[SegmentEntry] = []
    for fork in forks:
        key = (fork.topic_id, fork.partition)
        if any(branch.id == fork.branch_id for branch in state.branches.get(key, ())):
            continue  # by an earlier attempt
        branchings.append(Branching(*key, fork.branch_id, fork.offset))
        across = state.last_before(*key, fork.offset)
        if across is not None and across.next_offset > fork.offset:
            copies.append(copy_below(storage, state.topics[fork.topic_id].name, across, fork.offset, writer.epoch))
    if branchings:
        writer.branch(branchings, copies)
        log.info("%d partitions were cut off in the cluster: their old ends are branches now", len(branchings))


def copy_below(storage: Storage, topic: str, entry: SegmentEntry, offset: int, epoch: int) -> SegmentEntry:
    """A segment of the batches of `entry` below `offset`, written at `epoch`.

    If a transaction was aborted behind `offset`, its records here stay aborted, as in a segment that never had its
    marker: only a marker in the log as it is now can say anything else.
    """
    compression = Compression.ZSTD if entry.files.stored_bytes else Compression.PASSTHROUGH
    segment = LogSegment(
        storage,
        compression,
        topic,
        entry.topic_id,
        entry.partition,
        entry.base_offset,
        epoch,
        attempt=0,
        digest=entry.digest.algorithm,
    )
    try:
        last: dict[int, int] = {}
        for stretch, headers in _below(storage, topic, entry, offset):
            segment.builder.append(stretch, headers)
            last |= {header.producer_id: header.last_offset for _, header in headers if not header.is_control}
        index = open_partition(storage, topic, (entry,)).transaction_index()
        aborted = (_ended(item, offset, last) for item in index)
        for transaction in sorted(filter(None, aborted), key=attrgetter("last_offset")):
            segment.builder.add_aborted(transaction)
        return segment.finish()
    except BaseException:
        segment.abort()
        raise


def _ended(transaction: AbortedTxn, offset: int, last: Mapping[int, int]) -> AbortedTxn | None:
    """The transaction as an index of what lies below `offset` says it; `last` are the last offsets of producers'
    records there. None: it has no records there."""
    if transaction.last_offset < offset:
        return transaction
    end = last.get(transaction.producer_id, UNKNOWN)
    return replace(transaction, last_offset=end) if end >= transaction.first_offset else None


def _below(storage: Storage, topic: str, entry: SegmentEntry, offset: int) -> Iterator[Stretch]:
    for stretch, headers in open_partition(storage, topic, (entry,)).batches():
        kept = headers[: headers.first_reaching(offset)]
        if kept:
            yield stretch[kept.start : kept.end], kept
        if len(kept) < len(headers):
            base = headers[len(kept)][1].base_offset
            if base < offset:
                raise ArchiveDamaged(
                    f"{storage.uri}/{entry.stem(topic)}{entry.log_suffix}: the batch at offset {base} lies across "
                    f"offset {offset}, where the log of topic {topic!r} partition {entry.partition} parts from the "
                    "archive.",
                    hint="Use another storage.uri for the log as it is now.",
                )
            return

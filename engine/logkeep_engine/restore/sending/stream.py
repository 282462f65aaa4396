"""The stream of batches of a restore's task: a function of the archive and the plan alone."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.errors import ArchiveDamaged, BatchTooLarge, CorruptBatch
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.sending.division.stream import MOST_RECORDS, DividedStream, most_bytes
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.left_out import AbortedRecords, LeftOut
from logkeep_engine.restore.streams.merge import BatchStream
from logkeep_engine.restore.streams.records import Batching, RecordStream
from logkeep_engine.restore.streams.same import without_gaps
from logkeep_engine.restore.streams.straddling import straddling


class TaskStream:
    """The batches for all outlets of a task. The first `done` records come with source offsets and sizes only, unless
    the topic is divided.

    `records` and `append_times` count what was taken from the archive so far, `left_out` what was not.
    """

    def __init__(self, task: RestoreTask, done: int = 0) -> None:
        self._task = task
        self._done = done
        self.records = 0
        self.append_times = 0
        self.left_out = LeftOut()

    def batches(self) -> Generator[Outgoing, None, None]:
        """Yield the batches, those of each outlet in order."""
        topic, batching = self._task.topic, self._task.archived.batching
        if not topic.divided:
            return self._counted()
        if topic.partitioner is None:
            raise AssertionError(f"the plan divides topic {topic.target} by no partitioner")
        ids = [part.producer_id for part in topic.partitions]
        most_records = MOST_RECORDS if batching is None else batching.max_records
        most = most_bytes(len(ids), topic.max_batch_bytes)
        divided = DividedStream(str(self._task.archived), ids, topic.partitioner, most, most_records)
        return divided.divided(self._counted())

    def _counted(self) -> Generator[Outgoing, None, None]:
        with closing(stream_of(self._task, self._done, self.left_out)) as stream:
            for item in stream:
                self.records += item.count
                self.append_times += item.append_times
                yield item


def stream_of(task: RestoreTask, done: int, left_out: LeftOut | None = None) -> Generator[Outgoing, None, None]:
    """Yield the batches of the archived partition, before they are divided, in order. The first `done` records come
    with source offsets and sizes only. `left_out` counts the records of aborted transactions: those are not part of the
    stream.
    """
    batches = _batches_of(task, done, left_out or LeftOut())
    return batches if task.part.extent is None else without_gaps(batches, task.part.producer_id)


def _batches_of(task: RestoreTask, done: int, left_out: LeftOut) -> Generator[Outgoing, None, None]:
    archived = task.archived
    if archived.batching is not None:
        yield from _stream_of_records(task, archived.batching, done)
        return
    aborted = Spans.of(archived.aborted())
    stream, counted = _batch_stream(task, done, aborted), AbortedRecords(aborted, archived.clip, left_out)
    for segment in archived.segments:
        if archived.clip is not None and not archived.clip.reaches(segment):
            continue
        with _sound(archived, segment):
            for stretch in archived.stretches(segment, counted):
                yield from stream.add(stretch)
    if archived.segments:
        with _sound(archived, archived.segments[-1]):
            yield from stream.finish()


def _batch_stream(task: RestoreTask, done: int, aborted: Spans) -> BatchStream:
    across = straddling(task.archived, task.archived.clip)
    return BatchStream(
        producer_id=task.part.producer_id,
        max_bytes=task.topic.max_batch_bytes,
        aborted=Spans([*aborted.rows(), *across.left_out]),
        done=done,
        clip=task.archived.clip,
        whole=across.whole,
    )


@contextmanager
def _sound(archived: ArchivedPartition, segment: SegmentEntry) -> Iterator[None]:
    """Say of a batch that cannot be restored where it lies."""
    try:
        yield
    except BatchTooLarge as error:
        raise error.within(str(archived)) from error
    except CorruptBatch as error:
        raise ArchiveDamaged(
            f"{archived.log_path(segment)}: {error.message}",
            hint="The batch's CRC holds, so it was archived like this: please report it.",
        ) from error


def _stream_of_records(task: RestoreTask, batching: Batching, done: int) -> Generator[Outgoing, None, None]:
    archived = task.archived
    stream = RecordStream(
        batching,
        source=f"the {archived}",
        target=task.where,
        producer_id=task.part.producer_id,
        limit=task.topic.max_batch_bytes,
        done=done,
        clip=archived.clip,
    )
    whole = [segment for segment in archived.segments if segment.base_offset not in archived.damaged]
    for records in open_partition(archived.storage, archived.topic, whole, aborted=()).records():
        yield from stream.add(records)
    yield from stream.finish()

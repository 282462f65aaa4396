"""One task of a restore: archived partitions into target partitions, each in order, every committed record once.

The way of a batch: storage → CRC checked → `filter` and `merge` (left out, readdressed, or rebuilt) → produce requests,
five under way a partition. Archived records become batches first (`records`). For every partition the task looks first
at what its producer id has in the target already and continues from there, so it does not matter whether this is the
first attempt, a retry, or the first task of a driver that was started again; and while another attempt still writes,
the broker compares sequences, so that no batch gets in twice.

Several partitions are on their way at once, over the same few connections, one event loop and one pool of threads.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import NeighbouringReads, open_damaged, open_partition
from logkeep_engine.archive.reading.salvage import DamageSurvey
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import (
    ArchiveDamaged,
    BatchTooLarge,
    CorruptBatch,
    ObjectMissing,
    ProduceRefused,
    TargetChanged,
)
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.limits import Throttle
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.model.offset_map import HEADER_MAX_BYTES, PartitionSummary, read_summary
from logkeep_engine.restore.sending.attempt import Attempt, PositionLost, RestoreTask
from logkeep_engine.restore.sending.same_attempt import SameAttempt, look_for_end
from logkeep_engine.restore.sending.side_by_side import Shared, side_by_side
from logkeep_engine.restore.sending.written import WrittenRecords, look
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.left_out import AbortedRecords, LeftOut
from logkeep_engine.restore.streams.merge import BatchStream
from logkeep_engine.restore.streams.outgoing_ahead import OutgoingAhead
from logkeep_engine.restore.streams.records import Batching, RecordStream
from logkeep_engine.restore.streams.same import without_gaps
from logkeep_engine.restore.streams.straddling import straddling
from logkeep_engine.tasks import TaskContext

# A task finds its place again when another attempt writes too, or the log was cut off. Each time it must have moved.
RESUMES = 20


def restore_partitions(tasks: tuple[RestoreTask, ...], context: TaskContext) -> tuple[PartitionSummary, ...]:
    """Restore some partitions of one cluster and write their offset maps. Safe to repeat, and to run twice at once.

    Partitions that an earlier attempt has finished are not looked at again. Raises ArchiveDamaged if an object is not
    what the catalog (or the survey) says, TargetChanged or TopicExists if somebody else writes to a created topic,
    RestoreBusy if another run has taken over this one, and what the clients raise: the first error of any partition.
    """
    storage = NeighbouringReads(tasks[0].storage)  # they are of one archive
    tasks = tuple(replace(task, storage=storage) for task in tasks)
    return side_by_side(
        tasks,
        tasks[0].connection,
        tasks[0].own,
        context,
        memory=lambda task: task.memory,
        finished=_finished,
        restore=_restore,
    )


def _finished(task: RestoreTask) -> PartitionSummary | None:
    """The summary of the partition, if an earlier attempt has finished it."""
    try:
        head = task.state.read_range(task.map_path, 0, HEADER_MAX_BYTES)
    except ObjectMissing:
        return None
    return read_summary(head, f"{task.state.uri}/{task.map_path}")


async def _restore(task: RestoreTask, shared: Shared) -> PartitionSummary:
    client, pool, throttle = shared.client, shared.pool, shared.context.throttle
    fresh = task.fresh and shared.context.attempt == 0
    left_out = LeftOut()
    landed, ahead = await _begin(task, client, pool, throttle, left_out, fresh=fresh)
    resumes, best = 0, landed.end
    kind = Attempt if task.extent is None else SameAttempt
    while resumes < RESUMES:
        if ahead is None:
            left_out = LeftOut()
            ahead = OutgoingAhead(stream_of(task, landed.records, left_out), pool)
        attempt = kind(task, landed, shared.progress, pool, throttle, contested=not fresh, left_out=left_out)
        try:
            return await attempt.run(client, shared.fence.before(ahead))
        except (ProduceRefused, PositionLost) as error:
            # Either another attempt of this very task has written more than this one knows: continue after it. Or a
            # leader has lost records that the one before it had acknowledged: send them again.
            seen = await _look(client, task, throttle, fresh=False)
            if isinstance(error, ProduceRefused) and attempt.knew(seen):
                seen.close()
                raise
            landed, fresh = seen, False
            resumes = 0 if landed.end > best else resumes + 1
            best = max(best, landed.end)
        finally:
            await ahead.stop()
            ahead = None
            attempt.close()
    raise TargetChanged(
        f"{task.where}: the restore had to find its place {RESUMES} times without getting further.",
        hint="Another process writes with the same producer id: is the same run active elsewhere?",
    )


async def _begin(
    task: RestoreTask,
    client: RawClient,
    pool: ThreadPoolExecutor,
    throttle: Throttle,
    left_out: LeftOut,
    *,
    fresh: bool,
) -> tuple[WrittenRecords, OutgoingAhead[Outgoing] | None]:
    """Find out what is in the target. Where the run should have written nothing yet (`fresh`), its first batches are
    made ready meanwhile; they are dropped if it has. `left_out` counts along with these.
    """
    if not fresh:
        return await _look(client, task, throttle, fresh=False), None
    ahead = OutgoingAhead(stream_of(task, 0, left_out), pool)
    try:
        landed = await _look(client, task, throttle, fresh=True)
    except BaseException:
        await ahead.stop()
        raise
    if landed.records:
        await ahead.stop()
        return landed, None
    return landed, ahead


async def _look(client: RawClient, task: RestoreTask, throttle: Throttle, *, fresh: bool) -> WrittenRecords:
    if task.extent is not None:
        return await look_for_end(client, task, fresh=fresh)
    return await look(client, task.place, throttle, fresh=fresh)


# ---- the stream of batches: a function of the archive and the plan


def stream_of(task: RestoreTask, done: int, left_out: LeftOut | None = None) -> Generator[Outgoing, None, None]:
    """The batches to send for the partition, in order. The first `done` records come with source offsets and sizes
    only. `left_out` counts the records of aborted transactions: those are no part of the stream.
    """
    if task.extent is not None:
        yield from without_gaps(stream_of(replace(task, extent=None), done, left_out), task.producer_id)
        return
    if task.batching is not None:
        yield from _stream_of_records(task, task.batching, done)
        return
    aborted = Spans.of(aborted_of(task))
    stream, counted = _batch_stream(task, done, aborted), AbortedRecords(aborted, task.clip, left_out or LeftOut())
    for segment in task.segments:
        if task.clip is not None and not task.clip.reaches(segment):
            continue
        with _sound(task, segment):
            for stretch in stretches_of(task, segment, counted):
                yield from stream.add(stretch)
    if task.segments:
        with _sound(task, task.segments[-1]):
            yield from stream.finish()


def _batch_stream(task: RestoreTask, done: int, aborted: Spans) -> BatchStream:
    across = straddling(task.archived, task.clip)
    return BatchStream(
        producer_id=task.producer_id,
        max_bytes=task.max_batch_bytes,
        aborted=Spans([*aborted.rows(), *across.left_out]),
        done=done,
        clip=task.clip,
        whole=across.whole,
    )


@contextmanager
def _sound(task: RestoreTask, segment: SegmentEntry) -> Iterator[None]:
    """Says of a batch that cannot be restored where it lies."""
    try:
        yield
    except BatchTooLarge as error:
        raise error.within(archived_place(task)) from error
    except CorruptBatch as error:
        raise ArchiveDamaged(
            f"{_log_path(task, segment)}: {error.message}",
            hint="The batch's CRC holds, so it was archived like this: please report it.",
        ) from error


def _stream_of_records(task: RestoreTask, batching: Batching, done: int) -> Generator[Outgoing, None, None]:
    stream = RecordStream(
        batching,
        source=f"the archived topic {task.source!r} partition {task.partition}",
        target=task.where,
        producer_id=task.producer_id,
        limit=task.max_batch_bytes,
        done=done,
        clip=task.clip,
    )
    damaged = frozenset(task.survey.damaged if task.survey is not None else ())
    whole = [segment for segment in task.segments if segment.base_offset not in damaged]
    for records in open_partition(task.storage, task.source, whole, aborted=()).records():
        yield from stream.add(records)
    yield from stream.finish()


def aborted_of(task: RestoreTask) -> Sequence[AbortedTxn]:
    """The aborted transactions of the archived partition, whose records are left out. Raises ArchiveDamaged."""
    if task.survey is not None and task.survey.aborted is not None:
        return task.survey.aborted
    return list(open_partition(task.storage, task.source, task.segments).transaction_index())


def stretches_of(
    task: RestoreTask, segment: SegmentEntry, counted: AbortedRecords | None = None
) -> Iterator[memoryview]:
    """Views on whole batches of a segment that lie back to back, without what the survey has found damaged. What was
    aborted of them is `counted`. Raises ArchiveDamaged."""
    if task.survey is not None and segment.base_offset in task.survey.damaged:
        yield from _salvaged(task, segment, task.survey, counted)
        return
    for stretch, headers in open_partition(task.storage, task.source, (segment,)).batches():
        if counted is not None:
            counted.note(headers)
        yield stretch


def _salvaged(
    task: RestoreTask, segment: SegmentEntry, survey: DamageSurvey, counted: AbortedRecords | None
) -> Iterator[memoryview]:
    known = _known(survey)
    for item in open_damaged(task.storage, task.source, (segment,)).batches():
        if not isinstance(item, Damage):
            stretch, headers = item
            if counted is not None:
                counted.note(headers)
            for at, header in headers:
                yield memoryview(bytes(stretch[at : at + header.size]))
        elif item.lost is not None and item.lost not in known:
            raise _damaged_further(task, segment, item.lost, item.what)


def _known(survey: DamageSurvey) -> set[Range]:
    return {(item.start, item.end) for item in survey.lost}


def _damaged_further(task: RestoreTask, segment: SegmentEntry, lost: Range, reason: str) -> ArchiveDamaged:
    return ArchiveDamaged(
        f"{_log_path(task, segment)}: offsets {lost[0]} to {lost[1] - 1} could be read when the restore "
        "was planned: "
        f"{reason}",
        hint="The archive was damaged further meanwhile: begin a new restore.",
    )


def archived_place(task: RestoreTask) -> str:
    """The archived partition, for messages."""
    return f"archived topic {task.source!r} partition {task.partition}"


def _log_path(task: RestoreTask, segment: SegmentEntry) -> str:
    return f"{task.storage.uri}/{segment.stem(task.source)}{segment.log_suffix}"

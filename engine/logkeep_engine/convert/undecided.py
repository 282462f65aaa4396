"""Transactions whose outcome a source does not have: their markers were not archived by a run that succeeded.

    source = look_through(source, runner_factory)      # finds them, in tasks
    check_copied(source, target)                       # batches are copied: they would pass for committed
    check_still(source, earlier_plans, run_id, state)  # what was left out before must be left out now

A restore leaves their records out, and so does a conversion to a format of records. When they are decided later, by a
backup that succeeds, what was settled without them cannot be made good: the target has no hole there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from logkeep_engine.archive.entry import SegmentEntry
from logkeep_engine.archive.model import ArchiveState, Partition
from logkeep_engine.contract.spec import FormatName
from logkeep_engine.convert.plan import ConvertPlan
from logkeep_engine.convert.source import Source, Undecided
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.restore.salvage import Survey, SurveyTask, survey_partition
from logkeep_engine.tasks import TaskRunner, no_update


def look_through(source: Source, runner_factory: Callable[[], TaskRunner]) -> Source:
    """The source with the transactions of its `unsure` partitions: `aborted`, and of these the `undecided`. A note says
    how many they are. Raises ArchiveDamaged if something of these partitions cannot be read: nobody knows then.
    """
    keys = sorted(source.unsure)
    if not keys:
        return source
    work = [
        SurveyTask(
            source.storage,
            source.topic_names[key[0]],
            tuple(entry for entry in source.segments[key] if isinstance(entry, SegmentEntry)),
            tuple(source.coverage.get(key, ())),
            faulty=(),
            undecided=True,
        )
        for key in keys
    ]
    aborted: dict[Partition, tuple[AbortedTxn, ...]] = {}
    undecided: list[Undecided] = []
    damaged: list[str] = []

    def on_result(index: int, found: Survey) -> None:
        if found.damaged:
            first = found.lost[0]
            where = f"Topic {source.topic_names[keys[index][0]]!r} partition {keys[index][1]}"
            damaged.append(f"{where}: offsets [{first.start}, {first.end}) are damaged: {first.reason}.")
        aborted[keys[index]] = found.aborted or ()
        undecided.extend(Undecided(*keys[index], lost.start, lost.end, lost.reason) for lost in found.lost)

    runner_factory().run(work, survey_partition, on_result, no_update)
    if damaged:
        raise ArchiveDamaged(
            min(damaged),
            hint="`logkeep verify` names all damage of the source. Restore the objects from a copy, and run again.",
        )
    undecided.sort(key=lambda item: (item.topic_id, item.partition, item.start))
    found = replace(source, aborted=aborted, undecided=tuple(undecided))
    return replace(found, notes=(*found.notes, *_notes(found)))


def check_copied(source: Source, target: FormatName) -> None:
    """Raises ArchiveMismatch for undecided transactions whose batches would be copied."""
    if target is FormatName.KAFKA and source.undecided:
        raise ArchiveMismatch(
            f"{_first(source)}. A copy of its batches would be restored as if it had been committed.",
            hint="Let a backup succeed that adds to this partition, leave the topic out with --exclude, or convert to "
            "Records or Avro, which leaves such transactions out as a restore does.",
        )


def check_still(source: Source, earlier: Iterable[ConvertPlan], run_id: str, state: ArchiveState) -> None:
    """Raises ArchiveMismatch if what an earlier run has left out as undecided is decided by now: the target, in this
    `state`, has settled these offsets without it, or this run had planned so. `earlier` are the plans of the target's
    runs, the last one first: those before it are asked for only about topics that it does not have.
    """
    names, left = source.topic_names, set(source.topic_names)
    now = {(item.topic_id, item.partition, item.start) for item in source.undecided}
    for plan in earlier:
        for item in plan.undecided:
            topic_id, partition, offset = item
            settled = any(end > offset for _, end in state.settled(topic_id, partition))
            if topic_id in left and item not in now and (settled or plan.run_id == run_id):
                raise ArchiveMismatch(
                    f"Run {plan.run_id} has left out a transaction of topic {names[topic_id]!r} partition {partition} "
                    f"from offset {offset}, whose outcome was not archived then and is now.",
                    hint="Convert into a new folder: nothing can be added between what was converted.",
                )
        left -= {topic.topic_id for topic in plan.topics}
        if not left:
            return


def _notes(source: Source) -> list[str]:
    if not source.undecided:
        return []
    more = f"; it and {len(source.undecided) - 1} more are" if len(source.undecided) > 1 else "; it is"
    return [f"{_first(source)}{more} left out"]


def _first(source: Source) -> str:
    first = source.undecided[0]
    where = f"topic {source.topic_names[first.topic_id]!r} partition {first.partition}"
    return f"{where}: offsets [{first.start}, {first.end}): {first.reason}"

"""Looks at the partitions of the target to which nothing is restored, in the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from logkeep_engine.errors import OffsetOutOfRange
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.queries import Where
from logkeep_engine.limits import Throttle
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.verification.document import IdlePartition
from logkeep_engine.restore.verification.sources import TargetReader
from logkeep_engine.restore.verification.task import Verdict

_MOST_UNSEEN = 100
"""This many offsets are looked at for records, since a marker may have been written twice. A partition with more has
others who write to it."""
_NOBODY = -1

GONE = "the partition is gone"


def idle_partitions(
    context: RestoreContext, planned: Planned, caveats: Mapping[tuple[str, int], tuple[str, ...]]
) -> tuple[list[IdlePartition], int]:
    """Return the partitions to which nothing is restored and of which something is to be said, and how many others
    there are: those are empty, as they must be. In a topic that was there before the run, it is unknown what they must
    hold."""
    idle = [
        (topic, partition)
        for topic in planned.plan.topics
        for partition in topic.partitions
        if not planned.segments(topic, partition.partition)
        and (topic.created or (topic.source, partition.partition) in caveats)
    ]
    begins = {(topic.target, partition.target): partition.begins for topic, partition in idle if topic.created}
    ends = context.control.latest_offsets(begins)
    grown = {where: (begins[where], end) for where, end in ends.items() if end > begins[where]}
    taken = _with_records(context, grown)
    lines: list[IdlePartition] = []
    for topic, partition in idle:
        where = topic.target, partition.target
        verdict, reasons = Verdict.NOT_VERIFIED, list(caveats.get((topic.source, partition.partition), ()))
        if topic.created and where not in ends:
            verdict, reasons = Verdict.DIFFERENT, [GONE]
        elif topic.created and ends[where] < partition.begins:
            verdict = Verdict.DIFFERENT
            reasons.insert(0, f"its log ends at offset {ends[where]}, not at {partition.begins}")
        elif where in taken:
            records = ends[where] - partition.begins
            reasons.append(f"{records} offsets are used where the archive has no record: others have written to it")
        if reasons:
            lines.append(IdlePartition(*where, verdict, "; ".join(reasons)))
    return sorted(lines, key=lambda item: (item.target, item.partition)), len(idle) - len(lines)


def _with_records(context: RestoreContext, grown: Mapping[Where, tuple[int, int]]) -> set[Where]:
    """Return the partitions among these that have a record, or may get one, between these offsets. Markers and what was
    aborted are none."""
    few = {where: bounds for where, bounds in grown.items() if bounds[1] - bounds[0] <= _MOST_UNSEEN}
    found = set(grown.keys() - few.keys())
    return found | asyncio.run(_looked_through(context, few)) if few else found


async def _looked_through(context: RestoreContext, few: Mapping[Where, tuple[int, int]]) -> set[Where]:
    found: set[Where] = set()
    async with RawClient(context.connection) as client:
        for (topic, partition), (start, end) in few.items():
            reader = TargetReader(client, topic, partition, _NOBODY, Throttle(), created=True)
            try:
                decided = await client.end_offset(topic, partition, committed=True)
                if decided < end or await reader.listed(start, end, 1):
                    found.add((topic, partition))
            except OffsetOutOfRange:
                found.add((topic, partition))
    return found

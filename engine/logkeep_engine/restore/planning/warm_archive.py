"""Leaves out of a drill what is cold: a drill proves what can be read, and waits for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import ObjectCold
from logkeep_engine.restore.model.selection import Choice
from logkeep_engine.restore.planning.check import used_of
from logkeep_engine.restore.planning.cold_objects import cold_of, describe_cold, listed_in
from logkeep_engine.storage import Storage


@dataclass(frozen=True, slots=True)
class WarmArchive:
    """The archive without what a drill leaves out: this many `segments`, of this many partitions. `notes` name their
    cold objects."""

    archived: ArchiveState
    segments: int = 0
    notes: tuple[str, ...] = ()


def warm_part(storage: Storage, archived: ArchiveState, choices: Sequence[Choice]) -> WarmArchive:
    """Return the part of each partition after its last cold object: a restored log has no hole where records were left
    out. Raises ObjectCold if nothing is left of what has records."""
    used = used_of(archived, choices)
    cold = cold_of(storage, used, listed_in(storage, used))
    if not cold:
        return WarmArchive(archived)
    paths = {item.info.path for item in cold}
    found = archived.shared()
    found.segments = archived.segments.copy()
    left_out = partitions = records = 0
    for choice in choices:
        for number in range(choice.source.partitions):
            key = (choice.source.topic_id, number)
            entries = list(archived.segments.get(key, ()))
            are_cold = (at for at, entry in enumerate(entries) if paths & {*entry.objects(choice.source.name)})
            last = max(are_cold, default=-1)
            records += sum(entry.records for entry in entries[last + 1 :])
            if last >= 0:
                found.segments.keep(key, list(range(last + 1, len(entries))))
                left_out, partitions = left_out + last + 1, partitions + 1
    what = f"{so_many(left_out, 'segment')} of {so_many(partitions, 'partition')}"
    if left_out and not records:
        raise ObjectCold(
            f"All that the drill would restore is cold: {describe_cold(cold)}",
            hint="Retrieve objects with the store's own tools first, or let the drill choose topics that can be read.",
        )
    return WarmArchive(
        found, left_out, (f"the drill has left out {what}, which nothing proves: {describe_cold(cold)}",)
    )

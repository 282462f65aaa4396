"""Removes what unfinished attempts have left next to the segments of the Records and Avro formats.

    writer.end(RunOutcome.SUCCEEDED, groups=groups)
    if may_have_leftovers(writer):
        remove_leftovers(writer, keys)

An attempt that was killed leaves objects that no commit names. A later attempt cuts its segments elsewhere and writes
other objects next to them. So a reader of the folder without the catalog would see records twice. An object that is
removed

- has a name as Logkeep writes it, of a partition that the run has written,
- is named by no commit, and is not of a removed segment either, which `removal` deletes in its own time,
- begins in the last range of offsets of its partition that is archived without a hole, and no recorded gap follows: it
  may reach over its first offset, and must not be the only copy of what was lost in the cluster. In the folder of a
  generation: begins below the end of that range, and the generation is not being read.

It comes after the run's end, so no other run needs it. The run itself and all before it can commit nothing any more. A
later run commits only segments that begin at offsets for which the catalog did not account when this one ended, under
other names. So a removal that comes late, and one by a run that another has overtaken, hits nothing that is or will be
named. A task that outlived its run may leave such an object again: `verify` lists it as an orphan, like all that a
crash leaves before the removal. Adopted folders, which hold what other tools wrote, are never touched, nor is anything
removed from an archive that has lost commits from its catalog's end (see `lost_tail`): what they named may be nowhere
else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from operator import attrgetter

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import LAYOUTS, Layout
from logkeep_engine.archive.catalog.facts import Partition, RunOutcome
from logkeep_engine.archive.catalog.generations import passive_of
from logkeep_engine.archive.catalog.held_tables import held_tables, removed_tables
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.ranges import Range
from logkeep_engine.formats import avro_names, records_names
from logkeep_engine.storage import Storage

log = logging.getLogger(__name__)

NOTHING: Range = (0, 0)
CONVERSION = "Convert"
"""The kind of runs that write into an empty folder, or one that such runs have written."""


def may_have_leftovers(writer: Writer) -> bool:
    """Did an earlier attempt begin the writer's run, or did the run before it not succeed? Only then there may be
    objects that no commit names."""
    runs = writer.state.runs
    others = [run for run in runs.values() if run.run_id != writer.run_id and not run.is_maintenance]
    last = max(others, key=attrgetter("epoch"), default=None)
    return runs[writer.run_id].attempts > 1 or (last is not None and last.outcome is not RunOutcome.SUCCEEDED)


def remove_leftovers(writer: Writer, keys: Iterable[Partition]) -> int:
    """Remove the leftovers in partitions `keys` (topic id, partition), which the writer's run has written, and return
    how many objects they were.

    Raises ValueError unless the run has ended with success, and storage errors; what is left then does no harm.
    """
    state, storage = writer.state, writer.archive.storage
    if state.runs[writer.run_id].outcome is not RunOutcome.SUCCEEDED:
        raise ValueError(f"run {writer.run_id} has not ended with success")
    layout = LAYOUTS[writer.archive.info.segments]
    if layout not in _PLACES or _is_adopted(writer):
        return 0
    if lost := writer.archive.lost_tails(state, thorough=True):
        # Names have no epoch in these formats: what no commit names may be what lost commits named.
        log.warning("objects that no commit names are kept, because commits are lost: %s", lost[0])
        return 0
    found = sorted(_leftovers(storage, state, layout, set(keys)))
    # After the list: what a newer run writes without a commit yet would be in it.
    if found and writer.archive.continues_after(state.commit):
        log.info("objects that an earlier attempt has left are left to the next run: another attempt has started")
        return 0
    if found:
        storage.delete(found)
        log.info("removed %d objects that an earlier attempt had left, first %s", len(found), found[0])
    return len(found)


def _is_adopted(writer: Writer) -> bool:
    """Another tool may have written the folder. An archive that a conversion has made of one is Logkeep's own."""
    return writer.archive.info.imported and any(
        not run.is_maintenance and run.kind != CONVERSION for run in writer.state.runs.values()
    )


def _leftovers(storage: Storage, state: ArchiveState, layout: Layout, keys: Collection[Partition]) -> Iterator[str]:
    ranges = {(state.topics[key[0]].name, key[1]): _whole_end(state, key) for key in keys}
    named: set[str] = set()
    for table in chain(held_tables(state), removed_tables(state)):
        topic = state.topics[table.key[0]].name
        if (topic, table.key[1]) in ranges:
            named.update(path for entry in table.segments for path in entry.objects(topic))
    being_read = {(state.topics[key[0]].name, key[1]): passive_of(state, key) for key in keys}
    for topic in {topic for topic, _ in ranges}:
        for info in storage.list(f"{names.TOPICS}{topic}/"):
            path, generation = names.without_generation(info.path)
            partition, first = _PLACES[layout](topic, path)
            start, end = ranges.get((topic, partition), NOTHING)
            read = being_read.get((topic, partition))
            if read is not None and read.number == generation:
                continue
            if (start <= first or generation) and first < end and info.path not in named:
                yield info.path


def _whole_end(state: ArchiveState, key: Partition) -> Range:
    """Return the offsets at the end of a partition that are archived without a hole or a gap."""
    *_, last = state.coverage.get(key) or [NOTHING]
    gaps = state.gaps.get(key)
    return NOTHING if gaps and gaps[-1].start >= last[1] else last


def _avro_place(topic: str, path: str) -> tuple[int, int]:
    """Partition and first offset of an Avro object, by the name that Logkeep gives it; (-1, -1) of others."""
    found = avro_names.parse_path(path)
    own = found is not None and found.topic == topic and found.width == avro_names.SEQUENCE_WIDTH
    return (found.partition, found.sequence) if found is not None and own else (-1, -1)


def _records_place(topic: str, path: str) -> tuple[int, int]:
    """Return the same of an object of the Records format."""
    file = records_names.parse_name(path.removeprefix(f"{names.TOPICS}{topic}/"))
    return (file.partition, file.start_offset) if file is not None and file.start_offset is not None else (-1, -1)


_PLACES: dict[Layout, Callable[[str, str], tuple[int, int]]] = {
    Layout.RECORDS: _records_place,
    Layout.AVRO: _avro_place,
}
"""Layouts in which names have no epoch, so that a later attempt may write where an earlier one has written."""

"""Has objects retrieved that a restore reads and that lie in a cold storage class, and waits until they can be read.

Nothing of that is written down: what was asked for, the store knows. A driver that starts again asks for nothing twice,
and waits for the rest. When all can be read, the restore is planned again, as the archive and the target are then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.patterns import NamePatterns
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.contract.retrieval import Retrieval
from logkeep_engine.contract.values import human_bytes, human_duration, so_many
from logkeep_engine.errors import ObjectCold, StorageUnavailable
from logkeep_engine.restore.context import RestoreContext
from logkeep_engine.storage import ColdObject, ObjectInfo, Storage

log = logging.getLogger(__name__)

POLL_SECONDS = 60.0
_SECONDS_PER_OBJECT = 0.02  # between two looks, so that many objects are not asked about all the time
_ASKED_AT_ONCE = 16
_SHOWN = 3

Used = Sequence[tuple[str, SegmentEntry]]
"""Segments, each with the name of its topic."""
T = TypeVar("T")


def folders(used: Used) -> list[str]:
    """The folders in which the objects of segments lie."""
    return sorted({entry.topic_folder(topic) for topic, entry in used})


def cold_of(storage: Storage, used: Used, listed: Iterable[ObjectInfo]) -> tuple[ColdObject, ...]:
    """The objects of segments that cannot be read now. `listed` is what lies in their folders."""
    classed = [info for info in listed if info.storage_class]
    if not classed:
        return ()
    wanted = {path for topic, entry in used for path in (*entry.objects(topic), *entry.beside(topic))}
    return storage.cold(info for info in classed if info.path in wanted)


def listed_in(storage: Storage, used: Used) -> Iterator[ObjectInfo]:
    """All that lies in the folders of segments."""
    for folder in folders(used):
        yield from storage.list(folder)


def told_cold(cold: Sequence[ColdObject]) -> str:
    """The number of cold objects, with their bytes, classes and the first names."""
    classes = ", ".join(sorted({item.info.storage_class for item in cold}))
    size = human_bytes(sum(item.info.size for item in cold))
    names = ", ".join(item.info.path for item in cold[:_SHOWN])
    more = f" and {len(cold) - _SHOWN} more" if len(cold) > _SHOWN else ""
    return f"{so_many(len(cold), 'object')} ({size}) in the storage class {classes}: {names}{more}"


def refuse_cold(storage: Storage, cold: Sequence[ColdObject]) -> None:
    """Raises ObjectCold if there are some."""
    if cold:
        raise ObjectCold(
            f"The restore reads what cannot be read before it is retrieved from {storage.uri}: {told_cold(cold)}; "
            "nothing was written to Kafka",
            hint="Set spec.source.retrieval: the restore then has the objects retrieved, which the store bills, and "
            "waits. Or retrieve them with the store's own tools first.",
        )


class Waking:
    """The cold objects of one restore. `reads` notes what it will read, as far as that is known so far."""

    def __init__(self, context: RestoreContext) -> None:
        self._context = context
        self._storage = context.archive.storage
        self._used: Used = ()

    @property
    def wanted(self) -> Retrieval | None:
        """How objects are retrieved; None: not at all."""
        return self._context.spec.source.retrieval

    def reads(self, used: Used) -> None:
        """Note that the restore reads these segments."""
        self._used = used

    def may_read(self, archived: ArchiveState) -> None:
        """Note what the restore reads at most to find its point, of all topics whose names the spec chooses."""
        topics = self._context.spec.topics
        patterns = NamePatterns(topics.include, topics.exclude)
        self.reads(
            [
                (topic.name, entry)
                for topic in archived.topics.values()
                if patterns.chooses(topic.name)
                for partition in range(topic.partitions)
                for entry in _before(archived.segments.get((topic.topic_id, partition), ()), self._context.spec.point)
            ]
        )

    def awake(self, action: Callable[[], T]) -> T:
        """The result of an action that reads objects. If they are cold and the spec says so, they are retrieved and it
        is done again. Raises StorageUnavailable if that takes too long."""
        while True:
            try:
                return action()
            except ObjectCold:
                if self.wanted is None or self._context.dry_run or not self._retrieved(self.wanted):
                    raise

    def require(self) -> None:
        """Raises ObjectCold if some of what is read is cold and would be retrieved."""
        if self.wanted is not None:
            refuse_cold(self._storage, self._cold())

    def _cold(self) -> tuple[ColdObject, ...]:
        return cold_of(self._storage, self._used, listed_in(self._storage, self._used))

    def _retrieved(self, how: Retrieval) -> bool:
        """Retrieve what is cold, and wait. False if nothing is."""
        cold = self._cold()
        if not cold:
            return False
        reporter = self._context.reporter
        reporter.phase("Retrieving")
        self._ask(cold, how)
        try:
            self._wait(cold, how)
        finally:
            reporter.waits(None)
        reporter.phase("Planning")
        return True

    def _ask(self, cold: Sequence[ColdObject], how: Retrieval) -> None:
        new = [item for item in cold if not item.retrieving]
        log.info("retrieving %s; %d of them were asked for before", told_cold(cold), len(cold) - len(new))
        with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="logkeep-retrieve") as pool:
            asked = [pool.submit(self._storage.retrieve, item, how.days, how.tier.value) for item in new]
            try:
                for item in asked:
                    item.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _wait(self, cold: Sequence[ColdObject], how: Retrieval) -> None:
        total, begun = len(cold), time.monotonic()
        while cold:
            waited = time.monotonic() - begun
            if waited >= how.max_wait_seconds:
                raise StorageUnavailable(
                    f"After {human_duration(waited)} (spec.source.retrieval.maxWait) the store has not retrieved "
                    f"{told_cold(cold)}; nothing was written to Kafka",
                    hint="The retrieval goes on. Start the restore again: it asks for nothing twice.",
                )
            self._context.reporter.waits(
                f"The store is retrieving {told_cold(cold)}; {total - len(cold)} of {total} can be read."
            )
            time.sleep(min(max(POLL_SECONDS, _SECONDS_PER_OBJECT * len(cold)), how.max_wait_seconds - waited))
            self._context.permit()
            cold = self._storage.cold(item.info for item in cold)


def _before(segments: Sequence[SegmentEntry], point: PointSpec | None) -> Iterator[SegmentEntry]:
    """The segments that may have something to do with a point: with a time, those that begin before it, and the first
    that reaches it."""
    moment = None if point is None else point.time
    reached = False
    for entry in segments:
        times = entry.times
        late = moment is not None and times.min_base_timestamp >= moment
        if not late or not reached:
            yield entry
        reached = reached or (moment is not None and times.max_timestamp >= moment)

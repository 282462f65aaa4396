"""Has objects retrieved that a restore reads and that lie in a cold storage class, and waits until they can be read.

Nothing of that is written down: what was asked for, the store knows. A driver that starts again asks for nothing twice,
and waits for the rest. When all can be read, the restore is planned again, as the target is then, for the archive of
before the wait.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.held_tables import deleted
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading import view
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.patterns import NamePatterns
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.contract.retrieval import Retrieval
from logkeep_engine.contract.values import human_bytes, human_duration, so_many
from logkeep_engine.errors import ObjectCold, StorageUnavailable
from logkeep_engine.restore.model import point
from logkeep_engine.restore.model.context import RestoreContext
from logkeep_engine.restore.model.plan import RestorePlan
from logkeep_engine.restore.model.selection import only_chosen
from logkeep_engine.storage import ColdObject, ObjectInfo, Storage

log = logging.getLogger(__name__)

POLL_SECONDS = 60.0
_SECONDS_PER_OBJECT = 0.02  # between two looks, so that many objects are not asked about all the time
_ASKED_AT_ONCE = 16
_SHOWN = 3
_LESS = (
    "while the restore waited for cold objects, some that it would have read were deleted from the archive: it "
    "restores what the archive has now"
)
_NOT_OF_TOPICS = (
    "The store reports that all segments that the restore reads can be read, so spec.source.retrieval does not help. "
    "Retrieve this object with the store's own tools (RestoreObject), and wait until it can be read. Only objects in "
    "topics/ and packs/ may be moved to such a class: correct the life-cycle rule."
)

Used = Sequence[tuple[str, SegmentEntry]]
"""Segments, each with the name of its topic."""
T = TypeVar("T")


def folders(used: Used) -> list[str]:
    """Return the folders in which the objects of segments lie."""
    return sorted({entry.topic_folder(topic) for topic, entry in used})


def cold_of(storage: Storage, used: Used, listed: Iterable[ObjectInfo]) -> tuple[ColdObject, ...]:
    """Return the objects of segments that cannot be read now. `listed` is what lies in their folders."""
    classed = [info for info in listed if info.storage_class]
    if not classed:
        return ()
    wanted = {path for topic, entry in used for path in (*entry.objects(topic), *entry.beside(topic))}
    return storage.cold(info for info in classed if info.path in wanted)


def listed_in(storage: Storage, used: Used) -> Iterator[ObjectInfo]:
    """Yield all that lies in the folders of segments."""
    for folder in folders(used):
        yield from storage.list(folder)


def describe_cold(cold: Sequence[ColdObject]) -> str:
    """Return the number of cold objects, with their bytes, classes and the first names."""
    classes = ", ".join(sorted({item.info.storage_class for item in cold}))
    size = human_bytes(sum(item.info.size for item in cold))
    names = ", ".join(item.info.path for item in cold[:_SHOWN])
    more = f" and {len(cold) - _SHOWN} more" if len(cold) > _SHOWN else ""
    return f"{so_many(len(cold), 'object')} ({size}) in the storage class {classes}: {names}{more}"


def refuse_cold(storage: Storage, cold: Sequence[ColdObject]) -> None:
    """Raises ObjectCold if there are some."""
    if cold:
        raise ObjectCold(
            f"The restore reads what cannot be read before it is retrieved from {storage.uri}: {describe_cold(cold)}; "
            "nothing was written to Kafka",
            hint="Set spec.source.retrieval: the restore then has the objects retrieved, which the store bills, and "
            "waits. Or retrieve them with the store's own tools first.",
        )


class ObjectRetrieval:
    """The cold objects of one restore. `reads` notes what it will read, as far as that is known so far."""

    def __init__(self, context: RestoreContext) -> None:
        self._context = context
        self._storage = context.archive.storage
        self._used: Used = ()
        self._seen: view.ArchiveView | None = None

    @property
    def wanted(self) -> Retrieval | None:
        """How objects are retrieved; None: not at all."""
        return self._context.spec.source.retrieval

    def reads(self, used: Used) -> None:
        """Note that the restore reads these segments."""
        self._used = used

    def seen(self) -> view.ArchiveView:
        """Return the state of the archive that is restored. After a wait it is that of before: retention may have
        removed meanwhile what was waited for, and the lease keeps its objects. If some were deleted all the same, it is
        the state of now, with a warning. Raises what `point.choose` does."""
        archive, wanted = self._context.archive, self._context.spec.point
        if self._seen is None or (wanted is not None and wanted.run is not None):  # that of a run stays as it is
            self._seen = point.choose(archive, wanted)
            return self._seen
        newest = archive.load()
        state = view.state_at(archive, self._seen.state.commit, newest)
        keys = ((topic.topic_id, number) for topic in self._named(state) for number in range(topic.partitions))
        if not any(deleted(newest, key, state.segments.get(key, ())) for key in keys):
            return replace(self._seen, state=state)
        again = point.choose(archive, wanted)
        self._seen = replace(again, warnings=(*again.warnings, _LESS))
        return self._seen

    def may_read_of(self, known: RestorePlan) -> None:
        """Note what is read to hold a stored plan to the archive: what its point says, and the keys of topics that are
        divided."""
        if self.wanted is not None:
            archive = self._context.archive
            self.may_read(view.state_at(archive, known.commit, archive.load()))

    def may_read(self, archived: ArchiveState) -> None:
        """Note what the restore reads at most to find its point, of all topics whose names the spec chooses. Of a topic
        with several incarnations any partition may tell which one is restored, of others those that the spec chooses.
        """
        chosen = only_chosen(archived, self._context.spec.topics.partitions)
        incarnations = Counter(topic.name for topic in archived.topics.values())
        self.reads(
            [
                (topic.name, entry)
                for topic in self._named(archived)
                for log in ((archived if incarnations[topic.name] > 1 else chosen).segments,)
                for partition in range(topic.partitions)
                for entry in _before(log.get((topic.topic_id, partition), ()), self._context.spec.point)
            ]
        )

    def _named(self, archived: ArchiveState) -> Iterator[TopicEntry]:
        """Return all incarnations of the topics whose names the spec chooses."""
        topics = self._context.spec.topics
        patterns = NamePatterns(topics.include, topics.exclude)
        return (topic for topic in archived.topics.values() if patterns.chooses(topic.name))

    def awake(self, action: Callable[[], T]) -> T:
        """Return the result of an action that reads objects. If they are cold and the spec says so, they are retrieved
        and it is done again. Raises StorageUnavailable if that takes too long, and ObjectCold for what cannot be helped
        so."""
        while True:
            try:
                return action()
            except ObjectCold as cold:
                if self.wanted is None or self._context.dry_run:
                    raise
                if not self._retrieved(self.wanted):
                    raise ObjectCold(cold.message, hint=_NOT_OF_TOPICS) from cold

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
        log.info("retrieving %s; %d of them were asked for before", describe_cold(cold), len(cold) - len(new))
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
                    f"{describe_cold(cold)}; nothing was written to Kafka",
                    hint="The retrieval continues. Start the restore again: it requests nothing twice.",
                )
            self._context.reporter.waits(
                f"The store is retrieving {describe_cold(cold)}; {total - len(cold)} of {total} can be read."
            )
            time.sleep(min(max(POLL_SECONDS, _SECONDS_PER_OBJECT * len(cold)), how.max_wait_seconds - waited))
            self._context.permit()
            cold = self._storage.cold(item.info for item in cold)


def _before(segments: Sequence[SegmentEntry], point: PointSpec | None) -> Iterator[SegmentEntry]:
    """Yield the segments that may have something to do with a point: with a time, those that begin before it, and the
    first that reaches it."""
    moment = None if point is None else point.time
    reached = False
    for entry in segments:
        times = entry.times
        late = moment is not None and times.min_base_timestamp >= moment
        if not late or not reached:
            yield entry
        reached = reached or (moment is not None and times.max_timestamp >= moment)

"""Reads the commits of an archive by their numbers, from objects of their own and from bundles.

    reader = CommitReader(storage, archive_id)
    listing = reader.listing()
    for commit in reader.read_all(range(listing.last + 1)): ...

A bundle wins over objects of its commits: they are there until they are removed, and one that comes later is of a
writer that was suspended for so long that it found its number free again (`writer` says how it finds out).
"""

from __future__ import annotations

import io
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby, islice
from threading import Lock

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import bundle, commits
from logkeep_engine.archive.catalog.bundle import Bundle, FramePlace
from logkeep_engine.archive.catalog.facts import Commit, why_not_on
from logkeep_engine.errors import ArchiveDamaged, ObjectMissing
from logkeep_engine.storage import ObjectInfo, Storage

_READERS = 16  # commits are small: latency, not bandwidth, decides how long loading takes
_READ_AHEAD = 2 * _READERS
_HEAD_BYTES = 256 << 10  # holds the line that a bundle begins with, and often the whole bundle
_FRAMES_KEPT = 4  # a reader that looks for the end of a run reads neighbours
COPY = "Restore it from a copy of the archive."


@dataclass(frozen=True, slots=True)
class CatalogListing:
    """The catalog's objects. `commits`: number to object, of those that no bundle has; `bundles`: number to object;
    `removable`: objects of commits that a bundle has, by number; `checkpoints`: newest first."""

    commits: dict[int, ObjectInfo]
    checkpoints: list[tuple[int, int, ObjectInfo]]
    bundles: dict[int, ObjectInfo]
    removable: dict[int, ObjectInfo]

    @property
    def last(self) -> int:
        """The last commit, -1 if there is none."""
        ends = (names.bundled(number).stop - 1 for number in self.bundles)
        return max(max(self.commits, default=-1), max(ends, default=-1))

    def object_of(self, number: int) -> str:
        """Return the path of the object that has a commit, or should have it."""
        wanted = names.bundle_of(number)
        if wanted in self.bundles:
            return names.bundle_path(wanted)
        whole = self.bundles and self.commits.keys().isdisjoint(names.bundled(wanted))
        return names.bundle_path(wanted) if whole else names.commit_path(number)

    def size_of(self, number: int) -> int:
        """Return the bytes of a commit's own object, 0 if it has none."""
        return self.commits[number].size if number in self.commits else 0

    @property
    def objects(self) -> int:
        """The number of all these objects."""
        return len(self.commits) + len(self.checkpoints) + len(self.bundles) + len(self.removable)


@dataclass(slots=True)
class _Opened:
    """A bundle whose first bytes were read."""

    head: Bundle
    begin: bytes


def not_standing(name: str, commit: Commit, sha256: str) -> ArchiveDamaged:
    """Return the error for a commit that does not stand on the one before, which has this hash."""
    return ArchiveDamaged(f"{name}: {why_not_on(commit, sha256)}.", hint=COPY)


class CommitReader:
    """Reads commits. Safe for several threads."""

    def __init__(self, storage: Storage, archive_id: str) -> None:
        self._storage = storage
        self._archive_id = archive_id
        self._listed: frozenset[int] | None = None
        self._opened: dict[int, _Opened] = {}
        self._frames: OrderedDict[FramePlace, list[bytes]] = OrderedDict()
        self._lock = Lock()

    def listing(self) -> CatalogListing:
        """Return the objects of the catalog, listed."""
        single: dict[int, ObjectInfo] = {}
        bundles: dict[int, ObjectInfo] = {}
        checkpoints: list[tuple[int, int, ObjectInfo]] = []
        for info in self._storage.list(names.CATALOG):
            if (number := names.parse_commit(info.path)) is not None:
                single[number] = info
            elif (checkpoint := names.parse_checkpoint(info.path)) is not None:
                checkpoints.append((*checkpoint, info))
            elif (number := names.parse_bundle(info.path)) is not None:
                bundles[number] = info
        checkpoints.sort(key=lambda item: item[:2], reverse=True)
        # A bundle that was found before it is listed is there all the same.
        self._listed = frozenset(bundles) | self._opened.keys()
        removable = {number: info for number, info in single.items() if names.bundle_of(number) in bundles}
        for number in removable:
            del single[number]
        return CatalogListing(single, checkpoints, bundles, removable)

    def read(self, number: int) -> Commit:
        """Read commit `number`. Raises ArchiveDamaged if it is not there, cut short, altered or another archive's."""
        return self.parse(number, self._bytes_of(number))

    def bundled(self, number: int) -> Commit | None:
        """Return the commit as its bundle has it, None if it has none. Asks the storage, whatever was listed before."""
        if self._open(names.bundle_of(number)) is None:
            return None
        return self.parse(number, self._from_bundle(number))

    def unlisted(self, number: int) -> tuple[Commit, int] | None:
        """Return the commit after the last that was listed, and the bytes of its object; None if there is none. A store
        may list late what it already reads."""
        if self._place(number) is not None:
            return self.read(number), 0
        try:
            data = self._storage.read(names.commit_path(number))
        except ObjectMissing:
            return None
        return self.parse(number, data), len(data)

    def finds_bundles(self, last: int) -> bool:
        """Tells whether there are bundles that were not there when the catalog was listed: of the `last` commit, after
        which `unlisted` has found none, or of the one after it."""
        for number in {names.bundle_of(max(0, last)), names.bundle_of(last + 1)} - (self._listed or frozenset()):
            self._open(number)
        return not self._opened.keys() <= (self._listed or frozenset())

    def read_all(self, numbers: Sequence[int]) -> Iterator[Commit]:
        """Yield the commits in this order, read concurrently, with bounded memory. Raises what `read` does."""
        for some, data in self._ahead(self._units(numbers)):
            for number, line in zip(some, data, strict=True):
                yield self.parse(number, line)

    def read_chain(self, numbers: Sequence[int]) -> Iterator[tuple[Commit, bytes]]:
        """Commits that follow each other, and their bytes as they were written. Raises what `read` does, and
        ArchiveDamaged for one that does not stand on the one before."""
        before: Commit | None = None
        for some, data in self._ahead(self._units(numbers)):
            for number, line in zip(some, data, strict=True):
                before = self._standing_on(before, self.parse(number, line))
                yield before, line

    def _standing_on(self, before: Commit | None, commit: Commit) -> Commit:
        if before is not None and commit.previous != before.sha256:
            raise not_standing(self.name_of(commit.number), commit, before.sha256)
        return commit

    def check_bundle(self, number: int) -> None:
        """Read a bundle whole, also if it was read before, and the commits next to it. Raises ArchiveDamaged for
        anything wrong with it, and if it does not stand on what is before it or the next commit not on it."""
        name = f"{self._storage.uri}/{names.bundle_path(number)}"
        path = names.bundle_path(number)
        head = bundle.load(self._storage.read_range(path, 0, _HEAD_BYTES), number, name)
        before = self.read(head.numbers[0] - 1) if number else None
        with io.BufferedReader(self._storage.reader(path, start=head.frames[0].start)) as stream:
            for place, frame in bundle.frames_in(stream, head, name):
                for commit, line in zip(place.numbers, bundle.lines(frame, place, name), strict=True):
                    before = self._standing_on(before, self.parse(commit, line))
        self._standing_on(before, self.read(head.numbers.stop))

    def parse(self, number: int, data: bytes) -> Commit:
        """Return the commit in `data`, which was read as that of this number."""
        name = self.name_of(number)
        commit = commits.load_commit(data, name)
        if commit.number != number or commit.archive_id != self._archive_id:
            raise ArchiveDamaged(
                f"{name} holds commit {commit.number} of archive {commit.archive_id}, "
                f"not commit {number} of {self._archive_id}.",
                hint=COPY,
            )
        opened = self._opened.get(names.bundle_of(number))
        if opened is not None and (why := opened.head.why_not(commit)):
            raise ArchiveDamaged(f"{self._storage.uri}/{names.bundle_path(names.bundle_of(number))}: {why}.", hint=COPY)
        return commit

    def name_of(self, number: int) -> str:
        """Return the commit, or the object that holds it, for messages."""
        wanted = names.bundle_of(number)
        if wanted in (self._listed or ()):
            return f"{self._storage.uri}/{names.bundle_path(wanted)}: commit {number}"
        return f"{self._storage.uri}/{names.commit_path(number)}"

    def _units(self, numbers: Iterable[int]) -> Iterator[list[int]]:
        """Yield the numbers, those together that lie in one frame."""

        def unit(number: int) -> tuple[int, int]:
            place = self._place(number)
            return (0, number) if place is None else (1, place.first)

        for _, some in groupby(numbers, unit):
            yield list(some)

    def _place(self, number: int) -> FramePlace | None:
        """Return the frame of the commit, if it is known to be in a bundle."""
        if self._listed is None:
            self.listing()
        wanted = names.bundle_of(number)
        if wanted not in (self._listed or ()):
            return None
        opened = self._open(wanted)
        if opened is None:
            raise self._missing(number)
        return opened.head.frame_of(number)

    def _ahead(self, units: Iterator[list[int]]) -> Iterator[tuple[list[int], list[bytes]]]:
        first = list(islice(units, 2))
        if len(first) < 2:  # threads would take longer than what they read
            yield from ((some, self._bytes_of_all(some)) for some in first)
            return
        waiting: deque[tuple[list[int], Future[list[bytes]]]] = deque()
        with ThreadPoolExecutor(_READERS, thread_name_prefix="logkeep-catalog") as pool:
            try:
                for some in chain(first, units):
                    waiting.append((some, pool.submit(self._bytes_of_all, some)))
                    if len(waiting) >= _READ_AHEAD:
                        numbers, done = waiting.popleft()
                        yield numbers, done.result()
                while waiting:
                    numbers, done = waiting.popleft()
                    yield numbers, done.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _bytes_of_all(self, numbers: Sequence[int]) -> list[bytes]:
        place = self._place(numbers[0])
        if place is None:
            return list(map(self._bytes_of, numbers))
        frame = self._frame(place)
        return [frame[number - place.first] for number in numbers]

    def _bytes_of(self, number: int) -> bytes:
        place = self._place(number)
        if place is not None:
            return self._frame(place)[number - place.first]
        try:
            return self._storage.read(names.commit_path(number))
        except ObjectMissing as error:
            if self._open(names.bundle_of(number)) is None:
                raise self._missing(number) from error
            return self._from_bundle(number)

    def _missing(self, number: int) -> ArchiveDamaged:
        name = f"{self._storage.uri}/{names.commit_path(number)}"
        beside = f", nor does {names.bundle_path(names.bundle_of(number))}" if self._listed else ""
        return ArchiveDamaged(f"Commit {number} is missing: {name} does not exist{beside}.", hint=COPY)

    def _open(self, number: int) -> _Opened | None:
        """Return the bundle, None if there is none. A bundle never changes, so it is read once."""
        if (known := self._opened.get(number)) is not None:
            return known
        path = names.bundle_path(number)
        try:
            begin = self._storage.read_range(path, 0, _HEAD_BYTES)
        except ObjectMissing:
            return None
        name = f"{self._storage.uri}/{path}"
        head = bundle.load(begin, number, name)
        if head.archive_id != self._archive_id:
            raise ArchiveDamaged(f"{name} is of archive {head.archive_id}, not of {self._archive_id}.", hint=COPY)
        opened = self._opened[number] = _Opened(head, begin)
        return opened

    def _from_bundle(self, number: int) -> bytes:
        place = self._opened[names.bundle_of(number)].head.frame_of(number)
        return self._frame(place)[number - place.first]

    def _frame(self, place: FramePlace) -> list[bytes]:
        with self._lock:
            if (found := self._frames.get(place)) is not None:
                return found
        number = names.bundle_of(place.first)
        path, begin = names.bundle_path(number), self._opened[number].begin
        if place.stop <= len(begin):
            data = begin[place.start : place.stop]
        else:
            data = self._storage.read_range(path, place.start, place.stop)
        found = bundle.lines(data, place, f"{self._storage.uri}/{path}")
        with self._lock:
            self._frames[place] = found
            while len(self._frames) > _FRAMES_KEPT:
                self._frames.popitem(last=False)
        return found

"""Bundles as bytes: the commits of a range of numbers, as they were written, in one object. No I/O.

A bundle is a line of JSON, then zstd frames, each complete (`tail -n +2 | zstd -d` shows one commit a line):

    {"format":1,"archiveId":…,"first":0,"last":999,"frames":[[<commits>,<compressed bytes>],…],"sha256":…,
     "previous":…,"commitSha256":…}

`sha256` is that of all frames, `previous` the hash of the commit before the first, on which the bundle stands ("" if
there is none), and `commitSha256` that of its last one. A reader that wants one commit reads the line and one frame,
and needs no more to know that it is right: each commit has a hash of its own.
"""

from __future__ import annotations

import hashlib
import io
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import cramjam

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import documents
from logkeep_engine.archive.catalog.facts import Commit
from logkeep_engine.archive.catalog.kinds import check_hash
from logkeep_engine.log.memory import checkpoint_most
from logkeep_engine.storage import WHOLE_BYTES

FRAME_BYTES = 1 << 20  # the content of a frame: to read one commit is to read a frame
_KEYS = {"format", "archiveId", "first", "last", "frames", "sha256", "previous", "commitSha256"}


@dataclass(frozen=True, slots=True)
class FramePlace:
    """A frame of a bundle: the numbers of its first commit and of the commit after its last one, and where its bytes
    lie in the object."""

    first: int
    end: int
    start: int
    stop: int

    @property
    def numbers(self) -> range:
        """The numbers of its commits."""
        return range(self.first, self.end)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The line that a bundle begins with. `frames` in the order of their commits. The bundle stands on the commit with
    the hash `previous`, and the next commit on `commit_sha256`."""

    archive_id: str
    frames: tuple[FramePlace, ...]
    sha256: str
    previous: str
    commit_sha256: str

    @property
    def numbers(self) -> range:
        """The numbers of its commits."""
        return range(self.frames[0].first, self.frames[-1].end)

    def why_not(self, commit: Commit) -> str:
        """Return why a commit cannot be the one that the bundle was made of; empty if it can."""
        if commit.number == self.numbers[0] and commit.previous != self.previous:
            return f"its first commit stands on {commit.previous or 'none'}, and it says {self.previous or 'none'}"
        if commit.number == self.numbers[-1] and commit.sha256 != self.commit_sha256:
            return f"its last commit has the hash {commit.sha256}, and it says {self.commit_sha256}"
        return ""

    def frame_of(self, number: int) -> FramePlace:
        """Return the frame that has commit `number`, which lies in the bundle's range."""
        return self.frames[bisect_right(self.frames, number, key=lambda frame: frame.first) - 1]


def dump(archive_id: str, first: int, commits: Sequence[bytes], previous: str, commit_sha256: str) -> bytes:
    """Return the bundle of the commits `first` and those that follow, as they lie in the storage: of the hashes that
    they stand on and end with. Raises ValueError for a commit that is not one line."""
    contents = list(_contents(commits))
    frames = [bytes(cramjam.zstd.compress(b"\n".join(some) + b"\n", level=3)) for some in contents]
    hashed = hashlib.sha256()
    for frame in frames:
        hashed.update(frame)
    head = {
        "format": documents.FORMAT,
        "archiveId": archive_id,
        "first": first,
        "last": first + len(commits) - 1,
        "frames": [[len(some), len(frame)] for some, frame in zip(contents, frames, strict=True)],
        "sha256": hashed.hexdigest(),
        "previous": previous,
        "commitSha256": commit_sha256,
    }
    return b"".join([documents.dumps(head), b"\n", *frames])


def _contents(commits: Iterable[bytes]) -> Iterator[list[bytes]]:
    some: list[bytes] = []
    size = 0
    for data in commits:
        if b"\n" in data:  # a frame has a commit a line, and is divided there when it is read
            raise ValueError("a commit of more than one line")
        if some and size + len(data) > FRAME_BYTES:
            yield some
            some, size = [], 0
        some.append(data)
        size += len(data) + 1
    if some:
        yield some


def load(data: bytes, number: int, name: str) -> Bundle:
    """Read the line at the beginning of the bundle with the given number. `data` begins with it. Messages name the
    object as `name`.

    Raises ArchiveMismatch for one of a newer version, ArchiveDamaged for one that is cut short, altered or misnamed.
    """
    end = data.find(b"\n")
    head = documents.parse(data[: end if end >= 0 else len(data)], name)
    documents.know(head, _KEYS, name)

    def build() -> Bundle:
        first, last = head["first"], head["last"]
        links = [check_hash(head[key], key) for key in ("previous", "commitSha256")]
        bundle = Bundle(head["archiveId"], _places(head["frames"], first, end + 1), head["sha256"], *links)
        wanted = names.bundled(number)
        if (first, last) != (wanted.start, wanted.stop - 1) or bundle.frames[-1].end != wanted.stop:
            raise ValueError(f"it holds commits {first} to {last}, not {wanted.start} to {wanted.stop - 1}")
        return bundle

    return documents.building(build, name)


def _places(frames: Iterable[Any], first: int, start: int) -> tuple[FramePlace, ...]:
    counts, lengths = zip(*frames, strict=True)
    if min(*counts, *lengths, 1) < 1:
        raise ValueError("an empty frame")
    if max(lengths) > WHOLE_BYTES:
        raise ValueError(f"a frame of {max(lengths)} bytes")
    numbers, places = list(accumulate(counts, initial=first)), list(accumulate(lengths, initial=start))
    return tuple(map(FramePlace, numbers, numbers[1:], places, places[1:]))


def lines(frame: bytes | memoryview, place: FramePlace, name: str) -> list[bytes]:
    """Return the commits of a frame, as they were written. Raises ArchiveDamaged if it is cut short or altered."""

    def build() -> list[bytes]:
        content = documents.unpacked(memoryview(frame), checkpoint_most())
        found = content.split(b"\n")
        if found.pop() or len(found) != len(place.numbers):
            raise ValueError(f"{len(found)} commits where {len(place.numbers)} are announced")
        return found

    return documents.building(build, name)


def frames_in(stream: io.BufferedIOBase, bundle: Bundle, name: str) -> Iterator[tuple[FramePlace, bytes]]:
    """Yield the frames, one after the other, of the object whose bytes after its line come from a stream. Raises
    ArchiveDamaged at the end if the object is not the one that was written."""
    hashed = hashlib.sha256()
    for place in bundle.frames:
        frame = stream.read(place.stop - place.start)
        hashed.update(frame)
        yield place, frame
    # Also nothing may follow the last frame, which the hash would not see.
    if stream.read(1) or hashed.hexdigest() != bundle.sha256:
        raise documents.damaged(name, "its SHA-256 does not match its content")

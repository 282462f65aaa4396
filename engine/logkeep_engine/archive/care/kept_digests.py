"""The digests of records that an archive keeps: one object for each partition, see `names.digests_path`.

Its first line says of which partition the digests are, and has the SHA-256 of what follows: a line for each segment.
The object is replaced as a whole, as soon as all digests of a partition are made. Each segment's digests are true by
themselves (`SegmentDigests.fits`), so of two that write at the same time it does not matter who is the last. An object
that was altered is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from logkeep_engine.archive import names
from logkeep_engine.archive.care.record_digests import RecordTimes, SegmentDigests, StretchDigest
from logkeep_engine.contract.nesting import WRONG, loads
from logkeep_engine.contract.spec import DigestAlgorithm
from logkeep_engine.digest import Digest
from logkeep_engine.errors import ObjectMissing
from logkeep_engine.storage import Storage

log = logging.getLogger(__name__)

FORMAT = 1
AT_ONCE = 16
"""So many partitions are asked for, or kept, at once."""


@dataclass(frozen=True, slots=True)
class DigestsPlace:
    """Where the digests of a partition lie, in the archive or beside it."""

    storage: Storage
    topic: str
    topic_id: str
    partition: int

    @property
    def path(self) -> str:
        return names.digests_path(self.topic, self.topic_id, self.partition)

    def load(self) -> dict[int, SegmentDigests]:
        """The digests that lie here, by the base offset of their segment. Whether they are still those of the segment,
        `SegmentDigests.fits` says. Nothing is there: none; something else is there: none, and a warning."""
        try:
            data = self.storage.read(self.path)
        except ObjectMissing:
            return {}
        try:
            return self._read(data)
        except WRONG as error:
            log.warning("%s/%s: not used, digests are computed again: %s", self.storage.uri, self.path, error)
            return {}

    def keep(self, digests: Iterable[SegmentDigests]) -> None:
        """Put digests here in place of what lies here. Raises what the storage raises."""
        lines = [_to_line(found) for found in sorted(digests, key=lambda found: found.base_offset)]
        body = "".join(f"{line}\n" for line in lines).encode()
        head = {
            "format": FORMAT,
            "topic": self.topic,
            "topicId": self.topic_id,
            "partition": self.partition,
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        self.storage.put(self.path, json.dumps(head).encode() + b"\n" + body)

    def _read(self, data: bytes) -> dict[int, SegmentDigests]:
        line, _, body = data.partition(b"\n")
        head = loads(line)
        if head["format"] != FORMAT:
            raise ValueError(f"format {head['format']!r}")
        if (head["topic"], head["topicId"], head["partition"]) != (self.topic, self.topic_id, self.partition):
            raise ValueError("it is of another partition")
        if head["sha256"] != hashlib.sha256(body).hexdigest():
            raise ValueError("it was altered")
        found = (_from_line(text) for text in body.splitlines())
        return {digests.base_offset: digests for digests in found}


class DigestsInWork:
    """The digests of a partition of which some are being made: `known` by the base offsets of their segments, and the
    segments that are `open`. What `never` names is used and not kept. `kept` lie there and stay."""

    def __init__(
        self,
        place: DigestsPlace,
        kept: Mapping[int, SegmentDigests],
        known: Mapping[int, SegmentDigests],
        wanted: Iterable[int],
        never: Collection[int] = (),
    ) -> None:
        self._place = place
        self._kept = dict(kept)
        self._never = never
        self._made = False
        self.known = dict(known)
        self.open = set(wanted)

    def add(self, digests: Iterable[SegmentDigests]) -> None:
        """Take digests that were made."""
        for found in digests:
            self.known[found.base_offset] = found
            self.open.discard(found.base_offset)
            self._made = self._made or found.base_offset not in self._never

    def keep(self) -> None:
        """Keep what is known, if some of it was made. Raises what the storage raises."""
        if self._made:
            new = {base: found for base, found in self.known.items() if base not in self._never}
            self._place.keep({**self._kept, **new}.values())


OnDigests = Callable[[int, tuple[SegmentDigests, ...]], None]


def keep_as_made(of: Sequence[DigestsInWork], run: Callable[[OnDigests], None]) -> None:
    """Let `run` make digests, and keep those of a partition when none of its segments is open. `of` has the partition
    of each work item. If `run` raises, what was made until then is kept, too. Raises what `run` and the storage raise.
    """
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="logkeep-digests") as pool:
        kept: list[Future[None]] = []

        def on_result(index: int, found: tuple[SegmentDigests, ...]) -> None:
            of[index].add(found)
            if not of[index].open:
                kept.append(pool.submit(of[index].keep))

        try:
            run(on_result)
        except BaseException:
            for partition in dict.fromkeys(of):
                if partition.open:
                    pool.submit(partition.keep)
            raise
        for future in kept:
            future.result()


def _to_line(found: SegmentDigests) -> str:
    body = {
        "base": found.base_offset,
        "next": found.next_offset,
        found.digest.algorithm.value: found.digest.hex,
        "aborted": [list(span) for span in found.aborted],
        "stretches": [
            [item.start, item.end, item.records, item.value.hex(), item.offsets_value.hex(), item.lowest, item.highest]
            for item in found.stretches
        ],
        "times": [found.times.shift, [list(bucket) for bucket in found.times.buckets]],
    }
    return json.dumps(body, separators=(",", ":"))


def _from_line(text: bytes) -> SegmentDigests:
    body: dict[str, Any] = loads(text)
    algorithm = next(algorithm for algorithm in DigestAlgorithm if algorithm.value in body)
    shift, buckets = body["times"]
    return SegmentDigests(
        body["base"],
        body["next"],
        Digest(algorithm, body[algorithm.value]),
        tuple((producer, first, last) for producer, first, last in body["aborted"]),
        tuple(
            StretchDigest(start, end, records, bytes.fromhex(value), bytes.fromhex(offsets), lowest, highest)
            for start, end, records, value, offsets, lowest, highest in body["stretches"]
        ),
        RecordTimes(shift, tuple((number, records, size) for number, records, size in buckets)),
    )

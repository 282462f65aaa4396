"""The digests of records that an archive keeps: one object for each partition, see `names.digests_path`.

It says of which partition the digests are, has a line for each segment, and at its end the SHA-256 of all before. The
object is replaced as a whole, as soon as all digests of a partition are made. Each segment's digests are true by
themselves (`SegmentDigests.fits`), so when two write at the same time, it does not matter which is the last. An object
that was altered counts as missing.
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
from logkeep_engine.archive.maintenance.record_digests import RecordTimes, SegmentDigests, StretchDigest
from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.contract.nesting import WRONG
from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.digest import Digest
from logkeep_engine.errors import ArchiveUnsigned, ObjectMissing
from logkeep_engine.storage import Storage

log = logging.getLogger(__name__)

_DIGESTS = StoredDocument(
    "list of digests",
    1,
    {
        "topic": str,
        "topicId": str,
        "partition": int,
        "segments": [
            {
                "base": int,
                "next": int,
                "algorithm": str,
                "digest": str,
                "aborted": [(int, int, int)],
                "stretches": [(int, int, int, str, str, int, int)],
                "times": {"shift": int, "buckets": [(int, int, int)]},
            }
        ],
        "sha256": str,
    },
)
_END = b',"sha256":"%b"}\n'
AT_ONCE = 16
"""This many partitions are asked for, or kept, at once."""


@dataclass(frozen=True, slots=True)
class DigestsPlace:
    """Where the digests of a partition lie, in the archive or next to it."""

    storage: Storage
    topic: str
    topic_id: str
    partition: int

    @property
    def path(self) -> str:
        return names.digests_path(self.topic, self.topic_id, self.partition)

    def load(self) -> dict[int, SegmentDigests]:
        """Return the digests that lie here, by the base offset of their segment. Whether they are still those of the
        segment, `SegmentDigests.fits` says. Nothing is there: none; something else is there: none, and a warning."""
        try:
            return self._read(self.storage.read(self.path))
        except ObjectMissing:
            return {}
        except (*WRONG, ArchiveUnsigned) as error:
            log.warning("%s/%s: not used, digests are computed again: %s", self.storage.uri, self.path, error)
            return {}

    def keep(self, digests: Iterable[SegmentDigests]) -> None:
        """Put digests here in place of what lies here. Raises what the storage raises."""
        lines = [_to_line(found) for found in sorted(digests, key=lambda found: found.base_offset)]
        head = _DIGESTS.head({"topic": self.topic, "topicId": self.topic_id, "partition": self.partition})
        body = head + b',"segments":[\n' + ",\n".join(lines).encode() + b"\n]"
        self.storage.put(self.path, body + _END % hashlib.sha256(body).hexdigest().encode())

    def _read(self, data: bytes) -> dict[int, SegmentDigests]:
        body = _DIGESTS.loads(data)
        if (body["topic"], body["topicId"], body["partition"]) != (self.topic, self.topic_id, self.partition):
            raise ValueError("it is of another partition")
        if body["sha256"] != hashlib.sha256(data[: data.rindex(b',"sha256"')]).hexdigest():
            raise ValueError("it was altered")
        return {found.base_offset: found for found in map(_digests_of, body["segments"])}


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
        "algorithm": found.digest.algorithm.value,
        "digest": found.digest.hex,
        "aborted": [list(span) for span in found.aborted],
        "stretches": [
            [item.start, item.end, item.records, item.value.hex(), item.offsets_value.hex(), item.lowest, item.highest]
            for item in found.stretches
        ],
        "times": {"shift": found.times.shift, "buckets": [list(bucket) for bucket in found.times.buckets]},
    }
    return json.dumps(body, separators=(",", ":"))


def _digests_of(body: dict[str, Any]) -> SegmentDigests:
    times = body["times"]
    return SegmentDigests(
        body["base"],
        body["next"],
        Digest(DigestAlgorithm(body["algorithm"]), body["digest"]),
        tuple((producer, first, last) for producer, first, last in body["aborted"]),
        tuple(
            StretchDigest(start, end, records, bytes.fromhex(value), bytes.fromhex(offsets), lowest, highest)
            for start, end, records, value, offsets, lowest, highest in body["stretches"]
        ),
        RecordTimes(times["shift"], tuple((number, records, size) for number, records, size in times["buckets"])),
    )

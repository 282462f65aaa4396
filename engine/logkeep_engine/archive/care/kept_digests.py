"""The digests of records that an archive keeps: one object for each partition, see `names.digests_path`.

Its first line says of which partition the digests are, and has the SHA-256 of what follows: a line for each segment.
The object is replaced as a whole. Each segment's digests are true by themselves (`SegmentDigests.fits`), so of two that
write at the same time it does not matter who is the last. An object that was altered is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from logkeep_engine.archive import names
from logkeep_engine.archive.care.record_digests import RecordTimes, SegmentDigests, StretchDigest
from logkeep_engine.contract.spec import DigestAlgorithm
from logkeep_engine.digest import Digest
from logkeep_engine.errors import ObjectMissing
from logkeep_engine.storage import Storage

log = logging.getLogger(__name__)

FORMAT = 1


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
        except (ValueError, KeyError, TypeError) as error:
            log.warning("%s/%s: not used, digests are made anew: %s", self.storage.uri, self.path, error)
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
        head = json.loads(line)
        if head["format"] != FORMAT:
            raise ValueError(f"format {head['format']!r}")
        if (head["topic"], head["topicId"], head["partition"]) != (self.topic, self.topic_id, self.partition):
            raise ValueError("it is of another partition")
        if head["sha256"] != hashlib.sha256(body).hexdigest():
            raise ValueError("it was altered")
        found = (_from_line(text) for text in body.splitlines())
        return {digests.base_offset: digests for digests in found}


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
    body: dict[str, Any] = json.loads(text)
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

"""The digest of records, in one thread of this machine: records a second, of topics with records of 100 B.

The kernel gets whole stretches of batches with their headers, and takes the records apart on the way. The batches were
unpacked before the clock starts, or, for the second figure, are unpacked on the way, too, as a verification does it. A
digest that is not the one that plain Python computes is an error, and no figure.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from logkeep_kernel import RecordDigest, record_digests

from bench import topics
from logkeep_engine.log.batch import parse_header, runs
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.rows import Rows, kept_rows, note_batches

TOPICS = ("lz4-100", "single-100", "five-100")
RECORDS = 5_000_000
ROUNDS = 3
_SHRUNK = 20  # this part of a topic is repeated
_PRIME = (1 << 127) - 1
_POINT = 0x243F6A8885A308D313198A2E03707344  # the first digits of pi


class WrongDigest(Exception):
    """The kernel's digest is not the one that plain Python computes."""


def measure(records: int = RECORDS) -> list[dict[str, Any]]:
    """Rows of topic and records a second, the best of ROUNDS; also with unpacking."""
    return [_measured(topic.shrunk(_SHRUNK), records) for topic in topics.named(TOPICS)]


def _measured(topic: topics.Topic, records: int) -> dict[str, Any]:
    packed = [template.data for template in topics.pool(topic)]
    plain = [template.data for template in topics.pool(replace(topic, codec=Codec.NONE))]
    expected = plain_digest(rows for batch in packed for rows in kept_rows(memoryview(batch), parse_header(batch)))
    times = -(-records // expected[0])

    def best(batches: list[bytes]) -> int:
        stretch = memoryview(b"".join(batches))
        return max(_rate(stretch, expected, times) for _ in range(ROUNDS))

    return {"topic": topic.name, "records/s": best(plain), "with unpacking, records/s": best(packed)}


def plain_digest(parts: Iterable[Rows]) -> tuple[int, bytes]:
    """The number and the digest of these records, from the digests of each, with Python's numbers."""
    count, value = 0, 0
    for rows in parts:
        found = record_digests(rows, offsets=False)
        for at in range(0, len(found), 16):
            value = (value * _POINT + int.from_bytes(found[at : at + 16], "big")) % _PRIME
            count += 1
    return count, value.to_bytes(16, "big")


def _rate(stretch: memoryview, expected: tuple[int, bytes], times: int) -> int:
    """Records a second of this thread. Raises WrongDigest."""
    used = 0.0
    walked = list(runs(stretch, checked=False))
    for _ in range(times):
        digest = RecordDigest(offsets=False)
        started = time.thread_time()
        for headers in walked:
            note_batches(digest, stretch, headers)
        used += time.thread_time() - started
        if (digest.count, digest.value) != expected:
            raise WrongDigest(f"{digest.count} records: {digest.value.hex()}, wanted {expected[1].hex()}")
    return round(times * expected[0] / used)

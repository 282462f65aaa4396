"""A digest that takes a whole stretch of batches at once is the digest that takes them batch by batch."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logkeep_kernel import RecordDigest

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE, Headers, headers_of, parse_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.memory import SMALL_BYTES
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.rows import note_batches, rows_of_batch
from tests.data.broken import corpus
from tests.examples import scaled
from tests.unit.log.batches import batch, marker, with_header
from tests.unit.log.hostile import sealed, wrapper, zeros
from tests.unit.log.test_rows import batches

Result = tuple[int, bytes, str | None]

MARKER = marker(7, 1, commit=True)
EMPTY = sealed(Codec.NONE, b"", count=0, base_offset=3, last_delta=4)
OLD = [wrapper(magic, codec, [b"a", b"b"]) for magic in (0, 1) for codec in (Codec.GZIP, Codec.SNAPPY)]
LARGE = [
    zeros(Codec.ZSTD, SMALL_BYTES + 1),
    batch(0, 2, value=bytes(SMALL_BYTES)),
    batch(5, 10_000, codec=Codec.LZ4),
]
DAMAGED = [
    sealed(Codec.NONE, batch(0, 3)[HEADER_SIZE:-1], count=3),
    sealed(Codec.NONE, batch(0, 5000)[HEADER_SIZE:-1], count=5000),
    sealed(Codec.LZ4, b"no frame"),
    sealed(Codec.ZSTD, zeros(Codec.ZSTD, 64 << 20)[HEADER_SIZE:]),
    with_header(batch(0, 2), attributes=5),
    with_header(batch(0, 2), base_offset=2**63 - 1),
    *(data for name, data in corpus().items() if name.startswith("inside-")),
]
SOUND = [MARKER, EMPTY, *OLD, *LARGE, *(data for name, data in corpus().items() if name.startswith("sound-"))]


def by_batches(stretch: memoryview, headers: Headers, *, offsets: bool) -> Result:
    digest = RecordDigest(offsets=offsets)
    try:
        for at, header in headers:
            if header.magic == 2 and header.is_control:
                continue
            for rows in rows_of_batch(stretch[at : at + header.size], header):
                digest.note(rows)
    except (CorruptBatch, BatchTooLarge) as problem:
        return digest.count, digest.value, repr(problem)
    return digest.count, digest.value, None


def by_stretch(stretch: memoryview, headers: Headers, *, offsets: bool) -> Result:
    digest = RecordDigest(offsets=offsets)
    try:
        note_batches(digest, stretch, headers)
    except (CorruptBatch, BatchTooLarge) as problem:
        return digest.count, digest.value, repr(problem)
    return digest.count, digest.value, None


def stretch_of(parts: Sequence[bytes]) -> tuple[memoryview, Headers]:
    stretch = memoryview(b"".join(parts))
    placed, at = [], 0
    while at < len(stretch):
        placed.append((at, parse_header(stretch, at)))
        at += placed[-1][1].size
    return stretch, headers_of(placed)


@given(st.lists(batches() | st.sampled_from(SOUND), max_size=12), st.integers(0, 12), st.booleans())
@settings(max_examples=scaled(100, light=15), deadline=None)
def test_a_stretch_has_the_digest_of_its_batches(parts: list[bytes], first: int, offsets: bool) -> None:
    stretch, headers = stretch_of(parts)
    expected = by_batches(stretch, headers, offsets=offsets)
    assert by_stretch(stretch, headers, offsets=offsets) == expected
    assert expected[2] is None
    rest = headers[first:]  # an aborted batch is left out like this
    expected = by_batches(stretch, rest, offsets=offsets)
    assert by_stretch(stretch, rest, offsets=offsets) == expected
    assert by_stretch(stretch[rest.start :], rest.relative(), offsets=offsets) == expected


@pytest.mark.parametrize("damaged", DAMAGED)
def test_damage_is_named_as_batch_by_batch_and_what_lies_before_it_is_noted(damaged: bytes) -> None:
    stretch, headers = stretch_of([batch(0, 3), *OLD, MARKER, batch(9, 2, codec=Codec.GZIP), damaged, batch(20)])
    expected = by_batches(stretch, headers, offsets=True)
    assert expected[2] is not None
    assert by_stretch(stretch, headers, offsets=True) == expected


def test_headers_that_lead_out_of_the_stretch_are_refused_as_batch_by_batch() -> None:
    stretch, headers = stretch_of([batch(0, 3), batch(3, 3)])
    for cut in (len(stretch) - 1, len(stretch) // 2 + 5, len(stretch) // 2, 5, 0):
        expected = by_batches(stretch[:cut], headers, offsets=False)
        assert expected[2] is not None
        assert by_stretch(stretch[:cut], headers, offsets=False) == expected


def test_the_records_of_a_marker_are_none_of_the_consumers() -> None:
    stretch, headers = stretch_of([MARKER, encode([Record(8, 5, b"k", b"v")], codec=Codec.NONE, base_offset=8)])
    assert by_stretch(stretch, headers, offsets=False)[0] == 1

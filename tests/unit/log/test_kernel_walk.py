"""The kernel's walk, its questions about headers and its indexes against plain Python: damage, lies and limits."""

import struct
from collections.abc import Iterable, Iterator, Sequence

import logkeep_kernel as kernel
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log import batch as product
from logkeep_engine.log.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, Headers, headers_of, pack_header, seal
from tests.examples import scaled
from tests.unit.log import oracle
from tests.unit.log.oracle import Placed
from tests.unit.log.test_records import GOLDEN

OLD_MESSAGES = [bytes.fromhex(log) for name, log in GOLDEN.items() if not name.startswith("magic2")]
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
NO_END = 2**63

edges = st.sampled_from([0, 1, INT32_MAX - 1, INT32_MAX, 2**31, 2**32, INT64_MAX - 1, INT64_MAX])
int32s = st.sampled_from([0, 1, 2, 5, INT32_MAX]) | st.integers(0, 9)
times = st.sampled_from([-1, 0, 5, 1_700_000_000_000, INT64_MAX, -(2**63)]) | st.integers(-3, 30)


@st.composite
def fields(draw: st.DrawFn, base_offset: int, length: int) -> BatchHeader:
    count = draw(int32s)
    return BatchHeader(
        base_offset=base_offset,
        batch_length=length,
        leader_epoch=draw(st.sampled_from([-1, 0, 0, 0, 3, INT32_MAX])),
        magic=2,
        crc=0,
        attributes=draw(
            st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5, 8, 0x10, 0x30, 0x20, 0x40, 0x48]) | st.integers(-1, 127)
        ),
        last_offset_delta=draw(st.just(max(count - 1, 0)) | int32s),
        base_timestamp=draw(times),
        max_timestamp=draw(times),
        producer_id=draw(st.integers(-1, 3)),
        producer_epoch=-1,
        base_sequence=-1,
        record_count=count,
    )


@st.composite
def placed(draw: st.DrawFn, *, rising: bool = False, lengths: st.SearchStrategy[int] | None = None) -> list[Placed]:
    """Headers of batches back to back, without the batches. Offsets mostly rise, some to the limits; lengths may be
    those of batches that no test can hold."""
    lengths = lengths if lengths is not None else st.sampled_from([49, 49, 60, 4096, 2**30, INT32_MAX])
    at, offset, found = draw(st.integers(0, 99)), draw(st.integers(0, 50)), []
    for _ in range(draw(st.integers(0, 12))):
        step = draw(st.sampled_from([0, 0, 0, 0, 1, 7] if rising else [0, 0, 0, 0, 1, 7, -1, -9, INT32_MAX]))
        offset = min(max(offset + step, -(2**63)), INT64_MAX)
        if not rising and draw(st.integers(0, 20)) == 0:
            offset = draw(edges)
        header = draw(fields(offset, draw(lengths)))
        found.append((at, header))
        at, offset = at + header.size, min(header.next_offset, INT64_MAX)
    return found


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches with good CRCs, old messages between some of them, and after that any damage."""
    parts: list[bytes] = []
    offset = draw(st.integers(0, 50))
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.integers(0, 5)) == 0:
            parts.append(draw(st.sampled_from(OLD_MESSAGES)))
            continue
        payload = draw(st.binary(max_size=40))
        header = draw(fields(offset, HEADER_SIZE - LOG_OVERHEAD + len(payload)))
        batch = bytearray(pack_header(header) + payload)
        seal(batch)
        parts.append(bytes(batch))
        offset = min(header.next_offset, INT64_MAX)
    log = bytearray(b"".join(parts))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        at = draw(st.integers(0, len(log) - 1))
        match draw(st.sampled_from(["bit", "field", "cut", "insert", "length"])):
            case "bit":
                log[at] ^= 1 << draw(st.integers(0, 7))
            case "field":  # of the first batch, or of one that begins where a part does
                where = sum(map(len, parts[: draw(st.integers(0, len(parts) - 1))])) + draw(st.integers(0, 60))
                log[where : where + 1] = bytes([draw(st.integers(0, 255))])
            case "cut":
                del log[max(at, 1) :]
            case "insert":
                log[at:at] = draw(st.binary(max_size=30))
            case _:
                where = sum(map(len, parts[: draw(st.integers(0, len(parts) - 1))])) + 8
                if where + 4 <= len(log):
                    lie = draw(st.sampled_from([0, -1, 13, 14, 22, 48, 49, 61, INT32_MAX, -(2**31)]))
                    struct.pack_into(">i", log, where, lie)
    return bytes(log)


def outcome(found: Iterable[Placed]) -> tuple[list[Placed], str | None]:
    """All until the end or the error, and that."""
    seen: list[Placed] = []
    try:
        seen.extend(found)  # stays at what came before an error, as a list that `extend` fills does
    except (CorruptBatch, BatchTooLarge) as error:
        return seen, str(error)
    return seen, None


def one_by_one(runs: Iterator[Headers]) -> Iterator[Placed]:
    for headers in runs:
        yield from headers


@given(log=logs(), start=st.integers(0, 200), until=edges | st.integers(0, 90), run=st.integers(1, 5))
@settings(max_examples=scaled(400, light=60))
def test_every_log_is_walked_as_plain_python_walks_it(log: bytes, start: int, until: int, run: int) -> None:
    start = min(start, len(log)) if start % 3 == 0 else 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "_RUN", run)
        assert outcome(product.walk(log, start)) == outcome(oracle.walk(log, start))
        bases = {header.base_offset for _, header in outcome(oracle.walk(log, start))[0]}
        for end in {until, NO_END, *bases}:
            expected = outcome(oracle.walk_checked(log, end, start))
            assert outcome(product.walk_checked(log, end, start)) == expected
            assert outcome(one_by_one(product.runs(memoryview(log), end, start, checked=True))) == expected


@given(log=logs())
@settings(max_examples=scaled(200))
def test_lengths_alone_lead_to_the_same_batch(log: bytes) -> None:
    assert kernel.last_whole(log) == oracle.last_whole(log)


@given(log=logs(), cut=st.integers(0, 300))
@settings(max_examples=scaled(100))
def test_whole_batches_are_counted_as_plain_python_counts_them(log: bytes, cut: int) -> None:
    sound = log[: oracle.last_whole(log)]
    assume(sound and oracle.last_whole(sound) < len(sound))
    if all(length >= 14 for length in _lengths(sound)):
        assert kernel.whole_batches(sound, cut + 1) == oracle.whole_batches(sound, cut + 1)


def _lengths(log: bytes) -> Iterator[int]:
    at = 0
    while at < len(log):
        (length,) = struct.unpack_from(">8xi", log, at)
        yield length
        at += LOG_OVERHEAD + max(length, 0)


@pytest.mark.parametrize("lie", [-1, -(2**31), INT32_MAX, 500])
def test_a_length_that_leads_nowhere_is_refused_and_not_followed(lie: int) -> None:
    log = bytearray(200)
    struct.pack_into(">i", log, 8, 60)
    struct.pack_into(">i", log, 72 + 8, lie)
    if lie < 0:
        with pytest.raises(ValueError, match="leads out of the buffer"):
            kernel.whole_batches(log, 200)
    else:
        assert kernel.whole_batches(log, 200) == 72
    assert kernel.last_whole(log) == (72 if lie < 0 else 0)


@given(items=placed(), first=st.integers(0, 12), at=edges | st.integers(0, 80), end=edges, room=edges, epoch=int32s)
@settings(max_examples=scaled(300, light=50))
def test_questions_about_all_headers_have_the_answers_of_a_loop(
    items: list[Placed], first: int, at: int, end: int, room: int, epoch: int
) -> None:
    headers = headers_of(items)
    assert list(headers) == items
    assert headers.plain(first, at, end, room, epoch) == oracle.plain(items[first:], at, end, room, epoch)
    calm = [(position, header._replace(leader_epoch=0, attributes=header.attributes & 3)) for position, header in items]
    sizes = [sum(header.size for _, header in calm[:number]) for number in range(len(calm) + 1)]
    for size, (_, header) in zip(sizes[1:], calm, strict=True):
        for most, last in ((size, NO_END * 2), (size - 1, NO_END * 2), (2**62, header.next_offset)):
            expected = oracle.plain(calm, -(2**63), last, most, 0)
            assert headers_of(calm).plain(0, -(2**63), last, most, 0) == expected
    assert headers.in_order(at, end) == oracle.in_order(items, at, end)
    assert headers.first_gap(at) == oracle.first_gap(items, at)
    number = len(items)
    assert headers.first_reaching(at) == next((n for n in range(number) if items[n][1].next_offset > at), number)
    assert headers.first_since(at) == next((n for n in range(number) if items[n][1].max_timestamp >= at), number)
    assert headers.with_bits(0x30) == [n for n in range(number) if items[n][1].attributes & 0x30]
    assert headers.with_producer() == [n for n in range(number) if items[n][1].producer_id >= 0]
    epochs = [epoch, *(header.leader_epoch for _, header in items)]
    assert headers.epoch_starts(epoch) == [n for n in range(number) if epochs[n] != epochs[n + 1]]


@given(items=placed(), start=st.integers(-14, 14), end=st.integers(-14, 14))
@settings(max_examples=scaled(100))
def test_a_part_is_what_a_part_of_a_list_is(items: list[Placed], start: int, end: int) -> None:
    headers, part = headers_of(items), items[start:end]
    found = headers[start:end]
    assert (list(found), len(found), bool(found)) == (part, len(part), bool(part))
    assert found.size == sum(header.size for _, header in part)
    assert list(found[1:]) == part[1:]
    if part:
        (first, _), (last, header) = part[0], part[-1]
        assert (found.start, found.end, found.next_offset) == (first, last + header.size, header.next_offset)
        assert (found[0], found[-1]) == (part[0], part[-1])
        moved = found.relative()
        assert list(moved) == [(position - first, header) for position, header in part]
        assert (moved.start, moved.end, moved.size) == (0, found.size, found.size)
        assert list(moved[1:]) == list(moved)[1:]
        assert list(moved[1:].relative()) == list(found[1:].relative())
    else:
        assert (found.start, found.end, list(found.relative())) == (0, 0, [])
        with pytest.raises(IndexError):
            _ = found.next_offset
    for number in (len(part), -len(part) - 1):
        with pytest.raises(IndexError):
            _ = found[number]


def facts_of(found: kernel.SegmentFacts | oracle.SegmentFacts) -> tuple[object, ...]:
    names = (
        "records batches size min_base_timestamp max_timestamp max_batch_bytes codecs attributes dense filled legacy"
    )
    return found.next_offset, *(getattr(found, name) for name in names.split())


@given(
    items=placed(rising=True, lengths=st.sampled_from([49, 60, 60, 300, 4096, 2**29, 2**30])) | placed(),
    before=st.sampled_from([0, 0, 0, 1, 50]),
    interval=st.sampled_from([0, 100, 400, 4096]),
    cut=st.integers(0, 12),
)
@settings(max_examples=scaled(400, light=60))
def test_facts_and_indexes_of_a_segment_are_those_of_a_loop(
    items: list[Placed], before: int, interval: int, cut: int
) -> None:
    base = max((items[0][1].base_offset if items else 0) - before, 0)
    made, expected = kernel.SegmentFacts(base, interval), oracle.SegmentFacts(base, interval)
    for part in (items[:cut], items[cut:]):
        untouched = facts_of(made)
        refused = made.add(headers_of(part))
        assert refused == expected.add(part)
        if refused is not None:
            assert facts_of(made) == untouched
            return
    assert facts_of(made) == facts_of(expected)
    indexes = kernel.IndexBuilder(base, interval)
    indexes.extend(headers_of(items))
    assert made.finish() == expected.indexes.finish() == indexes.finish()


def _at_the_limit(offsets: Sequence[int], lengths: Sequence[int]) -> list[Placed]:
    at, found = 0, []
    for offset, length in zip(offsets, lengths, strict=True):
        found.append((at, BatchHeader(offset, length, 0, 2, 0, 0, 0, offset, offset, -1, -1, -1, 1)))
        at += LOG_OVERHEAD + length
    return found


@pytest.mark.parametrize(
    ("offsets", "lengths", "refused"),
    [
        ([100, 100 + INT32_MAX], [100, 100], None),
        ([100, 101 + INT32_MAX], [100, 100], ("far", 0, 0)),
        ([100, 101], [2**30 - 12, 2**30 - 13], None),
        ([100, 101], [2**30 - 12, 2**30 - 12], ("far", 0, 0)),
        ([INT64_MAX - 1, INT64_MAX], [100, 100], None),
    ],
)
def test_a_segment_ends_where_31_bits_end(
    offsets: list[int], lengths: list[int], refused: tuple[str, int, int] | None
) -> None:
    items = _at_the_limit(offsets, lengths)
    made, expected = kernel.SegmentFacts(offsets[0], 0), oracle.SegmentFacts(offsets[0], 0)
    assert made.add(headers_of(items)) == expected.add(items) == refused
    if refused is None:
        assert facts_of(made) == facts_of(expected)
        assert made.finish() == expected.indexes.finish()
        assert made.finish()[0] == struct.pack(">ii", offsets[1] - offsets[0], LOG_OVERHEAD + lengths[0])


def test_an_index_refuses_what_31_bits_cannot_hold() -> None:
    indexes = kernel.IndexBuilder(0, 0)
    with pytest.raises(ValueError, match="too far"):
        indexes.extend(headers_of(_at_the_limit([0, 2**31], [100, 100])))
    late = kernel.IndexBuilder(0, 4096)
    late.extend(headers_of(_at_the_limit([2**31], [100])))
    with pytest.raises(ValueError, match="too far"):
        late.finish()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"batch_length": -1}, ValueError),
        ({"last_offset_delta": -1}, ValueError),
        ({"record_count": -1}, ValueError),
        ({"last_offset_delta": 2**31}, OverflowError),
        ({"base_offset": 2**63}, OverflowError),
    ],
)
def test_headers_that_no_batch_has_are_refused(wrong: dict[str, int], error: type[Exception]) -> None:
    (at, header), *_ = _at_the_limit([5], [100])
    with pytest.raises(error):
        headers_of([(at, header._replace(**wrong))])


def test_a_buffer_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(ValueError, match="not contiguous"):
        list(product.walk(memoryview(bytes(400))[::2]))

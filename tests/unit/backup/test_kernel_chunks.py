"""Pieces in Kafka's format, taken in stretches: the same objects and receipts as batch by batch."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.backup.pieces.batches import ChunkWriter
from logkeep_engine.errors import CorruptBatch, LogDiverged
from logkeep_engine.log import batch as product
from logkeep_engine.log.compression import Codec
from logkeep_engine.storage import open_uri
from tests.examples import scaled
from tests.unit.backup.batch_by_batch import BatchByBatch
from tests.unit.backup.test_chunk_writer import ABORT, COMMIT, batch, marker, writer
from tests.unit.log.batches import with_header
from tests.unit.log.test_records import GOLDEN


@st.composite
def answers(draw: st.DrawFn) -> list[bytes]:
    """The answers to some fetches: transactions, markers, gaps, leader epochs, old messages, and a little damage."""
    offset, found = 0, []
    for _ in range(draw(st.integers(1, 4))):
        parts: list[bytes] = []
        for _ in range(draw(st.integers(1, 8))):
            offset += draw(st.sampled_from([0, 0, 0, 0, 3, -1]))
            count = draw(st.integers(1, 4))
            kind = draw(st.sampled_from(["plain"] * 6 + ["txn", "txn", "marker", "epoch", "codec", "far", "old"]))
            offset = max(offset, 0)
            epoch = draw(st.integers(0, 2)) if kind == "epoch" else -1
            if kind == "marker":
                parts.append(marker(offset, draw(st.integers(0, 2)), draw(st.sampled_from([ABORT, COMMIT]))))
                offset += 1
            elif kind == "codec" and draw(st.integers(0, 3)) == 0:
                parts.append(with_header(batch(offset, count), attributes=draw(st.integers(5, 7))))
                offset += count
            elif kind == "old" and offset <= 41:
                parts.append(bytes.fromhex(GOLDEN["magic1-lz4-append"]))
                offset = 45
            else:
                offset += 2**31 if kind == "far" and draw(st.booleans()) else 0
                producer = draw(st.integers(0, 2)) if kind == "txn" else -1
                codec = draw(st.sampled_from([Codec.NONE, Codec.ZSTD]))
                parts.append(batch(offset, count, producer=producer, codec=codec, leader_epoch=epoch))
                offset += count
        data = bytearray(b"".join(parts))
        if draw(st.integers(0, 9)) == 0:
            data[draw(st.integers(0, len(data) - 1))] ^= 0x04
        found.append(bytes(data[: len(data) - draw(st.sampled_from([0, 0, 0, 1, 40]))]))
    return found


def taken(
    cls: type[ChunkWriter],
    fetched: Sequence[bytes],
    start: int,
    end: int,
    limit: int,
    aborted: Sequence[tuple[int, int]],
) -> tuple[object, ...]:
    """The objects that a writer of this class has made, and all that it says."""
    with TemporaryDirectory() as folder:
        storage = open_uri(f"file://{folder}")
        plain = writer(storage, start, end, limit=limit, first=True)
        chunk = cls(plain._setting, plain.piece, 0)
        said: list[object] = []
        for data in fetched:
            try:
                chunk.absorb(memoryview(data), aborted)
            except (CorruptBatch, LogDiverged) as error:
                said.append(str(error))
                chunk.skip_to(chunk.at + 3, "damaged")
            said.append((chunk.at, chunk.looked_until, chunk.decided_until, chunk.records, chunk.bytes))
        receipt = chunk.finish(end)
        objects = {
            str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
        }
        return receipt, objects, chunk.disagreements, said


@given(
    fetched=answers(),
    start=st.integers(0, 6),
    end=st.sampled_from([5, 20, 60, 2**40]),
    limit=st.sampled_from([100, 300, 1000, 1 << 20]),
    aborted=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), max_size=2),
    run=st.integers(1, 6),
)
@settings(max_examples=scaled(200, light=30))
def test_stretches_write_what_single_batches_write(
    fetched: list[bytes], start: int, end: int, limit: int, aborted: list[tuple[int, int]], run: int
) -> None:
    expected = taken(BatchByBatch, fetched, start, end, limit, aborted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "_RUN", run)
        assert taken(ChunkWriter, fetched, start, end, limit, aborted) == expected

"""Parts of the engine that a library has too, beside that library: `python -m bench.handmade` prints a table.

Each pair does the same work in one thread, in turns. The best of several rounds counts, in CPU seconds. Nothing is
started, and half a minute is enough.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import fastavro
from aiokafka.protocol.fetch import FetchResponse_v10
from aiokafka.protocol.produce import ProduceRequest_v8
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from logkeep_engine.contract.archive_format import FormatOptions
from logkeep_engine.formats.avro import AvroEncoder
from logkeep_engine.formats.avro_reader import read_object
from logkeep_engine.formats.avro_schema import LOSSLESS
from logkeep_engine.kafka import protocol
from logkeep_engine.kafka.buffers import AnswerFrame
from logkeep_engine.kafka.encoding import Reader
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.codec import decode_records, encode_records
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import PlainRecord
from logkeep_engine.log.packer import Packer
from logkeep_engine.log.records import unpack

_RECORDS = 20_000
_SMALL = (1, 4, 16)  # records of small batches
_ROUNDS = 15
_ANSWER = bytes(8 << 20)
_TOPIC, _PARTITION = "orders", 3


@dataclass(frozen=True, slots=True)
class Pair:
    """The same work done twice. A figure is CPU seconds divided by `units`, in millionths: of a record, or of a MB."""

    work: str
    library: str
    unit: str
    units: float
    ours: Callable[[], object]
    theirs: Callable[[], object]


def pairs() -> list[Pair]:
    """All that is measured."""
    return [*_avro(), *_batches(), *_protocol()]


def measure(pair: Pair, rounds: int = _ROUNDS) -> tuple[float, float]:
    """The best figures of both sides, ours first."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for side, work in enumerate((pair.ours, pair.theirs)):
            started = time.thread_time()
            work()
            best[side] = min(best[side], time.thread_time() - started)
    return best[0] / pair.units * 1e6, best[1] / pair.units * 1e6


def _records(count: int) -> list[PlainRecord]:
    return [PlainRecord(at, 1_700_000_000_000 + at, 0, b"key-%08d" % at, b"v" * 100, ()) for at in range(count)]


def _pass(items: Iterable[object]) -> None:
    deque(items, maxlen=0)


def _avro() -> list[Pair]:
    records = _records(_RECORDS)
    written = _packed(records)
    rows = list(fastavro.reader(BytesIO(written)))
    return [
        Pair(
            "write an Avro object", "fastavro", "µs a record", _RECORDS, lambda: _packed(records), lambda: _given(rows)
        ),
        Pair(
            "read an Avro object",
            "fastavro",
            "µs a record",
            _RECORDS,
            lambda: _pass(read_object([written])),
            lambda: _pass(fastavro.reader(BytesIO(written))),
        ),
    ]


def _packed(records: Sequence[PlainRecord]) -> bytes:
    parts: list[bytes] = []
    encoder = AvroEncoder(parts.append, 1 << 40, _TOPIC, _PARTITION, FormatOptions())
    for at in range(0, len(records), 128):
        encoder.append(records[at : at + 128])
    encoder.finish()
    return b"".join(parts)


def _given(rows: Sequence[object]) -> None:
    fastavro.writer(BytesIO(), LOSSLESS, rows, sync_interval=256 * 1024)


def _batches() -> list[Pair]:
    large = encode_records(_records(_RECORDS), codec=Codec.NONE, base_offset=0)
    return [
        Pair(
            "records of a batch",
            "aiokafka",
            "µs a record",
            _RECORDS,
            lambda: decode_records(large),
            lambda: _theirs(large),
        ),
        *(_join(size) for size in _SMALL),
    ]


def _join(size: int) -> Pair:
    batch = encode_records(_records(size), codec=Codec.NONE, base_offset=0)
    times = _RECORDS // size
    return Pair(
        f"join batches of {size} records" if size > 1 else "join batches of one record",
        "aiokafka",
        "µs a record",
        times * size,
        lambda: _joined(batch, times),
        lambda: _taken_apart(batch, times),
    )


def _joined(batch: bytes, times: int) -> bytes:
    packer, header = Packer(), parse_header(batch)
    for _ in range(times):
        packer.add(unpack(memoryview(batch), header), header)
    return packer.batch(Codec.NONE, producer_id=1, producer_epoch=0, base_sequence=0)


def _taken_apart(batch: bytes, times: int) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        batch_size=2**31 - 1,
    )
    records = (record for _ in range(times) for record in _theirs(batch))
    for number, record in enumerate(records):
        builder.append(number, record.timestamp, record.key, record.value, record.headers)
    return bytes(builder.build())


def _theirs(batch: bytes) -> list[Any]:
    padded = memoryview(batch + bytes(16))  # its parser looks past the end
    return list(DefaultRecordBatch(padded[: len(batch)]))


def _protocol() -> list[Pair]:
    answer = FetchResponse_v10(0, 0, 0, [(_TOPIC, [(_PARTITION, 0, 9, 9, 0, [], _ANSWER)])]).encode()
    call = protocol.fetch(_TOPIC, None, 3, 7, 0, max_bytes=1, max_wait_ms=1, min_bytes=1, committed=True)
    frame = AnswerFrame.of(answer)
    megabytes = len(_ANSWER) / 1e6
    wanted = [(_TOPIC, [(_PARTITION, _ANSWER)])]
    return [
        Pair(
            "read an answer to a fetch",
            "aiokafka",
            "µs a MB",
            megabytes,
            lambda: call.decode(Reader(frame)),
            lambda: FetchResponse_v10.decode(BytesIO(answer)),
        ),
        Pair(
            "write a produce request",
            "aiokafka",
            "µs a MB",
            megabytes,
            lambda: protocol.produce([(_TOPIC, _PARTITION, (_ANSWER,))], acks=-1, timeout_ms=1).encode(1, "logkeep"),
            lambda: ProduceRequest_v8(None, -1, 1, wanted).encode(),
        ),
    ]


def main() -> int:
    """Print the table of docs/benchmarks.md."""
    print("| work | library | unit | the library | ours | times |\n|---|---|---|---:|---:|---:|")
    for pair in pairs():
        ours, theirs = measure(pair)
        print(f"| {pair.work} | {pair.library} | {pair.unit} | {theirs:.2f} | {ours:.2f} | {theirs / ours:.2g} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

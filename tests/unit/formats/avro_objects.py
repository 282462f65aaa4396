"""Objects of the Avro format in memory, for tests: ours, fastavro's, and what can be done to them."""

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import fastavro
from hypothesis import strategies as st

from logkeep_engine.contract.archive_format import AvroCodec, Compatibility, FormatOptions
from logkeep_engine.formats.avro import AvroEncoder, read_object
from logkeep_engine.formats.base import LogRecord, SegmentFacts
from logkeep_engine.log.consumed import PlainRecord

LIMIT = 2**40

_lengths = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=4)
_escaped = st.binary(max_size=6).map(lambda key: key.decode("utf-8", "surrogateescape"))
_long = st.integers(-(2**63), 2**63 - 1)
_timestamps = st.sampled_from([(None, None), (None, 0)]) | st.tuples(
    (_long | st.integers(1_699_999_990_000, 1_700_000_010_000)).filter(lambda time: time != -1), st.sampled_from([0, 1])
)


@st.composite
def rising_records(draw: st.DrawFn) -> list[PlainRecord]:
    """Records as any topic can hold them, with gaps."""
    offset = draw(st.integers(0, 20) | st.integers(0, 2**40))
    records = []
    for _ in range(draw(st.integers(1, 20))):
        timestamp, kind = draw(_timestamps)
        headers = draw(_lengths) + [(name, b"x") for name in draw(st.lists(_escaped, max_size=1))]
        key, value = draw(st.none() | st.binary(max_size=80)), draw(st.none() | st.binary(max_size=200))
        records.append(PlainRecord(offset, timestamp, kind, key, value, headers))
        offset += draw(st.sampled_from([1, 1, 1, 2, 10_000]))
    return records


def options(compatibility: str = "lossless", codec: str = "none") -> FormatOptions:
    return FormatOptions(compatibility=Compatibility(compatibility), codec=AvroCodec(codec))


def encoded(
    records: Sequence[LogRecord], chosen: FormatOptions | None = None, *, topic: str = "orders", partition: int = 0
) -> tuple[bytes, SegmentFacts]:
    data = bytearray()
    encoder = AvroEncoder(data.extend, LIMIT, topic, partition, chosen or options())
    assert encoder.append(records) == len(records)
    facts = encoder.finish()
    return bytes(data), facts


def read(data: bytes, piece: int = 2**30, start_offset: int = 0) -> list[PlainRecord]:
    """All records, with headers as lists so that they can be compared."""
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    runs = read_object(pieces, topic="orders", partition=0, start_offset=start_offset, size=len(data))
    return [plain(record) for run in runs for record in run]


def plain(record: PlainRecord) -> PlainRecord:
    return record._replace(headers=list(record.headers))


def by_fastavro(data: bytes, schema: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return list(fastavro.reader(BytesIO(data), reader_schema=schema))  # type: ignore[arg-type]


def written_by_fastavro(
    schema: dict[str, Any], records: Sequence[dict[str, Any]], *, codec: str = "null", block: int = 16_000
) -> bytes:
    file = BytesIO()
    fastavro.writer(file, json.loads(json.dumps(schema)), records, codec=codec, sync_interval=block)
    return file.getvalue()

"""Whoever takes archived or found batches apart meets one that unpacks to too much: refused with its place, in little
memory, or passed by where batches are only looked at."""

from itertools import chain
from pathlib import Path

import pytest
from typer.testing import Result

from logkeep_engine.backup.pieces.batches import trim
from logkeep_engine.convert.read import read_records
from logkeep_engine.errors import BatchTooLarge
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.memory import unpacked_most
from logkeep_engine.spark.source_plan import SegmentRead
from logkeep_engine.spark.source_rows import read_rows
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import ORDERS, verify_segment, write_segment
from tests.unit.log import hostile
from tests.unit.log.batches import batch
from tests.unit.toolbox.logs import run, write_log

MOST = unpacked_most() + (16 << 20)
CODECS = pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])


def log(codec: Codec) -> list[bytes]:
    return [batch(0, 10), hostile.zeros(codec, base_offset=10), batch(11, 5)]


@CODECS
def test_verify_does_not_unpack(tmp_path: Path, codec: Codec) -> None:
    storage = open_uri(tmp_path.as_uri())
    entry = write_segment(storage, log(codec))
    assert hostile.peak_of(lambda: verify_segment(storage, ORDERS.name, entry)) < 24 << 20
    assert verify_segment(storage, ORDERS.name, entry) == []


@CODECS
def test_conversions_and_spark_refuse_it_with_its_place(tmp_path: Path, codec: Codec) -> None:
    storage = open_uri(tmp_path.as_uri())
    entry = write_segment(storage, log(codec))
    seen: list[int] = []

    def refused() -> None:
        given = chain.from_iterable(read_records(storage, ORDERS.name, 0, entry))
        with pytest.raises(BatchTooLarge, match=r"\.log \(topic orders partition 0\): The batch at offset 10 is too"):
            seen.extend(record.offset for record in given)
        with pytest.raises(BatchTooLarge, match=r"\.log \(topic orders partition 0\): The batch at offset 10 is too"):
            list(read_rows(storage, SegmentRead(ORDERS.name, entry, 0, 16)))

    assert hostile.peak_of(refused) < MOST
    assert seen == list(range(10))


def test_the_first_record_of_a_time_is_looked_for_in_as_little(tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    write_log(folder, log(Codec.ZSTD))
    assert hostile.peak_of(lambda: run("timestamps", folder, "--at", "2100-01-01T00:00:00Z")) < MOST


@CODECS
def test_a_dump_says_it_and_continues(tmp_path: Path, codec: Codec) -> None:
    folder = tmp_path / "orders-0"
    write_log(folder, log(codec))
    assert run("dump", folder).exit_code == 0, "what is not unpacked is no fault"
    found: list[Result] = []
    assert hostile.peak_of(lambda: found.append(run("dump", folder, "--print-data"))) < MOST
    (done,) = found
    assert "The batch at offset 10 is too large to be unpacked" in done.stdout
    assert [at for at in range(16) if f"| offset: {at} " in done.stdout] == [*range(10), *range(11, 16)]


@CODECS
def test_a_log_that_starts_inside_of_it_is_refused(codec: Codec) -> None:
    bomb = hostile.zeros(codec, base_offset=10)

    def refused() -> None:
        with pytest.raises(BatchTooLarge, match="The batch at offset 10 is too large"):
            trim(memoryview(bomb), 11)

    assert hostile.peak_of(refused) < MOST

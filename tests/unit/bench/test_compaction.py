"""The logs of the compaction benchmark are logs, and its task compacts them."""

from pathlib import Path

import pytest

from bench.compaction import Shape, measure, write
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.log.compression import Codec
from logkeep_engine.storage import open_uri


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_log_has_the_records_and_keys_of_its_shape(tmp_path: Path, codec: Codec) -> None:
    shape = Shape("small", 900, 90, 50, 10, 300, codec)
    entries = write(shape, tmp_path.as_uri())
    found = [item for some in open_partition(open_uri(tmp_path.as_uri()), "state", entries).records() for item in some]
    assert [record.offset for record in found] == list(range(900))
    assert len({record.key for record in found}) == 90
    assert {len(record.value or b"") for record in found} == {50}


def test_a_row_says_what_was_left(tmp_path: Path) -> None:
    found = measure(Shape("small", 900, 90, 50, 10, 300, Codec.LZ4), tmp_path)
    assert (found["records"], found["left"], found["copied"]) == (900, 90, 900)
    assert found["seconds"] > found["copying"] > 0
    assert found["copy"] > 0

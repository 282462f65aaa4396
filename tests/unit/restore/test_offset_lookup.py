"""Offset maps of any size: found where they lie, within little memory, and altered ones refused."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.signed_documents import opened
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch, ObjectMissing
from logkeep_engine.restore.model.offset_map import (
    OffsetMapBuilder,
    OffsetPlace,
    OutletSummary,
    PartitionSummary,
    map_blocks,
    read_offset_map,
)
from logkeep_engine.restore.positions import offset_lookup
from logkeep_engine.restore.positions.offset_lookup import StoredOffsetMap, open_offset_map
from logkeep_engine.storage import Storage, open_uri
from tests.examples import number, scaled

PATH = "runs/r/offset-maps/copy/0.json"


def document(rows: list[tuple[int, int, int]], end: int) -> bytes:
    """An offset map of these rows, as a task writes it."""
    records = sum(count for _, _, count in rows)
    outlet = OutletSummary(0, records, 0, end)
    with OffsetMapBuilder() as builder:
        for source, target, count in rows:
            builder.source(source, count)
            builder.target(target, count)
        return b"".join(map_blocks(PartitionSummary("a", "i" * 22, 0, "copy", records, 99, (outlet,)), builder))


def holes(count: int, seed: int = 1) -> list[tuple[int, int, int]]:
    """Rows with a gap behind each, as compaction leaves them."""
    made, source, target = [], 0, 0
    spread = random.Random(seed)
    for _ in range(count):
        records = spread.randint(1, 3)
        made.append((source, target, records))
        source, target = source + records + spread.randint(1, 5), target + records
    return made


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(tmp_path.as_uri())


def test_a_large_map_says_what_a_loaded_one_says(storage: Storage) -> None:
    rows = holes(90_000)
    data = document(rows, 10**9)
    assert len(data) > offset_lookup.WHOLE_BYTES
    storage.put(PATH, data)
    found, loaded = open_offset_map(storage, PATH), read_offset_map(data, "map")
    assert isinstance(found, StoredOffsetMap)
    spread = random.Random(2)
    last = rows[-1][0] + rows[-1][2]
    some = [spread.randrange(last) for _ in range(2000)]
    # In their order, a block is parsed once; the others come back to blocks that were let go.
    wanted = [0, 1, last - 1, last, last + 7, *sorted(some[100:]), *some[:100]]
    assert {offset: found.find(offset) for offset in wanted} == {offset: loaded.find(offset) for offset in wanted}
    assert found.find(last).place is OffsetPlace.END


@settings(max_examples=scaled(60))
@given(st.integers(0, 10**15), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=60))
def test_wherever_a_block_ends(
    tmp_path_factory: pytest.TempPathFactory, first: int, parts: list[tuple[int, int]]
) -> None:
    rows, source, target = [], first, 0
    for count, gap in parts:
        rows.append((source, target, count))
        source, target = source + count + gap, target + count
    data = document(rows, target)
    storage = open_uri(tmp_path_factory.mktemp("map").as_uri())
    storage.put(PATH, data)
    loaded = read_offset_map(data, "map")
    header = data.index(b"\n") + 1
    with pytest.MonkeyPatch.context() as patch:
        for block in (64, 128, 200):
            patch.setattr(offset_lookup, "_BLOCK", block)
            found = StoredOffsetMap(opened(storage, PATH), "map", loaded.summary, header)
            for offset in range(max(0, first - 2), source + 2):
                assert found.find(offset) == loaded.find(offset)


def test_a_map_that_was_altered_is_refused(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_lookup, "WHOLE_BYTES", 1000)
    data = document(holes(1000), 10**6)
    middle = data.index(b"\n[", len(data) // 2)
    row = data[middle : data.index(b"]", middle) + 1]
    source = json.loads(row)[0]
    for wrong in (b'\n["a",0,1]', b"\n[0,0,1]", b"\n[1.5,2,1]", b"\n{}"):
        storage.put(PATH, data.replace(row, wrong))
        with pytest.raises(ArchiveDamaged, match=r"0\.json: not an offset map"):
            open_offset_map(storage, PATH).find(source)
    storage.put(PATH, data[:-4])
    with pytest.raises(ArchiveDamaged, match="the end is missing"):
        open_offset_map(storage, PATH)
    storage.put(PATH, data.replace(b'"format":1', b'"format":2'))
    with pytest.raises(ArchiveMismatch, match="offset map of format 2"):
        open_offset_map(storage, PATH)
    storage.delete([PATH])
    with pytest.raises(ObjectMissing):
        open_offset_map(storage, PATH)


_MEASURE = """
import sys
from logkeep_engine.restore.positions.offset_lookup import open_offset_map
from logkeep_engine.storage import open_uri

root, rows = sys.argv[1], int(sys.argv[2])
found = open_offset_map(open_uri(root), "map.json")
for at in range(0, rows, max(1, rows // 1000)):
    assert found.find(3 * at).target == at and found.find(3 * at + 2).target == at + 1
assert found.find(3 * rows).target == rows
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


@pytest.mark.deep
def test_a_map_with_a_row_for_each_offset_takes_little_memory(tmp_path: Path) -> None:
    """In the deep profile it has a hundred million rows: they are 2.6 GB, and must be searched within 256 MiB."""
    rows = number(1_000_000, deep=100_000_000)

    def blocks() -> Iterator[bytes]:
        yield document([], rows).replace(b'"records":0', b'"records":%d' % rows).partition(b"\n")[0]
        for start in range(0, rows, 100_000):
            text = ",\n".join(f"[{3 * at},{at},1]" for at in range(start, min(start + 100_000, rows)))
            yield (("\n" if start == 0 else ",\n") + text).encode()
        yield b"\n]}\n"

    with (tmp_path / "map.json").open("wb") as file:
        file.writelines(blocks())
    found = subprocess.run(
        [sys.executable, "-c", _MEASURE, tmp_path.as_uri(), str(rows)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(found.stdout) < 256 << 10, f"{found.stdout.strip()} KiB"

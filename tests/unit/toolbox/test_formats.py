"""Archives of the Records and the Avro format are looked into as those of Kafka's own."""

from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.writing.record_writer import RecordSink
from logkeep_engine.contract.archive_format import FormatName, FormatOptions
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import CLUSTER, FAST, ORDERS, TIME, archive_of, chunk
from tests.unit.toolbox.logs import run, run_json

COUNT = 60
LAYOUTS = {FormatName.RECORDS: Layout.RECORDS, FormatName.AVRO: Layout.AVRO}


def same_as_chunk(offset: int) -> PlainRecord:
    """The records that `chunk` writes at this offset."""
    return PlainRecord(offset, TIME + offset, 0, b"key", b"value %d" % offset, [])


def build(folder: Path, name: FormatName) -> Path:
    storage = open_uri(folder.as_uri())
    if name is FormatName.KAFKA:
        archive_of(storage, chunk(storage, 0, COUNT))
        return folder
    archive = Archive.create_or_open(storage, CLUSTER, name)
    with begin_run(archive, "run-1", wait=FAST) as writer:
        receipts = []
        for start in range(0, COUNT, 20):
            sink = RecordSink(
                storage, LAYOUTS[name], "orders", ORDERS.topic_id, 0, writer.epoch, 0, 1 << 20, FormatOptions()
            )
            sink.append([same_as_chunk(offset) for offset in range(start, start + 20)])
            entry = sink.finish()
            receipts.append(Receipt((Coverage(ORDERS.topic_id, 0, start, start + 20),), (entry,)))
        writer.commit(topics=[ORDERS], receipts=receipts)
        writer.end(RunOutcome.SUCCEEDED)
    return folder


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_records_are_dumped(tmp_path: Path, name: FormatName) -> None:
    folder = build(tmp_path, name)
    done = run("dump", folder, "--offset", "38..41", "--print-data")
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [line.partition(" payload: ")[2] for line in lines] == [f"value {offset}" for offset in range(38, 42)]
    assert run("dump", folder, "--topic", "none").exit_code == 2


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_times_are_reported(tmp_path: Path, name: FormatName) -> None:
    folder = build(tmp_path, name)
    (found,) = run_json("timestamps", folder)
    assert (found["records"], found["firstTimestamp"], found["lastTimestamp"]) == (COUNT, TIME, TIME + COUNT - 1)
    (place,) = run_json("timestamps", folder, "--at", TIME + 33)
    assert (place["offset"], place["verdict"]) == (33, "inside")


@pytest.mark.parametrize("a", list(FormatName))
@pytest.mark.parametrize("b", list(FormatName))
def test_archives_of_all_formats_compare(tmp_path: Path, a: FormatName, b: FormatName) -> None:
    done = run("diff", build(tmp_path / "a", a), build(tmp_path / "b", b), "--offsets")
    assert done.exit_code == 0, done.output
    assert f"{COUNT} records equal" in done.stdout


def test_an_index_of_records_gets_its_bytes_back(tmp_path: Path) -> None:
    folder = build(tmp_path, FormatName.RECORDS)
    index = folder / "topics" / "orders" / "segment_partition_000_from_offset_0000000020_index"
    good = index.read_bytes()
    index.write_bytes(good[:-24])
    assert not verify(Archive.open(open_uri(folder.as_uri()))).whole
    assert run("index", "check", folder).exit_code == 6
    assert run("index", "rebuild", folder, "--yes").exit_code == 0
    assert index.read_bytes() == good
    assert verify(Archive.open(open_uri(folder.as_uri()))).whole
    assert run("index", "check", folder).exit_code == 0


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_a_damaged_object_is_said(tmp_path: Path, name: FormatName) -> None:
    folder = build(tmp_path, name)
    path = sorted(folder.glob("topics/orders/**/*" + (".data" if name is FormatName.AVRO else "_records")))[1]
    path.write_bytes(path.read_bytes()[:-7])
    done = run("dump", folder)
    assert done.exit_code == 6
    assert f"of {path}, offset " in done.stdout
    done = run("timestamps", folder, "--at", TIME + 39)
    assert done.exit_code == 6
    assert done.stderr.startswith(f"fault: {path} at position -1, offset ")
    assert run("recover", folder, "--yes").exit_code == 2

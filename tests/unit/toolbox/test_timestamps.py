"""`logkeep log timestamps`: from when to when, in what order, and where a moment lies."""

import json
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import ORDERS, TIME, archive_of, begin, chunk, write_segment
from tests.unit.log.batches import NOON, batch, hidden, marker, with_header
from tests.unit.toolbox.logs import emptied, run, run_json, write_log

HOUR = 3_600_000
DAY = 24 * HOUR


def log_of(folder: Path, *times: int, offset: int = 0) -> None:
    batches = [
        encode([Record(offset + i, at, b"k", b"v")], codec=Codec.NONE, base_offset=offset + i)
        for i, at in enumerate(times)
    ]
    write_log(folder, batches)


def test_first_last_and_order_are_reported(tmp_path: Path) -> None:
    log_of(tmp_path / "t-1", NOON + 5, NOON + 1, NOON + 9, -1, NOON + 9)
    log_of(tmp_path / "t-1", NOON + 2, NOON + 20, offset=5)
    assert run_json("timestamps", tmp_path / "t-1") == [
        {
            "topic": "t",
            "topicId": "",
            "partition": 1,
            "records": 7,
            "firstOffset": 0,
            "lastOffset": 6,
            "firstTimestamp": NOON + 1,
            "lastTimestamp": NOON + 20,
            "withoutTimestamp": 1,
            "outOfOrder": 2,
            "inTheFuture": 0,
            "types": {"CreateTime": 7},
            "buckets": [],
            "damage": [],
        }
    ]
    segments = run_json("timestamps", tmp_path / "t-1", "--segments")
    assert [(item["firstOffset"], item["records"], item["outOfOrder"]) for item in segments] == [(0, 5, 1), (5, 2, 1)]


def test_copies_of_two_brokers_are_distinguished(tmp_path: Path) -> None:
    for broker in "ab":
        log_of(tmp_path / broker / "t-1", NOON)
    for options in ([], ["--at", NOON]):
        lines = run("timestamps", tmp_path, *options).stdout.splitlines()
        assert [line.split()[:3] for line in lines] == [
            ["folder", "topic", "partition"],
            ["a/t-1", "t", "1"],
            ["b/t-1", "t", "1"],
        ]
        assert [item["folder"] for item in run_json("timestamps", tmp_path, *options)] == ["a/t-1", "b/t-1"]
    assert run("timestamps", tmp_path / "a").stdout.startswith("topic ")


def test_markers_are_no_records_and_append_times_are_reported(tmp_path: Path) -> None:
    stamped = with_header(batch(0, 3), attributes=0x08, max_timestamp=NOON + 50)
    write_log(tmp_path / "t-0", [stamped, batch(3, 1, producer_id=1, transactional=True), marker(4, 1, commit=True)])
    (found,) = run_json("timestamps", tmp_path / "t-0")
    assert (found["types"], found["records"]) == ({"LogAppendTime": 3, "CreateTime": 1}, 4)
    assert (found["firstTimestamp"], found["lastTimestamp"], found["outOfOrder"]) == (NOON, NOON + 50, 1)


def test_records_in_the_future_are_counted(tmp_path: Path) -> None:
    log_of(tmp_path / "t-0", NOON, int(time.time() * 1000) + HOUR)
    (found,) = run_json("timestamps", tmp_path / "t-0")
    assert found["inTheFuture"] == 1


@pytest.mark.parametrize(("bucket", "size"), [("hour", HOUR), ("day", 24 * HOUR)])
def test_buckets_have_their_first_offset(tmp_path: Path, bucket: str, size: int) -> None:
    start = NOON - NOON % size
    log_of(tmp_path / "t-0", start + 5, start + 7, start + 3 * size, start + 6, start + 2 * size)
    (found,) = run_json("timestamps", tmp_path / "t-0", "--bucket", bucket)
    assert [(item["start"] - start, item["offset"]) for item in found["buckets"]] == [
        (0, 0),
        (2 * size, 4),
        (3 * size, 2),
    ]
    assert "2023-11-14T" in run("timestamps", tmp_path / "t-0", "--bucket", bucket).stdout


@pytest.mark.parametrize(
    ("moment", "offset", "verdict"),
    [
        (NOON - 1, 0, "before the first record"),
        (NOON, 0, "inside"),
        (NOON + 150, 20, "inside"),
        (NOON + 309, 39, "inside"),
        (NOON + 310, None, "after the last record"),
    ],
)
def test_a_moment_is_found(tmp_path: Path, moment: int, offset: int | None, verdict: str) -> None:
    write_log(tmp_path / "t-0", [batch(i * 10, 10, timestamp=NOON + i * 100, value=b"v" * 60) for i in range(2)])
    write_log(tmp_path / "t-0", [batch(i * 10, 10, timestamp=NOON + i * 100, value=b"v" * 60) for i in range(2, 4)])
    (found,) = run_json("timestamps", tmp_path / "t-0", "--at", moment)
    assert (found["offset"], found["verdict"]) == (offset, verdict)
    assert verdict in run("timestamps", tmp_path / "t-0", "--at", moment).stdout


def test_a_time_index_that_leads_too_far_hides_no_moment(tmp_path: Path) -> None:
    log_of(tmp_path / "t-0", *(NOON + i * 1000 for i in range(50)))
    (tmp_path / "t-0" / f"{0:020}.timeindex").write_bytes(struct.pack(">qi", NOON, 49))
    (found,) = run_json("timestamps", tmp_path / "t-0", "--at", NOON + 40_000)
    assert (found["offset"], found["verdict"], found["damage"]) == (40, "inside", [])


def test_moments_are_found_where_headers_hide_times(tmp_path: Path) -> None:
    log = [hidden(batch(0, 3)), hidden(batch(3, 3, codec=Codec.LZ4, timestamp=NOON + DAY))]
    write_log(tmp_path / "t-0", log)
    storage = open_uri((tmp_path / "archive").as_uri())
    archive_of(storage, Receipt((Coverage(ORDERS.topic_id, 0, 0, 6),), (write_segment(storage, log),)))
    for where in (tmp_path / "t-0", tmp_path / "archive"):
        (found,) = run_json("timestamps", where, "--at", NOON + DAY + 1)
        assert (found["offset"], found["timestamp"], found["verdict"]) == (4, NOON + DAY + 1, "inside")
        assert (found["firstTimestamp"], found["lastTimestamp"]) == (NOON, NOON + DAY + 2)


def test_an_archive_answers_without_reading_its_logs(tmp_path: Path) -> None:
    storage = open_uri(tmp_path.as_uri())
    archive_of(storage, chunk(storage, 0, 100), chunk(storage, 100, 200), chunk(storage, 0, 50, partition=1))
    first, second = run_json("timestamps", tmp_path, "--at", TIME + 120)
    assert (first["offset"], first["verdict"], first["firstTimestamp"]) == (120, "inside", TIME)
    assert (second["offset"], second["verdict"]) == (None, "after the last record")


def spoil(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_moment_that_may_lie_in_damage_is_a_fault(tmp_path: Path) -> None:
    path = write_log(tmp_path / "t-0", [batch(i, timestamp=NOON + i) for i in range(4)])
    spoil(path, 2 * len(batch(0)) - 1)
    fault = f"{path} at position {len(batch(0))}, offset 1: The batch at offset 1 is damaged: its CRC is "
    done = run("timestamps", tmp_path / "t-0", "--at", NOON + 1)
    assert done.exit_code == 6
    assert "inside" in done.stdout
    assert done.stderr.startswith(f"fault: {fault}")
    assert done.stderr.count("fault: ") == 1
    (found,) = json.loads(run("timestamps", tmp_path / "t-0", "--at", NOON + 1, "--json").stdout)
    assert (found["offset"], len(found["damage"])) == (2, 1)
    assert found["damage"][0].startswith(fault)


def test_a_batch_whose_records_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    """Its CRC holds: it was written so."""
    torn = bytearray(batch(1, timestamp=NOON + 1))
    torn[61] = 0x7F  # the length of its record
    write_log(tmp_path / "t-0", [batch(0), with_header(bytes(torn)), batch(2, timestamp=NOON + 2)])
    done = run("timestamps", tmp_path / "t-0", "--at", NOON + 1)
    assert done.exit_code == 6
    assert ", offset 1: The batch at offset 1 is damaged: a record of " in done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines()[1:]] == ["2"]


def test_damage_of_an_archive_on_the_way_to_a_moment_is_a_fault(tmp_path: Path) -> None:
    storage = open_uri(tmp_path.as_uri())
    archive_of(storage, chunk(storage, 0, 100))
    spoil(next(tmp_path.glob("topics/orders/*/partition=0/*.log")), 100)
    assert run("timestamps", tmp_path, "--at", TIME + 120).exit_code == 0
    done = run("timestamps", tmp_path, "--at", TIME + 5)
    assert done.exit_code == 6
    assert "offset 0: The batch at offset 0 is damaged" in done.stderr


@pytest.mark.parametrize("text", ["²", "noon", ""])
def test_what_is_no_time_is_refused(tmp_path: Path, text: str) -> None:
    log_of(tmp_path / "t-0", NOON)
    done = run("timestamps", tmp_path / "t-0", "--at", text)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {text!r} is not a time\n")


def test_damage_is_a_fault(tmp_path: Path) -> None:
    path = write_log(tmp_path / "t-0", [batch(0), batch(1), batch(2)])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done = run("timestamps", tmp_path / "t-0")
    assert done.exit_code == 6
    assert f"fault: {path} at position {2 * len(batch(0))}, offset 2: The batch at offset 2 is damaged" in done.stderr


@pytest.mark.parametrize("last", ["marker", "emptied batch"])
def test_what_is_no_record_is_no_end_of_the_partition(tmp_path: Path, last: str) -> None:
    """A marker is as late as its transaction's end, and the header of an emptied batch as what compaction took."""
    old = batch(0, 5, timestamp=NOON - DAY, producer_id=7, transactional=last == "marker")
    batches = [old, marker(5, 7, commit=True) if last == "marker" else emptied(batch(5, 1, producer_id=7))]
    write_log(tmp_path / "orders-0", batches)
    storage = open_uri((tmp_path / "archive").as_uri())
    archive_of(storage, Receipt((Coverage(ORDERS.topic_id, 0, 0, 6),), (write_segment(storage, batches),)))
    for where in ("orders-0", "archive"):
        (found,) = run_json("timestamps", tmp_path / where, "--at", NOON - HOUR)
        assert (found["offset"], found["verdict"]) == (None, "after the last record")
        (found,) = run_json("timestamps", tmp_path / where, "--at", NOON - DAY)
        assert (found["offset"], found["verdict"]) == (0, "inside")


def test_incarnations_of_a_topic_are_distinguished(tmp_path: Path) -> None:
    storage = open_uri(tmp_path.as_uri())
    archive_of(storage, chunk(storage, 0, 50))
    again = replace(ORDERS, topic_id="A" * 22)
    with begin(storage, "run-2") as writer:
        writer.commit(topics=[again], receipts=[chunk(storage, 0, 20, topic=again, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    for options in ([], ["--at", TIME], ["--bucket", "day"]):
        lines = [line.split() for line in run("timestamps", tmp_path, *options).stdout.splitlines()]
        assert lines[0][:4] == ["topic", "topic", "id", "partition"]
        assert [line[:3] for line in lines[1:3]] == [["orders", "A" * 22, "0"], ["orders", ORDERS.topic_id, "0"]]


@pytest.mark.parametrize("option", [["--bucket", "day"], ["--segments"]])
def test_options_without_effect_are_refused(tmp_path: Path, option: list[str]) -> None:
    log_of(tmp_path / "t-0", NOON)
    done = run("timestamps", tmp_path / "t-0", "--at", NOON, *option)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {option[0]} has no effect with --at")

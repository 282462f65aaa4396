"""The source finds what lies where the user points, and which files are one log."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.facts import RunOutcome, TopicEntry
from logkeep_engine.log.damage import DamagedBytes
from logkeep_engine.log.segment import without_preallocated
from logkeep_engine.storage import open_uri
from logkeep_engine.toolbox.scan import Batch
from logkeep_engine.toolbox.segment import ToolboxSegment
from logkeep_engine.toolbox.source import LogKey, open_source
from tests.unit.archive.build import ORDERS, begin, chunk
from tests.unit.log.batches import NOON, batch
from tests.unit.toolbox.logs import run, run_json, write_log

ID = "0123456789abcdef" * 2
MOVED = [f"orders-0.{ID}-{end}" for end in ("delete", "future", "stray")]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A broker's data folder."""
    write_log(tmp_path / "data" / "orders-0", [batch(0, 5)])
    write_log(tmp_path / "data" / "orders-0", [batch(5, 5)])
    return tmp_path / "data"


def test_segments_of_a_partition_are_one_log_in_each_folder(data: Path) -> None:
    for name in MOVED:
        write_log(data / name, [batch(0, 3)])
    write_log(data / "copy" / "orders-0", [batch(2, 3)])
    found = open_source(str(data)).partitions()
    assert {key: [segment.base_offset for segment in segments] for key, segments in found.items()} == {
        LogKey("orders", "", 0, "orders-0"): [0, 5],
        LogKey("orders", "", 0, "copy/orders-0"): [2],
    } | {LogKey("orders", "", 0, name): [0] for name in MOVED}


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    write_log(tmp_path / "a\nb" / f"topics/orders/{'A' * 22}/partition=3", [batch(0, 5)])
    (segment,) = open_source(str(tmp_path)).segments
    assert (segment.topic, segment.partition) == ("orders", 3)


@pytest.mark.parametrize("name", MOVED)
def test_a_folder_that_was_put_aside_is_neither_counted_nor_compared(data: Path, tmp_path: Path, name: str) -> None:
    (alone,) = run_json("timestamps", data)
    write_log(tmp_path / "other" / "orders-0", [batch(0, 5), batch(5, 5)])
    log = write_log(data / name, [batch(0, 2), batch(2, 2)])
    log.write_bytes(log.read_bytes()[:-2])
    warning = f"warning: {data / name} is left out: the broker has put it aside\n"
    done = run("timestamps", data)
    assert (done.exit_code, done.stderr) == (0, warning)
    assert run_json("timestamps", data) == [alone]
    for sides in ((data, tmp_path / "other"), (tmp_path / "other", data)):
        done = run("diff", *sides)
        assert (done.exit_code, done.stderr) == (0, warning)
        assert "10 records equal" in done.stdout


@pytest.mark.parametrize("name", MOVED)
def test_a_folder_that_was_put_aside_can_be_named(data: Path, tmp_path: Path, name: str) -> None:
    write_log(data / name, [batch(0, 3)])
    write_log(tmp_path / "other" / "orders-0", [batch(0, 3)])
    assert run_json("timestamps", data / name)[0]["records"] == 3
    done = run("diff", data / name, tmp_path / "other")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "3 records equal" in done.stdout


def test_a_partition_in_two_folders_cannot_be_compared(data: Path, tmp_path: Path) -> None:
    """They may be of two brokers: the user must say which one is meant."""
    write_log(tmp_path / "other" / "orders-0", [batch(0, 5)])
    done = run("diff", tmp_path, data)
    assert done.exit_code == 2
    folders = f"{data}/orders-0 and {tmp_path}/other/orders-0"
    assert done.stderr.startswith(f"error: partition 0 of topic orders is in {folders}.\n")


def test_snapshots_of_the_metadata_log_are_no_part_of_it(tmp_path: Path) -> None:
    for side, times in (("a", NOON), ("b", NOON + 10**6)):
        folder = tmp_path / side / "__cluster_metadata-0"
        write_log(folder, [batch(0, 5)])
        (folder / f"{3:020}-{1:010}.checkpoint").write_bytes(batch(0, 2, timestamp=times))
    done = run("diff", tmp_path / "a", tmp_path / "b")
    assert done.exit_code == 0
    assert "5 records equal" in done.stdout
    (found,) = run_json("timestamps", tmp_path / "b")
    assert (found["records"], found["lastTimestamp"]) == (5, NOON + 4)


def test_zeros_that_a_broker_reserved_in_its_indexes_lead_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps them until it closes the segment."""
    log = write_log(tmp_path / "orders-0", [batch(i, timestamp=NOON + i * 1000, value=b"v" * 60) for i in range(9)])
    for suffix, size in ((".index", 8), (".timeindex", 12)):
        with log.with_suffix(suffix).open("ab") as file:
            file.write(bytes(size * 1000))
    for moment, offset in ((NOON - 5, 0), (NOON, 0), (NOON + 1, 1), (NOON + 7500, 8)):
        (place,) = run_json("timestamps", log, "--at", moment)
        assert place["offset"] == offset
    (segment,) = open_source(str(log)).segments
    starts: list[int] = []
    scan = ToolboxSegment.scan

    def noted(segment: ToolboxSegment, start: int = 0) -> Iterator[Batch | DamagedBytes]:
        starts.append(start)
        return scan(segment, start)

    monkeypatch.setattr(ToolboxSegment, "scan", noted)
    assert next(item.position for item in segment.scan_from(7)) == 7 * len(batch(0, value=b"v" * 60))
    assert min(starts) > 0


@pytest.mark.parametrize("zeros", [0, 12, 120])
def test_an_entry_may_end_with_zeros(zeros: int) -> None:
    entry = NOON.to_bytes(8, "big") + (256).to_bytes(4, "big")
    assert without_preallocated(entry + bytes(zeros), 12) == entry
    assert without_preallocated(entry[:-1], 12) == entry[:-1]


@pytest.mark.parametrize("where", ["a" * 300, "file:///" + "a" * 300])
def test_a_path_that_the_system_does_not_take_is_refused(where: str) -> None:
    done = run("dump", where)
    assert (done.exit_code, done.stderr.splitlines()[0]) == (2, f"error: StorageRefused: {where}: File name too long.")


@pytest.mark.parametrize("uri", ["s3://key:hunter2@bucket/archive", "s3://bucket/archive?x", "file:///archive#x"])
def test_a_uri_with_more_than_a_place_is_refused_before_a_part_of_it_is_used(uri: str) -> None:
    done = run("dump", uri)
    assert done.exit_code == 2
    assert "hunter2" not in done.output
    assert "URI" in done.stderr


EMPTY = TopicEntry("empty", "d" * 21 + "_", 2, 1)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """50 records in partition 0 of `orders`, and a topic that nobody has written to."""
    storage = open_uri((tmp_path / "archive").as_uri())
    with begin(storage) as writer:
        writer.commit(topics=[EMPTY, ORDERS], receipts=[chunk(storage, 0, 50)])
        writer.end(RunOutcome.SUCCEEDED)
    return tmp_path / "archive"


@pytest.mark.parametrize(
    "chosen",
    [
        ["--topic", "empty"],
        ["--topic", "empty", "--partition", "1"],
        ["--topic", "orders", "--partition", "1"],
        ["topics/empty"],
        [f"topics/empty/{EMPTY.topic_id}"],
        [f"topics/empty/{EMPTY.topic_id}/partition=1"],
    ],
)
def test_a_topic_or_partition_without_a_record_is_there(archive: Path, chosen: list[str]) -> None:
    inside, options = (chosen[:1], []) if chosen[0].startswith("topics") else ([], chosen)
    where = archive.joinpath(*inside)
    where.mkdir(parents=True, exist_ok=True)
    for command, shown in (
        (["dump"], ""),
        (["index", "check"], "0 indexes, 0 with faults\n"),
        (["timestamps", "-o", "json"], "[]\n"),
        (["timestamps", "--at", "5", "-o", "json"], "[]\n"),
    ):
        done = run(*command, where, *options)
        assert (done.exit_code, done.stdout, done.stderr) == (0, shown, "")


@pytest.mark.parametrize("topics", [[], [EMPTY]])
def test_an_archive_without_a_record_is_one(archive: Path, tmp_path: Path, topics: list[TopicEntry]) -> None:
    other = tmp_path / "other"
    with begin(open_uri(other.as_uri())) as writer:
        writer.commit(topics=topics)
        writer.end(RunOutcome.SUCCEEDED)
    assert run("dump", other).exit_code == 0
    assert run("index", "check", other).exit_code == 0
    assert run_json("timestamps", other) == []
    done = run("diff", archive, other)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (6, "orders-0: the partition is only in A")
    done = run("offsets", other)
    there = "empty" if topics else "no others"
    assert done.exit_code == 2
    assert f"there is no topic __consumer_offsets or __transaction_state.\nhint: There are: {there}. " in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--topic", "none"], "there is no topic none.\nhint: There are: empty, orders.\n"),
        (["--topic", "empty", "--partition", "2"], "there is no partition 2 of empty.\n"),
        (["--partition", "3"], "there is no partition 3.\n"),
        (["--partition", "-1"], "there is no partition -1.\n"),
    ],
)
def test_what_an_archive_does_not_have_is_said(archive: Path, options: list[str], message: str) -> None:
    done = run("dump", archive, *options)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {archive}: {message}")


@pytest.mark.parametrize("inside", ["catalog", "archive.json", "topics/empty/partition=2"])
def test_something_else_of_an_archive_is_no_log(archive: Path, inside: str) -> None:
    (archive / "topics/empty/partition=2").mkdir(parents=True)
    done = run("dump", archive / inside)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {archive / inside}: there is neither an archive nor a log.\n")

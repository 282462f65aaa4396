"""`logkeep log offsets`: what the coordinators keep, as it is now and as it came to be."""

import json
import shutil
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome, TopicEntry
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.transactions import TransactionTracker
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import begin, write_segment
from tests.unit.log.batches import NOON, batch, marker
from tests.unit.toolbox.logs import run, run_json, write_log


def key(group: str, topic: str, partition: int) -> bytes:
    names = b"".join(len(name).to_bytes(2) + name.encode() for name in (group, topic))
    return b"\x00\x01" + names + partition.to_bytes(4)


def value(offset: int) -> bytes:
    return b"\x00\x03" + offset.to_bytes(8) + (7).to_bytes(4) + b"\x00\x02hi" + NOON.to_bytes(8)


TRANSACTION_KEY = b"\x00\x00\x00\x02tx"


def transaction(status: int) -> bytes:
    head = (5).to_bytes(8) + (1).to_bytes(2) + (60_000).to_bytes(4) + bytes([status])
    parts = b"\x00\x00\x00\x01" + b"\x00\x01t" + b"\x00\x00\x00\x02" + (0).to_bytes(4) + (3).to_bytes(4)
    return b"\x00\x00" + head + parts + NOON.to_bytes(8) * 2


def kept(offset: int, *pairs: tuple[bytes, bytes | None], producer_id: int = -1) -> bytes:
    records = [Record(offset + at, NOON + at, *pair) for at, pair in enumerate(pairs)]
    return encode(records, codec=Codec.LZ4, base_offset=offset, producer_id=producer_id, transactional=producer_id >= 0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A broker's data folder."""
    tracker = TransactionTracker()
    write_log(
        tmp_path / "__consumer_offsets-3",
        [
            kept(0, (key("g", "t", 0), value(10)), (key("g", "t", 1), value(20)), (key("h", "t", 0), value(5))),
            kept(3, (key("g", "t", 0), value(11)), (key("h", "t", 0), None)),
            kept(5, (key("g", "t", 1), value(99)), producer_id=8),
            marker(6, 8, commit=False),
        ],
        tracker,
    )
    states = [(TRANSACTION_KEY, transaction(1)), (TRANSACTION_KEY, transaction(4))]
    write_log(tmp_path / "__transaction_state-0", [kept(0, *states)])
    write_log(tmp_path / "orders-0", [batch(0)])
    return tmp_path


def positions(found: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [
        (item["key"]["partition"], item["value"]["offset"])  # type: ignore[index]
        for item in found
        if item["kind"] == "OffsetCommit"
    ]


def test_the_last_of_every_key_is_in_force(data: Path) -> None:
    """Records that were deleted do not count, nor do records of aborted transactions."""
    found = run_json("offsets", data)
    assert sorted(positions(found)) == [(0, 11), (1, 20)]
    (last,) = [item for item in found if item["kind"] == "TransactionLog"]
    assert (last["key"], last["value"]["transactionStatus"]) == ({"transactionalId": "tx"}, "CompleteCommit")


def test_tables_name_groups_and_transactions(data: Path) -> None:
    lines = [line.split() for line in run("offsets", data).stdout.splitlines()]
    assert ["g", "t", "0", "11", "7", "2023-11-14T22:13:20.000Z", "hi"] in lines
    assert ["tx", "5", "1", "CompleteCommit", "2023-11-14T22:13:20.000Z", "t-0", "t-3"] in lines


def test_history_has_every_record(data: Path) -> None:
    lines = [
        json.loads(line) for line in run("offsets", data, "--history", "--as", "offsets", "--json").stdout.splitlines()
    ]
    assert [(line["offset"], line["aborted"]) for line in lines] == [(i, i == 5) for i in range(6)]
    assert lines[4]["value"] is None
    text = run("offsets", data, "--history", "--as", "offsets").stdout.splitlines()
    assert text[4].endswith(" <DELETE>")
    assert " aborted OffsetCommit " in text[5]


def test_one_group_can_be_asked_for(data: Path) -> None:
    assert {item["key"]["transactionalId"] for item in run_json("offsets", data, "--group", "tx")} == {"tx"}
    assert run("offsets", data, "--group", "nobody").stdout == "nothing is kept\n"


def test_what_cannot_be_decoded_is_a_fault(data: Path) -> None:
    write_log(data / "__consumer_offsets-1", [kept(7, (b"x", b"y")), kept(8, (key("i", "t", 0), value(1)))])
    done = run("offsets", data)
    assert done.exit_code == 6
    assert done.stderr == "fault: __consumer_offsets-1 offset 7: it has no key with a type\n"
    assert done.stdout.count("\ni ") == 1


def test_a_log_without_a_name_is_what_is_said(data: Path, tmp_path: Path) -> None:
    log = next((data / "__consumer_offsets-3").glob("*.log"))
    copy = tmp_path / "copied"
    copy.mkdir()
    (copy / log.name).write_bytes(log.read_bytes())
    assert run("offsets", copy / log.name).exit_code == 2
    # There is no index beside it that says what was aborted.
    assert sorted(positions(run_json("offsets", copy / log.name, "--as", "offsets"))) == [(0, 11), (1, 20)]


def test_copies_of_two_brokers_are_refused(data: Path, tmp_path: Path) -> None:
    """One may be far behind the other."""
    copies = tmp_path / "brokers"
    for broker in "ab":
        shutil.copytree(data / "__consumer_offsets-3", copies / broker / "__consumer_offsets-3")
    done = run("offsets", copies)
    assert done.exit_code == 2
    both = f"{copies}/a/__consumer_offsets-3 and {copies}/b/__consumer_offsets-3"
    assert done.stderr == f"error: partition 3 of topic __consumer_offsets is in {both}.\nhint: Name one of them.\n"
    assert len(positions(run_json("offsets", copies / "a"))) == 2


def test_a_commit_in_a_transaction_that_nothing_has_decided_is_not_in_force(tmp_path: Path) -> None:
    """One after it, outside of transactions, is: that is what a coordinator goes by."""
    folder = tmp_path / "__consumer_offsets-0"
    pending = kept(1, (key("g", "t", 0), value(99)), producer_id=8)
    write_log(folder, [kept(0, (key("g", "t", 0), value(10))), pending, kept(2, (key("g", "t", 1), value(20)))])
    assert sorted(positions(run_json("offsets", folder))) == [(0, 10), (1, 20)]
    lines = [json.loads(line) for line in run("offsets", folder, "--history", "--json").stdout.splitlines()]
    assert [(line["aborted"], line["undecided"]) for line in lines] == [(False, i == 1) for i in range(3)]
    assert " undecided OffsetCommit " in run("offsets", folder, "--history").stdout.splitlines()[1]
    write_log(folder, [marker(3, 8, commit=True)])
    assert sorted(positions(run_json("offsets", folder))) == [(0, 99), (1, 20)]


def test_what_damage_may_have_decided_is_not_in_force(tmp_path: Path) -> None:
    """Behind the damage the producer may be in another transaction already."""
    folder = tmp_path / "__consumer_offsets-0"
    first, second = (kept(offset, (key("g", "t", 0), value(offset)), producer_id=8) for offset in (0, 2))
    path = write_log(folder, [first, marker(1, 8, commit=False), second, marker(3, 8, commit=True)])
    path.with_suffix(".txnindex").unlink()
    data = bytearray(path.read_bytes())
    data[len(first) + 70] ^= 1
    path.write_bytes(data)
    done = run("offsets", folder, "--history", "--json")
    assert done.exit_code == 6
    assert [json.loads(line)["undecided"] for line in done.stdout.splitlines()] == [True, False]


def test_a_source_without_them_is_refused(data: Path) -> None:
    done = run("offsets", data / "orders-0")
    assert done.exit_code == 2
    assert done.stderr.startswith(
        f"error: {data}/orders-0: there is no topic __consumer_offsets or __transaction_state.\n"
        "hint: There are: orders."
    )


def test_of_a_topic_that_was_made_again_the_last_incarnation_is_in_force(tmp_path: Path) -> None:
    storage = open_uri(tmp_path.as_uri())
    ids = {5: "z" * 21 + "A", 99: "a" * 21 + "A"}
    for number, (offset, topic_id) in enumerate(ids.items()):
        topic = TopicEntry("__consumer_offsets", topic_id, 1, 1)
        with begin(storage, f"run-{number}") as writer:
            batches = [kept(0, (key("g", "t", 0), value(offset)))]
            entry = write_segment(storage, batches, topic=topic, epoch=writer.epoch)
            writer.commit(topics=[topic], receipts=[Receipt((Coverage(topic_id, 0, 0, 1),), (entry,))])
            writer.end(RunOutcome.SUCCEEDED)
    assert positions(run_json("offsets", tmp_path)) == [(0, 99)]
    assert len(run("offsets", tmp_path, "--history").stdout.splitlines()) == 1
    folder = tmp_path / "topics" / "__consumer_offsets" / ids[5]
    assert positions(run_json("offsets", folder)) == [(0, 5)]


def test_a_topic_without_a_record_keeps_nothing(tmp_path: Path) -> None:
    with begin(open_uri(tmp_path.as_uri())) as writer:
        writer.commit(topics=[TopicEntry("__consumer_offsets", "a" * 21 + "A", 1, 1)])
        writer.end(RunOutcome.SUCCEEDED)
    done = run("offsets", tmp_path)
    assert (done.exit_code, done.stdout) == (0, "nothing is kept\n")

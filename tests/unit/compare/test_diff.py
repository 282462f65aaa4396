"""`logkeep log diff`: whatever differs between two sides is found, and nothing else."""

import re
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.compare.aligning import DifferenceKind
from logkeep_engine.compare.streams import Rules, StreamComparison
from logkeep_engine.contract.endpoints import NOT_A_URL
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.log.rows import Rows, as_rows
from logkeep_engine.log.segment import AbortedTxn, pack_txn_entry
from logkeep_engine.log.transactions import TransactionTracker
from logkeep_engine.storage import open_uri
from tests.examples import scaled
from tests.unit.archive.build import ORDERS, archive_of, begin, chunk, write_segment
from tests.unit.log.batches import batch, marker
from tests.unit.toolbox.logs import emptied, run, run_json, write_log


class Listed:
    """Records at hand."""

    def __init__(self, **topics: Sequence[PlainRecord]) -> None:
        self._topics = topics

    def partitions(self) -> list[tuple[str, int]]:
        return [(topic, 0) for topic in self._topics]

    def rows(self, topic: str, _partition: int, start: int = 0) -> Iterator[Rows]:
        records = [record for record in self._topics[topic] if record.offset >= start]
        return (as_rows(records[at : at + 3]) for at in range(0, len(records), 3))


KAFKA = ["--bootstrap-server", "h:1", "--security-protocol", "SASL_SSL", "--sasl-mechanism"]


def records(values: Sequence[int], first: int = 0) -> list[PlainRecord]:
    return [PlainRecord(first + at, 1000 + value, 0, b"k", b"%d" % value, []) for at, value in enumerate(values)]


def kinds(a: Sequence[int], b: Sequence[int], window: int = 100) -> list[tuple[str, int | None, int | None]]:
    found = StreamComparison(Listed(t=records(a)), Listed(t=records(b, 50)), Rules(window=window))
    return [(item.kind, item.found.source_offset, item.found.target_offset) for item in found]


def test_equal_records_have_no_difference() -> None:
    assert kinds([1, 2, 3], [1, 2, 3]) == []


def test_a_record_that_is_missing_is_named_and_the_rest_is_equal() -> None:
    assert kinds([1, 2, 3, 4], [1, 3, 4]) == [("only in A", 1, None)]
    assert kinds([1, 3, 4], [1, 2, 3, 4]) == [("only in B", None, 51)]
    assert kinds([1, 2], [1, 2, 3, 4]) == [("only in B", None, 52)]
    (found,) = StreamComparison(Listed(t=records([1, 2])), Listed(t=records([1, 2, 3, 4])))
    assert (found.found.records, str(found)) == (2, "t-0: offset 2 of B and the 1 after it are not in A")


def test_a_record_that_was_altered_is_one_difference() -> None:
    assert kinds([1, 2, 3], [1, 9, 3]) == [("different", 1, 51)]


def test_more_differences_than_the_window_holds_do_not_end_the_comparison() -> None:
    found = kinds([1, 2, 3, 4, 5, 6, 7], [1, 12, 13, 14, 5, 6, 7], window=2)
    assert found == [("different", 1, 51), ("different", 2, 52), ("different", 3, 53)]


def test_a_record_that_is_there_twice_or_has_changed_places_is_called_so() -> None:
    twice, swapped = (
        [str(item) for item in StreamComparison(Listed(t=records([1, 2, 3])), Listed(t=records(other, 50)))]
        for other in ([1, 2, 2, 3], [2, 1, 3])
    )
    assert twice == ["t-0: offset 52 of B repeats a record of A"]
    assert swapped == ["t-0: offset 0 of A and the next record have changed places, at offset 50 of B"]


@pytest.mark.parametrize("count", [1001, 8000, 40_000])
def test_records_that_one_side_lacks_are_called_so_however_many_they_are(count: int) -> None:
    a, b = records(range(60_000)), records([*range(500), *range(500 + count, 60_000)])
    for sides, kind in (((a, b), "only in A"), ((b, a), "only in B")):
        one, other = (Listed(t=side) for side in sides)
        comparison = StreamComparison(one, other)
        assert [(item.kind, item.found.records) for item in comparison] == [(kind, count)]
        assert comparison.counts.equal == 60_000 - count


def test_sides_without_anything_in_common_are_different_to_the_end() -> None:
    comparison = StreamComparison(Listed(t=records(range(200))), Listed(t=records(range(500, 710))), Rules(window=1))
    assert len(list(comparison)) == 201
    counts = comparison.counts
    assert (counts.equal, counts.different, counts.only_a, counts.only_b) == (0, 200, 0, 10)


def test_large_records_are_not_kept() -> None:
    class Large(Listed):
        def rows(self, topic: str, _partition: int, start: int = 0) -> Iterator[Rows]:
            return (as_rows([record._replace(value=bytes(1 << 20))]) for record in self._topics[topic])

    a, b = Large(t=records(range(40))), Large(t=records([*range(20), *range(30, 40)]))
    tracemalloc.start()
    try:
        found = list(StreamComparison(a, b))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [item.found.records for item in found] == [10]
    assert most < 8 << 20


@pytest.mark.parametrize("turned", [False, True])
def test_runs_of_one_side_are_found_wherever_the_windows_end(turned: bool) -> None:
    fewer = list(range(5000))
    more = [*range(100), *range(9000, 9900), *range(100, 1100), *range(19_000, 20_000), *range(1100, 5000)]
    a, b = (fewer, more) if turned else (more, fewer)
    comparison = StreamComparison(Listed(t=records(a)), Listed(t=records(b)))
    only = [(item.kind, item.found.source_offset, item.found.target_offset, item.found.records) for item in comparison]
    assert only == (
        [("only in B", None, 100, 900), ("only in B", None, 2000, 1000)]
        if turned
        else [("only in A", 100, None, 900), ("only in A", 2000, None, 1000)]
    )
    assert comparison.counts.equal == 5000


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"key": b"x"}, "key"),
        ({"value": None}, "value"),
        ({"headers": [("h", None)]}, "headers"),
        ({"timestamp": 7}, "timestamp"),
    ],
)
def test_every_field_is_compared(changes: dict[str, Any], field: str) -> None:
    (one,) = records([1])
    other = one._replace(**changes)
    (found,) = StreamComparison(Listed(t=[one]), Listed(t=[other]))
    assert (found.kind, found.found.kind, found.found.fields) == ("different", DifferenceKind.CHANGED, (field,))
    if field in ("headers", "timestamp"):
        assert not list(StreamComparison(Listed(t=[one]), Listed(t=[other]), Rules(ignore=frozenset({field}))))


def test_a_missing_timestamp_is_the_same_in_both_forms() -> None:
    (one,) = records([1])
    assert not list(StreamComparison(Listed(t=[one._replace(timestamp=None)]), Listed(t=[one._replace(timestamp=-1)])))


def test_offsets_are_compared_if_asked_for() -> None:
    comparison = StreamComparison(Listed(t=records([1, 2, 3])), Listed(t=records([2, 3, 4], 1)), Rules(offsets=True))
    assert [(item.kind, item.found.source_offset, item.found.target_offset) for item in comparison] == [
        ("only in A", 0, None),
        ("only in B", None, 3),
    ]
    assert (comparison.counts.equal, comparison.counts.same) == (2, False)


numbers = st.lists(st.integers(0, 3), max_size=30)


@given(numbers, numbers, st.integers(1, 8))
@settings(max_examples=scaled(300), deadline=None)
def test_every_record_is_counted_once_on_its_side(a: list[int], b: list[int], window: int) -> None:
    comparison = StreamComparison(Listed(t=records(a)), Listed(t=records(b)), Rules(window=window))
    differences = list(comparison)
    counts = comparison.counts
    assert counts.equal + counts.different + counts.only_a == len(a)
    assert counts.equal + counts.different + counts.only_b == len(b)
    named = Counter[str]()
    for item in differences:
        named[item.kind] += 2 if item.found.kind is DifferenceKind.SWAPPED else item.found.records
    assert named == Counter({"different": counts.different, "only in A": counts.only_a, "only in B": counts.only_b})
    assert counts.same is (a == b)


def archive(folder: Path, *parts: tuple[int, int], partition: int = 0) -> Path:
    storage = open_uri(folder.as_uri())
    archive_of(storage, *(chunk(storage, start, end, partition=partition) for start, end in parts))
    return folder


def test_two_archives_of_the_same_records_are_the_same(tmp_path: Path) -> None:
    """It does not matter how their segments are cut."""
    a, b = archive(tmp_path / "a", (0, 60)), archive(tmp_path / "b", (0, 20), (20, 60))
    done = run("diff", a, b, "--offsets")
    assert done.exit_code == 0
    assert done.stdout == (
        "same: 1 partition compared, 60 records equal, 0 different, 0 only in A, 0 only in B; "
        "partitions only in A 0, only in B 0\n"
    )
    assert run_json("diff", a.as_uri(), b)["same"] is True


def test_two_archives_that_differ_are_distinguished(tmp_path: Path) -> None:
    a, b = archive(tmp_path / "a", (0, 60)), archive(tmp_path / "b", (0, 50))
    done = run("diff", a, b)
    assert done.exit_code == 6
    assert done.stdout.splitlines() == [
        "orders-0: offset 50 of A and the 9 after it are not in B",
        "different: 1 partition compared, 50 records equal, 0 different, 10 only in A, 0 only in B; "
        "partitions only in A 0, only in B 0",
    ]
    other = archive(tmp_path / "c", (0, 10), partition=1)
    assert run("diff", a, other, "--limit", 1).stdout.splitlines()[:2] == [
        "orders-0: the partition is only in A",
        "and 1 more",
    ]
    assert run("diff", a, other).stdout.splitlines()[:2] == [
        "orders-0: the partition is only in A",
        "orders-1: the partition is only in B",
    ]


def test_topics_may_have_other_names_and_aborted_records_do_not_count(tmp_path: Path) -> None:
    tracker = TransactionTracker()
    write_log(
        tmp_path / "old-0",
        [batch(0, 2), batch(2, 3, producer_id=4, transactional=True), marker(5, 4, commit=False), batch(6, 2)],
        tracker,
    )
    kept = [batch(0, 2), batch(2, 2)]
    write_log(tmp_path / "new-0", kept)
    done = run("diff", tmp_path / "old-0", tmp_path / "new-0", "--rename", "old=new")
    assert done.exit_code == 0, done.output
    assert "4 records equal" in done.stdout
    assert run("diff", tmp_path / "old-0", tmp_path / "new-0").exit_code == 6


def test_a_partition_without_a_committed_record_is_no_difference(tmp_path: Path) -> None:
    """This holds for both sides: a topic has partitions that nobody has written to, and its archive has not."""
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        write_log(folder / "t-0", [batch(0, 5)])
    (a / "t-1").mkdir()
    (a / "t-1" / f"{0:020}.log").write_bytes(b"")
    write_log(b / "t-2", [batch(0, 2, producer_id=4, transactional=True), marker(2, 4, commit=False)])
    for sides in ((a, b), (b, a)):
        done = run("diff", *sides)
        assert done.exit_code == 0, done.output
        assert done.stdout.endswith("partitions only in A 0, only in B 0\n")
    write_log(a / "t-1", [batch(0)])
    assert run("diff", a, b).stdout.splitlines()[0] == "t-1: the partition is only in A"
    assert run("diff", b, a).stdout.splitlines()[0] == "t-1: the partition is only in B"


def test_a_log_ends_with_the_first_transaction_that_nothing_has_decided(tmp_path: Path) -> None:
    """A consumer sees the same end: batches after it may be committed, but nobody sees them yet."""
    opened = batch(5, 2, producer_id=9, transactional=True)
    later = [batch(7, 2), batch(9, 2, producer_id=4, transactional=True), marker(11, 4, commit=True)]
    write_log(tmp_path / "a-0", [batch(0, 5), opened, *later])
    write_log(tmp_path / "b-0", [batch(0, 5)])
    done = run("diff", tmp_path / "a-0", tmp_path / "b-0", "--rename", "a=b")
    assert done.exit_code == 0, done.output
    assert "5 records equal" in done.stdout
    write_log(tmp_path / "a-0", [marker(12, 9, commit=True)])
    assert "6 only in A" in run("diff", tmp_path / "a-0", tmp_path / "b-0", "--rename", "a=b").stdout


@pytest.mark.parametrize("index", ["missing", "of other transactions"])
def test_a_log_knows_its_aborted_transactions_without_their_index(tmp_path: Path, index: str) -> None:
    tracker = TransactionTracker()
    write_log(tmp_path / "a-0", [batch(0, 2, producer_id=4, transactional=True)], tracker)
    path = write_log(tmp_path / "a-0", [marker(2, 4, commit=False), batch(3, 1)], tracker).with_suffix(".txnindex")
    path.unlink()
    if index != "missing":
        path.write_bytes(pack_txn_entry(AbortedTxn(5, 0, 2, 3)))
    write_log(tmp_path / "b-0", [batch(3, 1)])
    done = run("diff", tmp_path / "a-0", tmp_path / "b-0", "--rename", "a=b")
    assert done.exit_code == 0, done.output
    assert "1 record equal" in done.stdout


def test_a_batch_that_compaction_has_emptied_holds_nothing_up(tmp_path: Path) -> None:
    """The marker of its transaction may have gone before it."""
    left = emptied(batch(0, 3, producer_id=4, transactional=True))
    write_log(tmp_path / "a-0", [left, batch(5, 2)])
    write_log(tmp_path / "b-0", [batch(5, 2)])
    done = run("diff", tmp_path / "a-0", tmp_path / "b-0", "--rename", "a=b", "--offsets")
    assert done.exit_code == 0, done.output
    assert "2 records equal" in done.stdout
    assert run("index", "check", tmp_path / "a-0").exit_code == 0


def test_damage_after_an_open_transaction_is_still_said(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a-0", [batch(0, 2, producer_id=9, transactional=True), batch(2, 2), batch(4)])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done = run("diff", tmp_path / "a-0", tmp_path / "a-0")
    assert done.exit_code == 2
    assert "The batch at offset 4 is damaged" in done.stderr


@pytest.mark.parametrize("outcome", [RunOutcome.FAILED, RunOutcome.SUCCEEDED])
def test_of_an_archive_that_ends_before_a_marker_all_is_compared(tmp_path: Path, outcome: RunOutcome) -> None:
    """A restore brings back the same: all that was archived lay below the last stable offset, and no index names it."""
    opened = batch(2, 2, producer_id=9, transactional=True)
    write_log(tmp_path / "orders-0", [batch(0, 2), opened, batch(4, 2)])
    path = next((tmp_path / "orders-0").glob("*.log"))
    path.write_bytes(path.read_bytes().replace(opened, batch(2, 2)))
    storage = open_uri((tmp_path / "archive").as_uri())
    entry = write_segment(storage, [batch(0, 2), opened, batch(4, 2)])
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[Receipt((Coverage(ORDERS.topic_id, 0, 0, 6),), (entry,))])
        writer.end(outcome)
    done = run("diff", tmp_path / "archive", tmp_path / "orders-0", "--offsets")
    assert done.exit_code == 0, done.output


def one_damaged(tmp_path: Path, position: int) -> tuple[Path, Path, Path]:
    """Two archives of the same records, and the log of the first, in which a bit of the byte at `position` is wrong."""
    a, b = archive(tmp_path / "a", (0, 60)), archive(tmp_path / "b", (0, 60))
    log = next(a.glob("topics/orders/*/partition=0/*.log"))
    data = bytearray(log.read_bytes())
    data[position] ^= 1
    log.write_bytes(data)
    return a, b, log


def test_a_damaged_archive_cannot_be_compared(tmp_path: Path) -> None:
    a, b, log = one_damaged(tmp_path, 100)
    done = run("diff", a, b)
    assert done.exit_code == 2
    assert done.stderr.startswith(
        f"error: ArchiveDamaged: topic orders partition 0: {log}: The batch at offset 0 is damaged"
    )
    assert "hint: `logkeep verify` names all damage.\n" in done.stderr


def test_damage_of_a_batch_is_reported_with_its_position(tmp_path: Path) -> None:
    a, b, _ = one_damaged(tmp_path, 80)
    done = run("diff", a, b)
    assert done.exit_code == 2
    assert re.search(r": The batch at offset 0 is damaged: .* its bytes give 0x[0-9a-f]+, at position 0\.", done.stderr)


def test_damage_that_no_crc_covers_is_reported_as_a_restore_tells_it(tmp_path: Path) -> None:
    """The leader epoch of a batch was altered: only the object's digest shows it."""
    a, b, log = one_damaged(tmp_path, 15)
    done = run("diff", a, b)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: ArchiveDamaged: topic orders partition 0: {log}: its BLAKE3 is ")
    done = run("timestamps", a)
    assert done.exit_code == 6
    assert f"fault: {log}, offset 0: its BLAKE3 is " in done.stderr


def test_an_index_of_aborted_transactions_that_is_wrong_is_said(tmp_path: Path) -> None:
    for name in ("a-0", "b-0"):
        write_log(tmp_path / name, [batch(0, 3, producer_id=4, transactional=True), marker(3, 4, commit=False)])
    index = next((tmp_path / "a-0").glob("*.txnindex"))
    index.write_bytes(index.read_bytes()[:-1])
    done = run("diff", tmp_path / "a-0", tmp_path / "b-0", "--rename", "a=b")
    assert done.exit_code == 2
    assert f"{index}: The transaction index has 33 bytes, not a multiple of 34." in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of B and --bootstrap-server must be given"),
        (["{}", "--bootstrap-server", "localhost:9092"], "one of B and --bootstrap-server must be given"),
        (["{}", "--rename", "a"], "--rename 'a': give two names with = between them"),
        (["{}", "--rename", "a=c", "--rename", "b=c"], "two topics of A have the same name on the other side"),
        (["--bootstrap-server", "no port"], "--bootstrap-server 'no port' with --security-protocol PLAINTEXT: "),
        (
            ["--bootstrap-server", "h:1", "--security-protocol", "SASL_SSL"],
            "--bootstrap-server 'h:1' with --security-protocol SASL_SSL: ",
        ),
        (
            ["--bootstrap-server", "h:1", "--security-protocol", "SASL_SSL", "--sasl-mechanism", "PLAIN"],
            "spec.cluster.security.sasl.secretRef",
        ),
        ([*KAFKA, "PLAIN", "--token-scope", "x"], "--token-scope has no effect: it is for OAUTHBEARER"),
        ([*KAFKA, "PLAIN", "--aws-region", "x"], "--aws-region has no effect: it is for AWS_MSK_IAM"),
        ([*KAFKA, "AWS_MSK_IAM"], "AWS_MSK_IAM needs the region of the cluster.\nhint: Give --aws-region."),
        ([*KAFKA, "OAUTHBEARER", "--token-scope", "x"], "--token-scope has no effect without --token-endpoint"),
        ([*KAFKA, "OAUTHBEARER"], "LOGKEEP_KAFKA_TOKEN_FILE is not set"),
        ([*KAFKA, "OAUTHBEARER", "--token-endpoint", "https://sso/token"], "LOGKEEP_KAFKA_USERNAME is not set"),
        ([*KAFKA, "OAUTHBEARER", "--token-endpoint", "https://u:p@sso/token"], f"--token-endpoint: {NOT_A_URL}"),
        (
            [*KAFKA, "OAUTHBEARER", "--token-endpoint", "https://sso/token", "--token-scope", "a  b"],
            "--token-scope: 'a  b' is not a list of scopes with a space between two",
        ),
        ([*KAFKA, "AWS_MSK_IAM", "--aws-region", "a b"], "--aws-region: 'a b' is not the name of a region"),
        ([*KAFKA[:4], "--token-endpoint", "https://sso/token"], "--token-endpoint has no effect without --sasl-mech"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    a = archive(tmp_path / "a", (0, 10))
    done = run("diff", a, *(argument.replace("{}", str(a)) for argument in arguments))
    assert done.exit_code == 2, done.output
    assert message in done.stderr


def test_a_damaged_log_folder_cannot_be_compared(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a-0", [batch(0, 2), batch(2, 2)])
    path.write_bytes(path.read_bytes()[:-1])
    done = run("diff", tmp_path / "a-0", tmp_path / "a-0")
    assert done.exit_code == 2
    assert done.stderr.endswith("hint: `logkeep log dump` shows what is left.\n")


def test_nothing_is_not_the_same_as_nothing(tmp_path: Path) -> None:
    """Both sides have only what a broker has put aside."""
    for side in "ab":
        write_log(tmp_path / side / f"orders-0.{'0' * 32}-delete", [batch(0, 3)])
    done = run("diff", tmp_path / "a", tmp_path / "b")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "error: there is no topic to compare\n" in done.stderr


def test_of_a_topic_that_was_made_again_what_a_restore_brings_back_is_compared(tmp_path: Path) -> None:
    """The newest incarnation that has records."""
    storage = open_uri((tmp_path / "a").as_uri())
    archive_of(storage, chunk(storage, 0, 50, partition=1))
    with begin(storage, "run-2") as writer:
        writer.commit(topics=[replace(ORDERS, topic_id="A" * 22, partitions=1)])
        writer.end(RunOutcome.SUCCEEDED)
    b = archive(tmp_path / "b", (0, 50), partition=1)
    assert run("diff", tmp_path / "a", b).exit_code == 0
    again = replace(ORDERS, topic_id="B" * 22, partitions=1)
    with begin(storage, "run-3") as writer:
        writer.commit(topics=[again], receipts=[chunk(storage, 0, 10, topic=again, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    for options in ([], ["--topic", "orders", "--partition", "1"]):
        done = run("diff", tmp_path / "a", b, *options)
        assert (done.exit_code, "orders-1: the partition is only in B" in done.stdout) == (6, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--security-protocol", "SSL"], "--security-protocol has no effect: it is for --bootstrap-server"),
        (["--sasl-mechanism", "PLAIN"], "--sasl-mechanism has no effect: it is for --bootstrap-server"),
        (["--rename", "nope=x"], "--rename nope=x has no effect: {} has no topic nope"),
    ],
)
def test_options_without_effect_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    a = archive(tmp_path / "a", (0, 10))
    done = run("diff", a, a, *options)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {message.replace('{}', str(a))}\n")

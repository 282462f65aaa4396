"""The cost of an archive, from its catalog."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.catalog.facts import GenerationChange, GenerationStep, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.cost.archive_cost import ArchiveCost
from logkeep_engine.archive.maintenance.cost.estimate import CostQuestion, cost_of
from logkeep_engine.archive.maintenance.cost.page import page_of
from logkeep_engine.archive.maintenance.cost.requests import gets, lists, puts, requests_of
from logkeep_engine.archive.maintenance.growth import DAY_MS as DAY
from logkeep_engine.archive.maintenance.growth import NamedObjects, growth
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.maintenance.retention_items import object_bytes
from logkeep_engine.cli import app
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.prices import Prices
from logkeep_engine.storage import DEFAULT_BLOCK, PART_BYTES, LocalStorage, Storage, open_uri
from tests.unit.archive.build import ORDERS, TIME, Batch, begin, changed, chunk
from tests.unit.archive.catalog.test_snapshots import snapshot
from tests.unit.archive.packing import packed

STATES = TopicEntry("states", "ssssssssssssssssssssss", 1, 1, {"cleanup.policy": "compact"})
PRICES = {
    "currency": "EUR",
    "storageClass": "STANDARD",
    "storagePerGiBMonth": 1024.0,
    "requestsPer1000": {"put": 5, "get": 0.4, "list": 5, "delete": 0},
    "egressPerGiB": 0.09,
}
MIB = 1 << 20


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


@pytest.fixture
def archive(storage: Storage) -> Archive:
    """Two runs: the second one adds 30 records to the 100 of the first, and to a topic that is compacted only."""
    with begin(storage, "run-1") as writer:
        writer.commit(topics=[ORDERS, STATES], receipts=[chunk(storage, 0, 100)])
        writer.end(RunOutcome.SUCCEEDED)
    with begin(storage, "run-2") as writer:
        more = [chunk(storage, 100, 120, epoch=2), chunk(storage, 0, 10, epoch=2, topic=STATES)]
        writer.commit(receipts=more)
        writer.end(RunOutcome.SUCCEEDED)
    return Archive.open(storage)


def aged(archive: Archive) -> ArchiveState:
    """The state as if the first run had been at TIME, and the second one a day later."""
    state = archive.load()
    for number, run in enumerate(state.runs.values()):
        begun = TIME + number * DAY
        state.runs[run.run_id] = replace(run, begin_time=begun, end_time=begun + 1000)
    return state


def cost(archive: Archive, state: ArchiveState, now: int = TIME + 2 * DAY, **asked: Any) -> ArchiveCost:
    """The cost, whose figures are those that a run reports for the status of a KafkaArchive."""
    found = cost_of(archive, state, CostQuestion(**asked), now)
    stored, grown = found.stored, found.growth
    assert NamedObjects.of(state, growth(state.runs.values(), now)) == NamedObjects(
        (stored.logs + stored.indexes + stored.snapshots + stored.removed).bytes,
        None if grown is None else grown.bytes_per_day,
    )
    return found


def entries(state: ArchiveState) -> Iterator[int]:
    return (object_bytes(entry) for segments in state.segments.values() for entry in segments)


def test_what_is_stored_is_what_lies_there(archive: Archive) -> None:
    found = cost(archive, archive.load())
    there = archive.storage.list()
    assert (found.objects, found.bytes) == (
        len(there) - 1,
        sum(info.size for info in there if info.path != names.ARCHIVE),
    )
    assert found.stored.logs.objects == 3
    assert found.stored.logs.bytes == sum(info.size for info in there if info.path.endswith(names.LOG))
    assert found.stored.indexes.objects == 6
    assert [topic.objects for topic in found.topics] == [6, 3]
    assert sum(topic.bytes for topic in found.topics) == sum(entries(archive.load()))


def test_what_is_stored_counts_a_generation_that_is_being_read(archive: Archive) -> None:
    before, key = cost(archive, archive.load()), (STATES.topic_id, 0)
    with begin(archive.storage, "run-3") as writer:
        writer.change_generations([GenerationChange(*key, 2, GenerationStep.BEGIN, 0, 10)])
        again = chunk(archive.storage, 0, 5, epoch=3, topic=STATES)
        writer.commit(receipts=[replace(again, generation=2)])
        writer.end(RunOutcome.SUCCEEDED)
    found = cost(archive, archive.load())
    assert found.stored.logs.objects == before.stored.logs.objects + 1
    there = [info.size for info in archive.storage.list(names.TOPICS)]
    assert (sum(topic.bytes for topic in found.topics), sum(topic.objects for topic in found.topics)) == (
        sum(there),
        len(there),
    )


def test_the_requests_of_a_segment_follow_from_the_sizes_of_its_objects(archive: Archive) -> None:
    small = archive.load().segments[ORDERS.topic_id, 0][0]
    asked = requests_of("orders", small)
    assert (asked.backup.put, asked.backup.get, asked.verify.get, asked.restore.get) == (3, 0, 3, 4)
    large = changed(small, bytes=3 * PART_BYTES, txnindex_bytes=34, txnindex_sha256="0" * 64)
    large = replace(large, transactional=True)
    asked, blocks = requests_of("orders", large), 3 * PART_BYTES // DEFAULT_BLOCK
    assert asked.backup.put == 5 + 4, "an upload in three parts, three indexes and `.txnparts`"
    assert (asked.verify.get, asked.restore.get) == (blocks + 1 + 5, 2 * (blocks + 1) + 5)
    packed = requests_of("orders", changed(large, stored_bytes=PART_BYTES, batches=3 * PART_BYTES // MIB))
    assert (packed.backup.put, packed.verify.get) == (1 + 4, 1 + blocks + 5), "a table, and blocks of the log"
    avro = requests_of("orders", changed(small, layout=Layout.AVRO))
    assert (avro.backup.put, avro.backup.get, avro.verify.get) == (1, 1, 1)
    assert [puts(size) for size in (0, PART_BYTES, PART_BYTES + 1)] == [1, 1, 4]
    assert [gets(size) for size in (1, DEFAULT_BLOCK - 1, DEFAULT_BLOCK)] == [1, 1, 2]
    assert [lists(count) for count in (0, 1000, 1001)] == [1, 1, 2]


def test_growth_is_that_of_all_objects_of_the_runs_after_the_first(archive: Archive) -> None:
    state = aged(archive)
    found = cost(archive, state)
    assert found.growth is not None
    orders, states = found.topics
    second = object_bytes(state.segments[ORDERS.topic_id, 0][1])
    assert (orders.bytes_per_day, states.bytes_per_day) == (second // 2, states.bytes // 2), "in the two days since"
    assert found.growth.bytes_per_day == (second + states.bytes) // 2
    assert found.growth.runs == 1
    assert found.growth.requests.requests.put == 3 + round(0.5 * (5 + 3)), "six for objects of segments, and a run"
    assert [item.days for item in found.projections] == [30, 365]
    daily = found.growth.bytes_per_day + found.growth.other_per_day
    assert found.projections[1].bytes == found.bytes + 365 * daily


def test_growth_counts_what_retention_has_removed_since(archive: Archive) -> None:
    state = aged(archive)
    before = cost(archive, state).growth
    state.segments.remove((ORDERS.topic_id, 0), {100})
    after = cost(archive, state).growth
    assert before is not None
    assert after is not None
    assert after.bytes_per_day == pytest.approx(before.bytes_per_day, rel=0.1)
    state.segments.remove((STATES.topic_id, 0), {0})
    assert cost(archive, state).topics[1].bytes_per_day is None, "it is unknown whose the growth is"


def test_without_a_second_run_growth_is_not_known_and_nothing_is_projected(archive: Archive) -> None:
    state = aged(archive)
    del state.runs["run-2"]
    found = cost(archive, state, prices=Prices.model_validate(PRICES))
    assert (found.growth, found.projections, found.topics[0].bytes_per_day) == (None, (), None)
    page = page_of(found)
    assert "not known" in page
    assert re.search(r"\d\d:\d\d:\d\d\.\d{3}<", page) is None, "an axis of one run has hours, not milliseconds"
    assert re.search(r">\d\d-\d\d \d\d:00<", page) is not None


def test_a_retention_saves_what_it_removes_now_and_holds_the_growth_later(archive: Archive) -> None:
    state = aged(archive)
    found = cost(archive, state, now=TIME + 10 * DAY, limits=RetentionLimits(max_age=5 * DAY))
    orders, states = found.topics
    assert found.retention is not None
    assert found.growth is not None
    assert (orders.retention, states.retention) == (orders.bytes, 0), "a topic that is compacted only stays"
    assert (found.retention.segments, found.retention.bytes) == (2, orders.bytes)
    assert found.retention.requests.requests.delete == 1
    in_a_year = found.projections[-1].retained
    assert orders.bytes_per_day is not None
    assert states.bytes_per_day is not None
    others = found.bytes - orders.bytes + 365 * (states.bytes_per_day + found.growth.other_per_day)
    assert in_a_year == others + 5 * orders.bytes_per_day
    capped = cost(archive, state, now=TIME + 10 * DAY, limits=RetentionLimits(max_bytes=1000))
    assert capped.projections[-1].retained == others + 1000


def test_what_a_compacted_topic_would_lose_is_not_known_without_a_snapshot(archive: Archive) -> None:
    orders, states = cost(archive, archive.load()).topics
    assert (orders.compacted, states.compacted) == (False, True)
    assert (orders.below_snapshots, states.below_snapshots) == (None, None)


def test_what_lies_below_snapshots_may_go_and_no_restore_reads_it(archive: Archive) -> None:
    state = archive.load()
    before = cost(archive, state)
    first, second = (object_bytes(entry) for entry in state.segments[ORDERS.topic_id, 0])
    state.snapshots[ORDERS.topic_id, 0] = [HeldSnapshot.of(snapshot(50)), HeldSnapshot.of(snapshot(100, 70))]
    found = cost(archive, state)
    assert found.topics[0].restore == before.topics[0].restore, "it is no compacted topic now"
    state.topics[ORDERS.topic_id] = replace(ORDERS, configs={"cleanup.policy": "compact"})
    found = cost(archive, state)
    orders, states = found.topics
    assert (orders.below_snapshots, states.below_snapshots, found.below_snapshots) == (first, None, first)
    parts = [part for held in state.snapshots[ORDERS.topic_id, 0] for part in held.parts((ORDERS.topic_id, 0))]
    assert (found.stored.snapshots.objects, found.stored.snapshots.bytes) == (6, sum(map(object_bytes, parts)))
    assert orders.bytes == first + second + found.stored.snapshots.bytes
    assert orders.verify.get == before.topics[0].verify.get + 3 * 2, "a part has a log and an index"
    assert orders.restore.get == 4 + 2 * 3, "one segment behind the snapshot, and its two parts"


def test_prices_are_those_of_the_file_and_nothing_is_priced_without_one(archive: Archive) -> None:
    state = aged(archive)
    free = cost(archive, state)
    assert (free.month, free.topics[0].month, free.operations.verify.price, free.projections[0].month) == (None,) * 4
    assert "EUR" not in json.dumps(free.to_json())
    found = cost(archive, state, prices=Prices.model_validate(PRICES))
    assert found.month == pytest.approx(found.bytes / MIB)
    asked = found.operations.restore.requests
    paid = (5 * asked.put + 0.4 * asked.get + 5 * asked.list) / 1000
    assert found.operations.restore.price == pytest.approx(paid)
    assert found.operations.restore.egress == pytest.approx(asked.read / (1 << 30) * 0.09)


def test_the_page_stands_on_its_own(archive: Archive) -> None:
    state = aged(archive)
    asked: dict[str, Any] = {"prices": Prices.model_validate(PRICES), "limits": RetentionLimits(max_age=5 * DAY)}
    page = page_of(cost(archive, state, **asked))
    assert "http" not in page
    assert "<script" not in page
    lines = set(re.findall(r'<polyline class="(\w+)"', page))
    assert lines == {"grows", "kept"}
    for drawn in re.findall(r"<svg.*?</svg>", page):
        ElementTree.fromstring(drawn)
    assert page.count("<svg") == 2
    assert {"orders", "full restore", "in 365 days"} <= set(re.findall(r"<td[^>]*>([^<]*)", page))


class TestCommand:
    """`logkeep inspect --cost`."""

    def run(self, archive: Archive, *options: str) -> Any:
        return CliRunner().invoke(app, ["inspect", archive.storage.uri, *options])

    def test_tables(self, archive: Archive) -> None:
        shown = self.run(archive, "--cost")
        assert shown.exit_code == 0, shown.output
        assert re.search(r"growth +not known: this needs a backup", shown.output)
        assert re.search(r"^orders ", shown.output, re.M)
        assert re.search(r"^verify +0 ", shown.output, re.M)
        assert "a month" not in shown.output

    def test_json_prices_limits_and_a_page(self, archive: Archive, tmp_path: Path) -> None:
        prices, page = tmp_path / "prices.yaml", tmp_path / "cost.html"
        prices.write_text(json.dumps(PRICES))
        options = ("--prices", str(prices), "--html", str(page), "--max-age", "30d", "--max-bytes", "1Gi")
        shown = self.run(archive, "--cost", *options, "-o", "json")
        found = json.loads(shown.stdout)
        assert (found["currency"], found["retention"]["told"]) == ("EUR", "maxAge 30d, maxBytes 1.0 GiB")
        assert found["operations"]["restore"]["requests"]["get"] > 0
        assert page.read_text().startswith("<!DOCTYPE html>")

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--prices", "x"], "--prices has no effect: it is for --cost"),
            (["--cost", "--at", "2026-01-01T00:00:00Z"], "--at has no effect with --cost"),
            (["--cost", "--max-age", "soon"], "--max-age: 'soon' is not a duration"),
            (["--cost", "--max-bytes", "1"], "--max-bytes: '1' must be at least 1Mi"),
            (["--cost", "--prices", "/none.yaml"], "/none.yaml: No such file"),
            (["--cost", "--html", "/none/cost.html"], "--html /none/cost.html: No such file"),
        ],
    )
    def test_options_that_are_wrong(self, archive: Archive, options: list[str], said: str) -> None:
        shown = self.run(archive, *options)
        assert (shown.exit_code, said in shown.output) == (2, True), shown.output

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"egressPerGiB": None}, "egressPerGiB: Input should be a valid number"),
            ({"egressPerGib": 1}, "egressPerGib: unknown field"),
            ({"storagePerGiBMonth": "0.02"}, "storagePerGiBMonth: Input should be a valid number"),
            ({"storagePerGiBMonth": -1}, "storagePerGiBMonth: Input should be greater than or equal to 0"),
            ({"requestsPer1000": {"put": 1, "get": 1, "list": 1}}, "requestsPer1000.delete: required"),
            ({"currency": ""}, "currency: String should have at least 1 character"),
        ],
    )
    def test_prices_that_are_wrong(self, archive: Archive, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
        prices = tmp_path / "prices.yaml"
        prices.write_text(json.dumps({**PRICES, **changes}))
        shown = self.run(archive, "--cost", "--prices", str(prices))
        assert (shown.exit_code, f"{prices}: {said}" in shown.output) == (2, True), shown.output


def test_segments_share_the_requests_of_their_pack(tmp_path: Path) -> None:
    storage = LocalStorage((tmp_path / "archive").as_uri())
    entries = packed(storage, *((ORDERS, number, [Batch(0).encode()]) for number in range(50)))
    found = [requests_of("orders", entry) for entry in entries]
    assert sum(item.backup.put for item in found) == 1
    assert sum(item.verify.get for item in found) == 1
    assert sum(item.restore.get for item in found) == 2
    assert sum(item.verify.read for item in found) <= storage.list("packs/")[0].size

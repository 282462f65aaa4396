"""The histories that archives have: logs that were cut off, and snapshots beside them."""

from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunOutcome, branch_id
from logkeep_engine.archive.catalog.lineage import Fork
from logkeep_engine.archive.catalog.packed import SegmentTable
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.compacted import history_of, put_slices, with_snapshots
from logkeep_engine.archive.history.view import MissingKind, MissingRange, Point, States, view
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.backup.run.archiving import branch_off
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec, parse_restore
from logkeep_engine.restore.model import point as points
from logkeep_engine.storage import LocalStorage, Storage
from tests.unit.backup.compacted_topic import KEY, CompactedTopic

FIRST, SECOND = branch_id(KEY[0], 1), branch_id(KEY[0], 2)


def topic_in(tmp_path: Path) -> CompactedTopic:
    return CompactedTopic(LocalStorage((tmp_path / "archive").as_uri()))


def write(topic: CompactedTopic, batches: int, value: bytes) -> None:
    """Two records a batch, each of a key of its own."""
    for _ in range(batches):
        topic.write([(b"key %d" % topic.end, value), (b"key %d" % (topic.end + 1), value)])


def cut_off(topic: CompactedTopic, run_id: str, offset: int, branch: str) -> None:
    """A run that finds that the log was cut off, and nothing new in it. It makes a snapshot of what is left."""
    with topic.begin(run_id) as writer:
        branch_off(writer, [Fork(*KEY, offset, topic.end, branch)])
        writer.end(RunOutcome.SUCCEEDED)
        topic.end = topic.archived = offset
        topic.make(writer)


def values(storage: Storage, state: ArchiveState) -> dict[int, bytes | None]:
    entries = list(state.segments.get(KEY, ()))
    found = open_partition(storage, "orders", entries, state.kept(*KEY)).records()
    listed = [(record.offset, record.value) for some in found for record in some]
    assert [offset for offset, _ in listed] == sorted({offset for offset, _ in listed})
    return dict(listed)


def of_line(storage: Storage, state: ArchiveState, point: Point) -> dict[int, bytes | None]:
    """Return what a view of the partition has below the point."""
    table = SegmentTable()
    put_slices(table, KEY, view(history_of(state, KEY), point).slices)
    seen = state.shared()
    seen.segments = table
    return values(storage, seen)


@pytest.fixture
def twice(tmp_path: Path) -> CompactedTopic:
    """[0, 10) was archived, cut off at 6 and rewritten up to 12, cut off at 4 and rewritten up to 8."""
    topic = topic_in(tmp_path)
    write(topic, 5, b"first")
    with topic.begin("run-1") as writer:
        topic.archive(writer)
        writer.end(RunOutcome.SUCCEEDED)
    cut_off(topic, "run-2", 6, FIRST)
    write(topic, 3, b"second")
    topic.back_up("run-3")
    cut_off(topic, "run-4", 4, SECOND)
    write(topic, 2, b"third")
    topic.back_up("run-5")
    return topic


def expected(*parts: tuple[int, bytes]) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    for end, value in parts:
        found |= dict.fromkeys(range(len(found), end), value)
    return found


LINES = {
    0: expected((10, b"first")),
    1: expected((6, b"first"), (12, b"second")),
    2: expected((4, b"first"), (8, b"third")),
}


@pytest.mark.parametrize("states", States)
@pytest.mark.parametrize("line", LINES)
def test_a_line_is_what_its_log_was(twice: CompactedTopic, line: int, states: States) -> None:
    state = Archive.open(twice.storage).load()
    assert state.line_number(KEY) == 2
    assert of_line(twice.storage, state, Point(line, states=states)) == LINES[line]
    for end in range(13):
        cut = {offset: value for offset, value in LINES[line].items() if offset < end}
        assert of_line(twice.storage, state, Point(line, end, states=states)) == cut


def test_states_stand_for_the_lines_that_agree_with_their_own(twice: CompactedTopic) -> None:
    history = history_of(Archive.open(twice.storage).load(), KEY)
    found = {line: view(history, Point(line, states=States.NEWEST)).state for line in LINES}
    assert {line: state and state.end for line, state in found.items()} == {0: 6, 1: 12, 2: 8}
    assert [(item.start, item.owner) for item in history.lines.path(1)] == [(0, 0), (6, 1)]
    assert [(item.start, item.owner) for item in history.lines.path(2)] == [(0, 0), (4, 2)]


@pytest.mark.parametrize(("branch", "line"), [(FIRST, 0), (SECOND, 1), ("", 2)])
def test_a_reader_sees_the_line_that_is_asked_for(twice: CompactedTopic, branch: str, line: int) -> None:
    state = Archive.open(twice.storage).load()
    shown = state.with_branch(KEY[0], branch) if branch else state
    assert shown.line_number(KEY) == line
    assert values(twice.storage, with_snapshots(shown)) == LINES[line]
    assert values(twice.storage, with_snapshots(shown, where_needed=True)) == LINES[line]
    assert of_line(twice.storage, shown, Point(line)) == LINES[line]


def test_what_is_missing_is_reported_with_its_reason(twice: CompactedTopic) -> None:
    with twice.begin("run-6") as writer:
        writer.end(RunOutcome.SUCCEEDED)
    state = Archive.open(twice.storage).load()
    state.lines[KEY][0].held.removed.append((0, 2))
    seen = view(history_of(state, KEY), Point(2, states=States.WHERE_NEEDED))
    assert (seen.missing, seen.whole, seen.state and seen.state.end) == ((), True, 4)
    seen = view(history_of(state, KEY), Point(2, end=3))
    assert (seen.missing, seen.whole) == ((MissingRange(0, 2, MissingKind.REMOVED),), False)


class TestSnapshotAtAFork:
    """A compacted topic is archived up to 10. Its log is cut off at 6, and a snapshot of what is left ends there."""

    @pytest.fixture
    def topic(self, tmp_path: Path) -> CompactedTopic:
        topic = topic_in(tmp_path)
        write(topic, 5, b"v")
        with topic.begin("run-1") as writer:
            topic.archive(writer)
            writer.end(RunOutcome.SUCCEEDED)
        cut_off(topic, "run-2", 6, FIRST)
        assert [item.end for item in Archive.open(topic.storage).load().snapshots[KEY]] == [6]
        return topic

    def restored(self, topic: CompactedTopic, **more: object) -> list[int]:
        spec = self.spec(topic, **more)
        archive = Archive.open(topic.storage)
        seen = points.choose(archive, spec.point)
        archived, selection = points.choose_topics(archive, seen.state, spec)
        chosen = [choice.source for choice in selection.choices]
        made = points.plan_point(archive, archived, chosen, spec.point)
        assert made.warnings == ()
        return [*values(topic.storage, points.state_at_point(archive, archived, spec.point, made.plan))]

    def spec(self, topic: CompactedTopic, **more: object) -> KafkaRestoreSpec:
        source = {"storage": {"uri": topic.storage.uri, "volume": {"claimName": "c"}}}
        given = more.pop("source", {})
        assert isinstance(given, dict)
        return parse_restore({"source": {**source, **given}, "cluster": {"bootstrapServers": ["127.0.0.1:1"]}, **more})

    def test_the_branch_has_its_records(self, topic: CompactedTopic) -> None:
        assert self.restored(topic, source={"topicIds": {"orders": FIRST}}) == [*range(10)]

    def test_so_has_the_point_before(self, topic: CompactedTopic) -> None:
        assert self.restored(topic, point={"run": "run-1"}) == [*range(10)]

    def test_the_log_as_it_is_now_ends_at_the_fork(self, topic: CompactedTopic) -> None:
        assert self.restored(topic) == [*range(6)]
        assert PointSpec.model_validate({"run": "run-2"})
        assert self.restored(topic, point={"run": "run-2"}) == [*range(6)]
        assert [str(fault) for fault in verify(Archive.open(topic.storage)).faults] == []

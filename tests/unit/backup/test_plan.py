"""The plan of a run, from offsets and the archive's state alone."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from itertools import permutations, product
from pathlib import Path
from types import MappingProxyType

import pytest

from logkeep_engine.archive.catalog.facts import Coverage, Gap, GroupEntry, Receipt, TopicEntry, branch_id
from logkeep_engine.archive.catalog.held_lines import HeldLine, PartitionFacts
from logkeep_engine.archive.catalog.lineage import Fork, LeaderSeen, LogStanding
from logkeep_engine.archive.catalog.lines import FOREVER, Line
from logkeep_engine.archive.catalog.receipts import ReceiptCheck
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.names import records_stem, segment_stem
from logkeep_engine.backup.model.plan import (
    MAX_CHUNKS_PER_TASK,
    REASON_RETENTION,
    TASK_BYTES,
    TASKS_PER_SLOT,
    BackupPlan,
    GoneTopic,
    Piece,
    open_gaps,
    open_pieces,
    pack,
    still_open,
)
from logkeep_engine.backup.model.selection import (
    AVRO_INTERNAL_TOPICS,
    check_incarnations,
    check_names,
    select_groups,
    select_topics,
)
from logkeep_engine.backup.pieces.task import CONCURRENT, CONCURRENT_LARGE, CONCURRENT_SMALL, streams_for
from logkeep_engine.backup.planning.plan_builder import BrokerAnswers, make_plan
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.spec import ConsumerGroups, Topics
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch, NoTopicMatches, StorageRefused
from logkeep_engine.kafka.topics import PartitionInfo, TopicInfo
from logkeep_engine.storage import open_uri
from tests.examples import number

MIB = 1 << 20
WHERE = ("orders", 0)


def topic(name: str, partitions: int = 1, *, letter: str = "a", leader: int = 1, internal: bool = False) -> TopicInfo:
    return TopicInfo(
        name, letter * 22, tuple(PartitionInfo(number, leader, (1,)) for number in range(partitions)), 1, internal
    )


def archived(*ranges: tuple[int, int], gaps: tuple[tuple[int, int], ...] = ()) -> ArchiveState:
    """A state in which partition 0 of topic id aaaa... has these ranges."""
    state = ArchiveState()
    identity = "a" * 22
    state.add_facts(
        [TopicEntry("orders", identity, 1, 1)],
        [Coverage(identity, 0, start, end) for start, end in ranges],
        [],
        [Gap(identity, 0, start, end, "gone") for start, end in gaps],
    )
    return state


def planned(
    state: ArchiveState | None = None,
    *,
    start: int = 0,
    end: int = 1000,
    size: int = MIB,
    chunk_bytes: int | None = None,
    groups: tuple[GroupEntry, ...] = (),
    begins: int | None = None,
    standings: Mapping[tuple[str, int], LogStanding] = MappingProxyType({}),
    silent: Sequence[tuple[str, int]] = (),
    branch: bool = False,
) -> BackupPlan:
    return make_plan(
        "run",
        [topic("orders")],
        BrokerAnswers(
            configs={"orders": {"retention.ms": "1000"}},
            earliest={("orders", 0): start},
            ends={("orders", 0): end},
            sizes={("orders", 0): size},
            standings=standings,
            silent=silent,
        ),
        state or ArchiveState(),
        branch=branch,
        beginnings={} if begins is None else {("a" * 22, 0): begins},
        groups=groups,
        chunk_bytes=chunk_bytes,
    )


def bounds(plan: BackupPlan) -> list[tuple[int, int]]:
    return [(chunk.start, chunk.end) for chunk in plan.chunks]


def test_first_run_starts_at_the_log_start() -> None:
    plan = planned(start=300)
    assert bounds(plan) == [(300, 1000)]
    assert plan.gaps == ()
    assert plan.topics[0].configs == {"retention.ms": "1000"}


def test_later_run_continues_where_the_archive_ends() -> None:
    assert bounds(planned(archived((0, 400)))) == [(400, 1000)]


def test_nothing_new_is_no_chunk() -> None:
    plan = planned(archived((0, 1000)))
    assert (plan.chunks, plan.gaps, plan.idle) == ((), (), 1)


def test_empty_partition_is_no_chunk() -> None:
    plan = planned(start=70, end=70)
    assert (plan.chunks, plan.idle) == ((), 1)


def test_retention_that_overtook_the_archive_is_a_gap() -> None:
    plan = planned(archived((0, 400)), start=550)
    assert plan.gaps == (Gap("a" * 22, 0, 400, 550, REASON_RETENTION),)
    assert bounds(plan) == [(550, 1000)]


def test_everything_gone_is_a_gap_without_a_chunk() -> None:
    plan = planned(archived((0, 400)), start=1000)
    assert [(gap.start, gap.end) for gap in plan.gaps] == [(400, 1000)]
    assert plan.chunks == ()


def test_recorded_gap_is_not_found_again() -> None:
    plan = planned(archived((0, 400), gaps=((400, 550),)), start=550)
    assert (plan.gaps, bounds(plan)) == ((), [(550, 1000)])


def test_hole_is_archived_as_soon_as_it_can_be_and_nothing_else_again() -> None:
    assert bounds(planned(archived((0, 100), (200, 300)))) == [(100, 200), (300, 1000)]
    assert bounds(planned(archived((0, 100), (300, 400), gaps=((200, 300),)))) == [(100, 200), (400, 1000)]
    assert bounds(planned(archived((0, 100), (200, 1000)))) == [(100, 200)]


@pytest.mark.parametrize(
    ("log_start", "gaps", "chunks"),
    [
        (150, [(100, 150)], [(150, 200), (6000, 7000)]),
        (5000, [(100, 200)], [(6000, 7000)]),
        (6500, [(100, 200), (6000, 6500)], [(6500, 7000)]),
    ],
)
def test_retention_that_has_passed_a_hole_is_a_gap_in_the_hole_only(
    log_start: int, gaps: list[tuple[int, int]], chunks: list[tuple[int, int]]
) -> None:
    state = archived((0, 100), (200, 6000))
    plan = planned(state, start=log_start, end=7000, chunk_bytes=1 << 40)
    assert [(gap.start, gap.end) for gap in plan.gaps] == gaps
    assert bounds(plan) == chunks
    for gap in plan.gaps:
        assert ReceiptCheck(state, ()).why_not(Receipt(gaps=(gap,)), 1) is None, "it can be committed"


@pytest.mark.parametrize(
    ("log_start", "gaps", "chunks"),
    [
        (0, [], [(0, 100), (200, 1000)]),
        (50, [(0, 50)], [(50, 100), (200, 1000)]),
        (150, [(0, 100)], [(200, 1000)]),
    ],
)
def test_beginning_that_an_earlier_run_left_out_is_archived_or_recorded_as_lost(
    log_start: int, gaps: list[tuple[int, int]], chunks: list[tuple[int, int]]
) -> None:
    plan = planned(archived((100, 200)), start=log_start, begins=0)
    assert [(gap.start, gap.end, gap.reason) for gap in plan.gaps] == [(*gap, REASON_RETENTION) for gap in gaps]
    assert bounds(plan) == chunks


def test_log_start_that_has_moved_back_adds_nothing() -> None:
    assert bounds(planned(archived((100, 200)), start=90)) == [(200, 1000)]
    assert bounds(planned(archived((100, 200)), start=10, begins=50)) == [(50, 100), (200, 1000)]


def test_gaps_of_a_stored_plan_are_committed_as_far_as_they_are_open() -> None:
    plan = replace(planned(), gaps=(Gap("a" * 22, 0, 100, 5000, REASON_RETENTION),))
    open_now = list(open_gaps(plan, archived((0, 150), (200, 6000), gaps=((180, 200),))))
    assert open_now == [Gap("a" * 22, 0, 150, 180, REASON_RETENTION)]
    assert list(open_gaps(plan, archived((0, 6000)))) == []


def test_log_that_parts_from_the_archive_is_left_as_it_is() -> None:
    """That holds also for the hole below: the run that takes the log over archives it."""
    for state in (archived((0, 1500)), archived((0, 100), (200, 1500))):
        plan = planned(state, start=50, end=9000, standings={WHERE: LogStanding(7, fork=1000)})
        assert plan.forks == (Fork("a" * 22, 0, 1000, 1500),)
        assert (plan.chunks, plan.gaps, plan.leaders, plan.idle) == ((), (), (), 0)


def branched(state: ArchiveState, fork: int, *, start: int = 0, end: int = 9000) -> BackupPlan:
    return planned(state, start=start, end=end, standings={WHERE: LogStanding(7, fork=fork)}, branch=True)


def test_old_end_becomes_a_branch_and_the_log_is_planned_from_there() -> None:
    """The hole below is planned too. What retention has taken of the new log is lost, whatever was archived there."""
    plan = branched(archived((0, 100), (200, 1500)), 1000)
    assert bounds(plan) == [(100, 200), (1000, 9000)]
    assert plan.forks == (Fork("a" * 22, 0, 1000, 1500, branch_id("a" * 22, 1)),)
    assert (plan.gaps, plan.leaders) == ((), (LeaderSeen("a" * 22, 0, 7),))
    plan = branched(archived((0, 1500)), 1000, start=1200)
    assert (bounds(plan), [(gap.start, gap.end) for gap in plan.gaps]) == ([(1200, 9000)], [(1000, 1200)])
    plan = branched(archived((0, 1500)), 1000, end=1000)
    assert (plan.chunks, len(plan.forks), plan.idle) == ((), 1, 1)


def test_log_of_which_nothing_is_left_is_planned_as_a_new_one() -> None:
    assert bounds(branched(archived((500, 1500)), 0, start=0, end=700)) == [(0, 700)]


def test_log_that_starts_after_the_fork_has_no_empty_ranges() -> None:
    """Two unclean elections, and retention since; or a topic that was created again between two questions."""
    plan = branched(archived((500, 1500)), 400, start=700, end=2000)
    assert (plan.gaps, bounds(plan), plan.idle) == ((), [(700, 2000)], 0)
    assert plan.forks == (Fork("a" * 22, 0, 400, 1500, branch_id("a" * 22, 1)),)
    plan = branched(archived((0, 1500)), 1000, start=1800, end=1800)
    assert (bounds(plan), [(gap.start, gap.end) for gap in plan.gaps], plan.idle) == ([], [(1000, 1800)], 1)


@pytest.mark.parametrize("ranges", [(), ((0, 4),), ((2, 4),), ((1, 2), (3, 5))])
def test_whatever_brokers_answer_the_plan_has_each_offset_once_and_no_empty_range(
    ranges: tuple[tuple[int, int], ...],
) -> None:
    """Log start, end and fork are asked for one after another, so they may be of different moments."""
    state = archived(*ranges)
    last = ranges[-1][1] if ranges else 0
    for start, end, fork in product(range(7), range(7), (None, *range(last))):
        plan = planned(state, start=start, end=end, standings={WHERE: LogStanding(7, fork=fork)}, branch=True)
        kept = [offset for low, high in ranges for offset in range(low, high) if fork is None or offset < fork]
        chunks = [offset for low, high in bounds(plan) for offset in range(low, high)]
        gaps = [offset for gap in plan.gaps for offset in range(gap.start, gap.end)]
        assert all(low < high for low, high in bounds(plan))
        first = min(kept, default=start)
        assert chunks == [offset for offset in range(max(first, start), end) if offset not in kept]
        assert gaps == [offset for offset in range(first, start) if offset not in kept]


def cut_off(state: ArchiveState, key: tuple[str, int], offset: int, held: PartitionFacts) -> None:
    """Let the log of a partition, which was as `held` says, continue at an offset with what the state has."""
    log = state.held(key)
    old = HeldLine(Line(), held, branch_id=branch_id(key[0], 1))
    state.lines[key] = [old, HeldLine(Line(0, offset), log.within(offset, FOREVER))]
    old.held.coverage = list(log.within(0, offset).coverage)
    state.show(key)


def test_branches_of_a_topic_are_counted() -> None:
    state = archived((0, 1500))
    cut_off(state, ("a" * 22, 1), 5, PartitionFacts())
    assert branched(state, 1000).forks[0].branch_id == branch_id("a" * 22, 2)


def test_gaps_alone_are_no_reason_to_refuse_a_log() -> None:
    """A run has recorded the end as lost that was cut off; the log has other records there now."""
    state = archived((0, 1000), gaps=((1000, 1500),))
    plan = planned(state, end=9000, standings={WHERE: LogStanding(7, fork=1000)})
    assert plan.forks == (Fork("a" * 22, 0, 1000, 1500, branch_id("a" * 22, 1)),)
    assert bounds(plan) == [(1000, 9000)]


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [(1400, 6, 1000), (1400, -1, 1400), (1400, 7, 1400), (900, 5, 900), (99_000, 6, 1000), (99_000, 8, 9000)],
)
def test_position_in_an_old_end_goes_back_to_where_the_logs_part(offset: int, epoch: int, expected: int) -> None:
    state = archived((0, 1500))
    state.epochs["a" * 22, 0] = [(3, 0), (5, 700)]
    state.leaders["a" * 22, 0] = 6
    group = GroupEntry("g", "orders", "a" * 22, 0, offset, epoch)
    standings = {WHERE: LogStanding(7, fork=1000)}
    plan = planned(state, end=9000, standings=standings, branch=True, groups=(group,))
    assert [entry.offset for entry in plan.groups] == [expected]
    held = PartitionFacts(epochs=[(3, 0), (5, 700)], leader=6)
    later = archived((0, 5000))
    cut_off(later, ("a" * 22, 0), 1000, held)
    plan = planned(later, end=9000, standings={WHERE: LogStanding(7)}, groups=(group,))
    assert [entry.offset for entry in plan.groups] == [expected]


def test_log_that_ends_below_the_archive_parts_there_if_nothing_is_known_of_its_leaders() -> None:
    plan = planned(archived((0, 100), (200, 300)), end=150)
    assert plan.forks == (Fork("a" * 22, 0, 150, 300),)
    assert (plan.chunks, plan.gaps) == ((), ())
    # The leader epochs decide: a new leader's last stable offset may lag.
    plan = planned(archived((0, 300)), end=150, standings={WHERE: LogStanding(7)})
    assert (plan.forks, plan.chunks, plan.idle) == ((), (), 1)


def test_leader_is_noted_where_something_is_archived_of_its_log_and_once_where_none_is_known() -> None:
    state = archived((0, 400))
    standings = {WHERE: LogStanding(7)}
    seen = (LeaderSeen("a" * 22, 0, 7),)
    assert planned(state, end=400, standings=standings).leaders == seen
    state.leaders["a" * 22, 0] = 5
    assert planned(state, end=400, standings=standings).leaders == ()
    plan = planned(state, end=500, standings=standings)
    assert (plan.leaders, [piece.leader_epoch for piece in open_pieces(plan, state)]) == (seen, [7])
    plan = planned(state, end=500, standings={WHERE: LogStanding(-1, known=False)})
    assert (plan.leaders, [piece.leader_epoch for piece in open_pieces(plan, state)]) == ((), [-1])


def test_archive_of_which_nothing_says_the_leaders_is_named() -> None:
    assert planned(archived((0, 400)), standings={WHERE: LogStanding(7, known=False)}).uncompared == (WHERE,)
    assert planned(ArchiveState(), standings={WHERE: LogStanding(7)}).uncompared == ()


def test_partition_whose_leader_does_not_answer_is_unavailable() -> None:
    plan = planned(archived((0, 400)), silent=[WHERE])
    assert (plan.unavailable, plan.chunks, plan.idle) == ((WHERE,), (), 0)


def test_recreated_topic_starts_again() -> None:
    state = archived((0, 400))
    plan = make_plan(
        "run",
        [topic("orders", letter="b")],
        BrokerAnswers(configs={}, earliest={("orders", 0): 0}, ends={("orders", 0): 10}, sizes={}),
        state,
    )
    assert [(chunk.topic_id, chunk.start, chunk.end) for chunk in plan.chunks] == [("b" * 22, 0, 10)]


def test_recreated_topic_is_refused_where_both_would_have_one_folder() -> None:
    """Even if retention has removed all of the first topic: a late deletion may hit a name that is used again."""
    state = archived((0, 400))
    check_incarnations([topic("orders", letter="b")], state)  # nothing of the first lies there
    state.removed["a" * 22, 0] = [(0, 400)]
    check_incarnations([topic("orders"), topic("payments", letter="b")], state)
    with pytest.raises(ArchiveMismatch) as caught:
        check_incarnations([topic("orders", letter="b")], state)
    assert caught.value.message == (
        f"Topic 'orders' was deleted and created again: its id is {'b' * 22}, but the archive holds records of id "
        f"{'a' * 22}. In this format both would share one folder, so nothing was written."
    )


def test_chunks_cover_the_range_evenly_by_bytes() -> None:
    plan = planned(archived((0, 1000)), end=11_000, size=110 * MIB, chunk_bytes=30 * MIB)
    assert bounds(plan) == [(1000, 3500), (3500, 6000), (6000, 8500), (8500, 11_000)]
    assert [chunk.bytes for chunk in plan.chunks] == [25 * MIB] * 4


def test_huge_records_do_not_make_a_chunk_for_every_offset() -> None:
    assert len(planned(end=3000, size=1 << 40).chunks) == 3


def test_partition_without_a_leader_is_named() -> None:
    topics = [topic("orders"), topic("broken", letter="b", leader=-1)]
    plan = make_plan(
        "run",
        topics,
        BrokerAnswers(configs={}, earliest={("orders", 0): 0}, ends={("orders", 0): 5}, sizes={}),
        ArchiveState(),
    )
    assert plan.unavailable == (("broken", 0),)
    assert [entry.name for entry in plan.topics] == ["orders", "broken"]


def test_partition_that_gave_no_answer_is_named_though_it_has_a_leader() -> None:
    topics = [topic("orders"), topic("silent", letter="b")]
    plan = make_plan(
        "run",
        topics,
        BrokerAnswers(configs={}, earliest={("orders", 0): 0}, ends={("orders", 0): 5}, sizes={}),
        ArchiveState(),
    )
    assert [entry.name for entry in plan.topics] == ["orders", "silent"]
    assert plan.unavailable == (("silent", 0),)


def test_plan_is_extended_by_what_answers_later() -> None:
    topics = [topic("orders", 3), topic("other", letter="b")]
    ends = {("orders", 0): 5}
    state = ArchiveState()
    first = make_plan("run", topics, BrokerAnswers(configs={}, earliest={WHERE: 0}, ends=ends, sizes={}), state)
    assert first.unavailable == (("orders", 1), ("orders", 2), ("other", 0))
    ends = {("orders", 0): 99, ("orders", 1): 7}
    later = make_plan(
        "run",
        topics[:1],
        BrokerAnswers(configs={}, earliest=dict.fromkeys(ends, 0), ends=ends, sizes={}),
        ArchiveState(),
        among=first.unavailable,
    )
    both = first.extended(replace(later, gone=(GoneTopic("other", "b" * 22),)))
    assert [(chunk.topic, chunk.partition, chunk.end) for chunk in both.chunks] == [("orders", 0, 5), ("orders", 1, 7)]
    assert (both.unavailable, both.gone) == ((("orders", 2),), (GoneTopic("other", "b" * 22),))
    assert [entry.name for entry in both.topics] == ["orders", "other"]


def test_positions_of_other_topics_are_dropped_and_none_lies_past_the_end() -> None:
    def position(offset: int, name: str = "orders", letter: str = "a") -> GroupEntry:
        return GroupEntry("group", name, letter * 22, 0, offset, 3, "meta")

    plan = planned(groups=(position(700), position(1200), position(5, "others"), position(5, letter="b")))
    assert plan.groups == (position(700), position(1000))


def test_plan_survives_json() -> None:
    plan = replace(
        planned(archived((0, 400)), start=550, groups=(GroupEntry("g", "orders", "a" * 22, 0, 600),)),
        forks=(Fork("a" * 22, 0, 1, 2),),
        leaders=(LeaderSeen("a" * 22, 0, 3),),
        uncompared=(("orders", 0),),
        unavailable=(("broken", 3),),
        gone=(GoneTopic("gone", "c" * 22),),
    )
    assert BackupPlan.from_json(plan.to_json(), "plan") == plan


def test_plan_of_another_version_is_refused() -> None:
    body = json.loads(planned().to_json())
    for other, reported in (
        ({"format": 2}, "plan of a backup of format 2"),
        ({"later": 1}, r"unknown keys \['later'\]"),
    ):
        with pytest.raises(ArchiveMismatch, match=reported):
            BackupPlan.from_json(json.dumps({**body, **other}).encode(), "plan")


def test_plan_that_was_altered_is_refused() -> None:
    body = json.loads(planned(archived((0, 400))).to_json())
    chunk = body["chunks"][0]
    for other in ({"chunks": [[1, *chunk[1:]]]}, {"chunks": [chunk[:-1]]}, {"generations": [["a", 0, 1, "Own", 0, 0]]}):
        with pytest.raises(ArchiveDamaged, match="plan: not a plan of a backup"):
            BackupPlan.from_json(json.dumps({**body, **other}).encode(), "plan")


def test_topics_match_by_their_whole_name() -> None:
    topics = [topic("orders"), topic("orders-eu"), topic("my-orders"), topic("payments")]
    assert [t.name for t in select_topics(topics, Topics(include=("orders", "pay.*")))] == ["orders", "payments"]
    wanted = Topics(include=(".*orders.*",), exclude=("my-.*",))
    assert [t.name for t in select_topics(topics, wanted)] == ["orders", "orders-eu"]


def test_internal_topics_must_be_asked_for() -> None:
    topics = [topic("orders"), topic("__consumer_offsets"), topic("secret", internal=True)]
    topics.append(topic("__remote_log_metadata"))
    assert [t.name for t in select_topics(topics, Topics(include=(".*",)))] == ["orders"]
    everything = select_topics(topics, Topics(include=(".*",), internal=True))
    assert [t.name for t in everything] == ["__consumer_offsets", "__remote_log_metadata", "orders", "secret"]


def test_topics_of_the_format_come_along_unless_they_are_excluded() -> None:
    topics = [topic("orders"), topic("__consumer_offsets", internal=True), topic("_schemas"), topic("other")]
    also = AVRO_INTERNAL_TOPICS
    chosen = select_topics(topics, Topics(include=("orders",)), also=also)
    assert [t.name for t in chosen] == ["__consumer_offsets", "_schemas", "orders"]
    chosen = select_topics(topics, Topics(include=("orders",), exclude=("__.*",)), also=also)
    assert [t.name for t in chosen] == ["_schemas", "orders"]
    chosen = select_topics(topics, Topics(include=(".*",)), also=also)
    assert [t.name for t in chosen] == ["__consumer_offsets", "_schemas", "orders", "other"]
    with pytest.raises(NoTopicMatches):
        select_topics(topics, Topics(include=("nothing",)), also=also)


def test_no_match_names_patterns_and_at_most_ten_topics() -> None:
    topics = [topic(f"topic-{number:02d}") for number in range(12)]
    with pytest.raises(NoTopicMatches) as caught:
        select_topics(topics, Topics(include=("topic",), exclude=("x.*",)))
    message = str(caught.value)
    assert "include 'topic' without 'x.*'" in message
    assert "The cluster has 12: topic-00, " in message
    assert "topic-09, ..." in message
    assert "topic-10" not in message


def test_no_match_in_an_empty_cluster_says_so() -> None:
    with pytest.raises(NoTopicMatches, match="no topics that may be archived"):
        select_topics([topic("__consumer_offsets")], Topics(include=(".*",)))


def test_groups_match_by_their_whole_id() -> None:
    assert select_groups(["b", "a", "ab"], ConsumerGroups(include=("a", "b"))) == ["a", "b"]
    assert select_groups(["b", "a"], ConsumerGroups(exclude=("a",))) == ["b"]
    assert select_groups([], ConsumerGroups()) == []
    assert select_groups(["from-secret\n", "plain"], ConsumerGroups()) == ["from-secret\n", "plain"]


def test_pieces_are_what_earlier_attempts_left() -> None:
    plan = planned(end=4000, size=4 * MIB, chunk_bytes=MIB)
    state = archived((0, 1000), (2500, 3000), gaps=((1000, 1200),))
    pieces = list(open_pieces(plan, state))
    assert [(piece.number, piece.start, piece.end) for piece in pieces] == [
        (1, 1200, 2000),
        (2, 2000, 2500),
        (3, 3000, 4000),
    ]
    assert [piece.bytes for piece in pieces] == [MIB * 800 // 1000, MIB // 2, MIB]
    assert [piece.first for piece in pieces] == [True, False, False]


def test_every_partition_has_a_first_piece() -> None:
    topics = [topic("orders", 2), topic("payments", letter="b")]
    where = [(one.name, part.id) for one in topics for part in one.partitions]
    plan = make_plan(
        "run",
        topics,
        BrokerAnswers(
            configs={},
            earliest=dict.fromkeys(where, 0),
            ends=dict.fromkeys(where, 2000),
            sizes=dict.fromkeys(where, 2 * MIB),
        ),
        ArchiveState(),
        chunk_bytes=MIB,
    )
    pieces = list(open_pieces(plan, archived((0, 1500))))
    assert [(piece.topic, piece.partition, piece.start, piece.first) for piece in pieces] == [
        ("orders", 0, 1500, True),
        ("orders", 1, 0, True),
        ("orders", 1, 1000, False),
        ("payments", 0, 0, True),
        ("payments", 0, 1000, False),
    ]


def test_offsets_that_neighbours_both_settle_stay_with_the_first() -> None:
    first = Receipt((Coverage("a" * 22, 0, 0, 120),))
    second = Receipt((Coverage("a" * 22, 0, 160, 200),), gaps=(Gap("a" * 22, 0, 100, 160, "gone"),))
    state = ArchiveState()
    assert still_open([first, second], state) == [first, replace(second, gaps=(Gap("a" * 22, 0, 120, 160, "gone"),))]
    assert still_open([second, first], state) == [second, Receipt((Coverage("a" * 22, 0, 0, 100),))]
    assert still_open([first], archived((100, 200))) == [Receipt((Coverage("a" * 22, 0, 0, 100),))]
    assert still_open([second], archived((0, 120), gaps=((120, 200),))) == []
    middle = archived((0, 50), (60, 100))
    assert still_open([first], middle) == [Receipt((Coverage("a" * 22, 0, 50, 60), Coverage("a" * 22, 0, 100, 120)))]


def piece(number: int, size: int, leader: int = 1) -> Piece:
    return Piece(number, "orders", "a" * 22, number, 0, 10, leader, size)


def test_big_pieces_go_alone_and_small_ones_together() -> None:
    tasks = pack([piece(number, 2 * TASK_BYTES if number < 2 else MIB) for number in range(42)], 1)
    assert [len(task) for task in tasks[:2]] == [1, 1]
    assert sum(len(task) for task in tasks) == 42
    assert len(tasks) <= 8
    assert {one.number for task in tasks for one in task} == set(range(42))


def test_every_slot_gets_several_tasks() -> None:
    tasks = pack([piece(number, 4 * MIB) for number in range(64)], 4)
    assert len(tasks) >= 4 * TASKS_PER_SLOT


def test_a_small_run_has_one_task_for_each_slot() -> None:
    """Tasks of a few MiB, one after another, would wait for their connections and for the disk each by itself."""
    assert [len(task) for task in pack([piece(number, 8 * MIB) for number in range(4)], 1)] == [4]
    assert [len(task) for task in pack([piece(number, MIB) for number in range(64)], 4)] == [16] * 4
    assert len(pack([piece(number, 0) for number in range(64)], 1)) == TASKS_PER_SLOT, "these may be large"
    assert len(pack([piece(number, MIB) for number in range(64)], 1, limited=True)) == TASKS_PER_SLOT


def test_partitions_that_are_about_equal_make_no_task_more() -> None:
    """A third task would wait for its connections and for the disk by itself, with a single partition to read."""
    sizes = [61 * MIB, 60 * MIB, 60 * MIB, 61 * MIB]
    for order in permutations(sizes):
        assert [len(task) for task in pack([piece(*item) for item in enumerate(order * 2)], 2)] == [2] * 4, order
    uneven = pack([piece(number, size * MIB) for number, size in enumerate([90, 60, 60, 30] * 2)], 2)
    assert [sum(one.bytes for one in task) // MIB for task in uneven] == [120, 120, 120, 90, 30]


def test_one_slot_gets_one_task_while_there_is_little_to_do() -> None:
    """There is nobody to wait for in the end, and each task more waits for an answer and for the disk."""
    assert [len(task) for task in pack([piece(number, 128 * MIB) for number in range(4)], 1)] == [4]
    assert [len(task) for task in pack([piece(number, 128 * MIB) for number in range(6)], 1)] == [3, 3]
    assert [len(task) for task in pack([piece(number, 128 * MIB) for number in range(4)], 1, limited=True)] == [2, 2]


def test_tasks_are_bounded_by_bytes_and_count() -> None:
    tasks = pack([piece(number, 4 * MIB) for number in range(5000)], 1)
    assert max(len(task) for task in tasks) == TASK_BYTES // (4 * MIB)
    tasks = pack([piece(number, 0) for number in range(5000)], 1)
    assert max(len(task) for task in tasks) <= MAX_CHUNKS_PER_TASK


def test_tasks_keep_to_one_broker() -> None:
    tasks = pack([piece(number, MIB, leader=number % 4) for number in range(400)], 2)
    mixed = [task for task in tasks if len({one.leader for one in task}) > 1]
    assert len(mixed) <= 3


def test_nothing_to_pack_is_no_task() -> None:
    assert pack([], 8) == []


@pytest.mark.deep
def test_very_many_partitions_are_planned_in_seconds() -> None:
    """If each looked at all others, it would be minutes."""
    count = number(20_000, deep=100_000)
    topics = [
        TopicInfo(f"topic-{n}", f"{n:022d}", tuple(PartitionInfo(p, p % 9, (1,)) for p in range(100)), 3, False)
        for n in range(count // 100)
    ]
    where = [(one.name, part.id) for one in topics for part in one.partitions]
    started = time.process_time()
    plan = make_plan(
        "run",
        topics,
        BrokerAnswers(
            configs={},
            earliest=dict.fromkeys(where, 0),
            ends=dict.fromkeys(where, 1000),
            sizes=dict.fromkeys(where, MIB),
        ),
        ArchiveState(),
    )
    again = BackupPlan.from_json(plan.to_json(), "plan")
    tasks = pack(list(open_pieces(again, ArchiveState())), 20)
    assert len(plan.chunks) == count
    assert sum(len(task) for task in tasks) == count
    assert time.process_time() - started < count / 1600


@pytest.mark.parametrize("format_name", FormatName)
@pytest.mark.parametrize("name", ["t" * 227, ".t", ".logkeep"])
def test_topic_with_any_name_that_files_can_have_is_planned(tmp_path: Path, format_name: FormatName, name: str) -> None:
    check_names([TopicEntry(name, "a" * 22, 1, 1)], format_name, open_uri(f"file://{tmp_path}"))


@pytest.mark.parametrize(
    ("format_name", "name", "partitions", "says"),
    [
        *(
            (every, ".logkeep-x", 1, "topics/.logkeep-x: names that begin with .logkeep- are those")
            for every in FormatName
        ),
        (
            FormatName.AVRO,
            "t" * 227,
            11,
            "at most 255 bytes. Exclude the topic, or use an object store or another format",
        ),
        (FormatName.AVRO, "t" * 249, 1, "at most 255 bytes"),
    ],
)
def test_topic_with_a_name_that_no_file_can_have_is_refused(
    tmp_path: Path, format_name: FormatName, name: str, partitions: int, says: str
) -> None:
    topics = [TopicEntry(name, "a" * 22, partitions, 1)]
    with pytest.raises(StorageRefused, match=re.escape(says)):
        check_names(topics, format_name, open_uri(f"file://{tmp_path}"))
    check_names(topics, format_name, open_uri("s3://bucket"))


@pytest.mark.parametrize(
    "stem",
    [
        segment_stem("t" * 249, "a" * 22, 2**31 - 1, 2**63 - 1, 10**10 - 1, 9),
        records_stem("t" * 249, 2**31 - 1, 2**63 - 1),
    ],
)
def test_topic_with_the_longest_name_lies_in_files(tmp_path: Path, stem: str) -> None:
    storage = open_uri(f"file://{tmp_path}")
    storage.put(f"{stem}.timeindex", b"1")
    assert [info.path for info in storage.list()] == [f"{stem}.timeindex"]


def test_writers_of_large_objects_collect_no_more_than_a_task_has_room_for() -> None:
    def streams(*sizes: int) -> int:
        return streams_for([piece(number, size) for number, size in enumerate(sizes)])

    assert streams(MIB, 10, MIB) == CONCURRENT_SMALL
    assert streams(2 * MIB, 10) == CONCURRENT
    assert streams(*[16 * MIB] * 9) == CONCURRENT
    assert streams(496 * MIB, *[MIB] * 99) == CONCURRENT
    assert streams(*[20 * MIB] * 9) == CONCURRENT_LARGE
    assert streams(496 * MIB, 496 * MIB, MIB) == CONCURRENT_LARGE
    assert streams(0, 0, 0, 0) == CONCURRENT, "it is unknown how large they are"

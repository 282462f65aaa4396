"""The catalog and the configurations say before the first record what a target would delete of a restore."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import ClusterState, state_path
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.packed import SegmentTable
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.restored_topics import RestoreTopics, TopicConfigs, TopicRetention
from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.restore.model.plan import PointPlan
from logkeep_engine.restore.model.selection import Choice
from logkeep_engine.restore.model.topics import ExistingTopic
from logkeep_engine.restore.topics.retention import (
    RestoredTopic,
    RestoredTopics,
    RetentionLoss,
    TargetRetention,
    describe_defaults,
    going,
    refuse_going,
    released_configs,
    source_defaults,
)
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, TIME, archive_of, begin, changed, chunk

DAY = 86_400_000
WEEK = {"retention.ms": str(7 * DAY), "retention.bytes": "-1", "cleanup.policy": "delete"}
OLD = TIME + 30 * DAY
"""A moment thirty days after the records of the archive."""


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


@pytest.fixture
def archived(storage: Storage) -> ArchiveState:
    """Partition 0 has two segments of 100 records, partition 1 has one. Each record has a time of its own."""
    receipts = chunk(storage, 0, 100), chunk(storage, 100, 200), chunk(storage, 0, 100, partition=1)
    return archive_of(storage, *receipts).load()


def found(
    archived: ArchiveState,
    own: dict[str, str],
    *,
    now: int = OLD,
    brokers: dict[str, str] | None = None,
    point: PointPlan | None = None,
    logs: int = 0,
) -> RetentionLoss | None:
    retention = TargetRetention.of(own, {} if brokers is None else brokers)
    return going(archived, RestoredTopic(ORDERS, "copy", logs), retention, point, now)


def test_all_that_is_too_old_is_counted_and_named(archived: ArchiveState) -> None:
    assert str(found(archived, {"retention.ms": str(7 * DAY)})) == (
        "topic copy keeps records for 7d (retention.ms=604800000): it deletes up to 300 of 300 records in 3 archived "
        "segments, the oldest of 2023-11-14T22:13:20.000Z"
    )


def test_segments_that_are_young_enough_stay(archived: ArchiveState) -> None:
    goes = found(archived, {"retention.ms": str(7 * DAY)}, now=TIME + 7 * DAY + 50)
    assert goes is not None
    assert (goes.records, goes.segments) == (200, 2)  # those that begin before 50 ms
    assert found(archived, {"retention.ms": str(7 * DAY)}, now=TIME + 7 * DAY) is None


@pytest.mark.parametrize(
    "own",
    [
        {"retention.ms": "-1"},
        {"cleanup.policy": "compact"},
        {"cleanup.policy": ""},
        {"retention.ms": str(31 * DAY)},
        {"retention.ms": "long"},
    ],
)
def test_nothing_goes_of_what_a_topic_keeps(archived: ArchiveState, own: dict[str, str]) -> None:
    assert found(archived, own) is None


def test_a_compacted_topic_that_also_deletes_is_among_them(archived: ArchiveState) -> None:
    assert found(archived, {"cleanup.policy": "compact,delete", "retention.ms": "1"}) is not None


def test_defaults_of_the_brokers_count_and_are_named(archived: ArchiveState) -> None:
    assert "(retention.ms=3600000, the brokers' default)" in str(
        found(archived, {}, brokers={"retention.ms": "3600000"})
    )
    assert found(archived, {}, brokers={"retention.ms": "-1"}) is None
    assert found(archived, {}, brokers={"cleanup.policy": "compact"}) is None
    assert "(retention.ms=604800000, Kafka's default, since no broker reports its own)" in str(found(archived, {}))


def test_what_does_not_fit_goes_from_the_front(archived: ArchiveState) -> None:
    first, second = archived.segments[(ORDERS.topic_id, 0)]
    own = {"retention.ms": "-1", "retention.bytes": str(first.bytes + second.bytes - 1)}
    goes = found(archived, own)
    assert goes is not None
    assert (goes.records, goes.total, goes.segments) == (100, 300, 1)
    assert f"keeps {own['retention.bytes']} bytes a partition" in str(goes)
    assert found(archived, {**own, "retention.bytes": str(first.bytes + second.bytes)}) is None
    both = found(archived, {"retention.ms": "1", "retention.bytes": "1"})
    assert both is not None
    assert both.records == 300
    assert "records for 0s (retention.ms=1) and 1 bytes a partition (retention.bytes=1)" in both.why


def test_divided_records_have_the_room_of_all_partitions(archived: ArchiveState) -> None:
    total = sum(entry.bytes for key in (0, 1) for entry in archived.segments[(ORDERS.topic_id, key)])
    own = {"retention.ms": "-1", "retention.bytes": str(-(-total // 3))}
    assert found(archived, own) is not None
    assert found(archived, own, logs=3) is None
    assert found(archived, own, logs=2) is not None


def test_a_window_leaves_out_what_does_not_come(archived: ArchiveState) -> None:
    own = {"retention.ms": str(7 * DAY)}
    now = TIME + 7 * DAY + 120
    assert found(archived, own, now=now, point=PointPlan(0, since=TIME + 120)) is None
    goes = found(archived, own, now=now, point=PointPlan(0, since=TIME + 110))
    assert goes is not None
    assert (goes.records, goes.total, goes.oldest) == (100, 100, TIME + 110)
    goes = found(archived, own, now=OLD, point=PointPlan(0, before=TIME + 100))
    assert goes is not None
    assert (goes.records, goes.total) == (200, 200)


def test_what_lies_after_the_end_of_a_point_does_not_count(archived: ArchiveState) -> None:
    own, (first, second) = {"retention.ms": str(7 * DAY)}, archived.segments[ORDERS.topic_id, 0]
    cut = PointPlan(0, ends={(ORDERS.topic_id, 0): 150, (ORDERS.topic_id, 1): 20})
    assert "it deletes up to 170 of 170 records in 3 archived segments" in str(found(archived, own, point=cut))
    half = PointPlan(0, ends={(ORDERS.topic_id, 0): 100, (ORDERS.topic_id, 1): 0})
    assert "it deletes up to 100 of 100 records in 1 archived segment" in str(found(archived, own, point=half))
    room = {"retention.ms": "-1", "retention.bytes": str(first.bytes)}
    assert found(archived, room) is not None
    assert found(archived, room, point=half) is None
    gaps = with_segments(archived, (first, replace(second, next_offset=230)))
    assert "up to 150 of at most 150 records" in str(
        found(gaps, own, point=PointPlan(0, ends={(ORDERS.topic_id, 0): 150}))
    )


@pytest.mark.parametrize("point", [PointPlan(0, before=TIME + 50), PointPlan(0, since=TIME + 50)])
def test_the_number_of_records_of_a_time_is_a_bound(archived: ArchiveState, point: PointPlan) -> None:
    goes = found(archived, {"retention.ms": str(7 * DAY)}, point=point)
    assert goes is not None
    assert (goes.exact, goes.of) == (False, f"at most {goes.total}")


def test_the_records_of_aborted_transactions_are_in_the_number(archived: ArchiveState) -> None:
    (entry,) = archived.segments[ORDERS.topic_id, 1]
    goes = found(with_segments(archived, [changed(entry, transactional=True)]), {"retention.ms": str(7 * DAY)})
    assert "it deletes up to 100 of at most 100 records" in str(goes)


def with_segments(archived: ArchiveState, entries: Iterable[SegmentEntry]) -> ArchiveState:
    view = archived.shared()
    view.segments = SegmentTable()
    for entry in entries:
        view.segments.add(entry)
    return view


def with_times(archived: ArchiveState, first: int, last: int, *numbers: int) -> ArchiveState:
    """The archive with these times in segments of partition 0."""
    old, others = archived.segments[ORDERS.topic_id, 0], archived.segments[ORDERS.topic_id, 1]
    times = {"min_base_timestamp": first, "max_timestamp": last}
    new = (changed(entry, **times) if number in numbers else entry for number, entry in enumerate(old))
    return with_segments(archived, (*new, *others))


@pytest.mark.parametrize("first", [-1, -5000])
def test_a_record_without_a_time_hides_how_old_the_others_of_its_segment_are(
    archived: ArchiveState, first: int
) -> None:
    own, young = {"retention.ms": str(7 * DAY)}, TIME + DAY
    assert found(archived, own, now=young) is None
    mixed = with_times(archived, first, TIME + 99, 0)
    goes = found(mixed, own, now=young)
    assert goes is not None
    assert (goes.records, goes.total, goes.oldest) == (100, 300, -1)
    assert "the oldest" not in str(goes)
    assert found(mixed, own, now=young, point=PointPlan(0, since=TIME)) is None


def test_segments_without_any_time_are_as_old_as_their_restore(archived: ArchiveState) -> None:
    timeless = with_times(archived, -1, -1, 0, 1)
    goes = found(timeless, {"retention.ms": str(7 * DAY)})
    assert goes is not None
    assert (goes.records, goes.total) == (100, 300)  # those of partition 1


def test_old_records_after_a_young_one_in_a_batch_are_not_overlooked(archived: ArchiveState) -> None:
    """All that a point gives may lie after the first records of batches, which are younger than the point."""
    own, point = {"retention.ms": str(7 * DAY)}, PointPlan(0, before=TIME)
    goes = found(archived, own, point=point)
    assert goes is not None
    assert (goes.records, goes.total, goes.segments, goes.oldest) == (300, 300, 3, -1)
    assert found(archived, own, now=TIME + 6 * DAY, point=point) is None  # all that the point gives may be young
    assert found(archived, {"retention.ms": "-1", "retention.bytes": "1"}, point=point) is None
    beside = with_times(archived, -1, -1, 0)  # which comes, and is not old
    goes = found(beside, own, point=point)
    assert goes is not None
    assert (goes.records, goes.total) == (200, 300)


def test_records_of_a_layout_without_batches_do_not_hide_behind_others(archived: ArchiveState) -> None:
    entries = (changed(entry, layout=Layout.AVRO) for found in archived.segments.values() for entry in found)
    view = with_segments(archived, entries)
    assert found(view, {"retention.ms": str(7 * DAY)}, point=PointPlan(0, before=TIME)) is None


def goes(number: int = 1) -> RetentionLoss:
    return RetentionLoss(f"topic t{number} keeps records for 7d", 5, 9, 2, TIME)


def test_what_becomes_of_it_is_the_users_choice() -> None:
    for drill in (False, True):
        assert refuse_going([], TopicRetention.REFUSE, drill=drill) == []
    assert refuse_going([goes()], TopicRetention.HOLD, drill=False) == []
    assert refuse_going([goes()], TopicRetention.APPLY, drill=False) == [str(goes())]
    (reported,) = refuse_going([goes()], TopicRetention.REFUSE, drill=True)
    assert reported.startswith("a restore into such topics would lose records: topic t1 keeps records for 7d")
    with pytest.raises(TargetUnsuitable) as refused:
        refuse_going([goes(number) for number in range(7)], TopicRetention.REFUSE, drill=False)
    assert "topic t0 keeps" in refused.value.message
    assert "topic t5 keeps" not in refused.value.message
    assert "and so do 2 more topics; nothing was written" in refused.value.message
    assert "spec.topics.retention to Hold" in str(refused.value.hint)


def test_existing_topics_count_with_their_own_and_created_ones_with_what_they_get(archived: ArchiveState) -> None:
    choices = [Choice(ORDERS, "copy"), Choice(ORDERS, "there")]
    own = {"retention.ms": "-1"}
    there = ExistingTopic("there", 2, {"cleanup.policy": "delete", "retention.bytes": "-1", **own}, own=own)
    existing = {"there": there}
    (one,) = RestoredTopics(archived, choices, existing, WEEK, RestoreTopics()).going(OLD)
    assert "topic copy keeps records for 7d (retention.ms=604800000, the brokers' default)" in str(one)
    override = RestoreTopics(configs=TopicConfigs(override={"retention.ms": "-1"}))
    assert RestoredTopics(archived, choices, existing, WEEK, override).going(OLD) == []
    existing = {"there": replace(there, own={"retention.ms": "60000"})}
    (one,) = RestoredTopics(archived, choices, existing, WEEK, override).going(OLD)
    assert "topic there keeps records for 1m (retention.ms=60000)" in str(one)
    # One broker says of the topic that it keeps all by default, another one has a week.
    existing = {"there": replace(there, own={})}
    (one,) = RestoredTopics(archived, choices, existing, WEEK, override).going(OLD)
    assert "topic there keeps records for 7d (retention.ms=604800000, the brokers' default)" in str(one)
    assert RestoredTopics(archived, choices, existing, {}, override).going(OLD) == []


def unknown(archived: ArchiveState, choice: Choice, compression: str = "", **topics: Any) -> list[str]:
    wanted = RestoreTopics.model_validate({"configs": {"override": {"retention.bytes": "50"}}, **topics})
    there = ExistingTopic("copy", 4, {"compression.type": compression}, own={"retention.bytes": "50"})
    existing = {"copy": there} if compression else {}
    return list(RestoredTopics(archived, [choice], existing, WEEK, wanted).describe_unknown_sizes())


def test_it_is_told_where_retention_by_size_is_known_only_at_the_end(archived: ArchiveState) -> None:
    size = sum(entry.bytes for key in (0, 1) for entry in archived.segments[(ORDERS.topic_id, key)])
    whole, divided = Choice(ORDERS, "copy"), Choice(ORDERS, "copy", wanted=4)
    assert divided.divided
    assert unknown(archived, divided) == [
        f"topic copy keeps 50 bytes a partition (retention.bytes=50), and how many of {size} bytes each partition gets "
        "depends on the keys: whether it deletes records is unknown"
    ]
    (reported,) = unknown(archived, whole, "uncompressed")
    assert (
        f"with compression.type=uncompressed records may take more than their {size} bytes in the archive" in reported
    )
    assert unknown(archived, whole, "producer") == unknown(archived, whole) == []
    assert unknown(archived, divided, retention="Hold") == []
    assert unknown(archived, divided, configs={"override": {"retention.bytes": str(size)}}) == []
    assert unknown(archived, divided, configs={"override": {"retention.bytes": "-1"}}) == []


# ---- the defaults of the source


def test_the_defaults_of_the_source_come_from_the_last_run(storage: Storage) -> None:
    state = ClusterState("run-1", TIME, defaults={"retention.ms": "-1"})
    data = state.to_json()
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 100)])
        storage.put(state_path("run-1"), data)
        writer.end(RunOutcome.SUCCEEDED, cluster_state=state.entry(data))
    archive = Archive.open(storage)
    assert source_defaults(archive, archive.load(), None) == ({"retention.ms": "-1"}, [])
    storage.put(state_path("run-1"), data + b" ")
    defaults, (reported,) = source_defaults(archive, archive.load(), None)
    assert defaults == {}
    assert "how long the source kept records by default is unknown" in reported


def test_an_archive_without_them_says_nothing(storage: Storage) -> None:
    archive = archive_of(storage, chunk(storage, 0, 100))
    assert source_defaults(archive, archive.load(), None) == ({}, [])


FOREVER, SEVEN_DAYS = {"retention.ms": "-1"}, {"retention.ms": "604800000"}


def topic(**configs: str) -> TopicEntry:
    return replace(ORDERS, configs={key.replace("_", "."): value for key, value in configs.items()})


@pytest.mark.parametrize(
    ("entry", "wanted", "expected"),
    [
        (
            topic(),
            {},
            "1 topic had retention.ms=-1 from the brokers of the source, and would get retention.ms=604800000",
        ),
        (topic(), {"retention": "Apply"}, "set it in spec.topics.configs.override: copy"),
        (topic(), {"retention": "Hold"}, "their release sets retention.ms=-1: copy"),
        (topic(retention_ms="5"), {}, None),
        (topic(), {"configs": {"override": {"retention.ms": "5"}}}, None),
        (topic(), {"configs": {"ignore": ["retention.ms"]}}, None),
        (topic(), {"configs": {"policy": "Ignore"}}, None),
    ],
)
def test_a_topic_that_would_get_another_default_is_named(
    entry: TopicEntry, wanted: dict[str, object], expected: str | None
) -> None:
    topics = RestoreTopics.model_validate(wanted)
    found = list(describe_defaults([Choice(entry, "copy")], topics, FOREVER, SEVEN_DAYS))
    assert [expected in text for text in found if expected] == ([True] if expected else [])
    assert bool(found) == (expected is not None)
    for source, target in ((FOREVER, FOREVER), ({}, SEVEN_DAYS), (FOREVER, {})):
        assert list(describe_defaults([Choice(entry, "copy")], topics, source, target)) == []


@pytest.mark.parametrize(
    ("entry", "wanted", "source", "target", "expected"),
    [
        (topic(), {}, FOREVER, SEVEN_DAYS, "-1"),
        (topic(), {}, FOREVER, {}, "-1"),
        (topic(), {}, SEVEN_DAYS, SEVEN_DAYS, None),
        (topic(), {}, {}, SEVEN_DAYS, None),
        (topic(retention_ms="5"), {}, FOREVER, SEVEN_DAYS, "5"),
        (topic(), {"override": {"retention.ms": "7"}}, FOREVER, SEVEN_DAYS, "7"),
        (topic(), {"ignore": ["retention.ms"]}, FOREVER, SEVEN_DAYS, None),
        (topic(retention_ms="5"), {"policy": "Ignore"}, FOREVER, SEVEN_DAYS, None),
    ],
)
def test_a_topic_is_released_to_what_it_had(
    entry: TopicEntry, wanted: dict[str, object], source: dict[str, str], target: dict[str, str], expected: str | None
) -> None:
    found = released_configs(entry, TopicConfigs.model_validate(wanted), source, target)
    assert found == {"retention.ms": expected, "retention.bytes": None}

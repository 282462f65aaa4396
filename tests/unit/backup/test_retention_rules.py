"""The topics of which the retention of a backup may take something, and what it says of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunOutcome, TopicEntry
from logkeep_engine.archive.maintenance.points import KeepRules
from logkeep_engine.archive.maintenance.retaining import RetentionRules, retain, run_retention
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.maintenance.retention_report import planned_retention, preview
from logkeep_engine.backup.model.selection import retention_rules
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.retention import RetentionHold
from logkeep_engine.contract.spec import KafkaBackupSpec, parse_backup
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import ORDERS, begin, chunk, reread

PLANES = replace(ORDERS, name="planes", topic_id="p" * 22)
PLANES_AGAIN = replace(ORDERS, name="planes", topic_id="q" * 22)


def spec(*include: str, **changes: Any) -> KafkaBackupSpec:
    """A KafkaBackup whose records are all too old."""
    topics = {"include": list(include), **changes.pop("topics", {})}
    retention = {"maxAge": "30d", "grace": "0s", **changes.pop("retention", {})}
    base = {"cluster": {"bootstrapServers": ["k:9092"]}, "storage": {"uri": "s3://bucket/x"}}
    return parse_backup({**base, "topics": topics, "retention": retention, **changes})


def archive_with(root: Path, *topics: TopicEntry) -> Archive:
    """An archive with a segment of each topic, years old."""
    storage = open_uri(f"file://{root}/archive")
    with begin(storage, "run-1") as writer:
        receipts = [chunk(storage, 0, 20, epoch=writer.epoch, topic=topic) for topic in topics]
        writer.commit(topics=list(topics), receipts=receipts)
        writer.end(RunOutcome.SUCCEEDED)
    return Archive.open(storage)


def there(archive: Archive) -> set[str]:
    state = archive.load()
    return {topic_id for topic_id, _ in state.segments if state.segments.get((topic_id, 0))}


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        (spec("planes"), {"planes"}),
        (spec("plan"), set()),
        (spec(".*"), {"orders", "planes", "clicks", "_schemas"}),
        (spec(".*", topics={"exclude": ["p.*"]}), {"orders", "clicks", "_schemas"}),
        (spec(".*", topics={"internal": True}), {"orders", "planes", "clicks", "__consumer_offsets", "_schemas"}),
        (spec("planes", format="Avro", topics={"internal": True}), {"planes", "__consumer_offsets", "_schemas"}),
        (spec("planes", retention={"topics": "All"}), {"orders", "planes", "clicks", "__consumer_offsets", "_schemas"}),
    ],
)
def test_chosen_are_the_topics_that_the_backup_archives(changed: KafkaBackupSpec, chosen: set[str]) -> None:
    rules = retention_rules(changed)
    names = ("orders", "planes", "clicks", "__consumer_offsets", "_schemas")
    assert {name for name in names if rules.chosen is None or rules.chosen(name)} == chosen


def test_topics_that_the_spec_does_not_choose_stay_and_are_reported(tmp_path: Path) -> None:
    archive = archive_with(tmp_path, ORDERS, PLANES, PLANES_AGAIN)
    rules = retention_rules(spec("planes"))
    planned = planned_retention(archive.load(), rules, RetentionHold())
    assert planned is not None
    assert (planned.topics, planned.segments, planned.topics_unchosen) == (2, 2, 1)
    assert [(item.topic, item.why, item.segments) for item in planned.topic_list] == [("planes", "maxAge", 2)]
    shown = {(row.topic, row.goes, row.why) for row in preview(archive, rules, RetentionHold()).topics}
    assert shown == {("planes", True, "maxAge"), ("orders", False, "spec.topics does not choose it")}

    done = run_retention(archive, "care", rules, RetentionHold())

    assert there(archive) == {ORDERS.topic_id}, "both incarnations of the topic go"
    assert done.removed.bytes == planned.bytes
    assert done.notes == (
        "retention leaves 1 topic of the archive alone that spec.topics does not choose: orders. With "
        "spec.retention.topics: All its limits apply to them, too.",
    )
    assert run_retention(archive, "all", retention_rules(spec("planes", retention={"topics": "All"})), RetentionHold())
    assert there(archive) == set()


def test_without_limits_nothing_is_reported_and_many_topics_are_counted(tmp_path: Path) -> None:
    topics = [replace(ORDERS, name=f"topic-{number}", topic_id=f"{number}" * 22) for number in range(5)]
    archive = archive_with(tmp_path, PLANES, *topics)
    state = archive.load()
    assert retention_rules(spec("planes", retention={"maxAge": None})).describe_unchosen(state) == []
    (reported,) = retention_rules(spec("planes")).describe_unchosen(state)
    assert "5 topics of the archive alone" in reported
    assert ": topic-0, topic-1, topic-2 and 2 more." in reported
    assert retention_rules(spec(".*")).describe_unchosen(state) == []


def test_points_of_unchosen_topics_keep_what_a_generation_has_replaced(tmp_path: Path) -> None:
    storage = open_uri(f"file://{tmp_path}/archive")
    with begin(storage, "run-1") as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 20, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    reread(storage, "again", 20)
    archive = Archive.open(storage)
    assert archive.load().unpurged == ()
    with begin(storage, "other") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert retain(writer, retention_rules(spec("planes"))).removed.segments == 0, "another spec may keep the point"
        done = retain(writer, RetentionRules(RetentionLimits(), KeepRules(), 0))
        assert done.removed.segments == 1, "the owner's rules, with no points but the last, do not"

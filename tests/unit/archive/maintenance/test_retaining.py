"""Retention as a run of its own, holds, and what its dry run tells."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner

from logkeep_engine.archive.catalog import checkpoint
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import (
    Coverage,
    GenerationChange,
    GenerationStep,
    GroupEntry,
    Partition,
    Receipt,
    RunOutcome,
)
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.increments import VerifyCycle
from logkeep_engine.archive.maintenance.points import KeepRules
from logkeep_engine.archive.maintenance.removal import purge
from logkeep_engine.archive.maintenance.retaining import (
    RetentionRules,
    change_holds,
    retain,
    run_retention,
    with_spec_holds,
)
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.maintenance.retention_items import object_bytes
from logkeep_engine.archive.maintenance.retention_report import preview
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading import view
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.backup.model.plan import BackupPlan
from logkeep_engine.backup.planning.generations import activation
from logkeep_engine.backup.planning.planner import BackupPlanner, CaughtUp
from logkeep_engine.backup.run.activating import Activating
from logkeep_engine.cli import app
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.contract.retention import Retention, RetentionHold
from logkeep_engine.erasure.run import hold_on
from logkeep_engine.errors import BackupUnfinished, SpecError
from logkeep_engine.restore.model import point as points
from logkeep_engine.storage import LockedObject, Storage, open_uri
from tests.unit.archive.build import ORDERS, begin, chunk, reread, write_segment
from tests.unit.backup.compacted_topic import KEY, CompactedTopic, last_values

ID = ORDERS.topic_id
NO_HOLD = RetentionHold()
OLD = RetentionRules(RetentionLimits(max_age=1000), KeepRules(), 0)
"""The records of these archives are years old."""
TOPIC = Hold(HoldKind.TOPIC, "ord.*", HoldOrigin.COMMAND)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


@pytest.fixture
def archive(storage: Storage) -> Archive:
    """Three runs, each of which has archived a segment; the last has the position of a group."""
    for number in range(3):
        with begin(storage, f"run-{number}") as writer:
            start = number * 20
            writer.commit(topics=[ORDERS], receipts=[chunk(storage, start, start + 20, epoch=writer.epoch)])
            writer.end(RunOutcome.SUCCEEDED, groups=[GroupEntry("readers", "orders", ID, 0, start)])
    return Archive.open(storage)


def bases(archive: Archive) -> list[int]:
    return [entry.base_offset for entry in view.choose(archive).state.segments.get((ID, 0), ())]


def test_a_run_of_retention_removes_and_its_end_is_no_point(archive: Archive) -> None:
    before = archive.load()
    rules = replace(OLD, limits=RetentionLimits(max_bytes=2 * object_bytes(before.segments[ID, 0][0]) + 1))
    done = run_retention(archive, "care", rules, NO_HOLD)
    assert done.removed.segments == done.purged.segments > 0
    seen = view.choose(archive)
    assert seen.warnings == ()
    assert seen.state.groups == before.groups
    assert bases(archive) in ([20, 40], [40])
    ends = view.ends_of_runs(archive, archive.load().commit)
    assert [end.run_id for end in ends] == ["run-2", "run-1", "run-0"]
    assert (verify(archive).faults, verify(archive).orphans) == ([], [])
    with begin(archive.storage, "run-3") as writer:
        writer.commit(receipts=[chunk(archive.storage, 60, 80, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    assert bases(archive)[-1] == 60


def test_it_waits_for_a_backup_that_succeeds(archive: Archive, tmp_path: Path) -> None:
    with begin(archive.storage, "failed") as writer:
        writer.end(RunOutcome.FAILED)
    commit = archive.load().commit
    with pytest.raises(BackupUnfinished, match="run failed has not succeeded"):
        run_retention(archive, "care", OLD, NO_HOLD)
    assert archive.load().commit == commit
    with begin(archive.storage, "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
    assert run_retention(archive, "care", OLD, NO_HOLD).removed.segments == 3


def test_one_that_was_killed_after_a_removal_leaves_what_it_has_removed(archive: Archive) -> None:
    with begin(archive.storage, "care", kind="Retention") as writer:
        retain(writer, replace(OLD, grace=86_400_000))
    assert bases(archive) == []
    assert run_retention(archive, "care", OLD, NO_HOLD).purged.segments == 3
    assert (verify(archive).faults, verify(archive).orphans) == ([], [])


def test_holds_are_in_the_catalog_and_bind_every_writer(archive: Archive) -> None:
    assert change_holds(archive, "hold-1", [TOPIC], release=False) == (TOPIC,)
    assert change_holds(archive, "hold-2", [TOPIC], release=False) == (TOPIC,)
    state = archive.load()
    assert checkpoint.load(checkpoint.dump(state, "a"), "c")[1].retention_holds == (TOPIC,)
    assert run_retention(archive, "care", OLD, NO_HOLD).removed.segments == 0
    assert bases(archive) == [0, 20, 40]
    assert change_holds(archive, "hold-3", [TOPIC], release=True) == ()
    hold = RetentionHold(runs=("run-1",))
    assert run_retention(archive, "care-2", OLD, hold).removed.segments == 1
    assert bases(archive) == [0, 20]


def test_a_hold_is_released_where_it_was_asked_for(archive: Archive) -> None:
    run = Hold(HoldKind.RUN, "run-1", HoldOrigin.SPEC)
    with begin(archive.storage, "run-3") as writer:
        writer.hold([run, TOPIC])
        writer.end(RunOutcome.SUCCEEDED)
    with pytest.raises(SpecError, match="the hold on run run-1 belongs to a KafkaBackup"):
        change_holds(archive, "hold-1", [replace(run, origin=HoldOrigin.COMMAND)], release=True)
    with pytest.raises(SpecError, match="there is no hold on topics x to release"):
        change_holds(archive, "hold-2", [Hold(HoldKind.TOPIC, "x", HoldOrigin.COMMAND)], release=True)
    assert with_spec_holds(archive.load().retention_holds, NO_HOLD) == [TOPIC]
    assert bases(archive) == [0, 20, 40]


def test_a_dry_run_tells_what_would_go_what_stays_and_which_points_are_whole(archive: Archive) -> None:
    spec = Retention.model_validate({"maxAge": "30d", "keepRuns": 2, "hold": {"topics": ["other"]}})
    rules = RetentionRules.of(spec, bool)
    found = preview(archive, rules, spec.hold)
    (goes,) = found.topics
    assert (goes.topic, goes.goes, goes.why, goes.segments) == ("orders", True, "maxAge", 3)
    assert [(point.run_id, point.rules, point.whole, point.since[:4]) for point in found.points] == [
        ("run-1", ("keepRuns",), False, "2023"),
        ("run-2", ("last", "keepRuns"), False, "2023"),
    ], "as they would be after it"
    assert [(item.offset, item.snapshot, item.why) for item in found.goes] == [
        (base, False, "maxAge") for base in (0, 20, 40)
    ]
    assert found.holds == ("hold on topics other",)
    assert json.loads(json.dumps(found.to_json()))["points"][0]["runId"] == "run-1"
    commit = archive.load().commit
    with begin(archive.storage, "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        retain(writer, replace(OLD, limits=RetentionLimits(max_bytes=1), grace=86_400_000))
    later = preview(archive, rules, spec.hold)
    assert [(point.run_id, point.whole, point.since[:4]) for point in later.points] == [
        ("run-2", False, "2023"),
        ("run-3", True, ""),
    ]
    assert [(item.segments, item.commit > commit) for item in later.waiting] == [(3, True)]


@pytest.mark.parametrize("grace", [0, 86_400_000])
@pytest.mark.parametrize(
    ("limits", "keep"),
    [
        (RetentionLimits(), KeepRules(runs=2)),
        (RetentionLimits(max_age=1000), KeepRules(runs=3)),
        (RetentionLimits(max_bytes=1), KeepRules()),
        (RetentionLimits(max_bytes=300), KeepRules(runs=2)),
        (RetentionLimits(), KeepRules()),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_what_a_dry_run_says_of_points_is_true_afterwards(
    archive: Archive, limits: RetentionLimits, keep: KeepRules, grace: int, again: bool
) -> None:
    if again:
        reread(archive.storage, "again", 60)
    rules = RetentionRules(limits, keep, grace)
    before = archive.load()
    reported = preview(archive, rules, NO_HOLD)
    assert archive.load().same_facts(before)
    done = run_retention(archive, "care", rules, NO_HOLD)
    assert done.removed.segments == len(reported.goes)
    assert preview(archive, rules, NO_HOLD).points == reported.points


def test_a_dry_run_tells_that_retention_would_be_refused(archive: Archive) -> None:
    rules = RetentionRules(RetentionLimits(max_bytes=1), KeepRules(), 0)
    assert preview(archive, rules, NO_HOLD).refused == ""
    with begin(archive.storage, "run-3") as writer:
        writer.end(RunOutcome.FAILED)
    found = preview(archive, rules, NO_HOLD)
    assert found.refused == f"Retention of the archive at {archive.storage.uri} waits: run run-3 has not succeeded."
    assert [one.goes for one in found.topics] == [True]


def restored(archive: Archive, run_id: str) -> list[int]:
    wanted = PointSpec(run=run_id)
    state = points.choose(archive, wanted).state
    plan = points.plan_point(archive, state, [ORDERS], wanted).plan
    found = points.state_at_point(archive, state, wanted, plan)
    names = {info.path for info in archive.storage.list()}
    assert all(names.issuperset(entry.objects(ORDERS.name)) for entry in found.segments[ID, 0])
    return [entry.base_offset for entry in found.segments[ID, 0]]


@pytest.mark.parametrize(
    ("keep", "hold"),
    [(KeepRules(runs=3), NO_HOLD), (KeepRules(), RetentionHold(runs=("run-1",)))],
)
def test_a_kept_point_keeps_what_a_generation_has_replaced(
    archive: Archive, keep: KeepRules, hold: RetentionHold
) -> None:
    reread(archive.storage, "again", 60)
    rules = RetentionRules(RetentionLimits(), keep, 0)
    run_retention(archive, "care", rules, hold)
    found = preview(archive, rules, hold)
    kept = {one.run_id: (one.restorable, one.whole) for one in found.points}
    assert kept["run-1"] == (True, True)
    assert restored(archive, "run-1") == [0, 20]
    assert (found.waiting, found.goes) == ((), ())
    assert (hold_on(archive.load(), ID) is None) == (hold == NO_HOLD)
    run_retention(archive, "later", RetentionRules(RetentionLimits(), KeepRules(), 0), NO_HOLD)
    assert archive.load().unpurged == ()
    with pytest.raises(SpecError, match="generation 1, which has been gone since generation 2 became active"):
        restored(archive, "run-1")
    (one,) = (one for one in preview(archive, rules, hold).points if one.run_id == "run-1")
    assert (one.restorable, one.whole) == (False, False)
    assert (verify(archive).faults, verify(archive).orphans) == ([], [])


def keys_at(topic: CompactedTopic, run_id: str) -> dict[bytes, bytes]:
    """The last values at the end of a run, from objects that are there."""
    state = topic.seen(point={"run": run_id})
    names = {info.path for info in topic.storage.list()}
    assert all(names.issuperset(entry.objects(ORDERS.name)) for entry in state.segments[KEY])
    records = open_partition(topic.storage, ORDERS.name, list(state.segments[KEY]), state.kept(*KEY))
    return last_values((record.key, record.value) for some in records.records() for record in some)


def read_again(topic: CompactedTopic, writer: Writer, batches: list[bytes], start: int, end: int) -> None:
    entry = write_segment(topic.storage, batches, epoch=writer.epoch)
    writer.commit(receipts=[Receipt((Coverage(*KEY, start, end),), (entry,), generation=2)])


def test_a_kept_point_keeps_the_log_after_what_a_generation_has_replaced(tmp_path: Path) -> None:
    """The new generation was begun by one run and made active by the next, which has made a snapshot of all."""
    topic = CompactedTopic(open_uri(f"file://{tmp_path}/archive"))
    rules = RetentionRules(RetentionLimits(), KeepRules(runs=3), 0)
    for number in range(6):
        topic.write([(b"k%d" % (number % 4), b"v%d" % number)])
    front = list(topic.waiting)
    with topic.begin("run-1") as writer:
        topic.archive(writer)
        writer.end(RunOutcome.SUCCEEDED)
    wanted = {"run-1": topic.consumed()}
    with topic.begin("run-2") as writer:
        writer.change_generations([GenerationChange(*KEY, 2, GenerationStep.BEGIN, 0, 6)])
        read_again(topic, writer, front[:2], 0, 2)
        topic.write([(b"k1", b"later"), (b"k9", b"new")])
        topic.archive(writer)
        writer.end(RunOutcome.SUCCEEDED)
        retain(writer, rules)
    wanted["run-2"] = topic.consumed()
    with topic.begin("run-3") as writer:
        read_again(topic, writer, front[2:], 2, 6)
        writer.change_generations([activation(writer.state, KEY)])
        writer.end(RunOutcome.SUCCEEDED)
        topic.make(writer)
        assert retain(writer, rules).removed.segments == 0
    assert {run_id: keys_at(topic, run_id) for run_id in wanted} == wanted
    with topic.begin("run-4") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        done = retain(writer, replace(rules, keep=KeepRules(runs=1)))
    assert (done.removed.segments, done.purged.waiting) == (4, 0), "the points are not kept any more"
    assert keys_at(topic, "run-4") == topic.consumed()


def test_a_kept_point_whose_run_has_removed_the_log_below_its_snapshot_outlives_a_generation(tmp_path: Path) -> None:
    topic = CompactedTopic(open_uri(f"file://{tmp_path}/archive"))
    keep_one = RetentionRules(RetentionLimits(), KeepRules(runs=1), 0)
    topic.write([(b"k%d" % (number % 4), b"v%d" % number) for number in range(6)])
    batches = list(topic.waiting)
    with topic.begin("run-1") as writer:
        topic.archive(writer)
        writer.end(RunOutcome.SUCCEEDED)
        topic.make(writer)
        assert retain(writer, keep_one).removed.segments == 1
    keep_two = replace(keep_one, keep=KeepRules(runs=2))
    with topic.begin("run-2") as writer:
        writer.change_generations([GenerationChange(*KEY, 2, GenerationStep.BEGIN, 0, 6)])
        read_again(topic, writer, batches, 0, 6)
        writer.change_generations([activation(writer.state, KEY)])
        writer.end(RunOutcome.SUCCEEDED)
        retain(writer, keep_two)
    assert keys_at(topic, "run-1") == topic.consumed()
    found = preview(Archive.open(topic.storage), keep_two, NO_HOLD)
    assert [(one.run_id, one.restorable, one.whole) for one in found.points] == [
        ("run-1", True, True),
        ("run-2", True, True),
    ]


def test_a_point_whose_run_was_begun_again_and_has_failed_is_reported_as_it_is_restored(archive: Archive) -> None:
    for _ in range(2):
        with begin(archive.storage, "run-3") as writer:
            writer.end(RunOutcome.FAILED if writer.state.runs["run-3"].attempts > 1 else RunOutcome.SUCCEEDED)
    assert archive.load().runs["run-3"].outcome is RunOutcome.FAILED
    assert restored(archive, "run-3") == [0, 20, 40]
    found = preview(archive, RetentionRules(RetentionLimits(), KeepRules(runs=1), 0), NO_HOLD)
    assert [(one.run_id, one.restorable, one.whole) for one in found.points] == [("run-3", True, True)]


@pytest.mark.parametrize("parts", [None, 1])
def test_damage_of_what_a_held_run_needs_is_found_although_a_generation_has_replaced_it(
    archive: Archive, parts: int | None
) -> None:
    (entry, *_) = archive.load().segments[ID, 0]
    reread(archive.storage, "again", 60)
    hold = RetentionHold(runs=("run-1",))
    run_retention(archive, "care", RetentionRules(RetentionLimits(), KeepRules(), 0), hold)
    assert verify(archive).faults == []
    (path, *_) = entry.objects(ORDERS.name)
    data = bytearray(archive.storage.read(path))
    data[-1] ^= 1
    archive.storage.put(path, bytes(data))
    assert restored(archive, "run-1") == [0, 20], "a restore reads the object"
    cycle = None if parts is None else VerifyCycle.load(archive, parts)
    assert {fault.object for fault in verify(archive, cycle=cycle).faults} == {f"{archive.storage.uri}/{path}"}
    run_retention(archive, "later", RetentionRules(RetentionLimits(), KeepRules(), 86_400_000), NO_HOLD)
    assert archive.load().unpurged != ()
    assert verify(archive).faults == [], "nobody needs it any more"


class Silent:
    """A planner whose logs have not grown."""

    def catch_up(self, plan: BackupPlan, state: ArchiveState, keys: Collection[Partition]) -> CaughtUp:
        return CaughtUp(plan, frozenset(keys))


def test_an_erasure_of_one_topic_deletes_nothing_that_a_hold_keeps_of_another(archive: Archive) -> None:
    """A run has made generations of both active. Nothing of the other topic was there when the held run ended."""
    other, storage = replace(ORDERS, name="other", topic_id="b" * 21 + "_"), archive.storage
    keys = [(ID, 0), (other.topic_id, 0)]
    with begin(storage, "run-3") as writer:
        writer.commit(topics=[other], receipts=[chunk(storage, 0, 60, epoch=writer.epoch, topic=other)])
        writer.end(RunOutcome.SUCCEEDED)
    with begin(storage, "again") as writer:
        writer.change_generations([GenerationChange(*key, 2, GenerationStep.BEGIN, 0, 60) for key in keys])
        read = [chunk(storage, 0, 60, epoch=writer.epoch, topic=topic) for topic in (ORDERS, other)]
        writer.commit(receipts=[replace(receipt, generation=2) for receipt in read])
        plan = BackupPlan("again", (ORDERS, other), ())
        Activating().perform(writer, cast(BackupPlanner, Silent()), plan, (), lambda _: True)
        writer.end(RunOutcome.SUCCEEDED)
    change_holds(archive, "hold", [Hold(HoldKind.RUN, "run-1", HoldOrigin.COMMAND)], release=False)
    assert hold_on(archive.load(), other.topic_id, removed=True) is None
    run_retention(archive, "care", RetentionRules(RetentionLimits(), KeepRules(), 1 << 40), NO_HOLD)
    with begin(storage, "erasure-one", kind="Erasure") as writer:
        assert purge(writer, topic_ids=(other.topic_id,)).segments == 1
        writer.end(RunOutcome.SUCCEEDED)
    assert restored(archive, "run-1") == [0, 20]


def test_what_the_store_keeps_locked_is_reported_and_tried_again(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = LockedObject("topics/orders/x.log", 2_000_000_000.0, True)
    with monkeypatch.context() as patch:
        patch.setattr(type(archive.storage), "delete_unlocked", lambda _, paths: (list(paths), (lock,))[1])
        done = run_retention(archive, "care", OLD, NO_HOLD)
    assert (done.removed.segments, done.purged.segments, done.purged.waiting) == (3, 0, 3)
    assert done.notes == (
        "the store keeps 1 removed object locked, the last until 2033-05-18T03:33:20.000Z, "
        "1 of them with a legal hold; a later run tries again: first topics/orders/x.log",
    )
    assert run_retention(archive, "care-2", OLD, NO_HOLD).purged.segments == 3


def test_a_dry_run_prints_no_empty_table(tmp_path: Path) -> None:
    Archive.create_or_open(open_uri((tmp_path / "archive").as_uri()), "a")
    spec = {
        "cluster": {"bootstrapServers": ["b:1"]},
        "topics": {"include": ["a"]},
        "storage": {"uri": (tmp_path / "archive").as_uri()},
    }
    file = tmp_path / "backup.yaml"
    file.write_text(json.dumps({"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup", "spec": spec}))
    done = CliRunner().invoke(app, ["retention", "-f", str(file), "--dry-run"])
    assert (done.exit_code, done.stdout) == (0, "nothing is archived\n"), done.output

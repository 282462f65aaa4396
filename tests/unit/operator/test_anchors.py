"""The operator never lets go of what it knows of an archive, and one KafkaBackup writes an archive."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from logkeep_engine.contract.facts.values import MAX_TIME, timestamp
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_operator.api import ArchiveStatus, Key, Phase, Resource, RunStatus, Status, StatusOutcome
from logkeep_operator.reconcile import documents
from logkeep_operator.reconcile.archive import with_archive
from logkeep_operator.shared_archives import SharedArchives
from tests.unit.operator.world import START, World, backup_spec, resource, restore_spec

URI = "s3://bucket/prefix"
SEVEN, EIGHT = f"7:{'7' * 64}", f"8:{'8' * 64}"


def result(commit: int, **more: Any) -> RunResult:
    known: dict[str, Any] = {"archive_id": "a", "cluster_id": "c", "epoch": commit, "commit": commit}
    return RunResult(
        run_id="r", kind="KafkaBackup", outcome="Succeeded", exit_code=0, start_time=1.0, end_time=2.0, **(known | more)
    )


def anchored(commit: int) -> str:
    return f"{commit}:{commit % 10}" + "0" * 63


def request_of(world: World) -> RunRequest:
    """The request of the run that was started last."""
    found = [body for body in world.created if "request.json" in body.get("data", {})]
    return RunRequest.from_json(found[-1]["data"]["request.json"])


def succeeds(world: World, **of_result: Any) -> None:
    world.settle()
    world.reports(result=world.result(**of_result))
    world.job_is(active=0, complete=True)
    world.driver("Succeeded", exit_code=0)
    world.settle()


# ---- the anchor


@pytest.mark.parametrize("anchor", [True, False])
def test_the_newest_known_commit_never_goes_back_by_itself(anchor: bool) -> None:
    """Commit 107 became 41 without a word when the bucket was rolled back."""

    def reported(commit: int) -> RunResult:
        return result(commit, anchor=anchored(commit) if anchor else None)

    first = with_archive(Status(), reported(107), URI)
    second = with_archive(first, reported(41), URI)
    assert second.archive == first.archive
    assert second.archive is not None
    assert second.archive.commit == 107
    assert with_archive(first, reported(108), URI).archive != first.archive


def test_another_archive_in_its_place_changes_nothing_of_what_is_known() -> None:
    first = with_archive(Status(), result(7, anchor=anchored(7)), URI)
    assert with_archive(first, result(900, archive_id="b", anchor=anchored(900)), URI).archive == first.archive


def test_a_run_that_was_refused_leaves_the_anchor() -> None:
    first = with_archive(Status(), result(7, anchor=anchored(7)), URI)
    refused = with_archive(first, result(-1, epoch=0), URI)
    assert refused.archive == first.archive


def test_a_consent_that_was_used_brings_a_new_anchor_and_is_remembered() -> None:
    first = with_archive(Status(), result(107, anchor=anchored(107)), URI)
    taken = with_archive(first, result(43, anchor=anchored(43), taken_over=anchored(41)), URI)
    assert taken.archive is not None
    assert (taken.archive.anchor, taken.archive.taken_over) == (anchored(43), anchored(41))


def test_another_uri_is_another_archive() -> None:
    first = with_archive(Status(), result(107, anchor=anchored(107)), URI)
    moved = with_archive(first, result(2, archive_id="b", anchor=anchored(2)), "s3://bucket/new")
    assert moved.archive is not None
    assert (moved.archive.id, moved.archive.anchor) == ("b", anchored(2))


def test_every_run_of_a_backup_gets_the_newest_known_commit_and_who_it_is() -> None:
    world = World()
    world.settle()
    first = request_of(world)
    assert (first.anchor, first.uid, first.take_over) == (None, world.resource.uid, None)
    succeeds(world, anchor=SEVEN)
    assert world.status.archive is not None
    assert world.status.archive.anchor == SEVEN
    world.annotate("again")
    world.settle()
    assert request_of(world).anchor == SEVEN
    world.reports(result=world.failed_result(error_code="ArchiveRolledBack", exit_code=2, archive_id="a1", commit=-1))
    world.job_is(active=0, failure=("PodFailurePolicy", ""))
    world.settle()
    assert world.condition("Stalled") == ("True", "ArchiveRolledBack")
    assert world.status.archive.anchor == SEVEN


def test_an_anchor_is_of_the_uri_where_it_was_found() -> None:
    world = World()
    succeeds(world, anchor=SEVEN)
    world.edit(storage={"uri": "s3://bucket/elsewhere", "credentials": {"secretRef": {"name": "s3"}}})
    world.settle()
    assert request_of(world).anchor is None


def test_a_restore_gets_the_anchor_of_its_backup() -> None:
    world = World("KafkaRestore")
    known = Status(last_success_time=timestamp(START), archive=ArchiveStatus(uri=URI, anchor=SEVEN))
    world.backup = replace(resource("KafkaBackup", backup_spec()), status=known)
    world.settle()
    found = request_of(world)
    assert (found.anchor, found.uid, found.take_over) == (SEVEN, None, None)


def test_a_restore_names_what_it_expects() -> None:
    world = World("KafkaRestore", restore_spec(source={"storage": {"uri": URI}, "expectCommit": EIGHT}))
    world.settle()
    found = request_of(world)
    assert (found.anchor, found.spec["source"]["expectCommit"]) == (None, EIGHT)
    bad = World("KafkaRestore", restore_spec(source={"storage": {"uri": URI}, "expectCommit": "8"}))
    bad.settle()
    assert bad.condition("Ready") == ("False", "InvalidSpec")
    assert "spec.source.expectCommit" in bad.message()


def test_a_consent_goes_to_a_run_once() -> None:
    world = World()
    succeeds(world, anchor=SEVEN)
    world.resource = replace(world.resource, annotations={"logkeep.dev/take-over": EIGHT, "logkeep.dev/run": "1"})
    world.settle()
    assert request_of(world).take_over == EIGHT
    succeeds(world, commit=9, anchor=f"9:{'9' * 64}", taken_over=EIGHT)
    assert world.status.archive is not None
    assert world.status.archive.taken_over == EIGHT
    world.resource = replace(world.resource, annotations={"logkeep.dev/take-over": EIGHT, "logkeep.dev/run": "2"})
    world.settle()
    assert request_of(world).take_over is None
    succeeds(world, commit=11, anchor=anchored(11))
    again = f"{EIGHT} again"
    world.resource = replace(world.resource, annotations={"logkeep.dev/take-over": again, "logkeep.dev/run": "3"})
    world.settle()
    assert request_of(world).take_over == again
    succeeds(world, commit=13, anchor=anchored(13), taken_over=again)
    assert world.status.archive is not None
    assert world.status.archive.taken_over == again


@pytest.mark.parametrize(
    "wrong",
    [{"anchor": "7"}, {"anchor": f"6:{'0' * 64}"}, {"anchor": 7}, {"takenOver": "yes"}, {"takenOver": ["x"]}],
)
def test_a_result_with_a_wrong_anchor_is_not_believed(wrong: dict[str, Any]) -> None:
    reported = json.loads(replace(result(7), run_id="r1").to_json()) | wrong
    body = {
        "metadata": {"name": "nightly-r1-progress", "labels": {"logkeep.dev/run": "r1"}},
        "data": {"result.json": json.dumps(reported)},
    }
    found = documents([body])["r1"]
    assert found.result is None
    assert next(iter(wrong)) in found.unreadable


# ---- one owner


def backup(
    name: str,
    *,
    namespace: str = "team",
    created: int = 0,
    written: int | None = None,
    archive: tuple[str, int] = ("a", 0),
    wrote_at: str = "",
    begun: bool = True,
    **storage: Any,
) -> Resource:
    moment = timestamp(START + timedelta(seconds=created))
    spec = backup_spec(storage={"uri": URI, **storage})
    status = Status(run=RunStatus(id="r", key="r")) if begun else Status()
    if written is not None:
        wrote = timestamp(START + timedelta(seconds=written))
        uri = wrote_at or spec["storage"]["uri"]
        status = Status(archive=ArchiveStatus(id=archive[0], uri=uri, epoch=archive[1], anchor=SEVEN, write_time=wrote))
    made = resource("KafkaBackup", spec, key=Key("KafkaBackup", namespace, name), uid=f"uid-of-{namespace}-{name}")
    return replace(made, status=status, body={"metadata": {"creationTimestamp": moment}})


def shared(*resources: Resource) -> SharedArchives:
    known = SharedArchives()
    for one in resources:
        known.note(one)
    return known


def test_of_two_that_have_written_nothing_the_older_has_the_archive() -> None:
    old, new = backup("zebra", created=1), backup("ant", created=2)
    known = shared(new, old)
    assert (known.owner_instead_of(old), known.owner_instead_of(new)) == (None, old.key)


def test_what_has_begun_nothing_stops_nobody() -> None:
    """It is suspended, say, or its spec is invalid, or it only finds out what it would do."""
    idle, new = backup("idle", created=1, begun=False), backup("new", created=2, begun=False)
    known = shared(idle, new)
    assert (known.owner_instead_of(idle), known.owner_instead_of(new)) == (None, None)
    dry = replace(idle, status=Status(run=RunStatus(id="r", key="r", outcome=StatusOutcome.DRY_RUN)))
    known.note(dry)
    assert known.owner_instead_of(new) is None
    known.note(backup("new", created=2))
    assert known.owner_instead_of(idle) == new.key


def test_whoever_wrote_it_last_has_the_archive() -> None:
    old, new, never = (
        backup("a", created=1, written=10, archive=("a", 1)),
        backup("b", created=2, written=20, archive=("a", 2)),
        backup("c"),
    )
    known = shared(old, new, never)
    assert [known.owner_instead_of(one) for one in (old, new, never)] == [new.key, None, new.key]
    again = backup("a", created=1, written=30, archive=("a", 3))
    known.note(old, again.status)
    assert [known.owner_instead_of(one) for one in (old, new)] == [None, old.key]


def test_who_moves_to_the_archive_of_another_does_not_stop_it() -> None:
    """Its last run has written what it named before."""
    mine = backup("mine", written=10, archive=("mine", 5))
    moved = backup("moved", written=20, archive=("theirs", 9), wrote_at="s3://bucket/before")
    known = shared(mine, moved)
    assert (known.owner_instead_of(mine), known.owner_instead_of(moved)) == (None, mine.key)
    at_another_endpoint_before = backup("moved", written=20, archive=("theirs", 9))
    known.note(at_another_endpoint_before)
    assert known.owner_instead_of(mine) is None


@pytest.mark.parametrize(("late", "epoch"), [(30, 4), (15, 9)])
def test_a_former_owner_whose_run_ends_late_does_not_stop_the_owner(late: int, epoch: int) -> None:
    """It was suspended when the archive was handed on, and its end comes behind a run of the owner (epoch 5). Or the
    archive was rolled back before, and epochs begin again."""
    owner = backup("owner", written=20, archive=("a", 5))
    former = backup("former", written=late, archive=("a", epoch))
    assert shared(owner, former).owner_instead_of(owner) is None


@pytest.mark.parametrize("written", [None, 5, 10**9])
def test_what_a_namespace_says_of_a_uri_stops_nobody_in_another_one(written: int | None) -> None:
    """A driver there, or whoever may change ConfigMaps, can have said that it was written, and when."""
    squatter = backup("squatter", namespace="other", created=1, written=written, archive=("a", 900))
    known = shared(squatter, backup("mine", created=2))
    for mine in (backup("mine", created=2), backup("mine", created=2, written=5, archive=("a", 5))):
        known.note(mine)
        assert known.owner_instead_of(mine) is None
        assert known.owner_instead_of(squatter) is None, "it would learn who else uses the URI"


def test_a_run_whose_clock_is_ahead_has_written_the_archive_when_it_was_told() -> None:
    world = World()
    succeeds(world, archive_id="a", epoch=5, commit=5, end_time=float(MAX_TIME))
    assert world.status.archive is not None
    assert world.status.archive.write_time == timestamp(world.now)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"endpoint": "https://a.example"}, {"endpoint": "https://b.example"}),
        ({"endpoint": "http://minio:9000", "namespace": "a"}, {"endpoint": "http://minio:9000", "namespace": "b"}),
        ({"uri": "s3://bucket/prefix2"}, {}),
        ({"uri": "file:///a", "volume": {"claimName": "x"}}, {"uri": "file:///a", "volume": {"claimName": "y"}}),
        (
            {"uri": "file:///a", "volume": {"claimName": "x"}, "namespace": "a"},
            {"uri": "file:///a", "volume": {"claimName": "x"}, "namespace": "b"},
        ),
    ],
)
def test_other_places_are_other_archives(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = backup("first", written=1, **one), backup("second", created=2, **other)
    known = shared(first, second)
    assert (known.owner_instead_of(first), known.owner_instead_of(second)) == (None, None)


def test_the_same_place_in_other_words_is_one_archive() -> None:
    first = backup("first", written=1, uri=f"{URI}/", endpoint="https://a.example/")
    second = backup("second", created=2, endpoint="https://a.example")
    assert shared(first, second).owner_instead_of(second) == first.key


def test_what_is_deleted_or_names_another_place_has_the_archive_no_more() -> None:
    first, second = backup("first", written=1), backup("second", created=2)
    known = shared(first, second)
    known.forget(first.key)
    assert known.owner_instead_of(second) is None
    known.note(first)
    assert known.owner_instead_of(second) == first.key
    known.note(replace(first, deleting=True))
    assert known.owner_instead_of(second) is None
    known.note(first)
    known.note(backup("first", written=1, uri="s3://bucket/moved"))
    assert known.owner_instead_of(second) is None


def test_the_later_of_two_gets_no_job_and_is_told_why() -> None:
    world = World()
    world.archive_owner = Key("KafkaBackup", "team", "first")
    world.settle()
    assert world.condition("Ready") == ("False", "ArchiveOwned")
    assert (world.status.phase, world.jobs, world.created) == (Phase.PENDING, {}, [])
    assert world.events.count(("Warning", "ArchiveOwned")) == 1
    assert world.message().startswith("spec.storage: KafkaBackup first writes this archive: no run is started.")
    world.annotate(SEVEN, "logkeep.dev/take-over")
    world.settle()
    assert request_of(world).take_over == SEVEN


def test_a_dry_run_says_itself_who_owns_the_archive() -> None:
    world = World(spec=backup_spec(dryRun=True))
    world.archive_owner = Key("KafkaBackup", "team", "first")
    world.settle()
    assert len(world.jobs) == 1

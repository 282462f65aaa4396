"""A KafkaArchive: what it means for the resources that name it, and what its status says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.maintenance.cost.estimate import CostQuestion, cost_of
from logkeep_engine.archive.maintenance.growth import DAY_MS, NamedObjects, growth
from logkeep_engine.contract.facts.archive import Recoverable, Retained
from logkeep_engine.contract.facts.outcome import VerificationFacts
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.prices import Prices, price_text
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.storage import open_uri
from logkeep_operator.api import (
    ArchiveStatus,
    DrillStatus,
    HistoryEntry,
    Key,
    Phase,
    Resource,
    RunStatus,
    Status,
    StatusOutcome,
)
from logkeep_operator.api.archive import KafkaArchive, KafkaArchiveStatus, named_by, resolved
from logkeep_operator.archive_users import UsersOfArchives
from logkeep_operator.reconcile import ArchiveUsers, archive_status, is_at_rest
from logkeep_operator.reconcile.places import check_place, of_archive
from logkeep_operator.reconcile.runs import wanted_run
from tests.unit.archive.build import ORDERS, TIME, begin, chunk
from tests.unit.operator.fake_api import FakeApi
from tests.unit.operator.world import ENGINE, START, World, backup_spec, resource, restore_spec

URI = "s3://bucket/prefix"
SEVEN, EIGHT = f"7:{'7' * 64}", f"8:{'8' * 64}"
STORAGE: dict[str, Any] = backup_spec()["storage"]
BY_NAME: dict[str, Any] = {key: value for key, value in backup_spec().items() if key != "storage"} | {
    "archiveRef": {"name": "lake"}
}
FROM_LAKE: dict[str, Any] = restore_spec(source={"archiveRef": {"name": "lake"}})


def lake(uri: str = URI, **status: Any) -> KafkaArchive:
    key = Key("KafkaArchive", "team", "lake")
    return KafkaArchive(key, "uid-of-lake", 1, {"storage": STORAGE | {"uri": uri}}, KafkaArchiveStatus(**status))


def wrote(name: str, time: str, uri: str = URI, **more: Any) -> Resource:
    """A backup whose run has written the archive."""
    found = ArchiveStatus(id="a", uri=uri, epoch=1, commit=7, anchor=SEVEN, write_time=time, taken_over="yes")
    made = resource("KafkaBackup", backup_spec(), status=Status(archive=found, **more))
    return replace(made, key=Key("KafkaBackup", "team", name), uid=f"uid-of-{name}")


def drilled(name: str, end: str, outcome: StatusOutcome, **more: Any) -> Resource:
    drill = DrillStatus(restore=name, run_id=f"run-{name}", outcome=outcome, reason="X", end_time=end, **more)
    status = Status(drill=drill, archive=ArchiveStatus(id="a", uri=URI))
    return replace(resource("KafkaRestore", FROM_LAKE, status=status), key=Key("KafkaRestore", "team", name))


def told(archive: KafkaArchive, *users: Resource) -> tuple[KafkaArchiveStatus, list[str]]:
    backups = frozenset(user.key for user in users if user.key.is_backup)
    status, events = archive_status(archive, ArchiveUsers.among(archive, users, backups), ENGINE, START)
    return status, [event.reason for event in events]


# ---- a reference


def test_a_backup_by_reference_asks_for_the_run_that_its_storage_would_ask_for() -> None:
    inline = resource("KafkaBackup", backup_spec())
    named = resolved(resource("KafkaBackup", BY_NAME), lake())
    assert dict(named.spec) == backup_spec()
    assert (named.archive_ref, inline.archive_ref) == ("lake", None)
    assert wanted_run(named, parse_backup(named.spec)) == wanted_run(inline, parse_backup(inline.spec))


def test_a_reference_to_nothing_stays_and_one_beside_a_storage_is_refused() -> None:
    lost = resolved(resource("KafkaBackup", BY_NAME), None)
    assert (lost.spec, lost.archive_ref) == (BY_NAME, "lake")
    both = resolved(resource("KafkaBackup", BY_NAME | {"storage": STORAGE}), lake())
    with pytest.raises(SpecInvalid, match="exactly one of archiveRef and storage"):
        parse_backup(both.spec)
    backup = resource("KafkaBackup", backup_spec())
    assert resolved(backup, lake()) is backup


@pytest.mark.parametrize("name", ["../secrets", "", None, 7, {"name": "x"}])
def test_no_path_is_made_of_what_is_no_name(name: Any) -> None:
    assert named_by(resource("KafkaBackup", BY_NAME | {"archiveRef": {"name": name}})) is None
    assert named_by(resource("KafkaRestore", {"source": {"archiveRef": {"name": name}}})) is None
    assert named_by(resource("KafkaRestore", {"source": name})) is None


def test_a_restore_by_reference_gets_the_anchor_of_the_same_place_only() -> None:
    known = ArchiveStatus(id="a", uri=URI, anchor=SEVEN)
    assert resolved(resource("KafkaRestore", FROM_LAKE), lake(archive=known)).archive_anchor == SEVEN
    written = replace(known, uri=f"{URI}/")
    assert resolved(resource("KafkaRestore", FROM_LAKE), lake(archive=written)).archive_anchor == SEVEN
    elsewhere = replace(known, uri="s3://bucket/before")
    assert resolved(resource("KafkaRestore", FROM_LAKE), lake(archive=elsewhere)).archive_anchor is None


# ---- another place


@pytest.mark.parametrize(
    ("status", "refused"),
    [
        (Status(), False),
        (Status(archive=ArchiveStatus(uri="s3://a/b")), False),
        (Status(archive=ArchiveStatus(id="a", uri="s3://a/b")), True),
        (Status(archive=ArchiveStatus(id="a", uri=URI)), False),
        (Status(archive=ArchiveStatus(id="a", uri=f"{URI}/")), False),
        (Status(archive=ArchiveStatus(uri="s3://a/b"), run=RunStatus(id="r", key="k")), True),
        (Status(archive=ArchiveStatus(uri="s3://a/b"), run=RunStatus(id="r", key="k.dryRun")), False),
        (
            Status(archive=ArchiveStatus(uri="s3://a/b"), run=RunStatus(id="r", key="k", outcome=StatusOutcome.FAILED)),
            False,
        ),
        (
            Status(
                archive=ArchiveStatus(uri="s3://a/b"),
                run=RunStatus(id="r", key="k", outcome=StatusOutcome.FAILED),
                history=(
                    HistoryEntry(run_id="r", outcome="Failed"),
                    HistoryEntry(run_id="q", outcome="Failed", records=7),
                ),
            ),
            True,
        ),
    ],
    ids=[
        "new",
        "noted",
        "written",
        "the same",
        "with a slash",
        "running",
        "dry run",
        "failed before it wrote",
        "killed after it wrote",
    ],
)
def test_the_place_of_a_backup_is_bound_once_there_may_be_something(status: Status, refused: bool) -> None:
    made = resolved(resource("KafkaBackup", BY_NAME, status=status), lake())
    if not refused:
        check_place(made)
        return
    with pytest.raises(SpecInvalid, match="create another KafkaBackup"):
        check_place(made)


def test_a_run_that_is_booked_after_the_spec_leads_elsewhere_is_of_the_place_where_it_began() -> None:
    world = World(spec=backup_spec())
    world.settle()
    assert world.status.archive == ArchiveStatus(uri=URI)
    world.edit(storage=STORAGE | {"uri": "s3://bucket/other"})  # by a reference: the API server sees no change
    world.reports(result=world.result(anchor=SEVEN))
    world.job_is(active=0, complete=True)
    world.settle()
    assert world.status.phase is Phase.INVALID
    assert world.status.archive is not None
    assert (world.status.archive.uri, world.status.archive.anchor) == (URI, SEVEN)


def test_a_run_that_ends_while_its_archive_is_gone_is_no_success_of_a_spec_that_was_changed_since() -> None:
    world = World()
    world.settle()
    first = world.run_id
    named = {key: value for key, value in world.resource.spec.items() if key != "storage"}
    named |= {"archiveRef": {"name": "lake"}, "topics": {"include": ["others"]}}
    world.resource = replace(world.resource, spec=named, archive_ref="lake", generation=2)
    world.reports(result=world.result())
    world.job_is(active=0, complete=True)
    world.step()
    assert world.status.run is not None
    assert (world.run_id, world.status.run.outcome) == (first, StatusOutcome.SUCCEEDED)
    assert (world.status.phase, world.condition("Ready")) == (Phase.PENDING, ("False", "ArchiveNotFound"))
    assert world.condition("DataLoss") == ("False", "NoLoss")
    world.resource = resolved(world.resource, lake())
    world.settle()
    assert world.run_id != first


@pytest.mark.parametrize("source", ["archiveRef", "backupRef", "with a state"])
def test_a_restore_that_has_begun_continues_in_no_other_store(source: str) -> None:
    first, other = (STORAGE | {"endpoint": f"https://{name}.example"} for name in ("first", "second"))
    more = {"state": {"uri": "s3://states/here"}} if source == "with a state" else {}
    world = World("KafkaRestore", restore_spec(ifTopicExists="Append", **more))

    def lead_to(storage: dict[str, Any]) -> None:
        if source == "archiveRef":
            world.resource = replace(world.resource, spec={**world.resource.spec, "source": {"storage": storage}})
            world.resource = replace(world.resource, archive_ref="lake")
        done = Status(last_success_time="2026-11-21T07:00:00Z")
        world.backup = resource("KafkaBackup", backup_spec(storage=storage), status=done)

    lead_to(first)
    world.settle()
    run, made = world.run_id, len(world.created)
    lead_to(other)
    world.settle()
    assert world.run_id in world.jobs, "its driver goes on"
    world.jobs.clear()
    world.settle()
    if source == "with a state":
        assert world.run_id in world.jobs
        return
    assert (world.run_id, len(world.created), world.jobs) == (run, made, {})
    assert world.condition("Stalled") == ("True", "InvalidSpec")
    assert f"spec.source.{source}: run {run} has begun with {URI} at https://first.example" in world.message()
    assert "at https://second.example is another place" in world.message()
    lead_to(first)
    world.settle()
    assert world.run_id in world.jobs


def test_a_backup_at_rest_wakes_when_its_archive_is_gone_or_was_corrected() -> None:
    made = resolved(resource("KafkaBackup", BY_NAME), lake())
    run = wanted_run(made, parse_backup(made.spec))
    ended = RunStatus(id=run.id, key=run.key, outcome=StatusOutcome.SUCCEEDED)
    status = Status(observed_generation=1, run=ended, phase=Phase.SUCCEEDED)
    assert not is_at_rest(replace(resolved(replace(made, spec=BY_NAME), None), status=status), START)
    assert not is_at_rest(replace(made, status=Status(observed_generation=1, phase=Phase.INVALID)), START)


def test_problems_of_a_storage_name_the_archive_that_has_it() -> None:
    error = SpecInvalid([("spec.storage.uri", "is wrong"), ("spec.topics", "is wrong, too")])
    made = resolved(resource("KafkaBackup", BY_NAME), lake())
    said = str(of_archive(made, error))
    assert said == "spec.archiveRef: KafkaArchive 'lake': spec.storage.uri: is wrong; spec.topics: is wrong, too"
    assert of_archive(resource("KafkaBackup", backup_spec()), error) is error


# ---- the status


def test_the_status_is_that_of_the_backup_that_has_written_last() -> None:
    recovery = Recoverable(last_time="2026-11-21T07:00:00Z")
    late = wrote("late", "2026-11-21T07:10:00Z", recovery=recovery)
    early = wrote("early", "2026-11-21T06:00:00Z")
    elsewhere = wrote("elsewhere", "2026-11-21T07:30:00Z", "s3://bucket/other")
    status, events = told(lake(), early, late, elsewhere)
    assert (status.writer, status.recovery) == ("late", recovery)
    assert (status.backups, status.backup_list) == (3, ("early", "elsewhere", "late"))
    assert status.archive is not None
    assert (status.archive.anchor, status.archive.taken_over) == (SEVEN, None)
    assert events == ["Usable"]
    again, events = told(replace(lake(), status=status), early, late, elsewhere)
    assert (again, events) == (status, [])


def test_a_slash_at_the_end_of_a_uri_makes_no_other_archive() -> None:
    status, _ = told(lake(f"{URI}/"), wrote("nightly", "2026-11-21T07:00:00Z"))
    assert (status.writer, status.archive is not None and status.archive.anchor) == ("nightly", SEVEN)


def test_what_is_known_stays_when_all_are_gone() -> None:
    late = wrote("late", "2026-11-21T07:10:00Z", recovery=Recoverable(last_time="2026-11-21T07:00:00Z"))
    before, _ = told(lake(), late, drilled("d", "2026-11-21T07:00:00Z", StatusOutcome.SUCCEEDED))
    after, _ = told(replace(lake(), status=before))
    assert (after.writer, after.backups, after.restores) == (None, 0, 0)
    assert (after.archive, after.recovery, after.drill) == (before.archive, before.recovery, before.drill)


def test_what_is_known_does_not_go_back_when_the_backup_that_took_over_is_gone() -> None:
    early = wrote("early", "2026-11-21T06:00:00Z")
    late = wrote("late", "2026-11-21T07:10:00Z", recovery=Recoverable(last_time="2026-11-21T07:00:00Z"))
    assert late.status.archive is not None
    newer = replace(late.status.archive, epoch=2, commit=8, anchor=EIGHT)
    late = replace(late, status=replace(late.status, archive=newer))
    before, _ = told(lake(), early, late)
    after, events = told(replace(lake(), status=before), early)
    assert (before.writer, after.writer, events) == ("late", None, [])
    assert (after.archive, after.recovery) == (before.archive, before.recovery)
    again = replace(
        early, status=replace(early.status, archive=replace(newer, epoch=3, write_time="2026-11-21T05:00:00Z"))
    )
    assert told(replace(lake(), status=before), again)[0].writer == "early"  # its clock was set back


def test_a_drill_proves_nothing_of_another_archive_at_the_same_place() -> None:
    good = drilled("good", "2026-11-21T07:00:00Z", StatusOutcome.SUCCEEDED, last_good_time="2026-11-21T07:00:00Z")
    before, _ = told(lake(), wrote("first", "2026-11-21T07:10:00Z"), good)
    assert before.condition("Verified") is not None
    fresh = wrote("second", "2026-11-21T08:00:00Z")
    assert fresh.status.archive is not None
    fresh = replace(fresh, status=replace(fresh.status, archive=replace(fresh.status.archive, id="b")))
    after, _ = told(replace(lake(), status=before), fresh, good)
    assert after.archive is not None
    assert (after.archive.id, after.drill, after.condition("Verified")) == ("b", None, None)
    assert told(replace(lake(), status=after), fresh, good)[0] == after


def test_the_drill_that_has_ended_last_is_told_once() -> None:
    good = drilled("good", "2026-11-21T07:00:00Z", StatusOutcome.SUCCEEDED, last_good_time="2026-11-21T07:00:00Z")
    bad = drilled("bad", "2026-11-21T08:00:00Z", StatusOutcome.FAILED)
    elsewhere = drilled("elsewhere", "2026-11-21T09:00:00Z", StatusOutcome.FAILED)
    elsewhere = replace(elsewhere, status=replace(elsewhere.status, archive=ArchiveStatus(uri="s3://x/y")))
    first, events = told(lake(), good, elsewhere)
    assert events == ["Usable", "X"]
    second, events = told(replace(lake(), status=first), good, bad, elsewhere)
    assert events == ["X"]
    assert second.drill is not None
    assert (second.drill.restore, second.drill.last_good_time) == ("bad", "2026-11-21T07:00:00Z")
    verified = second.condition("Verified")
    assert verified is not None
    assert verified.status == "False"
    assert told(replace(lake(), status=second), good, bad)[1] == []


def test_the_last_restore_that_was_verified_is_named() -> None:
    run = RunStatus(id="r", key="k", outcome=StatusOutcome.SUCCEEDED, end_time="2026-11-21T07:00:00Z")
    found = VerificationFacts(outcome="Verified", message="all", report="s3://x")
    status = Status(run=run, verification=found, archive=ArchiveStatus(uri=URI))
    seen, _ = told(lake(), resource("KafkaRestore", FROM_LAKE, status=status))
    assert seen.verification is not None
    assert (seen.verification.restore, seen.verification.outcome) == ("again", "Verified")


def test_many_users_are_counted_and_some_are_named() -> None:
    users = [wrote(f"b{number:02}", "2026-11-21T07:00:00Z") for number in range(30)]
    status, _ = told(lake(), *users)
    assert (status.backups, len(status.backup_list)) == (30, 20)
    assert KafkaArchiveStatus.from_dict(status.to_dict()) == status


@pytest.mark.parametrize(
    ("storage", "reason", "message"),
    [
        ({"uri": "nonsense"}, "InvalidSpec", "spec.storage.uri: must be s3://"),
        ({"uri": "file:///etc/x", "volume": {"claimName": "c"}}, "InvalidSpec", "is a system folder"),
    ],
)
def test_an_archive_that_no_run_could_use_says_so(storage: dict[str, Any], reason: str, message: str) -> None:
    status, events = archive_status(replace(lake(), spec={"storage": storage}), ArchiveUsers(), ENGINE, START)
    ready, stalled = status.condition("Ready"), status.condition("Stalled")
    assert ready is not None
    assert stalled is not None
    assert (ready.status, ready.reason, stalled.status) == ("False", reason, "True")
    assert message in ready.message
    assert [event.reason for event in events] == [reason]


# ---- what it costs

PRICES = {
    "currency": "EUR",
    "storageClass": "Standard",
    "storagePerGiBMonth": 0.5,
    "requestsPer1000": {"put": 5, "get": 0.4, "list": 5, "delete": 0},
    "egressPerGiB": 0.09,
}
GIB = 1 << 30


def priced(**prices: Any) -> KafkaArchive:
    return replace(lake(), spec={"storage": STORAGE, "prices": PRICES | prices})


def stored(size: int | None, per_day: int | None = None, **more: Any) -> Resource:
    """A backup whose run has reported the size of the archive."""
    made = wrote("nightly", "2026-11-21T07:00:00Z")
    assert made.status.archive is not None
    known = replace(made.status.archive, object_bytes=size, object_bytes_per_day=per_day, **more)
    return replace(made, status=replace(made.status, archive=known))


def test_the_cost_is_that_of_what_is_stored_now_and_at_its_growth() -> None:
    status, _ = told(priced(), stored(3 * GIB, GIB // 10))
    cost = status.cost
    assert cost is not None
    assert (cost.currency, cost.month, cost.display) == ("EUR", 1.5, "1.50 EUR/month")
    assert cost.month_in_30_days == pytest.approx(3.0)
    assert KafkaArchiveStatus.from_dict(status.to_dict()) == status
    assert status.to_dict()["cost"].keys() == {"currency", "month", "monthIn30Days", "display"}


def test_what_is_not_known_of_the_cost_is_left_out() -> None:
    assert told(lake(), stored(GIB))[0].cost is None, "no prices"
    assert told(priced())[0].cost is None, "no run"
    assert told(priced(), stored(None))[0].cost is None, "no size"
    young = told(priced(), stored(GIB))[0].cost
    assert young is not None
    assert (young.month, young.month_in_30_days) == (0.5, None)
    merged = stored(GIB, GIB, retention=Retained(deleted_segments=7))
    for limits, later in (({}, 15.5), ({"keepFor": {"daily": 7}}, 15.5), ({"maxAge": "30d"}, None)):
        limited = told(priced(), replace(merged, spec={**merged.spec, "retention": limits}))[0].cost
        assert limited is not None
        assert (limited.month, limited.month_in_30_days) == (0.5, later), "a retention holds the growth"
    before, _ = told(priced(), merged)
    gone = told(replace(priced(), status=before))[0].cost
    assert gone is not None
    assert (gone.month, gone.month_in_30_days) == (0.5, None), "nothing grows that no backup writes"
    nothing = told(priced(), stored(0, 0))[0].cost
    assert nothing is not None
    assert (nothing.month, nothing.month_in_30_days, nothing.display) == (0.0, 0.0, "0.00 EUR/month")
    small = told(priced(currency="E\u202eUR\n"), stored(1000))[0].cost
    assert small is not None
    assert small.display == "below 0.0001 E\\u202eUR\\n/month"
    assert price_text(1.5, "E\u202eUR\n") == "1.50 E\\u202eUR\\n"


def test_prices_that_are_wrong_are_said_and_give_no_cost() -> None:
    status, _ = told(priced(egressPerGiB=-1), stored(GIB))
    ready = status.condition("Ready")
    assert ready is not None
    assert (ready.reason, status.cost) == ("InvalidSpec", None)
    assert ready.message == "spec.prices.egressPerGiB: Input should be greater than or equal to 0"


def test_other_prices_change_the_cost_and_nothing_else() -> None:
    before, _ = told(priced(), stored(GIB))
    dearer = replace(priced(storagePerGiBMonth=2.0), status=before)
    after, events = told(dearer, stored(GIB))
    assert after.cost is not None
    assert (after.cost.display, events) == ("2.00 EUR/month", [])
    assert replace(after, cost=before.cost) == before
    gone, _ = told(dearer)
    assert gone.cost == after.cost, "the archive stays when its backup is deleted"
    named = resource("KafkaBackup", BY_NAME)
    runs = [wanted_run(made, parse_backup(made.spec)) for made in (resolved(named, lake()), resolved(named, dearer))]
    assert runs[0] == runs[1], "no run is asked for"
    assert dearer.place == lake().place, "it is no other storage"


def test_the_cost_of_the_status_is_that_of_inspect(tmp_path: Path) -> None:
    """The catalog, runs and digests, which a run does not list, are the difference."""
    storage = open_uri(f"file://{tmp_path}/archive")
    for number in (1, 2):
        with begin(storage, f"run-{number}") as writer:
            writer.commit(topics=[ORDERS], receipts=[chunk(storage, 100 * number, 100 * number + 90, epoch=number)])
            writer.end(RunOutcome.SUCCEEDED)
    archive = Archive.open(storage)
    state = archive.load()
    for number, run in enumerate(state.runs.values()):
        state.runs[run.run_id] = replace(run, begin_time=TIME + number * DAY_MS, end_time=TIME + number * DAY_MS + 1)
    now = TIME + 3 * DAY_MS
    named = NamedObjects.of(state, growth(state.runs.values(), now))
    cost = told(priced(), stored(named.bytes, named.per_day))[0].cost
    prices = Prices.model_validate(PRICES)
    found = cost_of(archive, state, CostQuestion(prices), now)
    assert found.growth is not None
    beside = found.stored.catalog + found.stored.runs + found.stored.digests
    assert cost is not None
    assert cost.month == pytest.approx((found.month or 0.0) - prices.month(beside.bytes))
    later = beside.bytes + 30 * found.growth.other_per_day
    assert cost.month_in_30_days == pytest.approx((found.projections[0].month or 0.0) - prices.month(later))
    assert (cost.month_in_30_days or 0.0) > (cost.month or 0.0)


# ---- who is woken


def test_an_archive_wakes_those_that_name_it_and_is_woken_by_those_at_its_place() -> None:
    users = UsersOfArchives()
    archive = lake()
    assert users.is_news(archive)
    users.note_archive(archive)
    assert not users.is_news(replace(archive, status=KafkaArchiveStatus(backups=1)))
    assert users.is_news(replace(archive, generation=2))
    named, inline = resolved(resource("KafkaBackup", BY_NAME), archive), wrote("inline", "2026-11-21T07:00:00Z")
    assert users.note(named) == [archive.key]
    assert users.note(named) == []
    assert users.note(inline) == [archive.key]
    assert users.naming(archive.key) == [named.key]
    assert users.archives_of(inline.key) == [archive.key]
    assert users.forget(inline.key) == [archive.key]
    assert users.forget(inline.key) == []
    users.forget_archive(archive.key)
    assert users.is_news(archive)
    assert users.archives_of(named.key) == [archive.key]


def test_a_look_at_an_archive_writes_what_has_changed_and_nothing_else() -> None:
    with FakeApi() as api:
        api.put("KafkaArchive", "team", "lake", spec={"storage": STORAGE})
        controller = api.controller()
        key = Key("KafkaArchive", "team", "lake")
        assert controller.reconcile(key) is None
        (status,) = [write.body["status"] for write in api.writes if write.path.endswith("kafkaarchives/lake/status")]
        assert (status["backups"], status["restores"], "archive" in status) == (0, 0, False)
        api.put("KafkaArchive", "team", "lake", spec={"storage": STORAGE}, status=status)
        api.writes.clear()
        assert controller.reconcile(key) is None
        assert api.writes == []
        assert controller.reconcile(Key("KafkaArchive", "team", "gone")) is None
        assert api.writes == []

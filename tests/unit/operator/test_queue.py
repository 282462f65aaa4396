"""The queue: whose turn it is to have a driver, and what the others are told."""

from __future__ import annotations

from datetime import datetime, timedelta

from logkeep_engine.contract.model import replace
from logkeep_operator.api import Condition, Key, Phase, Status
from logkeep_operator.reconcile import Create, JobState, Observed, PodState, RunQueue, SuspendJob, Waiter
from logkeep_operator.reconcile.queue import QueuePlace, due, holds_place, place_of
from logkeep_operator.settings import Concurrency
from tests.unit.operator.world import START, World, backup_spec, resource


def key(name: str, namespace: str = "team") -> Key:
    return Key("KafkaBackup", namespace, name)


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def turns(most: Concurrency, running: list[Key], *waiting: Key) -> RunQueue:
    """Those that wait have come in this order."""
    return RunQueue(most, frozenset(running), frozenset(Waiter(at(n), who) for n, who in enumerate(waiting)))


def test_without_limits_everybody_begins() -> None:
    assert due(turns(Concurrency(), [key("a")], key("b"), key("c"))) == [key("b"), key("c")]


def test_the_first_come_begin_first() -> None:
    full = turns(Concurrency(2), [key("a"), key("b")], key("z"), key("y"), key("x"))
    assert due(full) == []
    assert place_of(full, key("z"), at(0)) == QueuePlace(1, 2, 2)
    assert place_of(full, key("y"), at(1)) == QueuePlace(2, 2, 2)
    one_free = replace(full, running=frozenset([key("a")]))
    assert due(one_free) == [key("z")]
    assert place_of(one_free, key("z"), at(0)) is None
    assert place_of(one_free, key("y"), at(1)) == QueuePlace(1, 1, 2)


def test_who_comes_again_is_behind_all_others() -> None:
    found = turns(Concurrency(1), [], key("a"))
    assert place_of(found, key("new"), at(5)) == QueuePlace(1, 0, 1)
    assert place_of(found, key("older"), START - timedelta(seconds=1)) is None


def test_who_comes_in_the_same_second_is_distinguished() -> None:
    both = RunQueue(Concurrency(1), frozenset(), frozenset([Waiter(START, key("a")), Waiter(START, key("b"))]))
    assert (place_of(both, key("a"), START), place_of(both, key("b"), START)) == (None, QueuePlace(1, 0, 1))


def test_a_full_namespace_holds_up_no_other() -> None:
    most = Concurrency(3, namespace=1, namespaces={"big": 2})
    found = turns(most, [key("a", "small")], key("b", "small"), key("c", "big"), key("d", "big"), key("e", "other"))
    assert due(found) == [key("c", "big"), key("d", "big")]
    assert place_of(found, key("b", "small"), at(0)) == QueuePlace(1, 1, 1, "small")
    assert place_of(found, key("e", "other"), at(3)) == QueuePlace(2, 1, 3)


def test_a_namespace_has_half_of_the_places_as_long_as_others_have_resources() -> None:
    running = [key("a"), key("b"), key("c")]
    alone = turns(Concurrency(5), running, key("d"), key("e"), key("f"))
    assert due(alone) == [key("d"), key("e")]
    shared = replace(alone, namespaces=frozenset(["team", "other"]))
    assert due(shared) == []
    place = place_of(shared, key("e"), at(1))
    assert place == QueuePlace(2, 3, 3, "team", share=True)
    assert place.message == (
        "The run waits for its turn at position 2: 3 runs are in progress, "
        "and the share of namespace team, besides others, is 3."
    )
    with_other = replace(shared, waiting=shared.waiting | {Waiter(at(9), key("z", "other"))})
    assert due(with_other) == [key("z", "other")]


def test_a_share_is_never_more_than_what_the_chart_says_and_never_nothing() -> None:
    both = frozenset(["team", "other"])
    for most, share in ((1, 1), (2, 1), (3, 2), (20, 10), (0, 0)):
        assert replace(turns(Concurrency(most), []), namespaces=both).most("team") == share
    said = replace(turns(Concurrency(20, 4, {"team": 15, "free": 0}), []), namespaces=both)
    assert [said.most(name) for name in ("team", "other", "free")] == [15, 4, 0]


def test_two_namespaces_that_want_everything_leave_a_place_to_no_third_but_take_turns() -> None:
    """A share bounds each tenant; who wants a place of his own for each gives them numbers in the chart."""
    names = [key(f"{number}", space) for number in range(4) for space in ("a", "b")]
    found = replace(turns(Concurrency(5), [], *names, key("x", "c")), namespaces=frozenset("abc"))
    assert due(found) == names[:5]


def test_nobody_begins_before_the_runs_are_counted() -> None:
    found = replace(turns(Concurrency(5), [], key("a")), counted=False)
    place = place_of(found, key("a"), at(0))
    assert due(found) == []
    assert place is not None
    assert "has just started" in place.message


def test_who_has_taken_a_place_keeps_it() -> None:
    assert place_of(turns(Concurrency(1), [key("a")], key("b")), key("a"), at(9)) is None


def test_a_place_is_reported_exactly_only_near_the_front() -> None:
    said = [
        QueuePlace(position, 5, 5).message.split(": ")[0].rpartition("position ")[2] for position in (1, 10, 11, 700)
    ]
    assert said == ["1", "10", "above 10", "above 500"]
    assert QueuePlace(3, 2, 2, "team").message == (
        "The run waits for its turn at position 3: 2 runs are in progress, "
        "and maxConcurrentRuns of namespace team is 2."
    )


# ---- who has a driver


JOB = JobState("job", "u", "r", created=START, started=START)


def holds(job: JobState | None = None, *pods: PodState, reason: str = "", minutes: int = 0) -> bool:
    status = Status(conditions=(Condition(type="Ready", status="False", reason=reason),)) if reason else Status()
    observed = Observed(
        resource("KafkaBackup", backup_spec(), status=status), {"r": job} if job is not None else {}, pods
    )
    return holds_place(observed, START + timedelta(minutes=minutes))


def pod(phase: str) -> PodState:
    return PodState("p", "r", "driver", phase, created=START)


def test_a_driver_that_runs_or_is_on_its_way_holds_a_place() -> None:
    assert holds(JOB)
    assert holds(replace(JOB, started=None), minutes=60), "the Job controller has not seen it yet"
    assert holds(JOB, pod("Pending"))
    assert holds(JOB, pod("Running"), minutes=600)
    assert holds(None, pod("Running"), minutes=600), "its Job is gone, and it still ends"


def test_no_driver_holds_no_place() -> None:
    assert not holds()
    assert not holds(replace(JOB, complete=True), pod("Succeeded"))
    assert not holds(replace(JOB, suspended=True, started=None)), "the user's, or a queue's"
    assert not holds(replace(JOB, deleting=True))


def test_a_driver_that_does_not_come_to_run_gives_way() -> None:
    assert holds(JOB, pod("Pending"), minutes=4)
    assert not holds(JOB, pod("Pending"), minutes=5)
    assert not holds(JOB, minutes=5), "a quota refuses its pod"


def test_a_driver_that_nobody_has_heard_of_gives_way() -> None:
    assert not holds(JOB, pod("Running"), reason="NoProgress", minutes=10)


# ---- what a resource does meanwhile


def jobs_made(world: World) -> int:
    return sum(body["kind"] == "Job" for body in world.created)


def test_a_run_waits_without_a_job_and_begins_at_its_turn() -> None:
    world = World()
    world.turns = turns(Concurrency(1), [key("other")], world.resource.key)
    plan = world.step()
    assert plan.waits_since == START
    assert (jobs_made(world), world.status.phase, world.status.run) == (0, Phase.PENDING, None)
    assert world.condition("Ready") == ("False", "Queued")
    assert world.condition("Reconciling")[0] == "True"
    assert "at position 1" in world.message()
    world.settle()
    world.pass_time(minutes=5)
    assert world.step().waits_since == START, "it waits since it was asked for"
    world.turns = turns(Concurrency(1), [])
    world.step()
    assert jobs_made(world) == 1
    assert world.condition("Ready") == ("False", "RunStarted")


def test_a_run_that_has_begun_is_not_held() -> None:
    world = World()
    world.settle()
    world.turns = turns(Concurrency(1), [key("other")])
    world.driver()
    world.settle()
    assert world.condition("Ready") == ("False", "Running")
    assert world.step().waits_since is None


def test_a_run_that_continues_after_a_suspension_waits_for_its_turn() -> None:
    world = World()
    world.settle()
    world.job_is(suspended=True, by_operator=True)
    world.turns = turns(Concurrency(1), [key("other")])
    plan = world.step()
    assert [action for action in plan.actions if isinstance(action, SuspendJob)] == []
    assert world.condition("Ready") == ("False", "Queued")
    world.turns = turns(Concurrency(1), [])
    assert SuspendJob(world.jobs[world.run_id].name, False) in world.step().actions


def test_a_job_that_vanished_waits_for_its_turn_before_those_that_came_later() -> None:
    world = World()
    world.settle()
    world.pass_time(minutes=1)
    world.jobs = {}
    world.turns = turns(Concurrency(1), [key("other")])
    plan = world.step()
    assert plan.waits_since == START
    assert not any(isinstance(action, Create) and action.kind == "Job" for action in plan.actions)


def test_a_run_of_kueue_is_left_to_kueue_where_the_chart_says_that_it_is_there() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "backups"}
    world = World(spec=backup_spec(runPolicy={"jobLabels": labels}))
    world.turns = turns(Concurrency(1), [key("other")])
    assert world.step().waits_since == START
    assert jobs_made(world) == 0
    world.turns = turns(Concurrency(1, kueue=True), [key("other")])
    assert world.step().waits_since is None
    assert jobs_made(world) == 1

"""Two replicas and a Lease in memory, with a clock that the test moves."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from logkeep_operator.cluster import KubernetesCluster
from logkeep_operator.errors import ApiUnavailable, Conflict, LeaseExpired, NotFound, NotLeading
from logkeep_operator.leader import Fence, LeaderElection
from logkeep_operator.metrics import Metrics
from logkeep_operator.settings import LeaseSettings

START = datetime(2026, 11, 21, 8, 0, 0, tzinfo=UTC)


@dataclass
class Bed:
    """The API with one Lease, and time."""

    time: float = 1000.0
    body: dict[str, Any] | None = None
    version: int = 0
    down: bool = False
    answers: bool = True  # False: what is written arrives, and its answer does not

    def now(self) -> datetime:
        return START + timedelta(seconds=self.time)

    def lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        self._ask()
        return self.body

    def write_lease(self, namespace: str, name: str, spec: Mapping[str, Any], version: str | None) -> dict[str, Any]:
        self._ask()
        if version is None and self.body is not None:
            raise Conflict("there is one")
        if version is not None and self.body is None:
            raise NotFound("there is none")
        if version is not None and version != str(self.version):
            raise Conflict("it was changed")
        self.version += 1
        self.body = {"metadata": {"resourceVersion": str(self.version)}, "spec": dict(spec)}
        if not self.answers:
            raise ApiUnavailable("no answer")
        return self.body

    def _ask(self) -> None:
        if self.down:
            raise ApiUnavailable("nobody answers")

    @property
    def spec(self) -> dict[str, Any]:
        assert self.body is not None
        found: dict[str, Any] = self.body["spec"]
        return found


@dataclass
class Replica:
    """A replica whose turns the test takes."""

    bed: Bed
    name: str
    elected: int = 0
    fence: Fence = field(init=False)
    election: LeaderElection = field(init=False)

    def __post_init__(self) -> None:
        self.fence = Fence(self.clock)
        times = LeaseSettings("sys", "logkeep", self.name)
        cluster = cast(KubernetesCluster, self.bed)
        self.election = LeaderElection(cluster, times, self.fence, Metrics(), lambda why: None, self.clock)
        self.election._elected = self._count

    def _count(self) -> None:
        self.elected += 1

    def clock(self) -> float:
        return self.bed.time

    def turn(self) -> None:
        self.election.turn()

    @property
    def acts(self) -> bool:
        try:
            with self.fence.writing():
                return True
        except NotLeading:
            return False


@pytest.fixture
def bed() -> Bed:
    return Bed()


def pair(bed: Bed) -> tuple[Replica, Replica]:
    """Two replicas of which the first acts."""
    one, two = Replica(bed, "one"), Replica(bed, "two")
    one.turn()
    two.turn()
    assert (one.acts, two.acts) == (True, False)
    return one, two


def test_one_acts_and_keeps_the_lease_in_kubernetes_own_fields(bed: Bed) -> None:
    one, two = pair(bed)
    acquired = bed.spec["acquireTime"]
    for _ in range(30):
        bed.time += 2
        one.turn()
        two.turn()
        assert (one.acts, two.acts) == (True, False)
    assert (one.elected, two.elected) == (1, 0)
    assert bed.spec == {
        "holderIdentity": "one", "leaseDurationSeconds": 15, "leaseTransitions": 0, "acquireTime": acquired,
        "renewTime": bed.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }  # fmt: skip


def test_no_two_act_at_any_moment_when_one_is_killed(bed: Bed) -> None:
    one, two = pair(bed)
    moments = []
    for _ in range(100):
        bed.time += 0.5
        two.turn()
        assert not (one.acts and two.acts)
        moments.append((one.acts, two.acts))
    assert moments.index((False, False)) < moments.index((False, True))  # a gap, in which nobody acts
    assert (bed.spec["holderIdentity"], bed.spec["leaseTransitions"]) == ("two", 1)


def test_who_was_stopped_past_its_lease_writes_nothing_and_does_not_try_again(bed: Bed) -> None:
    one, two = pair(bed)
    for _ in range(10):
        bed.time += 2
        two.turn()
    assert (one.acts, two.acts) == (False, True)  # before it has looked at anything
    with pytest.raises(LeaseExpired, match="not renewed in time"):
        one.turn()
    assert bed.spec["holderIdentity"] == "two"


def test_who_was_stopped_does_not_continue_although_nobody_took_the_lease(bed: Bed) -> None:
    one = Replica(bed, "one")
    one.turn()
    bed.time += 11
    assert not one.acts
    with pytest.raises(LeaseExpired):
        one.turn()


def test_a_holder_that_reaches_no_api_stops_before_another_may_begin(bed: Bed) -> None:
    one, two = pair(bed)
    bed.down = True
    while one.acts:
        bed.time += 2
        one.turn() if one.acts else None
    assert bed.time - 1000 <= 12
    bed.down = False
    two.turn()
    assert not two.acts
    bed.time += 5
    two.turn()
    assert two.acts


def test_a_short_outage_changes_nothing(bed: Bed) -> None:
    one, two = pair(bed)
    bed.down = True
    for _ in range(4):
        bed.time += 2
        one.turn()
        two.turn()
    bed.down = False
    one.turn()
    two.turn()
    assert (one.acts, two.acts, one.elected) == (True, False, 1)


def test_a_renewal_whose_answer_was_lost_is_found(bed: Bed) -> None:
    one, _ = pair(bed)
    bed.answers = False
    bed.time += 2
    one.turn()
    bed.answers = True
    bed.time += 2
    one.turn()
    bed.time += 9
    assert one.acts


def test_a_lease_that_another_has_taken_is_lost_at_once(bed: Bed) -> None:
    one, _ = pair(bed)
    bed.version += 1
    bed.body = {"metadata": {"resourceVersion": str(bed.version)}, "spec": {**bed.spec, "holderIdentity": "edited"}}
    bed.time += 2
    with pytest.raises(LeaseExpired, match="edited holds it"):
        one.turn()


def test_a_deleted_lease_is_not_taken_while_its_holder_may_not_know(bed: Bed) -> None:
    one, two = pair(bed)
    bed.body = None
    bed.time += 2
    two.turn()
    assert not two.acts
    with pytest.raises(LeaseExpired, match="it has no holder"):
        one.turn()
    bed.time += 15
    two.turn()
    assert two.acts


def test_a_lease_with_nothing_in_it_is_taken(bed: Bed) -> None:
    bed.body = {"metadata": {"resourceVersion": "0"}, "spec": None}
    one = Replica(bed, "one")
    one.turn()
    assert one.acts


def test_a_holder_that_ends_gives_the_lease_back_when_its_last_write_is_done(bed: Bed) -> None:
    one, two = pair(bed)
    writing, go_on = threading.Event(), threading.Event()

    def write() -> None:
        with one.fence.writing():
            writing.set()
            go_on.wait(60)

    last = threading.Thread(target=write)
    last.start()
    assert writing.wait(60)
    ending = threading.Thread(target=one.election.end)
    ending.start()
    two.turn()
    assert not two.acts
    go_on.set()
    for thread in (last, ending):
        thread.join(60)
    assert not one.acts
    two.turn()
    assert two.acts
    assert bed.spec["leaseTransitions"] == 1


def test_two_that_begin_at_once_agree(bed: Bed) -> None:
    one, two = Replica(bed, "one"), Replica(bed, "two")
    known = bed.lease("sys", "logkeep")
    one.turn()
    bed.lease = lambda namespace, name: known  # type: ignore[method-assign]
    two.turn()
    assert (one.acts, two.acts) == (True, False)

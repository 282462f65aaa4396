"""A task tells the driver how far its parts are, at most once a second."""

import pytest

from logkeep_engine import tasks
from logkeep_engine.tasks import PartitionUpdate, TaskProgress
from tests.runners import Context


class Clock:
    """Stands in the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(tasks, "time", made)
    return made


def update(part: int, at: int) -> PartitionUpdate:
    return PartitionUpdate("orders", 0, part, at, at, at)


def test_the_first_update_is_reported_at_once_and_of_the_next_second_only_the_newest_of_each_part(clock: Clock) -> None:
    context = Context()
    progress = TaskProgress(context)
    for at in (1, 2, 3):
        progress.tell(update(0, at))
        progress.tell(update(1, at * 10))
    assert context.updates == [update(0, 1)]
    clock.now += 1
    progress.tell(update(0, 4))
    assert sorted(context.updates[1:], key=lambda reported: reported.task) == [update(0, 4), update(1, 30)]
    clock.now += 1
    progress.tell(update(1, 50))
    assert context.updates[3:] == [update(1, 50)]


def test_the_first_update_may_be_held_back(clock: Clock) -> None:
    context = Context()
    progress = TaskProgress(context, after=1.0)
    clock.now += 0.9
    progress.tell(update(0, 1))
    assert context.updates == []
    clock.now += 0.1
    progress.tell(update(0, 2))
    assert context.updates == [update(0, 2)]

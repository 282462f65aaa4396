"""How fast an archive grows, by its runs."""

from collections.abc import Sequence
from dataclasses import replace

from logkeep_engine.archive.catalog.facts import RunEntry, RunOutcome
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.growth import DAY_MS as DAY
from logkeep_engine.archive.maintenance.growth import Growth, growth
from logkeep_engine.archive.names import MAX_EPOCH
from tests.unit.archive.build import TIME


def rate(runs: Sequence[RunEntry], now: int) -> int | None:
    found = growth(runs, now)
    return None if found is None else found.bytes_per_day


def run(begun: int, size: int = 0, outcome: RunOutcome = RunOutcome.SUCCEEDED, kind: str = "KafkaBackup") -> RunEntry:
    return RunEntry(f"run-{begun}", 1, kind, begun, begun + 1, outcome, bytes=size)


def test_growth_is_that_of_the_last_week_without_the_first_run() -> None:
    runs = [run(TIME, 10**12), run(TIME + DAY, 1000), run(TIME + 2 * DAY, 3000)]
    assert rate(runs, TIME + 4 * DAY) == 1000
    assert rate([*runs, run(TIME + 20 * DAY, 700)], TIME + 21 * DAY) == 100


def test_growth_is_not_known_before_there_is_something_to_compare() -> None:
    failed = run(TIME, 10**12, RunOutcome.FAILED)
    assert growth([], TIME) is None
    assert growth([failed, run(TIME + DAY, 10**12)], TIME + 2 * DAY) is None
    assert growth([run(TIME), run(TIME + 1000, 5)], TIME + 2000) is None
    assert growth([run(TIME), run(TIME + 1000, 5, kind="Convert")], TIME + DAY) is None


def test_epochs_are_looked_up_and_not_counted() -> None:
    """A writer of the bucket may name the last epoch there is: no backup may end with counting to it."""
    state = ArchiveState()
    state.epoch = MAX_EPOCH
    old, again = run(1), replace(run(2), epoch=MAX_EPOCH - 7, attempts=2)
    new = replace(run(3), epoch=MAX_EPOCH)
    state.runs = {each.run_id: each for each in (old, again, new)}
    fresh = Growth(0, 1, (again, new)).epochs(state)
    assert [epoch in fresh for epoch in (0, 1, 2, MAX_EPOCH - 8, MAX_EPOCH - 7, MAX_EPOCH - 6, MAX_EPOCH)] == [
        *(False, False),
        *(True, True, True),
        *(False, True),
    ]

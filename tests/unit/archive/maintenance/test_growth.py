"""How fast an archive grows, by its runs."""

from collections.abc import Sequence

from logkeep_engine.archive.catalog.facts import RunEntry, RunOutcome
from logkeep_engine.archive.maintenance.growth import DAY_MS as DAY
from logkeep_engine.archive.maintenance.growth import growth
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

"""Some schedules: a run's report is true, whatever brokers, stores and kills do.

A seed that fails prints its history; `make simulate SEED=<seed> N=1` runs it again.
"""

from unittest.mock import patch

import pytest

from logkeep_engine.archive.catalog.facts import Receipt
from logkeep_engine.backup.pieces import writer as pieces
from logkeep_engine.contract.model import replace
from tests.examples import number
from tests.simulation import variety
from tests.simulation.run import run_seeds
from tests.simulation.schedule import make_schedule

FOUND = (49, 180, 261, 414, 616, 970, 6561, 7860, 4261, 5166)  # seeds of long runs that were broken once
VARIED = (555, 515, 747, 544, 1861, 242, 538, 174, 499, 687, 34, 51, 83, 238, 782, 1753)
SEEDS = (*FOUND, *VARIED)


@pytest.mark.deep
def test_nothing_is_lost_and_nothing_is_invented() -> None:
    seeds = [*SEEDS, *range(number(0, deep=1000))]
    outcomes = list(run_seeds(seeds, processes=2))
    broken = [outcome for outcome in outcomes if outcome.violations]

    assert not broken, "\n\n".join(map(str, broken))
    assert sum(outcome.bundles > 1 for outcome in outcomes) > len(outcomes) / 2, "old commits move into bundles"


def test_the_seeds_of_every_run_have_all_that_can_happen() -> None:
    missing = variety.features_of(range(variety.CANDIDATES)) - variety.features_of(SEEDS)
    assert missing == set(), f"choose VARIED by: python -m tests.simulation.variety {' '.join(map(str, FOUND))}"


def test_a_seed_is_a_schedule() -> None:
    assert str(make_schedule(4711)) == str(make_schedule(4711))
    assert str(make_schedule(4711)) != str(make_schedule(4712))


def test_an_engine_that_restores_aborted_records_is_found_out() -> None:
    with patch("logkeep_engine.restore.streams.archived.ArchivedPartition.aborted", lambda archived: []):
        assert found("aborted restored", range(8))


def test_an_engine_that_takes_less_for_all_is_found_out() -> None:
    whole = pieces.PieceWriter.finish

    def without_segments(writer: pieces.PieceWriter, end: int) -> Receipt | None:
        receipt = whole(writer, end)
        return None if receipt is None else replace(receipt, segments=())

    with patch.object(pieces.PieceWriter, "finish", without_segments):
        assert found("missing", range(4))


def found(kind: str, seeds: range) -> bool:
    """Whether a violation of this kind comes; the seeds after the first one that has it are not run."""
    return any(violation.kind == kind for outcome in run_seeds(seeds) for violation in outcome.violations)

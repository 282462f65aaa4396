"""A file in the wrong place would break the packages."""

import re
from pathlib import Path

import pytest

from tests.lanes import plan, times

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["operator", "engine"])
def test_source_roots_are_not_packages(folder: str) -> None:
    """`operator/__init__.py` would shadow the standard library's `operator` for all that runs in here."""
    assert not (ROOT / folder / "__init__.py").exists()


def test_every_test_runs_in_one_lane() -> None:
    """`make test` runs what lanes take from the queue: a file that is in no bed would never run."""
    files = plan.test_files(ROOT)
    queue = plan.Queue(files, times.load())
    lanes: dict[int, list[str]] = {1: [], 2: [], 3: []}
    while taken := [(lane, path) for lane in lanes if (path := queue.take(lane))]:
        for lane, path in taken:
            lanes[lane].append(path)
    assert sorted(path for lane in lanes.values() for path in lane) == files
    assert all(lanes.values())


def test_users_of_the_three_brokers_are_in_one_bed() -> None:
    """The brokers would start in each lane that has one of them."""
    three = plan.bed("tests/ledger/test_ledger.py")
    users = [path for path in plan.test_files(ROOT) if re.search(r"\bthree_brokers: Kafka", (ROOT / path).read_text())]
    assert users
    assert {path: plan.bed(path) for path in users} == dict.fromkeys(users, three)

"""A file in the wrong place would break the packages."""

import re
from pathlib import Path

import pytest

import logkeep_engine
from tests.lanes import plan, times

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["operator", "engine"])
def test_source_roots_are_not_packages(folder: str) -> None:
    """`operator/__init__.py` would shadow the standard library's `operator` for all that runs in here."""
    assert not (ROOT / folder / "__init__.py").exists()


# Where the version is typed again since it cannot be derived, and how often. engine/logkeep_engine/__init__.py has it.
VERSIONS = {
    "charts/logkeep/Chart.yaml": (r"^(?:v|appV)ersion: (\S+)$", 2),
    "docs/cli.md": (r"/logkeep-([^-]+)-cp311-", 1),
    "docs/conditions/ImagePullFailed.md": (r"/logkeep-engine:([\w.]+\w)", 1),
    "docs/install.md": (r"/logkeep-(?:operator|engine):(\S+)", 4),
    "docs/reference/kubectl-logkeep.md": (r"/logkeep-([^-]+)-cp311-", 1),
    "kernel/Cargo.toml": (r'^version = "(.*)"$', 1),
}


@pytest.mark.parametrize("path", VERSIONS)
def test_a_file_that_types_the_version_has_that_of_the_code(path: str) -> None:
    pattern, times = VERSIONS[path]
    assert re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE) == [logkeep_engine.__version__] * times


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

"""How long each test takes: a pytest plugin that writes it down, and what is read from that.

    python -m pytest -p tests.lanes.times --times=FILE

A line is written when a test ends, so a run that is killed leaves the times of all that it has done.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

TABLE = Path(__file__).parent.parent / "durations.json"
"""The recorded seconds of each test file; `make test RECORD=1` writes it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, help="write the seconds of each test into this file, a JSON line a test")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--times")
    if path is not None:
        config.pluginmanager.register(_Times(path))


class _Times:
    """Setup, call and teardown together. The first test that asks for a shared part pays for its start."""

    def __init__(self, path: Path) -> None:
        self._lines = path.open("w", buffering=1)
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration  # type: ignore[assignment]  # a Counter adds any numbers
        if report.when == "teardown":
            line = {"test": report.nodeid, "seconds": round(self._seconds.pop(report.nodeid), 3)}
            self._lines.write(json.dumps(line) + "\n")

    def pytest_unconfigure(self) -> None:
        self._lines.close()


def read(paths: Iterable[Path]) -> dict[str, float]:
    """The seconds of each test, as lanes have written them."""
    lines = [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]
    return {line["test"]: line["seconds"] for line in lines}


def by_file(seconds: Mapping[str, float]) -> dict[str, float]:
    """The seconds of each test file."""
    total: dict[str, float] = {}
    for test, took in seconds.items():
        path = test.partition("::")[0]
        total[path] = total.get(path, 0.0) + took
    return total


def slowest(seconds: Mapping[str, float], count: int) -> list[tuple[str, float]]:
    """The tests that took longest, the longest first."""
    return sorted(seconds.items(), key=lambda item: -item[1])[:count]


def load(table: Path = TABLE) -> dict[str, float]:
    """The recorded seconds of each test file; empty before the first record."""
    found: dict[str, float] = json.loads(table.read_text()) if table.exists() else {}
    return found


def save(seconds: Mapping[str, float], table: Path = TABLE) -> None:
    """Record the seconds of each test file, rounded: small changes of a machine's mood are no change of the table."""
    rounded = {path: max(0.1, float(f"{took:.2g}")) for path, took in sorted(seconds.items())}
    table.write_text(json.dumps(rounded, indent=1) + "\n")

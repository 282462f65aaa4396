"""Which test files run in which lane.

The files stand in one line, those that share an expensive part side by side, and the line is cut where the recorded
durations say that each lane has its share. A cut so parts at most one bed, and that bed is started twice.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path

DEFAULT_SECONDS = 10.0
"""A test file that no run has measured takes as long as the others of its bed do on average; this if none has been."""

BEDS: tuple[tuple[str, ...], ...] = (
    ("tests/e2e/*",),
    ("tests/apiserver/*",),
    ("tests/unit/*", "tests/simulation/*"),
    ("tests/kafka/*",),
    (
        "tests/kafka/test_bed.py",
        "tests/kafka/test_divergence.py",
        "tests/kafka/test_gaps.py",
        "tests/kafka/test_restore_cluster.py",
        "tests/kafka/test_survey.py",
        "tests/ledger/*",
    ),
)
"""The line, as patterns of files that share parts: a node, an API server, nothing, a broker with Spark, three brokers.
The last pattern that fits a file counts."""

WHOLE = frozenset({0, 1, 4})
"""The beds, by their place in the line, that no cut may part: they take long to start."""


def test_files(root: Path) -> list[str]:
    """All test files of the repository, as paths in it."""
    return sorted(path.relative_to(root).as_posix() for path in (root / "tests").rglob("test_*.py"))


def bed(path: str) -> int:
    """The place of a file's bed in the line. Raises LookupError for a file that no pattern fits."""
    fitting = [number for number, patterns in enumerate(BEDS) if any(fnmatch(path, pattern) for pattern in patterns)]
    if not fitting:
        raise LookupError(f"{path} is in no bed: name its folder in BEDS (tests/lanes/plan.py)")
    return fitting[-1]


def choose(files: Collection[str], seconds: Mapping[str, float], lanes: int) -> list[list[str]]:
    """The files of each lane, in the order in which they run. A lane may be empty."""
    blocks = _blocks(files, seconds)
    share = sum(length for length, _ in blocks) / lanes
    chosen: list[list[str]] = [[] for _ in range(lanes)]
    done = 0.0
    for length, paths in blocks:
        middle = done + length / 2
        lane = min(int(middle / share), lanes - 1) if share else 0
        chosen[lane] += paths
        done += length
    return chosen


def _blocks(files: Collection[str], seconds: Mapping[str, float]) -> list[tuple[float, Sequence[str]]]:
    """The line: what cannot be parted, with its duration. Short files come first in a bed, so a cut there is exact."""
    usual = _averages(seconds)

    def duration(path: str) -> float:
        return seconds.get(path, usual.get(bed(path), DEFAULT_SECONDS))

    line = sorted(files, key=lambda path: (bed(path), duration(path), path))
    blocks: list[tuple[float, Sequence[str]]] = []
    for number, group in groupby(line, key=bed):
        paths = list(group)
        parts = [sorted(paths)] if number in WHOLE else [[path] for path in paths]
        blocks += [(sum(map(duration, part)), part) for part in parts]
    return blocks


def _averages(seconds: Mapping[str, float]) -> dict[int, float]:
    """The recorded seconds of a file, by bed. A record may name files that are gone, in folders that are gone."""
    recorded: dict[int, list[float]] = {}
    for path, took in seconds.items():
        with suppress(LookupError):
            recorded.setdefault(bed(path), []).append(took)
    return {number: sum(taken) / len(taken) for number, taken in recorded.items()}

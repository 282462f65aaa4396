"""Which test file a lane runs next.

Files that share an expensive part are a bed. The recorded durations say in which bed most is left to do.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

DEFAULT_SECONDS = 10.0
"""A test file that no run has measured takes as long as the others of its bed do on average; this if none has been."""

BEDS: tuple[tuple[str, ...], ...] = (
    ("tests/e2e/*",),
    ("tests/apiserver/*",),
    ("tests/unit/*", "tests/simulation/*", "tests/model/*"),
    ("tests/kafka/*",),
    (
        "tests/kafka/test_bed_cluster.py",
        "tests/kafka/test_divergence.py",
        "tests/kafka/test_gaps.py",
        "tests/kafka/test_restore_cluster.py",
        "tests/kafka/test_restore_division_cluster.py",
        "tests/kafka/test_restore_same_cluster.py",
        "tests/kafka/test_survey.py",
        "tests/ledger/*",
    ),
    (
        "tests/kafka/test_compressed_segments.py",
        "tests/kafka/test_convert.py",
        "tests/kafka/test_limits.py",
        "tests/kafka/test_restore.py",
        "tests/kafka/test_restore_formats.py",
        "tests/kafka/test_round_trip_property.py",
        "tests/kafka/test_spark_*.py",
        "tests/kafka/test_verify_restored.py",
    ),
)
"""Patterns of files that share parts: a node, an API server, nothing, a broker, three brokers, a broker with Spark. The
last pattern that fits a file counts."""

WHOLE = frozenset({0, 1, 4})
"""The beds, by their place in the list, in which only one lane may be: they take long to start."""

LONGEST = 0
"""The bed, by its place in the list, that decides how long a run takes: its files cannot be shared out, and they wait
for pods. The lanes in other beds leave the processors to it."""


def test_files(root: Path) -> list[str]:
    """All test files of the repository, as paths in it."""
    return sorted(path.relative_to(root).as_posix() for path in (root / "tests").rglob("test_*.py"))


def bed(path: str) -> int:
    """The place of a file's bed in the list. Raises LookupError for a file that no pattern fits."""
    fitting = [number for number, patterns in enumerate(BEDS) if any(fnmatch(path, pattern) for pattern in patterns)]
    if not fitting:
        raise LookupError(f"{path} is in no bed: name its folder in BEDS (tests/lanes/plan.py)")
    return fitting[-1]


class Queue:
    """The files that no lane has taken yet. A lane takes one after the other, so that all end at about the same time.

    A lane stays in its bed as long as there is something to do. Then it goes to the longest bed in which nobody is,
    first to one that it will have alone. If somebody is in every bed, it helps where most is left.
    """

    def __init__(self, files: Collection[str], seconds: Mapping[str, float]) -> None:
        usual = _averages(seconds)
        self._seconds = {path: seconds.get(path, usual.get(bed(path), DEFAULT_SECONDS)) for path in files}
        self._left: dict[int, list[str]] = {}
        for path in sorted(files, key=lambda path: (self._seconds[path], path)):  # a lane takes the longest first
            self._left.setdefault(bed(path), []).append(path)
        self._beds: dict[int, int] = {}

    @property
    def left(self) -> list[str]:
        """The files that nobody has taken."""
        return sorted(path for paths in self._left.values() for path in paths)

    def take(self, lane: int) -> str | None:
        """The next file of a lane; None if it has nothing more to do."""
        here = self._beds.get(lane)
        if here not in self._left:
            self._beds.pop(lane, None)
            here = self._another()
        if here is None:
            return None
        self._beds[lane] = here
        path = self._left[here].pop()
        if not self._left[here]:
            del self._left[here]
        return path

    def _another(self) -> int | None:
        inside = list(self._beds.values())
        free = [number for number in self._left if number not in inside]
        shared = [number for number in self._left if number not in WHOLE]
        if free:
            return max(free, key=lambda number: (number in WHOLE, self._length(number)))
        return max(shared, key=lambda number: self._length(number) / (1 + inside.count(number)), default=None)

    def _length(self, number: int) -> float:
        return sum(self._seconds[path] for path in self._left[number])


def _averages(seconds: Mapping[str, float]) -> dict[int, float]:
    """The recorded seconds of a file, by bed. A record may name files that are gone, in folders that are gone."""
    recorded: dict[int, list[float]] = {}
    for path, took in seconds.items():
        with suppress(LookupError):
            recorded.setdefault(bed(path), []).append(took)
    return {number: sum(taken) / len(taken) for number, taken in recorded.items()}

"""The results of the measurements as data: rows of samples with their medians, stored as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.contenders import Sample

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Row:
    """A contender at one piece of work. `section` is its table, `who` the contender, `where` file or s3."""

    section: str
    topic: str
    who: str
    where: str
    samples: tuple[Sample, ...]

    def median(self, name: str) -> float | None:
        """The median of a field over the samples that have it."""
        values = self._values(name)
        return statistics.median(values) if values else None

    def spread(self, name: str) -> tuple[float, float] | None:
        """Least and most of a field."""
        values = self._values(name)
        return (min(values), max(values)) if values else None

    def _values(self, name: str) -> list[float]:
        return [value for sample in self.samples if (value := getattr(sample, name)) is not None]

    @property
    def seconds(self) -> float:
        """The time for which rates are computed: that of the work alone if it is known, else of the whole process."""
        work = self.median("work")
        whole = self.median("wall")
        assert whole is not None
        return whole if work is None else work

    @property
    def mb_per_second(self) -> float:
        """Wire megabytes (10^6) a second."""
        return (self.median("wire") or 0) / 1e6 / self.seconds

    @property
    def records_per_second(self) -> float:
        """Records a second."""
        return (self.median("records") or 0) / self.seconds


@dataclass(frozen=True, slots=True)
class Results:
    """One run of the benchmark. `facts` are sections that are not rows of samples, by name."""

    machine: dict[str, Any]
    started: str
    commit: str
    options: str
    bare: int
    rows: tuple[Row, ...]
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def find(self, section: str, topic: str, who: str, where: str = "file") -> Row | None:
        """The row, if it was measured."""
        key = (section, topic, who, where)
        found = [row for row in self.rows if (row.section, row.topic, row.who, row.where) == key]
        return found[0] if found else None

    def section(self, name: str) -> Sequence[Row]:
        """The rows of a section, as they were measured."""
        return [row for row in self.rows if row.section == name]

    def to_json(self) -> str:
        """One sample a line, so that a change of a published file can be read."""
        head = {
            "format": FORMAT,
            "started": self.started,
            "commit": self.commit,
            "options": self.options,
            "machine": self.machine,
            "bare": self.bare,
            "topics": self.topics,
            "facts": self.facts,
        }
        lines = [json.dumps(_compact(asdict(row)), ensure_ascii=False) for row in self.rows]
        body = json.dumps(head, indent=1, ensure_ascii=False)[:-2]
        return body + ',\n "rows": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def _compact(row: dict[str, Any]) -> dict[str, Any]:
    row["samples"] = [
        {name: round(value, 4) if isinstance(value, float) else value for name, value in s.items() if value is not None}
        for s in row["samples"]
    ]
    return row


def read(path: Path) -> Results:
    """Results as `to_json` wrote them. Raises ValueError for another format."""
    document = json.loads(path.read_text())
    if document.pop("format") != FORMAT:
        raise ValueError(f"{path}: not of format {FORMAT}")
    rows = tuple(
        Row(**{**row, "samples": tuple(Sample(**sample) for sample in row["samples"])}) for row in document.pop("rows")
    )
    return Results(rows=rows, **document)


def merge(runs: Sequence[Results]) -> Results:
    """Several runs on one machine as one, with the facts of the first. If two of them have measured the same, the
    later counts.

    Raises ValueError for runs of different machines.
    """
    first = runs[0]
    names = ("processor", "cores", "memory")
    for run in runs[1:]:
        if any(run.machine.get(name) != first.machine.get(name) for name in names):
            raise ValueError(f"the run of {run.started} is of another machine than that of {first.started}")
    rows = {(row.section, row.topic, row.who, row.where): row for run in runs for row in run.rows}
    topics = {name: facts for run in runs for name, facts in run.topics.items()}
    facts = {name: fact for run in runs for name, fact in run.facts.items()}
    options = "; ".join(run.options for run in runs)
    return replace(first, rows=tuple(rows.values()), topics=topics, facts=facts, options=options)


def machine() -> dict[str, Any]:
    """The facts about the machine on which the figures depend."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) << 10
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load before": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """The repository's commit, with a plus if files differ from it."""
    run = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    return subprocess.run(run, capture_output=True, text=True, check=False).stdout.strip()


def now() -> str:
    """The time in ISO 8601, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

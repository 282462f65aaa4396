"""Progress of runs and of verifications on stderr. Only commands that show some import this module, since rich takes
long."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from logkeep_engine.cli.output import human_bytes, say
from logkeep_engine.contract.run import Progress as RunProgress

if TYPE_CHECKING:
    from logkeep_engine.archive.care.verify import VerifyProgress

MAX_BARS = 12  # topics shown at once; the rest is in the bar of the sum
LINE_EVERY_SECONDS = 5.0
_WORDS = {"KafkaBackup": "archived", "Convert": "converted", "Import": "imported"}


def _bars(description: str, console: Console) -> Progress:
    """Bars with a count and the time that is left; they go away at the end."""
    return Progress(
        TextColumn(description),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


class RunShown(AbstractContextManager["RunShown"]):
    """Progress of a run on stderr: bars per topic on a terminal, else a line every few seconds. The reporter's thread
    calls `show`."""

    def __init__(self, kind: str) -> None:
        self._word = _WORDS.get(kind, "restored")
        self._console = Console(stderr=True)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last_line = 0.0
        self._phase = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars = _bars("{task.description}", self._console)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def show(self, progress: RunProgress) -> None:
        if self._bars is not None:
            self._show_bars(self._bars, progress)
        elif progress.phase != self._phase or time.monotonic() - self._last_line > LINE_EVERY_SECONDS:
            self._phase, self._last_line = progress.phase, time.monotonic()
            say(self._line(progress))

    def _line(self, progress: RunProgress) -> str:
        if progress.phase in ("Starting", "Planning"):
            return progress.phase.lower()
        return (
            f"{progress.phase.lower()}: {progress.percent}%, {progress.partitions_done} of {progress.partitions} "
            "partitions, "
            f"{progress.records} records, {human_bytes(progress.bytes)} {self._word}"
        )

    def _show_bars(self, bars: Progress, progress: RunProgress) -> None:
        totals: dict[str, tuple[int, int]] = {}
        for part in progress.partitions_shown:
            done, total = totals.get(part.topic, (0, 0))
            totals[part.topic] = done + part.at - part.start, total + part.end - part.start
        self._bar(bars, f"[bold]{progress.phase}", progress.offsets_done, progress.offsets_total)
        behind = sorted(totals, key=lambda topic: totals[topic][0] - totals[topic][1])
        for topic in behind:
            if topic in self._tasks or len(self._tasks) <= MAX_BARS:
                self._bar(bars, topic, *totals[topic])

    def _bar(self, bars: Progress, name: str, done: int, total: int) -> None:
        key = "" if name.startswith("[bold]") else name
        if key not in self._tasks:
            self._tasks[key] = bars.add_task(name, total=None)
        bars.update(self._tasks[key], description=name, completed=done, total=total or None)


class VerifyShown(AbstractContextManager["VerifyShown"]):
    """Progress of a verification on stderr, on a terminal only. Without a terminal only the damage and the sum are
    printed."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = _bars("verify", self._console)
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, progress: VerifyProgress) -> None:
        if self._task is None:
            self._task = self._bars.add_task("verify", total=progress.segments_total)
        self._bars.update(self._task, completed=progress.segments)

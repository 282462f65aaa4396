"""Progress of runs and of verifications on stderr. Only commands that show some import this module, since rich takes
long."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from logkeep_engine.cli.output import say, stderr, visible
from logkeep_engine.contract.names import BACKUP, ERASURE
from logkeep_engine.contract.run import Progress as RunProgress
from logkeep_engine.contract.values import human_bytes, human_duration, so_many

if TYPE_CHECKING:
    from rich.console import Console

    from logkeep_engine.archive.maintenance.verify import VerifyProgress

LINE_EVERY_SECONDS = 5.0
_WHOLE = ""  # no topic has this name
_VERIFYING = "Verifying"
_WORDS = {BACKUP: "archived", "Convert": "converted", "Import": "imported", ERASURE: "looked through"}


def _bars(description: str, console: Console, *more: ProgressColumn) -> Progress:
    """Bars with a count; they go away at the end."""
    return Progress(TextColumn(description), BarColumn(), MofNCompleteColumn(), *more, console=console, transient=True)


def _speed(progress: RunProgress) -> str:
    """Return the rate and the time that is left, as far as they are known."""
    rate = f", {human_bytes(progress.bytes_per_second)}/s" if progress.bytes_per_second is not None else ""
    left = f", {human_duration(progress.seconds_left)} left" if progress.seconds_left else ""
    return f"{rate}{left}"


def _of_partitions(progress: RunProgress) -> str:
    return f"{progress.partitions_done} of {so_many(progress.partitions, 'partition')}"


class RunShown(AbstractContextManager["RunShown"]):
    """Progress of a run on stderr: bars per topic on a terminal, else a line every few seconds. The reporter's thread
    calls `show`."""

    def __init__(self, kind: str) -> None:
        self._word = _WORDS.get(kind, "restored")
        self._console = stderr()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last_line = 0.0
        self._phase = ""
        self._point: str | None = None

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
        if progress.phase == _VERIFYING:  # it begins to count again, and continues with that to its end
            self._word = "compared"
        if progress.point != self._point:
            self._point = progress.point
            say(f"point: {self._point}")
        if self._bars is not None:
            self._show_bars(self._bars, progress)
        elif progress.phase != self._phase or time.monotonic() - self._last_line > LINE_EVERY_SECONDS:
            self._phase, self._last_line = progress.phase, time.monotonic()
            say(self._line(progress))

    def _line(self, progress: RunProgress) -> str:
        if progress.waits:
            return f"{progress.phase.lower()}: {progress.waits}"
        if progress.phase in ("Starting", "Planning"):
            return progress.phase.lower()
        if not progress.partitions:
            return progress.phase.lower()
        return (
            f"{progress.phase.lower()}: {progress.percent}%, {_of_partitions(progress)}, "
            f"{so_many(progress.records, 'record')}, {human_bytes(progress.bytes)} {self._word}{_speed(progress)}"
        )

    def _show_bars(self, bars: Progress, progress: RunProgress) -> None:
        """The bar of the whole run, and below it those of the topics on which tasks work now."""
        done = f"{_of_partitions(progress)}{_speed(progress)}" if progress.partitions else ""
        whole = f"[bold]{progress.phase}[/bold] {escape(visible(progress.waits)) if progress.waits else done}"
        self._bar(bars, _WHOLE, whole, progress.offsets_done, progress.offsets_total)
        moving = {topic.topic: topic for topic in progress.moving}
        for name in [name for name in self._tasks if name not in moving and name != _WHOLE]:
            bars.remove_task(self._tasks.pop(name))
        for name, topic in moving.items():
            self._bar(bars, name, escape(visible(name)), topic.done, topic.total)

    def _bar(self, bars: Progress, key: str, description: str, done: int, total: int) -> None:
        if key not in self._tasks:
            self._tasks[key] = bars.add_task(description, total=None)
        bars.update(self._tasks[key], description=description, completed=done, total=total or None)


class VerifyShown(AbstractContextManager["VerifyShown"]):
    """Progress of a verification on stderr, on a terminal only. Without a terminal only the damage and the sum are
    printed."""

    def __init__(self) -> None:
        self._console = stderr()
        self._bars = _bars("verify", self._console, TimeRemainingColumn())
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:  # else it would print an empty line
            self._bars.stop()

    def show(self, progress: VerifyProgress) -> None:
        if self._task is None:
            self._task = self._bars.add_task("verify", total=progress.segments_total)
        self._bars.update(self._task, completed=progress.segments)

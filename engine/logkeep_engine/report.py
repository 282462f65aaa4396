"""A run as others see it: its progress while it lasts, and its result at the end.

    reporter = Reporter("20261121-3f2a", ConfigMapSink("orders-progress", "kafka"))
    reporter.phase("Planning")
    reporter.planned(ranges, topics=3, idle=120)
    reporter.update(...)  # from tasks, about once a second each
    reporter.done(task=7, records=10_000, bytes=1 << 20)
    reporter.finish(result)

A reporter publishes from a thread of its own, at most once a second, when something changed and every half a minute
besides: whoever reads it can tell a driver that waits from one that is gone. Nothing that goes wrong here ever fails a
run: the catalog is the truth, this is a view.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from logkeep_engine.contract.facts.dry_run import DryRunReport, PlannedRefusal
from logkeep_engine.contract.facts.progress import PartitionProgress, TopicProgress
from logkeep_engine.contract.facts.values import time_of
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import MAX_LIST, MAX_MOVING, MAX_PARTITIONS_SHOWN, TASK_PHASES, Progress, RunResult
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import Interrupted, LogkeepError, TopicsNotEmitted
from logkeep_engine.tasks import PartitionUpdate

log = logging.getLogger(__name__)

# A ConfigMap with 2,000 partitions is 300 kB: written every second it would be a burden for etcd.
SECONDS_PER_PARTITION_SHOWN = 0.002
RESULT_ATTEMPTS = 5
HEARTBEAT_SECONDS = 30.0
UNEXPECTED = "UnexpectedError"  # the code of an error that is none of ours
RATE_SECONDS = 30.0
LEAST_RATE_SECONDS = 2.0
MOVING_SECONDS = 10.0


ConfigMapChanges = Mapping[str, Mapping[str, str | None]]
"""Changes that are merged into a ConfigMap: of `data` and `binaryData`, by key. None takes a key away."""


class Sink(Protocol):
    """A receiver of progress and results. The reporter's thread calls `progress`, the caller of `finish` calls
    `result`, and the caller of the reporter's `emit` calls `emit`; all may raise."""

    def progress(self, progress: Progress) -> None: ...

    def result(self, result: RunResult) -> None: ...

    def emit(self, name: str, changes: ConfigMapChanges) -> None: ...


@dataclass(frozen=True, slots=True)
class ProgressRange:
    """A range of a partition that this run does: source offsets [start, end), of which [start, at) are done already."""

    task: int
    topic: str
    partition: int
    start: int
    end: int
    at: int | None = None
    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _RangeState:
    partition: _PartitionState
    start: int
    end: int
    at: int
    records: int
    bytes: int
    done: bool


@dataclass(slots=True)
class _TopicState:
    name: str
    done: int = 0
    total: int = 0
    moved: float = 0.0


@dataclass(slots=True)
class _PartitionState:
    topic: _TopicState
    number: int
    start: int
    end: int
    left: int = 0
    ranges_left: int = 0
    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Totals:
    topics: int = 0
    partitions: int = 0
    partitions_done: int = 0
    records: int = 0
    bytes: int = 0
    offsets_done: int = 0
    offsets_total: int = 0


class _Sample(NamedTuple):
    """How far the run was at a time."""

    time: float
    offsets: int
    bytes: int


@dataclass(slots=True)
class _State:
    phase: str = "Starting"
    attempt: int = 1
    totals: _Totals = field(default_factory=_Totals)
    ranges: dict[int, _RangeState] = field(default_factory=dict)
    partitions: dict[tuple[str, int], _PartitionState] = field(default_factory=dict)
    topics: dict[str, _TopicState] = field(default_factory=dict)
    samples: deque[_Sample] = field(default_factory=deque)
    executors: int | None = None
    point: str | None = None
    waits: str | None = None
    version: int = 0


class Reporter:
    """Gathers progress of one run and publishes it to `sinks`. Safe to use from several threads; `finish` ends it."""

    def __init__(
        self,
        run_id: str,
        *sinks: Sink,
        interval: float = 1.0,
        heartbeat: float = HEARTBEAT_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run_id = run_id
        self.start_time = clock()
        self._sinks = sinks
        self._interval = interval
        self._heartbeat = heartbeat
        self._clock = clock
        self._lock = threading.Lock()
        self._state = _State()
        self._stop = threading.Event()
        self._problem = ""
        self._thread: threading.Thread | None = None
        if sinks:
            self._thread = threading.Thread(target=self._publish_loop, name="logkeep-reporter", daemon=True)
            self._thread.start()

    def phase(self, phase: str, *, attempt: int | None = None) -> None:
        """Begin a phase: Starting, Planning, Retrieving, Checking, Running, Snapshotting, Verifying or Finishing.
        `attempt` counts the starts of the driver for this run, from 1."""
        with self._lock:
            self._state.phase = phase
            if attempt is not None:
                self._state.attempt = attempt
            self._state.version += 1

    def executors(self, count: int) -> None:
        """Tell how many executors the work was given to, 0 if the driver does it itself."""
        with self._lock:
            self._state.executors = count
            self._state.version += 1

    def point(self, text: str) -> None:
        """Tell what the point of a restore gives."""
        with self._lock:
            self._state.point = text
            self._state.version += 1

    def waits(self, text: str | None) -> None:
        """Tell what the run waits for; None: for nothing any more."""
        with self._lock:
            self._state.waits = text
            self._state.version += 1

    def planned(self, ranges: Iterable[ProgressRange], *, topics: int, idle: int = 0) -> None:
        """Take over what this run will do, in place of an earlier plan. `idle` counts partitions in which nothing is to
        be done."""
        with self._lock:
            state = self._state
            state.ranges.clear()
            state.partitions.clear()
            state.topics.clear()
            state.samples.clear()
            totals = state.totals = _Totals(topics=topics, partitions=idle, partitions_done=idle)
            for item in ranges:
                key = (item.topic, item.partition)
                partition = state.partitions.get(key)
                if partition is None:
                    topic = state.topics.setdefault(item.topic, _TopicState(item.topic))
                    partition = _PartitionState(topic, item.partition, item.start, item.end)
                    state.partitions[key] = partition
                    totals.partitions += 1
                partition.start = min(partition.start, item.start)
                partition.end = max(partition.end, item.end)
                at = item.start if item.at is None else item.at
                known = _RangeState(partition, item.start, item.end, item.start, 0, 0, False)
                state.ranges[item.task] = known
                partition.ranges_left += 1
                partition.left += item.end - item.start
                partition.topic.total += item.end - item.start
                totals.offsets_total += item.end - item.start
                self._advance(known, at, item.records, item.bytes)
                if at >= item.end:
                    self._complete(known)
            state.version += 1

    def update(self, update: PartitionUpdate) -> None:
        """Take over what a task says. Unknown ranges and ranges that are done are ignored; a task that starts again
        goes back."""
        with self._lock:
            item = self._state.ranges.get(update.task)
            if item is None or item.done:
                return
            self._advance(item, max(item.start, min(update.at, item.end)), update.records, update.bytes)
            self._moved(item)
            self._state.version += 1

    def done(self, task: int, records: int, bytes: int) -> None:
        """Note that a range is done: `records` and `bytes` are its sums."""
        with self._lock:
            item = self._state.ranges.get(task)
            if item is None or item.done:
                return
            self._advance(item, item.end, records, bytes)
            self._moved(item)
            self._complete(item)
            self._state.version += 1

    def _moved(self, item: _RangeState) -> None:
        """Note when a task has told something. The rate begins with the first: until then Java and executors start, and
        a time left that counted this would be far too long."""
        state, now = self._state, self._clock()
        item.partition.topic.moved = now
        if not state.samples:
            state.samples.append(_Sample(now, state.totals.offsets_done, state.totals.bytes))

    def _advance(self, item: _RangeState, at: int, records: int, size: int) -> None:
        partition, totals = item.partition, self._state.totals
        offsets, new_records, new_bytes = at - item.at, records - item.records, size - item.bytes
        item.at, item.records, item.bytes = at, records, size
        partition.left -= offsets
        partition.topic.done += offsets
        partition.records += new_records
        partition.bytes += new_bytes
        totals.offsets_done += offsets
        totals.records += new_records
        totals.bytes += new_bytes

    def _complete(self, item: _RangeState) -> None:
        item.done = True
        item.partition.ranges_left -= 1
        if item.partition.ranges_left == 0:
            self._state.totals.partitions_done += 1

    def snapshot(self) -> Progress:
        """Return the progress as it is now."""
        with self._lock:
            state, totals = self._state, self._state.totals
            partitions: Iterable[_PartitionState] = state.partitions.values()
            if len(state.partitions) > MAX_PARTITIONS_SHOWN:
                partitions = heapq.nlargest(MAX_PARTITIONS_SHOWN, partitions, key=lambda partition: partition.left)
            shown = tuple(
                PartitionProgress(
                    topic=p.topic.name,
                    partition=p.number,
                    start=p.start,
                    end=p.end,
                    at=p.end - p.left,
                    records=p.records,
                    bytes=p.bytes,
                )
                for p in partitions
            )
            now = self._clock()
            rate, seconds_left = self._rate(now)
            return Progress(
                run_id=self.run_id,
                phase=state.phase,
                start_time=self.start_time,
                update_time=now,
                attempt=state.attempt,
                topics=totals.topics,
                partitions=totals.partitions,
                partitions_done=totals.partitions_done,
                records=totals.records,
                bytes=totals.bytes,
                offsets_done=totals.offsets_done,
                offsets_total=totals.offsets_total,
                partitions_shown=shown,
                moving=self._moving(now),
                bytes_per_second=rate,
                seconds_left=seconds_left,
                executors=state.executors,
                point=state.point,
                waits=state.waits,
            )

    def _rate(self, now: float) -> tuple[int | None, int | None]:
        """Return the bytes a second of the last half minute, and the seconds that are left at that rate of offsets."""
        state, totals = self._state, self._state.totals
        if state.phase not in TASK_PHASES or not state.samples:
            return None, None
        samples = state.samples
        while len(samples) > 1 and now - samples[1].time >= RATE_SECONDS:
            samples.popleft()
        then = samples[0]
        if now - samples[-1].time >= self._interval:
            samples.append(_Sample(now, totals.offsets_done, totals.bytes))
        seconds, offsets = now - then.time, totals.offsets_done - then.offsets
        if seconds < LEAST_RATE_SECONDS or offsets < 0 or totals.bytes < then.bytes:
            return None, None  # it has just begun, or a task began again
        left = max(0, totals.offsets_total - totals.offsets_done)
        rate = int((totals.bytes - then.bytes) / seconds)
        return rate, int(left * seconds / offsets) if offsets else None

    def _moving(self, now: float) -> tuple[TopicProgress, ...]:
        """Return the unfinished topics of which a task has reported something lately, by name."""
        recent = (
            topic
            for topic in self._state.topics.values()
            if topic.done < topic.total and topic.moved and now - topic.moved <= MOVING_SECONDS
        )
        last = heapq.nlargest(MAX_MOVING, recent, key=lambda topic: topic.moved)
        return tuple(
            TopicProgress(topic=topic.name, done=topic.done, total=topic.total) for topic in sorted(last, key=_name_of)
        )

    def emit(self, name: str, changes: ConfigMapChanges) -> None:
        """Write what a run emits to the ConfigMap `name`. This is tried several times. Raises TopicsNotEmitted."""
        for sink in self._sinks:
            problem = _insist(f"ConfigMap {name}", partial(sink.emit, name, changes))
            if problem:
                raise TopicsNotEmitted(
                    f"The KafkaTopics of the restore could not be written to ConfigMap {name}: {problem}.",
                    hint="Everything else is done. Start the same run again: it writes them.",
                )

    def finish(self, result: RunResult) -> None:
        """Publish the last progress and the result, and stop. The result is tried several times; never raises."""
        self.close()
        self._publish()
        for sink in self._sinks:
            _insist("result", partial(sink.result, result))

    def close(self) -> None:
        """Stop publishing progress."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=15)
            self._thread = None

    def _publish_loop(self) -> None:
        published, moment = -1, 0.0
        while not self._stop.is_set():
            version = self._state.version
            if version != published or time.monotonic() - moment >= self._heartbeat:
                self._publish()
                published, moment = version, time.monotonic()
            shown = min(len(self._state.partitions), MAX_PARTITIONS_SHOWN)
            self._stop.wait(max(self._interval, shown * SECONDS_PER_PARTITION_SHOWN))

    def _publish(self) -> None:
        if not self._sinks:
            return
        progress = self.snapshot()
        for sink in self._sinks:
            try:
                sink.progress(progress)
            except Exception as error:
                problem = _short(error)
                if problem != self._problem:  # the log gets one line, and not one a second
                    log.warning("progress could not be written: %s", problem)
                self._problem = problem


def _insist(what: str, write: Callable[[], None]) -> str:
    """Write something, several times if it fails. Returns what was wrong the last time, empty if it was written."""
    problem = ""
    for attempt in range(RESULT_ATTEMPTS):
        try:
            write()
        except Exception as error:
            problem = _short(error)
            log.warning("%s could not be written (attempt %d): %s", what, attempt + 1, problem)
            time.sleep(min(2**attempt * 0.2, 3) if attempt + 1 < RESULT_ATTEMPTS else 0)
        else:
            return ""
    return problem


def _name_of(topic: _TopicState) -> str:
    return topic.name


@dataclass(frozen=True)
class CallbackSink:
    """Calls functions of this process, for the command line's progress bars. They are called from the reporter's
    thread.
    """

    on_progress: Callable[[Progress], None]
    on_result: Callable[[RunResult], None] = lambda result: None

    def progress(self, progress: Progress) -> None:
        self.on_progress(progress)

    def result(self, result: RunResult) -> None:
        self.on_result(result)

    def emit(self, name: str, changes: ConfigMapChanges) -> None:
        raise NotImplementedError("a command has no ConfigMap")


def bounded_warnings(found: Sequence[str]) -> tuple[str, ...]:
    """At most MAX_LIST warnings, for a result. Where there are more, the last says how many, and they are logged."""
    if len(found) <= MAX_LIST:
        return tuple(found)
    left = found[MAX_LIST - 1 :]
    for warning in left:
        log.warning("%s", warning)
    return (*found[: MAX_LIST - 1], f"and {so_many(len(left), 'more warning')}, which the driver's log has")


def dry_run_ended(result: RunResult, report: DryRunReport, refusals: Iterable[LogkeepError], does: str) -> RunResult:
    """Return `result` as that of a dry run that ends now, with all refusals that were found. `does` is the verb of the
    run: restore, archive."""
    end, found = time.time(), tuple(PlannedRefusal(reason=error.code, message=str(error)) for error in refusals)
    report = replace(report, end_time=time_of(end), refused=len(found), refusals=found)
    return replace(result, dry_run=report, message=report.describe(does), end_time=end)


def failed(result: RunResult, error: BaseException) -> RunResult:
    """`result` as the result of a run that ended with `error`: outcome, exit code, code and message are set.

    An error that is none of ours becomes exit code 1 with its class name and text; a KeyboardInterrupt is an
    interruption.
    """
    if isinstance(error, KeyboardInterrupt):
        error = Interrupted(
            "The run was interrupted.", hint="Start the same run again and it continues where it stopped."
        )
    if isinstance(error, LogkeepError):
        code, exit_code, message = error.code, error.exit_code, str(error)
    else:
        code, exit_code, message = UNEXPECTED, ExitCode.FAILED, f"{type(error).__name__}: {error}"
    return replace(result, outcome="Failed", exit_code=int(exit_code), error_code=code, message=message)


def _short(error: Exception) -> str:
    """Return the error in one line: the Kubernetes client puts whole answers with headers into its texts."""
    status, reason = getattr(error, "status", None), getattr(error, "reason", None)
    if status is not None:
        return f"{type(error).__name__}: {status} {reason}"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"

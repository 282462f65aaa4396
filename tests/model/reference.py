"""The records that a right archive can give, in plain Python: nothing of the engine is imported here.

A log has the records of one partition of one incarnation as the cluster has them. A line has what runs have read of it,
and what was written on it. A point is what all lines were at the end of a run. Erasure acts on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from logkeep_engine.contract.model import replace

Key = tuple[str, int]
"""Topic id and partition."""

Positions = dict[tuple[str, str, int], int]
"""Positions of consumer groups, by group, topic id and partition."""

HOUR = 3_600_000


@dataclass(frozen=True)
class Rec:
    """A record. `place` is the offset by which it comes to lie before a point in the order of the log: its own, or that
    of its transaction's marker. `visible`: to a consumer of committed records. `batch`: the offset of its batch."""

    offset: int
    time: int
    key: bytes
    value: bytes | None
    place: int
    visible: bool = True
    batch: int = field(default=-1, compare=False)


@dataclass(frozen=True)
class Batch:
    """A batch from `base` on and below `end`. `producer` is -1 unless it is of a transaction, `first` the first offset
    of that; a `marker` has no records."""

    base: int
    end: int
    leader: int
    time: int
    records: tuple[Rec, ...] = ()
    producer: int = -1
    first: int = -1
    commits: bool = True
    marker: bool = False


@dataclass
class Log:
    """A partition's log in the cluster. `written` is all that was written and not cut off. `plain`: the archive has
    records, and no transactions: each record comes at its own offset, if it was not aborted."""

    batches: list[Batch] = field(default_factory=list)
    written: dict[int, Rec] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    leader: int = 0
    plain: bool = False

    def append(self, rows: Sequence[tuple[bytes, bytes | None]], time: int, commits: bool | None) -> None:
        """Append a batch, and a marker after it if it is of a transaction."""
        base, behind = self.end, self.end + len(rows)
        times = [time + 1000 * at for at in range(len(rows))]
        records = tuple(
            Rec(
                base + at,
                times[at],
                *row,
                place=base + at if commits is None or self.plain else behind,
                visible=commits is not False,
                batch=base,
            )
            for at, row in enumerate(rows)
        )
        producer = -1 if commits is None else 1000 + base
        first = -1 if commits is None else base
        self.batches.append(Batch(base, behind, self.leader, time, records, producer, first, commits is not False))
        self.written |= {rec.offset: rec for rec in records}
        self.end = behind
        if commits is not None:
            self.batches.append(Batch(behind, behind + 1, self.leader, times[-1], (), producer, base, commits, True))
            self.end += 1

    def clean(self, below: int) -> None:
        """Remove what later records below an offset have overwritten, as the cleaner of a broker does."""
        last = {rec.key: rec.offset for rec in self.records() if rec.visible and rec.offset < below}
        self._keep(lambda rec: not rec.visible or last.get(rec.key, -1) <= rec.offset)

    def forget(self, key: bytes) -> None:
        """Remove all records of a key."""
        self._keep(lambda rec: rec.key != key)
        self.written = {at: rec for at, rec in self.written.items() if rec.key != key}

    def _keep(self, wanted: Callable[[Rec], bool]) -> None:
        left = (replace(batch, records=tuple(filter(wanted, batch.records))) for batch in self.batches)
        self.batches = [batch for batch in left if batch.records or batch.marker]

    def delete_below(self, offset: int) -> None:
        """Move the start of the log, as retention in the cluster and DeleteRecords do, by whole batches."""
        self.start = max([self.start, *(batch.end for batch in self.batches if batch.end <= offset)])
        self.batches = [batch for batch in self.batches if batch.base >= self.start]

    def cut_off(self, batches: int) -> None:
        """Lose the last batches, and transactions whole: another leader continues."""
        left = self.batches[: max(1, len(self.batches) - batches)]
        while left and left[-1].producer >= 0 and not left[-1].marker:
            left.pop()
        if not left or len(left) == len(self.batches):
            return
        self.end = left[-1].end
        self.batches = left
        self.written = {at: rec for at, rec in self.written.items() if at < self.end}
        self.leader += 1

    def is_dense(self, start: int, end: int) -> bool:
        """Whether a record or a marker lies at every offset of a range."""
        there = {batch.base for batch in self.batches if batch.marker} | {rec.offset for rec in self.records()}
        return there.issuperset(range(start, end))

    def records(self, start: int = 0, end: int = 1 << 62) -> Iterator[Rec]:
        """The records of the batches that begin in a range."""
        for batch in self.batches:
            if start <= batch.base < end:
                yield from batch.records


@dataclass
class Line:
    """The records that runs have read of a log, and the log's own history, below `end`. `log` is all that a consumer of
    the log would have seen at the last run. `marks` are places and times of the batches, markers included. `gone` are
    offsets that retention has taken by its rules, `lost` those that were gone from the cluster before any run came,
    `replaced` those that were gone when the log was read again."""

    end: int = 0
    read: dict[int, Rec] = field(default_factory=dict)
    written: dict[int, Rec] = field(default_factory=dict)
    log: dict[int, Rec] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    replaced: set[int] = field(default_factory=set)
    cut: bool = False
    shorn: bool = False  # the cluster had lost the end of the log before: what it had overwritten is in no archive

    def take(self, log: Log, start: int, end: int) -> None:
        """Read a range of the log."""
        found = {rec.offset: rec for rec in log.records(start, end) if rec.visible or not log.plain}
        self.read, self.log = self.read | found, self.log | found
        self.written |= {at: rec for at, rec in log.written.items() if start <= at < end}
        self.end = max(self.end, end)
        marks = [batch for batch in log.batches if batch.marker and start <= batch.base < end and not log.plain]
        self.marks |= {batch.base: batch.time for batch in marks}

    def read_again(self, log: Log, end: int) -> None:
        """Note that what the log has now below an offset takes the place of what was read: also of what limits took."""
        there = {rec.offset for rec in log.records()} | {batch.base for batch in log.batches if batch.marker}
        self.gone = {at for at in self.gone if at >= end}
        self.replaced |= {at for at in self.read.keys() | self.marks.keys() if at < end and at not in there}

    def stand(self, log: Log, end: int) -> None:
        """Note what the log is at the end of a run."""
        self.end, self.shorn = end, log.leader > 0
        self.written = {at: rec for at, rec in log.written.items() if at < end}
        self.log = {rec.offset: rec for rec in log.records() if rec.offset < end}

    def below(self, offset: int) -> Line:
        """The part of the line below an offset, for a log that continues otherwise from there."""
        return Line(
            end=offset,
            read={at: rec for at, rec in self.read.items() if at < offset},
            written={at: rec for at, rec in self.written.items() if at < offset},
            log={at: rec for at, rec in self.log.items() if at < offset},
            marks={at: time for at, time in self.marks.items() if at < offset},
            gone={at for at in self.gone if at < offset},
            lost={at for at in self.lost if at < offset},
            replaced={at for at in self.replaced if at < offset},
            cut=True,
        )

    def within(self, ranges: Sequence[tuple[int, int]]) -> Line:
        """The line with the records of these ranges of offsets."""

        def some(records: dict[int, Rec]) -> dict[int, Rec]:
            return {at: rec for at, rec in records.items() if any(start <= at < end for start, end in ranges)}

        return replace(self.copy(), read=some(self.read), written=some(self.written), log=some(self.log))

    def copy(self) -> Line:
        """The line as it is now."""
        return replace(
            self,
            read=dict(self.read),
            written=dict(self.written),
            log=dict(self.log),
            marks=dict(self.marks),
            gone=set(self.gone),
            lost=set(self.lost),
            replaced=set(self.replaced),
        )

    def forget(self, key: bytes) -> None:
        """Remove all records of a key."""
        for some in (self.read, self.written, self.log):
            for offset in [at for at, rec in some.items() if rec.key == key]:
                del some[offset]

    def add_erased(self, before: Line | None, end: int | None = None) -> None:
        """Add the records below `end` (None: all) that a copy has, and that were erased since in what it is a copy
        of."""
        if before is not None:
            for mine, old in ((self.read, before.read), (self.written, before.written), (self.log, before.log)):
                mine |= {at: rec for at, rec in old.items() if at not in mine and (end is None or at < end)}

    def first_since(self, moment: int) -> int | None:
        """The first offset with a record or a marker of a time or later that is there still."""
        times = self.marks | {at: rec.time for at, rec in self.read.items()}
        there = ((at, time) for at, time in times.items() if at not in self.gone | self.replaced)
        return min((at for at, time in there if time >= moment), default=None)


@dataclass(frozen=True)
class Bounds:
    """The part of a line that a point is of."""

    end: int | None = None
    since: int | None = None
    before: int | None = None

    def of(self, records: Iterable[Rec], known: Iterable[Rec]) -> list[Rec]:
        """The records that belong to it, in order. Times decide by the latest record of a transaction that is `known`:
        who reads a log does not know what was cleaned or erased."""
        latest: dict[int, int] = {}
        for rec in known:
            latest[rec.place] = max(rec.time, latest.get(rec.place, rec.time))
        return sorted((rec for rec in records if self._has(rec, latest.get(rec.place, rec.time))), key=offset_of)

    def _has(self, rec: Rec, time: int) -> bool:
        return (
            rec.visible
            and (self.end is None or rec.place < self.end)
            and (self.since is None or time >= self.since)
            and (self.before is None or time < self.before)
        )


def offset_of(rec: Rec) -> int:
    """The offset of a record, to sort by."""
    return rec.offset


def last_values(records: Iterable[Rec]) -> dict[bytes, Rec]:
    """The last record of each key that is no tombstone."""
    found: dict[bytes, Rec] = {}
    for rec in records:
        if rec.value is None:
            found.pop(rec.key, None)
        else:
            found[rec.key] = rec
    return found


@dataclass(frozen=True)
class Horizon:
    """The time and the offset from which on each point of a compacted partition must stay exact: those of the oldest
    point that was kept when retention ran, or of the limit of age, whichever is earlier."""

    time: int = -1
    offset: int = 0

    def moved(self, time: int, offset: int) -> Horizon:
        """The later of both: what is gone does not come back."""
        return Horizon(max(self.time, time), max(self.offset, offset))


@dataclass
class Reference:
    """All logs of the cluster and all lines of its archive. `points` are the lines at the ends of runs, `branches` the
    old ends of lines by branch id."""

    logs: dict[Key, Log] = field(default_factory=dict)
    lines: dict[Key, Line] = field(default_factory=dict)
    branches: dict[str, dict[Key, Line]] = field(default_factory=dict)
    points: dict[str, dict[Key, Line]] = field(default_factory=dict)
    seen: dict[Key, Line] = field(default_factory=dict)
    successes: list[tuple[str, int]] = field(default_factory=list)
    positions: dict[str, Positions] = field(default_factory=dict)
    """The positions that the point of a run has."""
    held: str = ""
    erased: dict[Key, dict[int, int]] = field(default_factory=dict)
    """The offsets that were erased, each with the last one of its key; -1 if that is of a tombstone."""
    taken: dict[Key, set[int]] = field(default_factory=dict)
    """All offsets that retention has taken so far, of whatever line."""
    horizons: dict[Key, Horizon] = field(default_factory=dict)

    def line(self, key: Key) -> Line:
        """The current line of a partition."""
        return self.lines.setdefault(key, Line())

    def branch(self, key: Key, offset: int, branch_id: str) -> None:
        """Go on with a partition from an offset on; the old end is a branch."""
        self.branches.setdefault(branch_id, {})[key] = self.line(key).copy()
        self.lines[key] = self.line(key).below(offset)
        self.erased[key] = {at: last for at, last in self.erased.get(key, {}).items() if at < offset}

    def ended(self, run_id: str, time: int, positions: Positions, *, succeeded: bool) -> None:
        """Note that a run has ended so that restores see what it has left. One that failed has the positions of the
        last success."""
        last = self.positions[self.successes[-1][0]] if self.successes else {}
        self.positions[run_id] = positions if succeeded else last
        if succeeded:
            self.successes.append((run_id, time))
        self.seen = {key: line.copy() for key, line in self.lines.items()}
        self.points[run_id] = {key: line.copy() for key, line in self.lines.items()}

    def kept(self, runs: int, days: int) -> set[str]:
        """The runs that must stay restorable: the last so many, the newest of each of so many days, and the held one.
        Attempts of a run count once, as the last of them."""
        times = dict(self.successes)
        newest = sorted(times, key=lambda run: self.successes.index((run, times[run])), reverse=True)
        of_days: dict[int, str] = {}
        for run in newest:
            of_days.setdefault(times[run] // (24 * HOUR), run)
        return {*newest[:runs], *list(of_days.values())[:days], *({self.held} & times.keys())}

    def took(self, key: Key, branch_id: str, start: int, end: int) -> None:
        """Note what retention has taken of a line. Points are what they were."""
        lines = self.branches.get(branch_id, {}) if branch_id else self.lines
        for line in (lines.get(key), None if branch_id else self.seen.get(key)):
            if line is not None:
                line.gone.update(range(start, end))
        self.taken.setdefault(key, set()).update(range(start, end))

    def retained(self, kept: set[str], oldest: int | None) -> None:
        """Note that retention has run, with the kept runs, and the time of the limit of age."""
        times = dict(self.successes)
        points = [run for run in times if run in kept or run == self.successes[-1][0]]
        for key, line in self.lines.items():
            having = [run for run in points if key in self.points[run] and self.points[run][key].end]
            if not having:
                continue
            time = min(times[run] for run in having)
            offset = min(self.points[run][key].end for run in having)
            if oldest is not None:
                aged = [self.points[run][key].end for run in times if times[run] < oldest and key in self.points[run]]
                time, offset = min(time, oldest), min(offset, max(aged, default=0))
            self.horizons[key] = self.horizons.get(key, Horizon()).moved(time, min(offset, line.end))

    def erase(self, key: bytes, topic_ids: Collection[str]) -> None:
        """Erase a key of a topic everywhere: from the cluster too, as whoever asks for it must."""
        for where, line in self.seen.items():
            if where[0] in topic_ids:
                notes = [at for at, rec in line.read.items() if rec.key == key and rec.visible]
                last = max(notes, default=-1)
                last = -1 if notes and line.read[last].value is None else last
                self.erased.setdefault(where, {}).update(dict.fromkeys(notes, last))
        for where, log in self.logs.items():
            if where[0] in topic_ids:
                log.forget(key)
        for lines in (self.lines, self.seen, *self.branches.values(), *self.points.values()):
            for where, line in lines.items():
                if where[0] in topic_ids:
                    line.forget(key)

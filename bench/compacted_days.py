"""An archive of a compacted topic over 30 days: `python -m bench.compacted_days` draws docs/benchmarks-compacted.svg.

One partition: 20,000 keys, of which a day overwrites each about once on average, some a hundred times as often as
others. Four runs a day archive what is new, and make snapshots by the default limits. Nothing is timed: the bytes of
all objects under `topics/` are counted at the end of each day. Three archives take the same records: one keeps the
log, and two keep the log of so many days after the newest snapshot that is older. Times are simulated, so the
removal is done here, by the same commits as those of retention.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.plot import line_chart
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RemovedSegment, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot
from logkeep_engine.archive.catalog.writer import Writer, begin_run
from logkeep_engine.archive.writing.log_writer import LogSegment
from logkeep_engine.backup.run.snapshots import make_snapshots
from logkeep_engine.contract.archive_format import DEFAULT_DIGEST, Compression
from logkeep_engine.contract.spec import KafkaBackupSpec, parse_backup
from logkeep_engine.log.batch import headers_of, walk
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.report import Reporter
from logkeep_engine.storage import Storage, open_uri
from tests.runners import Context, Job, Runner

PLOT = Path(__file__).parents[1] / "docs" / "benchmarks-compacted.svg"
TOPIC = TopicEntry("state", "aaaaaaaaaaaaaaaaaaaaa_", 1, 1, {"cleanup.policy": "compact"})
KEY = (TOPIC.topic_id, 0)
DAY = 86_400_000
NOON = 1_767_225_600_000
KEYS, RUNS_A_DAY, RECORDS, VALUE = 20_000, 4, 5_000, 1000
KEPT: dict[str, int | None] = {"log kept": None, "7 days": 7, "1 day": 1}
MIB = 1 << 20


class InOrder(Runner):
    """Works on one task after the other in this process."""

    def perform(self, job: Job) -> None:
        for index, work in enumerate(job.work):
            job.on_result(index, job.function(work, Context()))


def batches(random: np.random.Generator, base: int, time: int) -> list[bytes]:
    """The records of a quarter of a day, in batches of 500."""
    keys = (KEYS * random.power(0.5, RECORDS)).astype(int)
    made = []
    for start in range(0, RECORDS, 500):
        records = [
            Record(base + at, time + at, b"key-%06d" % keys[at], random.bytes(VALUE))
            for at in range(start, start + 500)
        ]
        made.append(encode(records, codec=Codec.NONE, base_offset=base + start, leader_epoch=0))
    return made


def archived(writer: Writer, storage: Storage, some: Sequence[bytes], base: int) -> None:
    """One segment, committed."""
    segment = LogSegment(
        storage, Compression.PASSTHROUGH, TOPIC.name, *KEY, base, writer.epoch, attempt=0, digest=DEFAULT_DIGEST
    )
    for batch in some:
        segment.builder.append(memoryview(batch), headers_of(walk(batch)))
    receipt = Receipt((Coverage(*KEY, base, base + RECORDS),), (segment.finish(),))
    writer.commit(topics=[TOPIC], receipts=[receipt])


def retain(writer: Writer, storage: Storage, before: int) -> None:
    """Remove what lies below the newest snapshot of records that are all older than `before`, and older snapshots."""
    held = writer.state.snapshots.get(KEY, [])
    floor = max((item.end for item in held if item.time < before), default=0)
    entries = writer.state.segments.get(KEY, ())
    gone = [entry for entry in entries if entry.base_offset < floor]
    old = [part for item in held if item.end < floor for part in item.parts(KEY)]
    if gone or old:
        writer.remove(
            [RemovedSegment(*KEY, entry.base_offset) for entry in gone],
            [RemovedSnapshot(*KEY, item.end) for item in held if item.end < floor],
        )
        storage.delete([path for entry in (*gone, *old) for path in entry.objects(TOPIC.name)])
        writer.purged([writer.state.commit])


@dataclass
class Kept:
    """An archive that keeps the log of so many `days`, or all of it."""

    storage: Storage
    archive: Archive
    days: int | None
    sizes: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])

    def run(self, name: str, spec: KafkaBackupSpec, some: Sequence[bytes], base: int, now: int) -> None:
        """One backup."""
        with begin_run(self.archive, name) as writer:
            archived(writer, self.storage, some, base)
            writer.end(RunOutcome.SUCCEEDED)
            if self.days is not None:
                made = make_snapshots(writer, spec, Reporter("bench"), InOrder, None)
                assert not made.notes, made.notes
                retain(writer, self.storage, now - self.days * DAY)

    def measure(self, day: int) -> None:
        """Note how large the archive is."""
        self.sizes.append((day, sum(info.size for info in self.storage.list("topics/")) / MIB))


def simulate(folder: Path, spec: KafkaBackupSpec, days: int) -> dict[str, Kept]:
    """Back up the same records into all archives."""
    kept = {}
    for number, (name, most) in enumerate(KEPT.items()):
        storage = open_uri((folder / str(number)).as_uri())
        kept[name] = Kept(storage, Archive.create_or_open(storage, "bench"), most)
    random, base = np.random.default_rng(17), 0
    for day in range(1, days + 1):
        for run in range(RUNS_A_DAY):
            now = NOON + (day - 1) * DAY + run * DAY // RUNS_A_DAY
            some = batches(random, base, now)
            for one in kept.values():
                one.run(f"run-{day}-{run}", spec, some, base, now)
            base += RECORDS
        for one in kept.values():
            one.measure(day)
        print(day, *(f"{name}: {one.sizes[-1][1]:.0f} MiB" for name, one in kept.items()), flush=True)
    return kept


def main() -> None:
    """Simulate, and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--plot", type=Path, default=PLOT)
    given = parser.parse_args()
    spec = parse_backup(
        {
            "cluster": {"bootstrapServers": ["127.0.0.1:1"]},
            "topics": {"include": [".*"]},
            "storage": {"uri": "s3://bench/archive"},
        }
    )
    folder = Path(tempfile.mkdtemp(prefix="logkeep-compacted-"))
    try:
        kept = simulate(folder, spec, given.days)
    finally:
        shutil.rmtree(folder)
    series = {name: one.sizes for name, one in kept.items()}
    title = "Archive of a compacted topic: the log, or snapshots and the log of so many days"
    one_state = KEYS * (VALUE + 30) / MIB
    ticks = (range(0, given.days + 1, 5), range(0, 601, 100))
    given.plot.write_text(line_chart(title, "days", "MiB", series, round(one_state), "one record a key:", ticks))


if __name__ == "__main__":
    main()

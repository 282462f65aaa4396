"""A conversion from beginning to end: look, plan, convert, commit, end.

The order makes it safe. Before anything is written, it is known what the target's format would lose of records. The
plan is stored before the first task, so a run that starts again does the same chunks. Objects are written before the
commit that names them. A chunk is committed whole, after all of its segments were read and found to be as the source
says. Facts of the source (topics with their ids, gaps, groups) are carried over as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import keep_cluster_state
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Receipt, RunOutcome
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer, begin_run
from logkeep_engine.archive.maintenance.leases import reading
from logkeep_engine.archive.plans import CONVERT_PLAN_FILE
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.archive.writing.record_files import (
    every_partition,
    newest_topics,
    write_consumer_offsets,
    write_partition_indexes,
)
from logkeep_engine.archiving import ArchivingRun, Committer, check_beginning
from logkeep_engine.contract.archive_format import Compression, DigestAlgorithm, FormatName, FormatOptions
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunResult
from logkeep_engine.convert.inexact import carry_exact, describe_logs
from logkeep_engine.convert.lineage import check_same_logs, leader_epochs, leaders_seen
from logkeep_engine.convert.loss import LossReport
from logkeep_engine.convert.plan import (
    CHUNK_BYTES,
    ConvertChunk,
    ConvertPlan,
    check_additions,
    check_covers,
    make_plan,
    open_chunks,
    segments_of,
    up_to_exact,
)
from logkeep_engine.convert.source import ConvertSource, check_one_incarnation, is_kafka
from logkeep_engine.convert.target import KIND, check_apart, find_target, stored_plans
from logkeep_engine.convert.task import (
    ChunkDone,
    ChunkWork,
    ConvertSetting,
    ConvertTask,
    convert_chunks,
    count_chunks,
    examine_chunks,
    in_tasks,
    is_copied,
    loses_of_records,
)
from logkeep_engine.convert.transactions import look_through
from logkeep_engine.convert.write import TargetSetting
from logkeep_engine.errors import ArchiveMismatch, ObjectExists, ObjectMissing
from logkeep_engine.formats.losses import LOSS_FILE
from logkeep_engine.limits import UNLIMITED, Throttle
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.report import ProgressRange, Reporter, bounded_warnings
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import PartitionUpdate, TaskContext, TaskRunner

SEGMENT_BYTES = 128 << 20

Prepare = Callable[[Callable[[], TaskRunner], Reporter], ConvertSource]
"""A function that finds out what there is to convert. For a folder without a catalog it reads the folder, in tasks."""


@dataclass(frozen=True)
class ConvertOptions:
    """The options for the target. `compression` is that of whole segments of format Kafka, `codec` that of batches made
    from records. `digest` None: copies keep theirs, other objects get the default."""

    format: FormatName
    segment_bytes: int = SEGMENT_BYTES
    compression: Compression = Compression.PASSTHROUGH
    codec: Codec = Codec.ZSTD
    format_options: FormatOptions = field(default_factory=FormatOptions)
    chunk_bytes: int = CHUNK_BYTES
    digest: DigestAlgorithm | None = None

    def text(self) -> dict[str, str]:
        """Return the options that change the bytes that are written."""
        options = self.format_options
        return {
            "segmentBytes": str(self.segment_bytes),
            "compression": self.compression.value,
            "codec": self.codec.name.lower(),
            "compatibility": options.compatibility.value if options.compatibility else "",
            "avroCodec": options.codec.value if options.codec else "",
        }


@dataclass(frozen=True)
class ConvertResult:
    """The result of a conversion or an import: how it went, what was, or would be, lost, and all damage of a source
    that was refused."""

    result: RunResult
    losses: LossReport = field(default_factory=LossReport)
    dry_run: bool = False
    faults: tuple[str, ...] = ()


def run_convert(
    run_id: str,
    prepare: Prepare,
    target: Storage,
    options: ConvertOptions,
    runner_factory: Callable[[], TaskRunner],
    reporter: Reporter,
    *,
    dry_run: bool = False,
    kind: str = KIND,
) -> ConvertResult:
    """Make `target` hold what the source holds, in another format, or in the same. With `dry_run` nothing is written:
    the losses are counted.

    Never raises for what happens in a run: every error becomes a result with its exit code. The same `run_id` again
    continues where the run stopped; another one adds what the source has gained since.
    """
    run = _ConvertRun(run_id, prepare, target, options, runner_factory, reporter, dry_run, kind)
    return ConvertResult(run.perform(), run.losses, dry_run, run.faults)


class _ConvertRun(ArchivingRun):
    def __init__(
        self,
        run_id: str,
        prepare: Prepare,
        target: Storage,
        options: ConvertOptions,
        runner_factory: Callable[[], TaskRunner],
        reporter: Reporter,
        dry_run: bool,
        kind: str,
    ) -> None:
        super().__init__(run_id, kind, reporter)
        self._prepare = prepare
        self._target = target
        self._options = options
        self._runner_factory = runner_factory
        self._dry_run = dry_run
        self._plan: ConvertPlan | None = None
        self._source: ConvertSource | None = None
        self.losses = LossReport()

    def execute(self) -> None:
        self._reporter.phase("Planning")
        self._target.check()
        source = self._source = self._prepare(self._runner_factory, self._reporter)
        with self._lease(source):
            self._convert_all(source)

    def _lease(self, source: ConvertSource) -> AbstractContextManager[None]:
        """Return a lease on the objects of a source that is an archive, unless nothing shall be written."""
        # In what another tool wrote, no run of an archive deletes what is being read.
        if source.commit is None or self._dry_run:
            return nullcontext()
        return reading(source.storage, self._run_id, source.commit)

    def _convert_all(self, source: ConvertSource) -> None:
        check_apart(source, self._target)
        check_one_incarnation(source, self._options.format)
        existing = find_target(source, self._target, self._options.format)
        if existing is not None:
            self._target = existing.storage
        state = existing.load() if existing is not None else ArchiveState()
        check_same_logs(source, state)
        if self._options.format is not FormatName.KAFKA:  # batches are copied, with what describes their transactions
            source = self._source = look_through(source, self._runner_factory)
        looked = self._look(source, existing, state)
        if self._dry_run:
            return
        archive = self._archive = existing or Archive.create_or_open(
            self._target, source.cluster_id, self._options.format, imported=source.imported
        )
        self._target = archive.storage
        writer = self._writer = begin_run(archive, self._run_id, kind=KIND)
        self._notes += writer.warnings
        self._reporter.phase("Planning", attempt=writer.state.runs[self._run_id].attempts)
        plan = self._plan = self._load_or_make_plan(archive, source, writer.state)
        if looked:
            # Before the first commit: an attempt that is started again need not read all of the source once more.
            self._target.put(names.run_file(self._run_id, LOSS_FILE), self.losses.to_json())
        writer.commit(
            topics=plan.topics,
            receipts=[Receipt(gaps=(gap,)) for gap in plan.gaps],
            leaders=leaders_seen(source.leaders),
            epochs=leader_epochs(source.leaders),
        )
        carry_exact(writer, source, plan.chunks)
        chunks = open_chunks(plan, writer.state)
        self._announce(plan, chunks)
        self._convert(source, writer, plan, chunks, counted=looked)
        self._finish(source, writer, plan)

    def _look(self, source: ConvertSource, existing: Archive | None, state: ArchiveState) -> bool:
        """Find what would be lost before anything is written, if something of a record can be lost, or if the user
        asked only for this. Returns whether it looked."""
        setting = self._setting(source, epoch=1)
        if not self._dry_run and not loses_of_records(setting.target):
            return False
        stored = self._stored(existing)
        if stored is not None and not self._dry_run:
            self.losses = stored
            return True
        plan = self._plan_of(source, state)
        self._plan = plan
        self._reporter.phase("Checking")
        self._announce(plan, plan.chunks, phase="Checking")
        self._run_tasks(examine_chunks, setting, self._work(source, plan.chunks), self._note_losses)
        if not self._dry_run and self.losses.of_records and not self._options.format_options.allow_loss:
            raise self.losses.refused(self._target_name())
        return True

    def _stored(self, existing: Archive | None) -> LossReport | None:
        """Return the losses that an earlier attempt of this run has found."""
        if existing is None:
            return None
        try:
            return LossReport.from_json(self._target.read(names.run_file(self._run_id, LOSS_FILE)))
        except ObjectMissing:
            return None

    def _target_name(self) -> str:
        compatibility = self._options.format_options.compatibility
        return f"Format {self._options.format}" + (f" (compatibility {compatibility})" if compatibility else "")

    def _plan_of(self, source: ConvertSource, state: ArchiveState) -> ConvertPlan:
        check_additions(source, stored_plans(self._target, state), state)
        return make_plan(
            self._run_id, source, self._options.format.value, self._options.text(), state, self._options.chunk_bytes
        )

    def _load_or_make_plan(self, archive: Archive, source: ConvertSource, state: ArchiveState) -> ConvertPlan:
        path = names.run_file(self._run_id, CONVERT_PLAN_FILE)
        try:
            stored = self._target.read(path)
        except ObjectMissing:
            plan = replace(self._plan_of(source, state), begun=state.runs[self._run_id].begin_time)
            try:
                self._target.create(path, plan.to_json())
            except ObjectExists:  # another driver of this run was faster: its plan counts
                stored = self._target.read(path)
            else:
                return plan
        plan = ConvertPlan.from_json(stored, f"{self._target.uri}/{path}")
        check_beginning(state, self._run_id, plan.begun)
        if dict(plan.options) != self._options.text():
            changed = sorted(key for key, value in self._options.text().items() if plan.options.get(key) != value)
            raise ArchiveMismatch(
                f"Run {self._run_id} was started with other options: {', '.join(changed)}.",
                hint="Give the options it was started with, or start a run with another --run-id.",
            )
        check_covers(source, plan)
        check_additions(source, stored_plans(self._target, state), state, plan.chunks)
        return up_to_exact(plan, source, state, self._options.chunk_bytes)

    def _announce(self, plan: ConvertPlan, chunks: Sequence[ConvertChunk], phase: str = "Running") -> None:
        names_of = {topic.topic_id: topic.name for topic in plan.topics}
        to_do = {chunk.number for chunk in chunks}
        self._reporter.planned(
            (
                ProgressRange(
                    chunk.number,
                    names_of[chunk.topic_id],
                    chunk.partition,
                    chunk.start,
                    chunk.end,
                    at=chunk.start if chunk.number in to_do else chunk.end,
                )
                for chunk in plan.chunks
            ),
            topics=len(plan.topics),
        )
        self._reporter.phase(phase)

    def _setting(self, source: ConvertSource, epoch: int) -> ConvertSetting:
        options = self._options
        return ConvertSetting(
            source.storage,
            TargetSetting(
                storage=self._target,
                format=options.format,
                epoch=epoch,
                segment_bytes=options.segment_bytes,
                compression=options.compression,
                codec=options.codec,
                options=options.format_options,
                digest=options.digest,
            ),
        )

    def _work(self, source: ConvertSource, chunks: Sequence[ConvertChunk]) -> list[ChunkWork]:
        names_of = source.topic_names
        segments, aborted = segments_of(source, chunks), Aborted(source)
        work = [ChunkWork(chunk, names_of[chunk.topic_id], segments[chunk.number]) for chunk in chunks]
        return [
            replace(item, aborted=aborted.reaching_into(item)) if self._needs_aborted(item) else item for item in work
        ]

    def _needs_aborted(self, work: ChunkWork) -> bool:
        """Return whether records of transactions are taken out of their batches."""
        return any(
            isinstance(segment, SegmentEntry) and segment.transactional and not is_copied(self._options.format, segment)
            for segment in work.segments
        )

    def _convert(
        self, source: ConvertSource, writer: Writer, plan: ConvertPlan, chunks: Sequence[ConvertChunk], *, counted: bool
    ) -> None:
        setting = self._setting(source, writer.epoch)
        committer = Committer(writer)

        def on_result(done: ChunkDone) -> None:
            if done.receipt is not None:
                committer.add(done.receipt)
                committer.commit_if_due()
                entries = done.receipt.segments
                records, size = sum(entry.records for entry in entries), sum(entry.bytes for entry in entries)
                self._reporter.done(done.number, records, size)
            if not counted:
                self._note_losses(done)

        with committer:
            self._run_tasks(convert_chunks, setting, self._work(source, chunks), on_result)
        if counted or self._options.format is FormatName.KAFKA:
            return
        todo = {chunk.number for chunk in chunks}
        # What an earlier attempt counted has gone with it.
        before = [chunk for chunk in plan.chunks if chunk.number not in todo]
        self._run_tasks(count_chunks, setting, self._work(source, before), self._note_losses)
        if self.losses.losses:
            self._target.put(names.run_file(self._run_id, LOSS_FILE), self.losses.to_json())

    def _note_losses(self, done: ChunkDone) -> None:
        self.losses.add(done.losses)

    def _run_tasks(
        self,
        function: Callable[[ConvertSetting, ConvertTask, TaskContext], tuple[ChunkDone, ...]],
        setting: ConvertSetting,
        work: Sequence[ChunkWork],
        on_result: Callable[[ChunkDone], None],
    ) -> None:
        """Run the function on all chunks, in tasks. Chunks without a segment need none."""

        def on_results(_: int, done: Sequence[ChunkDone]) -> None:
            for item in done:
                on_result(item)

        tasks = in_tasks([item for item in work if item.segments], self._options.chunk_bytes)
        empty = ConvertTask(len(tasks), tuple(item for item in work if not item.segments))
        on_results(empty.number, function(setting, empty, _NoContext()))
        if tasks:
            self._runner_factory().run(tasks, partial(function, setting), on_results, self._reporter.update)

    def _finish(self, source: ConvertSource, writer: Writer, plan: ConvertPlan) -> None:
        self._reporter.phase("Finishing")
        state = writer.state
        groups = state.groups_after(plan.groups, plan.topics)
        if self._options.format is FormatName.RECORDS:
            keys = sorted(state.segments)
            # By these files a reader of the folder, an import too, knows how many partitions a topic has.
            empty = set(every_partition(newest_topics(state))) - set(keys)
            write_partition_indexes(self._target, state, [*keys, *sorted(empty)])
            write_consumer_offsets(self._target, state, keys, groups)
        users = source.cluster_state
        kept = None if users is None else keep_cluster_state(writer.archive, self._run_id, users)
        writer.end(RunOutcome.SUCCEEDED, "", groups, cluster_state=kept)
        self._tidy(writer, ((chunk.topic_id, chunk.partition) for chunk in plan.chunks))
        self._bundle(writer)

    def result(self) -> RunResult:
        """Return the result with the facts so far. Its outcome and exit code are those of a failed run."""
        result = super().result()
        if self._plan is not None:
            result = replace(
                result,
                topics=len(self._plan.topics),
                partitions=sum(topic.partitions for topic in self._plan.topics),
                groups=len({group.group_id for group in self._plan.groups}),
            )
        notes = () if self._source is None else (*self._source.notes, *describe_logs(self._source))
        return replace(result, warnings=bounded_warnings((*self._notes, *self.losses.warnings(), *notes)))


class Aborted:
    """The aborted transactions of a source's partitions, each read once."""

    def __init__(self, source: ConvertSource) -> None:
        self._source = source
        self._names = source.topic_names
        self._found: dict[tuple[str, int], list[AbortedTxn]] = {}

    def reaching_into(self, work: ChunkWork) -> tuple[AbortedTxn, ...]:
        """Return the aborted transactions that records of the chunk may belong to."""
        if not any(is_kafka(segment) for segment in work.segments):
            return ()
        start, end = work.segments[0].base_offset, work.segments[-1].next_offset
        found = self.of(work.chunk.topic_id, work.chunk.partition)
        return tuple(txn for txn in found if txn.first_offset < end and txn.last_offset >= start)

    def of(self, topic_id: str, partition: int) -> list[AbortedTxn]:
        """Return all aborted transactions of a partition."""
        key = (topic_id, partition)
        if key not in self._found:
            self._found[key] = self._read(*key)
        return self._found[key]

    def _read(self, topic_id: str, partition: int) -> list[AbortedTxn]:
        if (topic_id, partition) in self._source.aborted:
            return list(self._source.aborted[topic_id, partition])
        entries = [entry for entry in self._source.segments[topic_id, partition] if isinstance(entry, SegmentEntry)]
        kept = self._source.coverage.get((topic_id, partition), ())
        reader = open_partition(self._source.storage, self._names[topic_id], entries, kept)
        return list(reader.transactions.aborted)


class _NoContext:
    """The context of chunks without segments, which are done in the driver."""

    attempt = 0

    @property
    def throttle(self) -> Throttle:
        return UNLIMITED

    def report(self, updates: Sequence[PartitionUpdate]) -> None:
        """There is nothing to wait for."""

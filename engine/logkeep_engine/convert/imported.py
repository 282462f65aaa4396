"""Imports: a folder of another tool becomes an archive where it lies, or is the source of a conversion.

    result = adopt(run_id, storage, runner_factory, reporter, repair=False)     # in place: archive.json and catalog
    prepare = foreign_source(storage, repair=False)                             # for `run.run_convert`

Everything is read and checked before anything is written. Adopted objects are never changed, with two exceptions:
indexes of segments that are missing or short, and, if the user asks for it, torn tails. The former content is then kept
under `runs/<run id>/original/`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, GroupEntry, Receipt, RunOutcome
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archiving import ArchivingRun
from logkeep_engine.contract.archive_format import DEFAULT_DIGEST, DigestAlgorithm, FormatName
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunResult
from logkeep_engine.convert.check import CheckedSegment, CheckSetting, check_segments, rebuilt_index
from logkeep_engine.convert.folder import Folder, FoundSegment, manifests, scan
from logkeep_engine.convert.foreign import Adopted, Repair, folder_source, tool_source
from logkeep_engine.convert.read import read_records
from logkeep_engine.convert.run import ConvertResult, Prepare
from logkeep_engine.convert.source import NO_CLUSTER, ConvertSource
from logkeep_engine.errors import ArchiveMismatch, ArchiveMissing, FolderRefused, UndecodableRecord
from logkeep_engine.kafka.internal import CONSUMER_OFFSETS
from logkeep_engine.report import ProgressRange, Reporter, bounded_warnings
from logkeep_engine.storage import ObjectInfo, Storage
from logkeep_engine.tasks import TaskContext, TaskRunner, no_update
from logkeep_engine.toolbox.offsets import decode_offset_record

log = logging.getLogger(__name__)

KIND = "Import"
ORIGINALS = "original"
TASK_BYTES = 64 << 20
RECEIPTS_AT_ONCE = 200
_READERS = 16


def adopt(
    run_id: str,
    storage: Storage,
    runner_factory: Callable[[], TaskRunner],
    reporter: Reporter,
    *,
    repair: bool = False,
    dry_run: bool = False,
    digest: DigestAlgorithm | None = None,
) -> ConvertResult:
    """Make the folder at `storage` an archive, where it lies. With `dry_run` it is only checked. `digest` None: the
    catalog gets digests of the default algorithm.

    Never raises for what happens in a run: every error becomes a result with its exit code.
    """
    run = _Adoption(run_id, storage, runner_factory, reporter, repair, dry_run, digest or DEFAULT_DIGEST)
    return ConvertResult(run.perform(), dry_run=dry_run, faults=run.faults)


def foreign_source(storage: Storage, *, repair: bool = False) -> Prepare:
    """Prepare a conversion of what another tool wrote. Nothing of it is changed: `repair` leaves torn tails out."""

    def prepare(runner_factory: Callable[[], TaskRunner], reporter: Reporter) -> ConvertSource:
        storage.check()
        objects = storage.list()
        if any(info.path == names.ARCHIVE for info in objects):
            raise ArchiveMismatch(
                f"{storage.uri} is an archive already: it need not be imported.",
                hint="Convert it with `logkeep convert`.",
            )
        found = manifests(objects)
        if found:
            return tool_source(storage, found)
        folder = scan(objects, storage.uri)
        return _check(storage, folder, runner_factory, reporter, DEFAULT_DIGEST, repair=repair).source

    return prepare


class _Adoption(ArchivingRun):
    def __init__(
        self,
        run_id: str,
        storage: Storage,
        runner_factory: Callable[[], TaskRunner],
        reporter: Reporter,
        repair: bool,
        dry_run: bool,
        digest: DigestAlgorithm,
    ) -> None:
        super().__init__(run_id, KIND, reporter)
        self._storage = storage
        self._runner_factory = runner_factory
        self._repair = repair
        self._dry_run = dry_run
        self._digest = digest
        self._source: ConvertSource | None = None

    def execute(self) -> None:
        storage = self._storage
        self._reporter.phase("Planning")
        storage.check()
        begun = check_not_imported(storage)
        objects = storage.list()
        refuse_tool_archive(objects, storage.uri)
        folder = scan(objects, storage.uri)
        runner, reporter = self._runner_factory, self._reporter
        adopted = _check(storage, folder, runner, reporter, self._digest, repair=self._repair)
        source = self._source = adopted.source
        check_same_digest(storage.uri, begun, self._digest)
        check_unchanged(source, begun)
        if self._dry_run:
            return
        self._reporter.phase("Finishing")
        for item in adopted.repairs:
            self._mend(item)  # before there is an archive: after a crash the folder is still one to import
        archive = self._archive = Archive.create_or_open(storage, NO_CLUSTER, folder.format, imported=True)
        writer = self._writer = begin_run(archive, self._run_id, kind=KIND)
        self._notes += writer.warnings
        writer.commit(topics=source.topics)
        receipts = _receipts(source, writer.epoch)
        for at in range(0, len(receipts), RECEIPTS_AT_ONCE):
            writer.commit(receipts=receipts[at : at + RECEIPTS_AT_ONCE])
        writer.end(RunOutcome.SUCCEEDED, "", source.groups)

    def _mend(self, item: Repair) -> None:
        """Repair an object. The originals are kept first: a crash leaves at worst one of them twice."""
        storage, found = self._storage, item.segment
        for path in item.replaces:
            _copy(storage, path, names.run_file(self._run_id, f"{ORIGINALS}/{path}"), None)
        size = found.size if item.cut_to is None else item.cut_to
        index = rebuilt_index(storage, found, size) if item.rebuild else None
        if item.cut_to is not None:
            _copy(storage, found.path, found.path, item.cut_to)
        if index is not None:
            storage.put(found.index_path, index)
        log.warning("%s/%s: %s", storage.uri, found.path, item.what)

    def result(self) -> RunResult:
        """Return the result with the facts so far. Its outcome and exit code are those of a failed run."""
        result, source = super().result(), self._source
        if source is None:
            return result
        entries = [entry for key in source.segments for entry in source.segments[key]]
        return replace(
            result,
            topics=len(source.topics),
            partitions=sum(topic.partitions for topic in source.topics),
            records=sum(entry.records for entry in entries),
            bytes=sum(entry.bytes for entry in entries),
            segments=len(entries),
            groups=len({group.group_id for group in source.groups}),
            warnings=bounded_warnings(source.notes),
        )


_AGAIN = "To import what has been added to it since, remove archive.json and catalog/ first."


def check_not_imported(storage: Storage) -> ArchiveState:
    """Return the state of an import that has begun here and has not come to its end. Raises ArchiveMismatch if another
    archive is there."""
    try:
        archive = Archive.open(storage)
    except ArchiveMissing:
        return ArchiveState()
    state = archive.load()
    runs = [run for run in state.runs.values() if not run.is_maintenance]
    if not archive.info.imported or any(run.kind != KIND or run.outcome is RunOutcome.SUCCEEDED for run in runs):
        how = "it was imported before" if archive.info.imported else "Logkeep made it"
        raise ArchiveMismatch(
            f"{storage.uri} is an archive already: {how}.",
            hint=_AGAIN if archive.info.imported else "Convert it with `logkeep convert`.",
        )
    return state


def check_same_digest(uri: str, begun: ArchiveState, digest: DigestAlgorithm) -> None:
    """Raises ArchiveMismatch if an import has begun to adopt the folder with digests of another algorithm."""
    for entries in begun.segments.values():
        for entry in entries:
            if entry.digest.algorithm is not digest:
                raise ArchiveMismatch(
                    f"An import of {uri} was started with --digest {entry.digest.algorithm} and has not finished.",
                    hint="Give the same --digest, or remove archive.json and catalog/ first.",
                )


def check_unchanged(source: ConvertSource, begun: ArchiveState) -> None:
    """Raises ArchiveMismatch if the folder has changed since an import has begun to adopt it."""
    for key in sorted(begun.segments):
        committed = [replace(entry, epoch=0) for entry in begun.segments[key]]  # each attempt has an epoch of its own
        found = [replace(entry, epoch=0) for entry in source.segments.get(key, ()) if isinstance(entry, SegmentEntry)]
        if found != committed:
            topic = begun.topics[key[0]].name
            raise ArchiveMismatch(
                f"The segments of topic {topic!r} partition {key[1]} in {source.storage.uri} have changed since "
                "an import that did not finish.",
                hint=_AGAIN,
            )


def refuse_tool_archive(objects: Sequence[ObjectInfo], uri: str) -> None:
    """Raises FolderRefused for a backup of a tool whose segments cannot be read where they are."""
    found = manifests(objects)
    if found:
        raise FolderRefused(
            f"{uri}/{found[0]} is of osodevops/kafka-backup, whose segments no archive can hold as they are.",
            hint="Import it into a new folder: `logkeep import SRC DST --format Kafka`.",
        )


def _receipts(source: ConvertSource, epoch: int) -> list[Receipt]:
    receipts = []
    for key in sorted(source.coverage):
        entries = tuple(
            replace(entry, epoch=epoch) for entry in source.segments[key] if isinstance(entry, SegmentEntry)
        )
        receipts.append(Receipt(tuple(Coverage(*key, *part) for part in source.coverage[key]), entries))
    return receipts


def _copy(storage: Storage, path: str, to: str, size: int | None) -> None:
    """Copy an object, or its first `size` bytes, to another name or its own."""
    left = size
    with storage.reader(path) as reader, storage.writer(to) as writer:
        while (left is None or left > 0) and (block := reader.read_block()):
            writer.write(block if left is None else block[:left])
            left = None if left is None else left - len(block)


# ---- checking


@dataclass(frozen=True, slots=True)
class _PositionWork:
    """The segments of one partition of `__consumer_offsets`."""

    partition: int
    segments: tuple[SegmentEntry, ...]


def _check(
    storage: Storage,
    folder: Folder,
    runner_factory: Callable[[], TaskRunner],
    reporter: Reporter,
    digest: DigestAlgorithm,
    *,
    repair: bool,
) -> Adopted:
    """Read all segments, in tasks, and judge what was found in them."""
    groups = _group_work(folder.segments)
    reporter.planned(_parts(groups), topics=len(folder.partitions))
    reporter.phase("Checking")
    checked: dict[str, CheckedSegment] = {}

    def on_result(index: int, results: tuple[CheckedSegment, ...]) -> None:
        for found, result in zip(groups[index], results, strict=True):
            checked[found.path] = result
        reporter.done(
            index, sum(item.facts.records for item in results if item.facts), sum(f.size for f in groups[index])
        )

    if groups:
        setting = CheckSetting(storage, folder.layout, digest)
        runner_factory().run(groups, partial(check_segments, setting), on_result, reporter.update)
    contents = _contents(storage, [file.path for file in (*folder.groups, *folder.partition_indexes)])
    adopted = folder_source(storage, folder, checked, repair=repair, contents=contents)
    if folder.format is not FormatName.AVRO:
        return adopted
    found_groups = _positions(adopted.source, runner_factory)
    return replace(adopted, source=replace(adopted.source, groups=found_groups))


def _contents(storage: Storage, paths: Sequence[str]) -> dict[str, bytes]:
    """Read small objects, two for each partition. Latency decides how long this takes, so several are read at once."""
    with ThreadPoolExecutor(_READERS, thread_name_prefix="logkeep-files") as pool:
        return dict(zip(paths, pool.map(storage.read, paths), strict=True))


def _group_work(segments: Sequence[FoundSegment]) -> list[tuple[FoundSegment, ...]]:
    """Group the segments of one partition until they are TASK_BYTES together."""
    groups: list[list[FoundSegment]] = []
    size = 0
    for found in segments:
        last = groups[-1][-1] if groups else None
        same = last is not None and (last.topic, last.partition) == (found.topic, found.partition)
        if not same or size >= TASK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(found)
        size += found.size
    return [tuple(group) for group in groups]


def _parts(groups: Sequence[tuple[FoundSegment, ...]]) -> list[ProgressRange]:
    """Return the ranges for the progress report. They are counted in bytes, since offsets are not known yet."""
    parts = []
    for number, group in enumerate(groups):
        parts.append(
            ProgressRange(number, group[0].topic, group[0].partition, 0, max(1, sum(found.size for found in group)))
        )
    return parts


def _positions(source: ConvertSource, runner_factory: Callable[[], TaskRunner]) -> tuple[GroupEntry, ...]:
    """Positions of consumer groups in the topics of the folder, from its copy of `__consumer_offsets`."""
    of_offsets = {topic.topic_id for topic in source.topics if topic.name == CONSUMER_OFFSETS}
    work = [
        _PositionWork(key[1], tuple(item for item in source.segments[key] if isinstance(item, SegmentEntry)))
        for key in source.segments
        if key[0] in of_offsets
    ]
    if not work:
        return ()
    found: list[GroupEntry] = []
    ids = {topic.name: topic.topic_id for topic in source.topics}

    def on_result(_: int, entries: tuple[GroupEntry, ...]) -> None:
        found.extend(replace(entry, topic_id=ids[entry.topic]) for entry in entries if entry.topic in ids)

    runner_factory().run(work, partial(_read_positions, source.storage), on_result, no_update)
    return tuple(sorted(found, key=lambda item: (item.group_id, item.topic, item.partition)))


def _read_positions(storage: Storage, work: _PositionWork, context: TaskContext) -> tuple[GroupEntry, ...]:
    """Return the last position of each group and partition. All records of a group lie in one partition of the topic,
    so these are all."""
    last: dict[tuple[str, str, int], GroupEntry] = {}
    for entry in work.segments:
        for records in read_records(storage, CONSUMER_OFFSETS, work.partition, entry):
            for record in records:
                try:
                    commit = decode_offset_record(record.key, record.value).commit
                # One that is cut short, or of a newer Kafka, costs no other group its position.
                except UndecodableRecord as error:
                    log.warning("%s partition %d: %s", CONSUMER_OFFSETS, work.partition, error.message)
                    continue
                if commit is None:
                    continue
                key = (commit.group, commit.topic, commit.partition)
                if commit.offset is None:  # a tombstone: the position was deleted
                    last.pop(key, None)
                    continue
                epoch = -1 if commit.leader_epoch is None else commit.leader_epoch
                last[key] = GroupEntry(
                    commit.group, commit.topic, "", commit.partition, commit.offset, epoch, commit.metadata
                )
    return tuple(last.values())

"""Archives of the formats Records and Avro for the tests of restores, written as a backup writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout, RecordsAtRootFiles, SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, GroupEntry, Receipt, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.writing.record_writer import RecordSink
from logkeep_engine.contract.archive_format import FormatName, FormatOptions
from logkeep_engine.contract.model import replace
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import CLUSTER, FAST

FORMATS = {
    Layout.RECORDS: FormatName.RECORDS,
    Layout.RECORDS_AT_ROOT: FormatName.RECORDS,
    Layout.AVRO: FormatName.AVRO,
}
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
Partitions = Mapping[int, Sequence[PlainRecord]]


def topic_entry(name: str, partitions: int = 1, **configs: str) -> TopicEntry:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    return TopicEntry(name, TOPIC_ID, partitions, 1, {"retention.ms": "-1", **settings})


def write_archive(
    root: Path | Storage,
    layout: Layout,
    topic: TopicEntry,
    partitions: Partitions,
    *,
    limit_bytes: int = 1 << 20,
    options: FormatOptions | None = None,
    groups: Sequence[GroupEntry] = (),
    imported: bool = False,
) -> Storage:
    """An archive of one topic with one finished run; segments end after `limit_bytes`."""
    storage = open_uri(root.as_uri()) if isinstance(root, Path) else root
    archive = Archive.create_or_open(storage, "-" if imported else CLUSTER, FORMATS[layout], imported=imported)
    with begin_run(archive, "backup-1", wait=FAST) as writer:
        receipts = []
        for partition, records in partitions.items():
            entries = _segments(storage, layout, topic, partition, records, limit_bytes, options or FormatOptions())
            end = records[-1].offset + 1
            receipts.append(Receipt((Coverage(topic.topic_id, partition, 0, end),), tuple(entries)))
        writer.commit(topics=[topic], receipts=receipts)
        writer.end(RunOutcome.SUCCEEDED, groups=groups)
    return storage


def _segments(
    storage: Storage,
    layout: Layout,
    topic: TopicEntry,
    partition: int,
    records: Sequence[PlainRecord],
    limit_bytes: int,
    options: FormatOptions,
) -> list[SegmentEntry]:
    entries = []
    at = 0
    written = Layout.RECORDS if layout is Layout.RECORDS_AT_ROOT else layout
    while at < len(records):
        sink = RecordSink(storage, written, topic.name, topic.topic_id, partition, 1, 0, limit_bytes, options)
        while at < len(records) and not sink.full:
            at += sink.append(records, at)
        entry = sink.finish()
        entries.append(entry if written is layout else _at_root(storage, topic.name, entry))
    return entries


def _at_root(storage: Storage, topic: str, entry: SegmentEntry) -> SegmentEntry:
    """The segment where a folder of another tool has it."""
    moved = replace(entry, files=RecordsAtRootFiles(entry.files.index_bytes))
    for source, target in zip(entry.objects(topic), moved.objects(topic), strict=True):
        storage.put(target, storage.read(source))
    storage.delete(list(entry.objects(topic)))
    return moved


def group(group_id: str, topic: TopicEntry, offset: int, partition: int = 0, metadata: str = "") -> GroupEntry:
    return GroupEntry(group_id, topic.name, topic.topic_id, partition, offset, 3, metadata)

"""`segment.compression: Zstd` against a real broker: the archive holds the broker's bytes, and they come back."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import cramjam
import pytest
from pyspark import SparkContext

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading.segments import read_from
from logkeep_engine.archive.writing.log_writer import ZstdLogWriter
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.storage import Storage, open_uri
from tests.cluster.kafka import KafkaBroker
from tests.cluster.kafka_tools import dump_log_segments
from tests.cluster.s3 import S3Server
from tests.kafka.archived_files import ArchivedFile
from tests.kafka.backing_up import Backups, Topics, numbers
from tests.kafka.restores import back_up, backup_spec, bring_back, committed, restore_spec, transactions

ZSTD = {"compression": "Zstd"}


def segments(storage: Storage, topic: str, partition: int = 0) -> list[SegmentEntry]:
    state = Archive.open(storage).load()
    return [
        entry
        for topic_id, found in state.topics.items()
        if found.name == topic
        for entry in state.segments.get((topic_id, partition), ())
    ]


def unpacked(storage: Storage, topic: str, entries: Sequence[SegmentEntry]) -> bytes:
    """The bytes that plain zstd makes of the objects."""
    return b"".join(
        bytes(cramjam.zstd.decompress(ArchivedFile.of(storage, topic, entry).read_bytes())) for entry in entries
    )


def test_the_archive_holds_the_broker_s_bytes_and_they_come_back(
    kafka: KafkaBroker, topics: Topics, unique: str, tmp_path: Path
) -> None:
    for codec in ("none", "lz4", "zstd"):
        topics.create(f"{unique}-{codec}")
        topics.produce(f"{unique}-{codec}", numbers(20_000, 200), codec=codec)
    topics.create(f"{unique}-tx")
    transactions(kafka, f"{unique}-tx", [300, -200, 400, -1, 5])
    result = back_up(backup_spec(kafka, tmp_path, f"{unique}-.*", segment={"maxBytes": "2Mi", **ZSTD}))
    storage = open_uri(tmp_path.as_uri())
    report = verify(Archive.open(storage))
    assert (report.faults, report.orphans, report.records) == ([], [], result.records)
    for codec in ("none", "lz4", "zstd", "tx"):
        topic = f"{unique}-{codec}"
        entries = segments(storage, topic)
        assert unpacked(storage, topic, entries) == topics.log(topic)
        assert all(0 < entry.files.stored_bytes < entry.bytes + entry.bytes // 100 + 100 for entry in entries)
    plain = segments(storage, f"{unique}-none")
    assert len(plain) > 1
    assert sum(entry.files.stored_bytes for entry in plain) < 0.7 * sum(entry.bytes for entry in plain)
    assert not [info.path for info in storage.list(names.TOPICS) if info.path.endswith(names.LOG)]

    bring_back(restore_spec(kafka, tmp_path))
    for codec in ("none", "lz4", "zstd"):
        assert committed(kafka, f"{unique}-{codec}-copy") == committed(kafka, f"{unique}-{codec}")
    assert [item[1:] for item in committed(kafka, f"{unique}-tx-copy")] == [
        item[1:] for item in committed(kafka, f"{unique}-tx")
    ]


def test_into_s3_with_spark_and_on_with_the_other_setting(
    kafka: KafkaBroker, topics: Topics, spark_context: SparkContext, s3: S3Server, bucket: str, unique: str
) -> None:
    spec = {"uri": f"s3://{bucket}/kafka", "endpoint": s3.endpoint, "region": s3.region}
    backups = Backups(kafka, spec, lambda: spark_context)
    topics.create(unique)
    topics.produce(unique, numbers(60_000, 300))
    assert backups.run(unique, segment=ZSTD).outcome == "Succeeded"
    topics.produce(unique, numbers(500, 300, first=60_000))
    assert backups.run(unique).outcome == "Succeeded"
    first, second = backups.segments(unique)
    assert first.files.stored_bytes
    assert not second.files.stored_bytes
    assert backups.faults() == []
    log = topics.log(unique)
    assert unpacked(backups.storage, unique, [first]) == log[: first.bytes]
    assert ArchivedFile.of(backups.storage, unique, second).read_bytes() == log[first.bytes :]
    run, headers = next(iter(read_from(backups.storage, unique, first, 45_000)))
    assert headers[0][1].base_offset <= 45_000 <= headers[0][1].last_offset
    assert bytes(run) in log


def test_a_damaged_frame_is_refused_or_costs_its_records_only(
    kafka: KafkaBroker, topics: Topics, unique: str, tmp_path: Path
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(20_000, 200))
    back_up(backup_spec(kafka, tmp_path, unique, segment=ZSTD))
    storage = open_uri(tmp_path.as_uri())
    (entry,) = segments(storage, unique)
    file = ArchivedFile.of(storage, unique, entry)
    data = bytearray(file.read_bytes())
    at = len(data) // 2
    data[at : at + 1000] = bytes(1000)
    file.write_bytes(data)
    with pytest.raises(ArchiveDamaged, match=r"\.log\.zst .*the zstd frame at byte"):
        bring_back(restore_spec(kafka, tmp_path))
    result = bring_back(restore_spec(kafka, tmp_path, onDamagedArchive="Skip"), "restore-2")
    assert result.loss
    source, copy = committed(kafka, unique), committed(kafka, f"{unique}-copy")
    values = {item[2] for item in copy}
    missing = [item[0] for item in source if item[2] not in values]
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert 0 < len(missing) < 10_000
    assert len(copy) + len(missing) == len(source)


def test_a_task_that_dies_leaves_no_object_that_counts(
    kafka: KafkaBroker, topics: Topics, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(20_000, 200))
    commit = ZstdLogWriter.commit

    def die(self: ZstdLogWriter) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ZstdLogWriter, "commit", die)
    spec = backup_spec(kafka, tmp_path, unique, segment={**ZSTD, "packBelow": "0"})
    with pytest.raises(BaseException):  # noqa: B017, PT011 (whatever it becomes on its way through the event loop)
        back_up(spec, "backup-1")
    storage = open_uri(tmp_path.as_uri())
    left = [info.path for info in storage.list(names.TOPICS)]
    assert not [path for path in left if path.endswith(names.LOG_ZST)]
    monkeypatch.setattr(ZstdLogWriter, "commit", commit)
    back_up(spec, "backup-1")
    report = verify(Archive.open(storage))
    assert (report.faults, report.records, sorted(report.orphans)) == ([], 20_000, sorted(left))


def test_kafka_s_dump_tool_reads_what_zstd_gives_back(
    kafka: KafkaBroker, topics: Topics, unique: str, tmp_path: Path
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(3000), codec="lz4")
    back_up(backup_spec(kafka, tmp_path, unique, segment={**ZSTD, "packBelow": "0"}))
    storage = open_uri(tmp_path.as_uri())
    (entry,) = segments(storage, unique)
    folder = tmp_path / "dump"
    folder.mkdir()
    name = f"{entry.base_offset:020d}"
    stored = tmp_path / (entry.stem(unique) + names.LOG_ZST)
    if shutil.which("zstd") is not None:
        subprocess.run(["zstd", "-d", "-q", str(stored), "-o", str(folder / f"{name}.log")], check=True)
    else:
        (folder / f"{name}.log").write_bytes(bytes(cramjam.zstd.decompress(stored.read_bytes())))
    for suffix in (names.INDEX, names.TIMEINDEX):
        shutil.copy(tmp_path / (entry.stem(unique) + suffix), folder / f"{name}{suffix}")
    dumped = dump_log_segments("--files", folder / f"{name}.log", "--deep-iteration")
    assert dumped.stdout.count("| offset:") == 3000
    checked = dump_log_segments("--files", f"{folder / name}.index,{folder / name}.timeindex", "--verify-index-only")
    assert (dumped.stderr, checked.stderr) == ("", "")

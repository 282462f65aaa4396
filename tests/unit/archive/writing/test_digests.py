"""Both digests of archived objects: what they find, where the catalog has them, who keeps them, who refuses them."""

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from logkeep_kernel import Blake3

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.archive.digests import digest_of
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading.segments import read_segment
from logkeep_engine.archive.writing.record_writer import RecordSink
from logkeep_engine.contract.archive_format import Compression, DigestAlgorithm, FormatName, FormatOptions
from logkeep_engine.contract.model import replace
from logkeep_engine.convert.plan import ConvertChunk
from logkeep_engine.convert.write import TargetSetting, copy_segment
from logkeep_engine.digest import Digest, Hasher
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, Batch, begin, verify_segment, write_segment

SHA256, BLAKE3 = DigestAlgorithm.SHA256, DigestAlgorithm.BLAKE3
ID = ORDERS.topic_id
BOTH = pytest.mark.parametrize("algorithm", [SHA256, BLAKE3])
NAMES = {SHA256: "SHA-256", BLAKE3: "BLAKE3"}
EMPTY = {
    SHA256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    BLAKE3: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def written(storage: Storage, start: int, end: int, algorithm: DigestAlgorithm, **options: Any) -> SegmentEntry:
    batches = [Batch(offset).encode() for offset in range(start, end, 10)]
    return write_segment(storage, batches, digest=algorithm, **options)


def receipt(entry: SegmentEntry) -> Receipt:
    return Receipt((Coverage(ID, 0, entry.base_offset, entry.next_offset),), (entry,))


# ---- the digests themselves


@BOTH
def test_a_digest_is_the_published_one(algorithm: DigestAlgorithm) -> None:
    assert Hasher(algorithm).digest() == Digest.of(b"", algorithm) == Digest(algorithm, EMPTY[algorithm])


@BOTH
def test_bytes_may_come_in_any_pieces_and_buffers(algorithm: DigestAlgorithm) -> None:
    data = os.urandom(300_000)
    hasher, at = Hasher(algorithm), 0
    for size in (0, 1, 63, 5000, 100_000, len(data)):
        hasher.update(memoryview(data)[at : at + size])
        at += size
    assert hasher.digest() == Digest.of(data, algorithm) == Digest.of(bytearray(data), algorithm)
    assert hasher.digest() != Digest.of(data[:-1], algorithm)


def test_a_buffer_with_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="not contiguous"):
        Blake3().update(memoryview(bytes(100))[::2])
    with pytest.raises(TypeError):
        Blake3().update("text")


def test_one_digest_may_be_fed_by_several_threads() -> None:
    digest, piece = Blake3(), bytes(100_000)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(digest.update, piece[: 100_000 if at % 2 else 50]) for at in range(200)]:
            done.result()
    assert digest.hexdigest() == Digest.of(bytes(100 * 100_050), BLAKE3).hex


# ---- what they find


@BOTH
@pytest.mark.parametrize("compression", list(Compression))
def test_what_no_crc_covers_is_found_in_batches(
    storage: Storage, algorithm: DigestAlgorithm, compression: Compression
) -> None:
    entry = written(storage, 0, 50, algorithm, compression=compression)
    assert verify_segment(storage, "orders", entry) == []
    other = open_uri(f"{storage.uri}-altered")
    batches = [bytearray(Batch(offset).encode()) for offset in range(0, 50, 10)]
    batches[3][15] ^= 1  # the leader epoch
    altered = write_segment(other, list(map(bytes, batches)), compression=compression)
    path = entry.stem("orders") + entry.log_suffix
    storage.put(path, other.read(path))
    entry = replace(entry, files=replace(entry.files, stored_bytes=altered.files.stored_bytes))  # type: ignore[type-var]
    (fault,) = verify_segment(storage, "orders", entry)
    says = f"its {NAMES[algorithm]} is {Digest.of(b''.join(batches), algorithm).hex}, the catalog says "
    assert fault.what == says + f"{entry.digest.hex}: offsets or leader epochs of batches were altered"
    with pytest.raises(ArchiveDamaged, match=f"its {NAMES[algorithm]} is "):
        list(read_segment(storage, "orders", entry))


@BOTH
@pytest.mark.parametrize("layout", [Layout.RECORDS, Layout.AVRO])
def test_an_altered_record_is_found(storage: Storage, algorithm: DigestAlgorithm, layout: Layout) -> None:
    sink = RecordSink(storage, layout, "orders", ID, 0, 1, 0, 1 << 20, FormatOptions(), algorithm)
    sink.append([PlainRecord(at, 1_700_000_000_000, 0, b"key", b"precious", ()) for at in range(10)])
    entry = sink.finish()
    assert verify_segment(storage, "orders", entry) == []
    path = entry.stem("orders") + entry.log_suffix
    assert digest_of(storage, path, algorithm) == (entry.digest, entry.bytes)
    data = storage.read(path)
    storage.put(path, data.replace(b"precious", b"preci0us", 1))
    (fault,) = verify_segment(storage, "orders", entry)
    assert fault.what.startswith(f"its {NAMES[algorithm]} is ")
    assert fault.what.endswith(f", the catalog says {entry.digest.hex}: records were altered")


@BOTH
def test_equal_objects_of_an_earlier_attempt_stay(storage: Storage, algorithm: DigestAlgorithm) -> None:
    def write(value: bytes) -> SegmentEntry:
        sink = RecordSink(storage, Layout.RECORDS, "orders", ID, 0, 1, 0, 1 << 20, FormatOptions(), algorithm)
        sink.append([PlainRecord(0, 1_700_000_000_000, 0, b"key", value, ())])
        return sink.finish()

    with begin(storage):
        path = next(iter(write(b"one").objects("orders")))
        changed = next(info.modified for info in storage.list() if info.path == path)
        write(b"one")
        assert next(info.modified for info in storage.list() if info.path == path) == changed
        assert verify_segment(storage, "orders", write(b"two")) == []


# ---- where the catalog has them


def mixed(storage: Storage) -> Archive:
    """An archive with a run of either digest, and a checkpoint after each commit."""
    for number, (start, algorithm) in enumerate([(0, SHA256), (50, BLAKE3), (100, SHA256)], 1):
        with begin(storage, f"run-{number}", checkpoints=CheckpointPolicy(commits=1, min_bytes=0)) as writer:
            entry = written(storage, start, start + 50, algorithm, epoch=writer.epoch)
            writer.commit(topics=[ORDERS], receipts=[receipt(entry)])
            writer.end(RunOutcome.SUCCEEDED)
    return Archive.open(storage)


def test_an_archive_may_hold_both(storage: Storage) -> None:
    archive = mixed(storage)
    report = verify(archive)
    assert (report.faults, report.segments, report.records) == ([], 3, 150)
    from_checkpoints = archive.load()
    assert [entry.digest.algorithm for entry in from_checkpoints.segments[ID, 0]] == [SHA256, BLAKE3, SHA256]
    assert archive.listing().checkpoints
    storage.delete([info.path for _, _, info in archive.listing().checkpoints])
    assert Archive.open(storage).load().same_facts(from_checkpoints)


def segments_of(storage: Storage, number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(storage.read(names.commit_path(number)))["segments"]
    return found


def test_a_commit_has_a_column_for_each_algorithm(storage: Storage) -> None:
    entry = mixed(storage).load().segments[ID, 0][1]
    tables = [segments_of(storage, number) for number in (1, 4, 7)]
    rows = [dict(zip(table["columns"], table["rows"][0], strict=True)) for table in tables]
    assert [bool(row["blake3"]) for row in rows] == [False, True, False]
    row = rows[1]
    log = storage.read(entry.stem("orders") + entry.log_suffix)
    assert (row["sha256"], row["blake3"]) == ("", Digest.of(log, BLAKE3).hex)


def rewritten(storage: Storage, number: int, change: Callable[[dict[str, Any]], None]) -> Archive:
    """The archive with another commit in its place, and without checkpoints."""
    archive = mixed(storage)
    storage.delete([info.path for _, _, info in archive.listing().checkpoints])
    document = json.loads(storage.read(names.commit_path(number)))
    del document["sha256"]
    change(document["segments"])
    body = json.dumps(document, separators=(",", ":")).encode()
    seal = b',"sha256":"%s"}' % hashlib.sha256(body).hexdigest().encode()
    storage.put(names.commit_path(number), body[:-1] + seal)
    return archive


def test_a_digest_of_a_newer_version_is_refused(storage: Storage) -> None:
    archive = rewritten(storage, 4, lambda table: table["columns"].__setitem__(-1, "blake4"))
    with pytest.raises(ArchiveMismatch, match=r"unknown columns .*blake4.* of segments") as caught:
        archive.load()
    assert caught.value.hint == "It was written by a newer Logkeep: use that version or a later one."


@pytest.mark.parametrize(
    ("sha256", "blake3", "says"),
    [("0" * 64, "1" * 64, "segment with SHA-256 0+ and BLAKE3 1+"), ("", "", "'' is not a SHA-256")],
)
def test_a_segment_without_one_digest_is_damage(storage: Storage, sha256: str, blake3: str, says: str) -> None:
    def change(table: dict[str, Any]) -> None:
        for column, value in (("sha256", sha256), ("blake3", blake3)):
            table["rows"][0][table["columns"].index(column)] = value

    with pytest.raises(ArchiveDamaged, match=says):
        rewritten(storage, 4, change).load()


# ---- who keeps them


@BOTH
@pytest.mark.parametrize("wanted", [None, SHA256, BLAKE3])
def test_a_copy_keeps_the_digest_unless_it_is_told_another(
    storage: Storage, algorithm: DigestAlgorithm, wanted: DigestAlgorithm | None
) -> None:
    entry = written(storage, 0, 50, algorithm)
    target = open_uri(f"{storage.uri}-copy")
    setting = TargetSetting(target, FormatName.KAFKA, 1, 1 << 20, digest=wanted)
    copy = copy_segment(setting, storage, "orders", entry, ConvertChunk(0, ID, 0, 0, 50, entry.bytes), 0)
    assert copy is not None
    assert copy.digest.algorithm is (wanted or algorithm)
    assert (copy.digest == entry.digest) == (wanted in (None, algorithm))
    assert verify_segment(target, "orders", copy) == []

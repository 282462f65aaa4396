"""The archive on a real S3 server: one writer, nothing lost when it or the server dies."""

import os
import signal
import struct
import subprocess
import sys

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.backup.model.plan import CHUNK_BYTES
from logkeep_engine.errors import ArchiveBusy, ArchiveFenced, ArchiveMissing, BucketMissing
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.storage import PART_BYTES, Storage
from tests.cluster.s3 import S3Server
from tests.cluster.s3_proxy import S3Proxy
from tests.kafka.test_storage_s3 import open_s3, requests_by_kind
from tests.threads import at_once
from tests.unit.archive.build import CLUSTER, ORDERS, PATIENT, TIME, begin, chunk, write_segment

ID = ORDERS.topic_id


@pytest.fixture
def storage(s3: S3Server, bucket: str) -> Storage:
    return open_s3(s3, bucket)


def test_a_run_its_reader_and_its_check(storage: Storage) -> None:
    with pytest.raises(ArchiveMissing):
        Archive.open(storage)
    with begin(storage, checkpoints=CheckpointPolicy(commits=3)) as writer:
        writer.commit(topics=[ORDERS])
        for start in range(0, 80, 10):
            writer.commit(receipts=[chunk(storage, start, start + 10)])
        writer.end(RunOutcome.SUCCEEDED)
    archive = Archive.open(storage)
    assert len(archive.listing().checkpoints) == 3
    report = verify(archive)
    assert report.faults == []
    assert (report.records, report.segments, report.orphans) == (80, 8, [])
    state = archive.load()
    path = state.segments[ID, 0][3].stem("orders") + names.LOG
    storage.put(path, storage.read(path)[:-1])
    (fault,) = verify(archive).faults
    assert (fault.object, fault.topic, fault.partition, fault.offset) == (f"{storage.uri}/{path}", "orders", 0, 30)


def test_a_tib_takes_at_most_fifty_thousand_requests_that_write(s3: S3Server, bucket: str, proxy: S3Proxy) -> None:
    """A segment, its two indexes included, takes as many requests as counted here; a chunk of a backup is a segment."""
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    big = encode([Record(0, TIME, None, os.urandom(1 << 20))], codec=Codec.NONE, base_offset=0)

    def counted(size: int) -> dict[str, int]:
        proxy.requests.clear()
        count = size // len(big)
        data = bytearray(big * count)
        for number in range(count):
            struct.pack_into(">q", data, number * len(big), number)
        write_segment(storage, [bytes(data)], epoch=size)
        return requests_by_kind(proxy.requests)

    assert counted(4 << 20) == {"PutObject": 3}
    parts = 3
    assert counted(parts * PART_BYTES) == {
        "CreateMultipartUpload": 1,
        "UploadPart": parts,
        "CompleteMultipartUpload": 1,
        "PutObject": 2,
    }
    of_a_chunk = -(-CHUNK_BYTES // PART_BYTES) + 4
    assert of_a_chunk * (1 << 40) / CHUNK_BYTES < 50_000


def test_a_missing_bucket_is_not_a_missing_archive(s3: S3Server) -> None:
    with pytest.raises(BucketMissing):
        Archive.open(open_s3(s3, "no-such-bucket-at-all"))


def test_of_many_runs_that_begin_at_once_one_begins(storage: Storage) -> None:
    Archive.create_or_open(storage, CLUSTER)
    started = []
    refused = []

    def run(number: int) -> None:
        try:
            started.append(begin(storage, f"run-{number}", wait=PATIENT))
        except ArchiveBusy as error:
            refused.append(error)

    at_once(4, run)
    assert (len(started), len(refused)) == (1, 3)
    started[0].close()


def test_a_writer_that_lost_its_archive_stops_without_harm(storage: Storage) -> None:
    first = begin(storage, "same")
    first.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 10)])
    with begin(storage, "same") as second:
        with pytest.raises(ArchiveFenced):
            first.commit(receipts=[chunk(storage, 10, 20)])
        second.commit(receipts=[chunk(storage, 10, 20, epoch=2)])
        second.end(RunOutcome.SUCCEEDED)
    first.close()
    assert verify(Archive.open(storage)).faults == []


_RUN_FOREVER = """
import sys
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import ORDERS, begin, chunk
storage = open_uri(*sys.argv[1:4])
writer = begin(storage, "killed", checkpoints=CheckpointPolicy(commits=3))
print("begun", flush=True)
at = writer.state.next_offset(ORDERS.topic_id, 0) or 0
while True:
    writer.commit(topics=[ORDERS], receipts=[chunk(storage, at, at + 10, epoch=writer.epoch)])
    at += 10
    print(at, flush=True)
"""


def test_a_killed_writer_loses_nothing_it_has_committed(s3: S3Server, storage: Storage) -> None:
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN_FOREVER, storage.uri, s3.endpoint, s3.region],
        stdout=subprocess.PIPE,
        env={**os.environ, **keys, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(8)]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    archive = Archive.open(storage)
    report = verify(archive)
    assert report.faults == []
    assert report.records >= int(said[-1])
    assert archive.load().next_offset(ID, 0) == report.records
    with begin(storage, "killed") as writer:
        at = writer.state.next_offset(ID, 0) or 0
        writer.commit(receipts=[chunk(storage, at, at + 10, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
    assert verify(archive).records == at + 10

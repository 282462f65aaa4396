"""The toolbox on archives and logs that lie in an object store."""

import json
from urllib.parse import unquote_to_bytes

import pytest
from typer.testing import CliRunner, Result

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, Receipt
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.cli import app
from logkeep_engine.contract.archive_format import Compression
from logkeep_engine.storage import Storage
from tests.cluster.s3 import S3Server
from tests.cluster.s3_proxy import S3Proxy, answer
from tests.kafka.test_storage_s3 import open_s3
from tests.unit.archive.build import ORDERS, Batch, archive_of, write_segment
from tests.unit.archive.build import chunk as plain_chunk
from tests.unit.log.batches import batch


@pytest.fixture
def storage(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    return open_s3(s3, bucket)


def run(s3: S3Server, command: str, *arguments: str) -> Result:
    words = [*command.split(), "--endpoint", s3.endpoint, *arguments]
    return CliRunner().invoke(app, ["log", *words, *(["--region", s3.region] if s3.region else [])])


def compressed(storage: Storage, start: int, end: int) -> Receipt:
    batches = [Batch(offset).encode() for offset in range(start, end, 10)]
    entry = write_segment(storage, batches, compression=Compression.ZSTD)
    return Receipt((Coverage(ORDERS.topic_id, 0, start, end),), (entry,))


def test_an_archive_is_dumped_whole_or_by_object(s3: S3Server, storage: Storage) -> None:
    archive = archive_of(storage, compressed(storage, 0, 500), plain_chunk(storage, 0, 50, partition=1))
    done = run(s3, "dump", storage.uri, "--json", "--offset", "495..", "--deep")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["offset"] for row in rows if row["type"] == "record"] == [495, 496, 497, 498, 499]
    entry = archive.load().segments[ORDERS.topic_id, 0][0]
    path = f"{storage.uri}/{entry.stem('orders')}"
    assert entry.log_suffix == names.LOG_ZST
    assert run(s3, "dump", path + names.LOG_ZST).stdout.count("baseOffset: ") == 50
    assert run(s3, "dump", path + names.TIMEINDEX).stdout.count("timestamp: ") >= 1
    assert run(s3, "timestamps", storage.uri).exit_code == 0


def test_a_damaged_frame_costs_its_batches_only(s3: S3Server, storage: Storage) -> None:
    archive = archive_of(storage, compressed(storage, 0, 500))
    entry = archive.load().segments[ORDERS.topic_id, 0][0]
    path = entry.stem("orders") + names.LOG_ZST
    data = bytearray(storage.read(path))
    data[40] ^= 0xFF
    storage.put(path, bytes(data))
    done = run(s3, "dump", storage.uri)
    assert done.exit_code == 6
    assert "Found " in done.stdout


def test_an_index_gets_its_bytes_back(s3: S3Server, storage: Storage) -> None:
    archive = archive_of(storage, compressed(storage, 0, 900))
    entry = archive.load().segments[ORDERS.topic_id, 0][0]
    path = entry.stem("orders") + names.INDEX
    good = storage.read(path)
    storage.delete([path])
    assert run(s3, "index check", storage.uri).exit_code == 6
    assert run(s3, "index rebuild", storage.uri, "--yes").exit_code == 0
    assert storage.read(path) == good
    report = verify(Archive.open(storage))
    assert (report.faults, report.orphans) == ([], [])


def test_an_archive_there_is_compared_with_itself(s3: S3Server, storage: Storage) -> None:
    archive_of(storage, compressed(storage, 0, 100))
    done = run(s3, "diff", storage.uri, storage.uri)
    assert done.exit_code == 0, done.output
    assert "100 records equal" in done.stdout


def test_credentials_for_a_prefix_are_enough(s3: S3Server, storage: Storage, proxy: S3Proxy) -> None:
    """The store then does not say whether an archive lies above the prefix."""
    log = f"orders-0/{0:020}.log"
    storage.put(log, batch(0, 5))
    # Both requests are refused: for an object, and for a list.
    proxy.always(
        answer("403 Forbidden", "AccessDenied"), where=lambda line: b"/orders-0/" not in unquote_to_bytes(line)
    )
    for where in (f"{storage.uri}/orders-0", f"{storage.uri}/{log}"):
        done = run(s3, "dump", where, "--endpoint", proxy.endpoint)
        assert done.exit_code == 0, done.output
        assert "lastOffset: 4" in done.stdout
    done = run(s3, "dump", storage.uri, "--endpoint", proxy.endpoint)
    assert done.exit_code == 2
    assert "denied access" in done.stderr


def test_what_to_check_is_named_as_the_options_are(s3: S3Server, storage: Storage) -> None:
    bucket = storage.uri.removeprefix("s3://").partition("/")[0]
    done = run(s3, "dump", storage.uri.replace(bucket, f"{bucket}-not"))
    assert done.exit_code == 2
    assert "Create it, or correct the URI." in done.stderr


def test_nothing_there_is_said(s3: S3Server, storage: Storage) -> None:
    done = run(s3, "dump", f"{storage.uri}/empty")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {storage.uri}/empty: there is neither an archive nor a log.")

"""Our segments against Kafka: the broker's own files, its dump tool, its producers and its produce path."""

import asyncio
import random
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from confluent_kafka import Consumer, Producer, TopicPartition

from logkeep_engine.log.batch import Codec, check_crc, headers_of, parse_header, walk
from logkeep_engine.log.records import Record, decode, encode
from logkeep_engine.log.recovery import recover
from logkeep_engine.log.segment import SegmentBuilder, SegmentSummary, read_offset_index, read_txn_index
from logkeep_engine.log.transactions import TransactionTracker
from logkeep_engine.storage.local import LocalStorage
from tests.cluster.kafka import KafkaBroker
from tests.cluster.kafka_tools import dump_log_segments
from tests.data.topics import create_topic, end_transaction
from tests.kafka.conftest import running
from tests.unit.archive.build import ORDERS, write_segment
from tests.unit.compaction.made import compact, plain, row
from tests.unit.log.batches import NOON, batch, rewrite, with_header
from tests.unit.toolbox.logs import run

MIXED = "log-dump-tool"
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


@dataclass(frozen=True)
class BrokerLog:
    """A partition's files as a stopped broker left them."""

    folder: Path

    @property
    def stems(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.log"))


@pytest.fixture(scope="module")
def broker_log(second_broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> BrokerLog:
    """Several segments: all codecs, batches small and large, times that go back, transactions across segments."""
    chance = random.Random(1)
    broker = running(second_broker)
    create(broker, MIXED, **{"segment.bytes": "1048576"})
    open_writer = transactional(broker, "spans-segments")
    open_writer.begin_transaction()
    open_writer.produce(MIXED, b"open early", timestamp=NOON)
    open_writer.flush()
    for round_, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"] * 2):
        writer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 5})
        for i in range(1200):
            value = (b"%d " % i) * (1 + i % 90) + chance.randbytes(i % 700)
            writer.produce(MIXED, value, key=b"%d" % (i % 50), timestamp=NOON + round_ * 1000 + i * 7919 % 1000)
            if i % 25 == 0:
                writer.flush()
        writer.flush()
        within = transactional(broker, f"within-{round_}")
        within.begin_transaction()
        for i in range(30):
            within.produce(MIXED, b"in a transaction %d" % i, timestamp=NOON + i)
        end_transaction(broker.bootstrap, within, [(MIXED, 0)], commit=bool(round_ % 3))
        if round_ == 7:
            end_transaction(broker.bootstrap, open_writer, [(MIXED, 0)], commit=False)
    del writer, within, open_writer  # they would continue looking for the broker
    broker.stop()
    folder = tmp_path_factory.mktemp(MIXED)
    for path in (broker.data_dir / f"{MIXED}-0").iterdir():
        shutil.copy(path, folder)
    return BrokerLog(folder)


def create(broker: KafkaBroker, topic: str, **config: str) -> None:
    # The tests' timestamps lie years before those of the broker's transaction markers.
    keep = {"retention.ms": "-1", "segment.ms": str(10**15)}
    create_topic(broker.bootstrap, topic, config=keep | config)


def transactional(broker: KafkaBroker, name: str) -> Producer:
    settings = {"transactional.id": name, "transaction.timeout.ms": 900_000, "linger.ms": 0}
    writer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    writer.init_transactions(60)
    return writer


def consume(broker: KafkaBroker, topic: str, count: int) -> list[Record]:
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": "false"})
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[Record] = []
    while len(found) < count:
        message = reader.poll(30)
        assert message is not None, f"{len(found)} of {count} records came"
        assert message.error() is None
        pairs = cast("list[tuple[str, bytes | None]]", message.headers() or [])
        headers = tuple((key.encode(), value) for key, value in pairs)
        offset = cast("int", message.offset())
        found.append(Record(offset, message.timestamp()[1], message.key(), message.value(), headers))
    reader.close()
    return found


def read_log(broker: KafkaBroker, topic: str) -> bytes:
    return (broker.data_dir / f"{topic}-0" / f"{0:020}.log").read_bytes()


def rebuild(folder: Path, stems: list[str], out: Path) -> dict[str, SegmentSummary]:
    """Pass the logs through SegmentBuilder, in small uneven runs, and write what it makes under the same names."""
    tracker = TransactionTracker()
    summaries = {}
    for stem in stems:
        data = memoryview((folder / f"{stem}.log").read_bytes())
        with (out / f"{stem}.log").open("wb") as log:
            builder = SegmentBuilder(int(stem.split(".")[0]), log.write)
            entries = headers_of(walk(data))
            for start in range(0, len(entries), 7):
                run = entries[start : start + 7]
                for pos, header in run:
                    check_crc(data, pos, header)
                    aborted = tracker.observe(data, pos, header)
                    if aborted is not None:
                        builder.add_aborted(aborted)
                builder.append(data[run.start : run.end], run)
        summary = builder.finish()
        (out / f"{stem}.index").write_bytes(summary.index)
        (out / f"{stem}.timeindex").write_bytes(summary.timeindex)
        if summary.txnindex:
            (out / f"{stem}.txnindex").write_bytes(summary.txnindex)
        summaries[stem] = summary
    return summaries


def dump(files: list[Path], *options: str) -> str:
    done = dump_log_segments("--files", ",".join(map(str, files)), *options)
    assert done.stderr == ""
    assert "isvalid: false" not in done.stdout
    return done.stdout


def test_files_are_those_the_broker_wrote(broker_log: BrokerLog, tmp_path: Path) -> None:
    assert len(broker_log.stems) >= 3
    summaries = rebuild(broker_log.folder, broker_log.stems, tmp_path)
    aborted = 0
    for stem, summary in summaries.items():
        for suffix in SUFFIXES:
            theirs, ours = broker_log.folder / f"{stem}{suffix}", tmp_path / f"{stem}{suffix}"
            assert (ours.read_bytes() if ours.exists() else b"") == (theirs.read_bytes() if theirs.exists() else b"")
        if stem != broker_log.stems[-1]:  # the last segment is as long as batches and codecs have left it
            assert len(read_offset_index(summary.index)) > 20
        aborted += len(read_txn_index(summary.txnindex))
    assert aborted == 5
    assert {codec for summary in summaries.values() for codec in summary.codecs} == {c.name.lower() for c in Codec}


def test_dump_tool_has_no_complaint(broker_log: BrokerLog, tmp_path: Path) -> None:
    rebuild(broker_log.folder, broker_log.stems, tmp_path)
    files = sorted(tmp_path.iterdir())
    assert {path.suffix for path in files} == set(SUFFIXES)
    everything = dump(files, "--deep-iteration")
    records = sum(header.record_count for f in files if f.suffix == ".log" for _, header in walk(f.read_bytes()))
    assert everything.count("| offset: ") == records
    assert "endTxnMarker: ABORT" in everything
    assert everything.count("lastStableOffset: ") == 5
    verified = dump(files, "--verify-index-only")
    assert "Mismatch" not in verified
    checked = dump(files, "--index-sanity-check")
    assert checked.count("passed sanity check") == sum(path.suffix in (".index", ".timeindex") for path in files)


def test_dump_tool_notices_an_index_that_is_wrong(broker_log: BrokerLog, tmp_path: Path) -> None:
    """The tool's silence about our indexes means something."""
    stem = broker_log.stems[0]
    rebuild(broker_log.folder, [stem], tmp_path)
    index = tmp_path / f"{stem}.index"
    relative, position = struct.unpack_from(">ii", index.read_bytes())
    index.write_bytes(struct.pack(">ii", relative - 1, position) + index.read_bytes()[8:])
    done = dump_log_segments("--files", index, "--verify-index-only")
    assert "Mismatches in" in done.stderr


def test_dump_tool_reads_archive_names(broker_log: BrokerLog, tmp_path: Path) -> None:
    stem = broker_log.stems[1]
    named = tmp_path / f"{stem}.0000000003.log"
    shutil.copy(broker_log.folder / f"{stem}.log", named)
    assert f"Log starting offset: {int(stem)}" in dump([named])


def test_recovery_writes_what_the_broker_wrote(broker_log: BrokerLog, tmp_path: Path) -> None:
    opened: dict[int, int] = {}
    for stem in broker_log.stems:
        log = tmp_path / f"{stem}.log"
        shutil.copy(broker_log.folder / log.name, log)
        with log.open("ab") as file:
            file.write(b"half a batch")
        assert recover(log, open_transactions=opened).cut_bytes == 12
        for suffix in SUFFIXES:
            theirs, ours = broker_log.folder / f"{stem}{suffix}", log.with_suffix(suffix)
            assert (ours.read_bytes() if ours.exists() else b"") == (theirs.read_bytes() if theirs.exists() else b"")
        tracker = TransactionTracker(opened)
        data = log.read_bytes()
        for pos, header in walk(data):
            tracker.observe(data, pos, header)
        opened = dict(tracker.open_transactions)


@pytest.mark.parametrize("codec", Codec)
def test_java_producer_is_read_in_every_codec(kafka: KafkaBroker, unique: str, codec: Codec) -> None:
    create(kafka, unique)
    properties = [f"bootstrap.servers={kafka.bootstrap}", f"compression.type={codec.name.lower()}", "linger.ms=20"]
    options = ["--topic", unique, "--num-records", "2000", "--record-size", "300", "--throughput", "-1"]
    kafka.tool("org.apache.kafka.tools.ProducerPerformance", *options, "--producer-props", *properties)
    assert_as_consumed(kafka, unique, codec, 2000)


@pytest.mark.parametrize("codec", Codec)
def test_librdkafka_producer_is_read_in_every_codec(kafka: KafkaBroker, unique: str, codec: Codec) -> None:
    create(kafka, unique)
    writer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": codec.name.lower(), "linger.ms": 20})
    for i in range(300):
        headers: list[tuple[str, str | bytes | None]] = []
        headers += [("a", b"1"), ("a", None), ("", b"")][: i % 4]
        key, value = (None, b"value" * i) if i % 3 else (b"k%d" % i, None)
        writer.produce(unique, value, key=key, headers=headers, timestamp=NOON - i)
    writer.flush()
    assert_as_consumed(kafka, unique, codec, 300)


def assert_as_consumed(kafka: KafkaBroker, topic: str, codec: Codec, count: int) -> None:
    log = read_log(kafka, topic)
    found: list[Record] = []
    codecs: set[Codec] = set()
    for pos, header in walk(log):
        check_crc(log, pos, header)
        codecs.add(header.codec)
        found += decode(log, pos)
    # librdkafka sends a batch as it is that its codec does not make smaller: a first record that went out alone, say.
    assert codecs in ({codec}, {codec, Codec.NONE})
    assert found == consume(kafka, topic, count)


def test_log_append_times_are_read_as_consumers_see_them(kafka: KafkaBroker, unique: str) -> None:
    create(kafka, unique, **{"message.timestamp.type": "LogAppendTime"})
    writer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": "zstd", "linger.ms": 20})
    for i in range(50):
        writer.produce(unique, b"v" * 100, timestamp=NOON + i)
    writer.flush()
    log = read_log(kafka, unique)
    assert all(header.is_log_append_time for _, header in walk(log))
    assert_as_consumed(kafka, unique, Codec.ZSTD, 50)


def test_dump_tool_reads_our_own_batches_in_every_codec(tmp_path: Path) -> None:
    log = b""
    for codec in Codec:
        value = bytes(range(65, 91)) * 3000 + codec.name.encode()
        log += batch(parse_header(log, last(log)).next_offset if log else 0, 30, codec=codec, value=value)
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(log)
    shown = dump([path], "--deep-iteration", "--print-data-log", "--max-bytes", str(len(log)))
    for codec in Codec:
        assert shown.count(f"WXYZ{codec.name}") == 30
        assert f"compresscodec: {codec.name.lower()}" in shown


def test_dump_tool_reads_a_snapshot(tmp_path: Path) -> None:
    """It takes end and leader epoch from the name, and asks for the suffix. `logkeep log dump` prints the same."""
    storage = LocalStorage(tmp_path.as_uri())
    log = [
        plain([row(at, b"key%d" % (at % 4), None if at == 9 else b"value%d" % at)], codec)
        for at, codec in enumerate([*Codec, *Codec])
    ]
    snapshot = compact(storage, [write_segment(storage, log)], max_bytes=280).snapshot
    paths = [tmp_path / part.stem(ORDERS.name) for part in snapshot.parts]
    assert len(paths) > 1
    shown = ""
    for path in paths:
        checkpoint = path.with_name(path.name + ".checkpoint")
        found = dump([checkpoint], "--deep-iteration", "--print-data-log")
        assert "Snapshot end offset: 10, epoch: 4" in found
        done = run("dump", checkpoint, "--deep", "--print-data")
        assert (done.exit_code, done.stderr) == (0, "")
        ours = [line for line in done.stdout.splitlines() if "offset" in line.lower()]
        theirs = [line for line in found.splitlines() if line.startswith(("baseOffset", "| offset"))]
        assert [line.split(" CreateTime")[0] for line in ours if line.startswith(("baseOffset", "| offset"))] == [
            line.split(" CreateTime")[0] for line in theirs
        ]
        shown += found
    assert shown.count("SnapshotHeader") == shown.count("SnapshotFooter") == 1
    assert [f"payload: value{at}" in shown for at in range(10)] == [False] * 6 + [True] * 3 + [False]
    assert "deleteHorizonMs: OptionalLong[" in shown


def last(log: bytes) -> int:
    return list(walk(log))[-1][0]


def test_broker_takes_rewritten_and_encoded_batches(kafka: KafkaBroker, unique: str) -> None:
    """One of them had a delete horizon as its base timestamp: the delta of its first record is not zero."""
    create(
        kafka,
        unique,
        **{"message.timestamp.before.max.ms": str(2**63 - 1), "message.timestamp.after.max.ms": str(2**63 - 1)},
    )
    sent = [batch(70, 3, codec=codec, transactional=True, producer_id=6) for codec in Codec]
    far = encode(
        [Record(5, NOON, b"k", None, ((b"h", None), (b"h", b""))), Record(6, NOON - 9, None, b"v")],
        codec=Codec.ZSTD,
        base_offset=5,
    )
    sent.append(with_header(far, attributes=Codec.ZSTD | 0x40, base_timestamp=NOON + 5000, max_timestamp=NOON + 5000))
    expected: list[Record] = []
    for source in sent:
        expected += [record._replace(offset=len(expected) + i) for i, record in enumerate(decode(source))]

    async def produce() -> None:
        client = AIOKafkaClient(bootstrap_servers=kafka.bootstrap)
        await client.bootstrap()
        try:
            await client.force_metadata_update()
            node = (await client.fetch_all_metadata()).leader_for_partition(_partition(unique))
            sequence = 0
            for source in sent:
                ready = rewrite(source, base_offset=0, producer_id=4242, producer_epoch=0, base_sequence=sequence)
                sequence += parse_header(ready).record_count
                request = ProduceRequest(None, -1, 10_000, [(unique, [(0, bytes(ready))])])
                response = await client.send(node, request)
                assert response.topics[0][1][0][1] == 0, response
        finally:
            await client.close()

    asyncio.run(produce())
    assert consume(kafka, unique, len(expected)) == expected


def _partition(topic: str) -> object:
    from aiokafka.structs import TopicPartition as Partition

    return Partition(topic, 0)

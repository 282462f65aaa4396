"""The toolbox against Kafka's own tool, field by field: on a broker's log folders and on an archive of them."""

import json
import random
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.facts import RunOutcome, TopicEntry
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.storage import open_uri
from logkeep_engine.toolbox.dump import Options, dump_segment
from logkeep_engine.toolbox.dump_files import dump_file
from logkeep_engine.toolbox.extract import extract
from logkeep_engine.toolbox.index import IndexVerdict
from logkeep_engine.toolbox.indexes import survey
from logkeep_engine.toolbox.offsets import TRANSACTION_STATES, StateTopic
from logkeep_engine.toolbox.recover import plan_recovery
from logkeep_engine.toolbox.rows import RowKind
from logkeep_engine.toolbox.segment import ToolboxSegment
from logkeep_engine.toolbox.source import LogSource, open_source
from logkeep_engine.toolbox.state import history, last_state, open_state
from logkeep_engine.toolbox.transactions import outcomes
from tests.cluster.kafka import KafkaBroker
from tests.cluster.kafka_tools import dump_log_segments
from tests.cluster.process import wait_until
from tests.command import logkeep
from tests.data import nycflights
from tests.data.topics import NO_RETENTION, Record, commit_positions, create_topic, end_transaction, produce
from tests.kafka.backing_up import Backups, Topics, folder_spec
from tests.unit.archive.build import begin
from tests.unit.log.batches import NOON

DUMPING = "Dumping "
PARTITIONS = 2
GAP = re.compile(r"Non-consecutive offsets in .*|  \d+ is followed by \d+")
GOLDEN = Path(__file__).parents[1] / "unit" / "log" / "golden" / "kafka-4.1.1-batches.json"


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """All codecs, headers, nulls, transactions that end both ways, append times, groups."""
    chance = random.Random(1)
    with KafkaBroker(overrides={"log.segment.bytes": "1048576"}) as broker:
        keep = {"retention.ms": "-1", "segment.ms": str(10**15)}
        create_topic(broker.bootstrap, "mixed", PARTITIONS, keep)
        create_topic(broker.bootstrap, "stamped", 1, keep | {"message.timestamp.type": "LogAppendTime"})
        for round_, codec in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
            settings = {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 5}
            writer = Producer(settings | {"enable.idempotence": str(round_ % 2 == 0).lower()})
            for i in range(900):
                headers: list[tuple[str, str | bytes | None]] = []
                headers += [("a", b"1"), ("a", None), ("ünï", b"")][: i % 4]
                key, value = (
                    (None, "wört ".encode() * (i % 9) + chance.randbytes(1500).hex().encode())
                    if i % 3
                    else (b"k%d" % i, None)
                )
                stamp = NOON + round_ * 1000 + i * 7919 % 1000
                writer.produce("mixed", value, key=key, headers=headers, timestamp=stamp, partition=i % PARTITIONS)
                if i % 25 == 0:
                    writer.flush()
            writer.flush()
            transactional(broker, "mixed", f"tx-{round_}", commit=round_ % 2 == 0)
            writer.produce("stamped", b"%d" % round_)
            writer.flush()
        for group, offset in (("readers", 17), ("others", 40), ("readers", 18)):
            commit(broker, group, offset)
        member = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "members", "auto.offset.reset": "earliest"}
        )
        member.subscribe(["mixed"])
        message = member.poll(60)
        assert message is not None
        assert message.error() is None
        member.commit(message=message, asynchronous=False)
        member.close()
        yield broker


def commit(broker: KafkaBroker, group: str, offset: int) -> None:
    commit_positions(broker.bootstrap, group, {("mixed", 1): offset}, metadata=f"by {group}")


def transactional(broker: KafkaBroker, topic: str, name: str, *, commit: bool) -> None:
    writer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "linger.ms": 0})
    writer.init_transactions(60)
    writer.begin_transaction()
    for i in range(30):
        writer.produce(topic, b"in a transaction %d" % i, timestamp=NOON + i, partition=i % PARTITIONS)
    end_transaction(broker.bootstrap, writer, [(topic, number) for number in range(PARTITIONS)], commit=commit)


@pytest.fixture(scope="module")
def archive(broker: KafkaBroker, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The broker's topics, backed up in small segments with objects of their own."""
    folder = tmp_path_factory.mktemp("archive")
    backups = Backups(broker, folder_spec(folder), nursery=nursery)
    result = backups.run("mixed", "stamped", segment={"maxBytes": "1Mi", "packBelow": "0"})
    assert result.outcome == "Succeeded", result.message
    return folder


@pytest.fixture(scope="module")
def folders(broker: KafkaBroker, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the data folder as the stopped broker left it."""
    broker.stop()
    copy = tmp_path_factory.mktemp("data")
    shutil.copytree(broker.data_dir, copy, dirs_exist_ok=True)
    broker.start()
    return copy


def printed(files: Iterable[Path], *options: str) -> list[str]:
    """The lines of Kafka's tool, which complains of nothing but of what compaction took."""
    done = dump_log_segments("--files", ",".join(map(str, files)), *options)
    assert [line for line in done.stderr.splitlines() if not GAP.fullmatch(line)] == []
    return done.stdout.splitlines()


def kafkas(files: Iterable[Path], *options: str) -> list[str]:
    """The lines of Kafka's tool, without those that name files."""
    lines = printed(files, *options)
    return [line for line in lines if not line.startswith((DUMPING, "Log starting", "Snapshot"))]


def ours(segments: Iterable[ToolboxSegment], options: Options) -> list[str]:
    return ["\n".join(row.lines()) for segment in segments for row in dump_segment(segment, options)]


def without_header_values(lines: Iterable[str]) -> list[str]:
    """Kafka's tool prints the keys of headers only."""
    return [re.sub(r"(headerKeys: \[[^\]]*\]) headers: \[.*?\](?= key: | payload: |$)", r"\1", line) for line in lines]


def assert_same(found: list[str], expected: list[str]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one == other


def test_batches_and_records_are_those_of_kafkas_tool(folders: Path) -> None:
    mixed, stamped = (open_source(str(folders / f"{topic}-0")).segments for topic in ("mixed", "stamped"))
    assert len(mixed) >= 2
    assert len(stamped) >= 1
    segments = [*mixed, *stamped]
    files = [Path(segment.name) for segment in segments]
    assert_same(ours(segments, Options()), kafkas(files))
    assert_same(ours(segments, Options(deep=True)), kafkas(files, "--deep-iteration"))
    with_data = without_header_values(ours(segments, Options(data=True)))
    assert_same(with_data, kafkas(files, "--deep-iteration", "--print-data-log"))


def test_an_archive_is_dumped_as_kafkas_tool_does_it(archive: Path) -> None:
    source = open_source(archive.as_uri())
    assert {segment.topic for segment in source.segments} == {"mixed", "stamped"}
    assert len(source.segments) > 4
    files = [Path(segment.name) for segment in source.segments]
    found = without_header_values(ours(source.segments, Options(data=True)))
    assert_same(found, kafkas(files, "--deep-iteration", "--print-data-log"))
    assert any("endTxnMarker: ABORT" in line for line in found)


def test_the_demos_archive_is_dumped_as_kafkas_tool_does_it(
    second_kafka: KafkaBroker, nursery: Nursery, tmp_path: Path
) -> None:
    """Some days of flights; every segment but the larger ones of `flights`, whose batches are like those of the
    smallest.
    """
    nycflights.load(second_kafka.bootstrap, flights=8_000)
    backups = Backups(second_kafka, folder_spec(tmp_path), nursery=nursery)
    assert backups.run(*nycflights.TOPICS).outcome == "Succeeded"
    source = open_source(backups.storage_spec["uri"])
    flights = [segment for segment in source.segments if segment.topic == "flights"]
    smallest = min(flights, key=lambda segment: segment.size)
    chosen = [segment for segment in source.segments if segment.topic != "flights" or segment is smallest]
    assert {segment.topic for segment in chosen} == set(nycflights.TOPICS)
    written = [item.path for item in extract(source, tmp_path / "extracted") if item.path.suffix == names.LOG]
    of_segment = dict(zip(source.segments, written, strict=True))
    expected = kafkas([of_segment[segment] for segment in chosen], "--deep-iteration", "--print-data-log")
    assert_same(without_header_values(ours(chosen, Options(data=True))), expected)


@pytest.mark.parametrize("where", ["folders", "archive"])
def test_indexes_are_those_of_kafkas_tool(where: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source = open_source(str(request.getfixturevalue(where)))
    seen = set()
    found: list[str] = []
    files: list[Path] = []
    for number, segment in enumerate(source.segments):
        if segment.topic not in ("mixed", "stamped"):
            continue
        for suffix in (names.INDEX, names.TIMEINDEX, names.TXNINDEX):
            path = Path(segment.name.removesuffix(segment.suffix) + suffix)
            if not path.exists() or not path.stat().st_size:
                continue
            # Kafka's tool looks for the log of an index under the name that a broker gives it.
            folder = tmp_path / str(number)
            folder.mkdir(exist_ok=True)
            for part in (segment.suffix, *names.SUFFIXES):
                if (beside := Path(segment.name.removesuffix(segment.suffix) + part)).exists():
                    shutil.copy(beside, folder / f"{segment.base_offset:020}{part}")
            files.append(folder / f"{segment.base_offset:020}{suffix}")
            rows = [
                "\n".join(row.lines()) for row in dump_file(source.storage, segment.stem + suffix, segment.base_offset)
            ]
            assert rows
            found += rows
            seen.add(suffix)
    assert_same(found, kafkas(files))
    assert seen == {names.INDEX, names.TIMEINDEX, names.TXNINDEX}


def test_snapshots_of_producers_are_those_of_kafkas_tool(folders: Path) -> None:
    snapshots = sorted((folders / "mixed-0").glob("*.snapshot"))
    assert snapshots
    sources = [open_source(str(snapshot)) for snapshot in snapshots]
    found = ["\n".join(row.lines()) for source in sources for row in dump_file(source.storage, source.single)]
    assert_same(found, [line.rstrip() for line in kafkas(snapshots)])


def test_control_records_of_the_metadata_log_are_those_of_kafkas_tool(folders: Path) -> None:
    source = open_source(str(folders / "__cluster_metadata-0"))
    logs = [segment for segment in source.segments if segment.suffix == names.LOG]
    expected = kafkas([Path(segment.name) for segment in logs], "--deep-iteration")
    assert_same(ours(logs, Options(deep=True)), expected)


def test_indexes_of_a_stopped_broker_have_no_fault_and_are_ours(folders: Path) -> None:
    found = [
        index for topic in ("mixed-0", "mixed-1", "stamped-0") for index in survey(open_source(str(folders / topic)))
    ]
    assert len(found) >= 12
    assert [(index.name, index.faults) for index in found if index.faults] == []
    assert {index.state for index in found} == {IndexVerdict.GOOD}


def test_the_data_folder_of_a_stopped_broker_is_whole(folders: Path) -> None:
    assert_whole(folders)


def test_the_data_folder_of_a_killed_broker_is_whole() -> None:
    """The log of its controller lies beside the snapshots of that log."""
    soon = {"metadata.log.max.snapshot.interval.ms": "1000", "metadata.max.idle.interval.ms": "500"}
    with KafkaBroker(overrides=soon) as broker:
        create_topic(broker.bootstrap, "some", config=NO_RETENTION)
        produce(broker.bootstrap, "some", [Record(None, b"%d" % number, NOON) for number in range(100)])
        metadata = broker.data_dir / "__cluster_metadata-0"
        wait_until(lambda: bool(list(metadata.glob("*.checkpoint"))), 60, "a snapshot of the metadata")
        broker.kill()
        assert any(segment.is_checkpoint for segment in open_source(str(metadata)).segments)
        assert_whole(broker.data_dir)


def assert_whole(data: Path) -> None:
    source = open_source(str(data))
    assert [(index.name, index.faults) for index in survey(source) if index.faults] == []
    assert [(plan.segment.name, plan.reason) for plan in plan_recovery(source) if not plan.whole] == []


def test_indexes_of_an_archive_have_no_fault(archive: Path) -> None:
    found = list(survey(open_source(archive.as_uri())))
    assert {index.state for index in found} == {IndexVerdict.GOOD}
    assert any(index.found for index in found if index.path.endswith(names.TXNINDEX))


Kept = tuple[int, int, Any, Any]


def kept_by_kafka(source: LogSource, option: str) -> list[Kept]:
    """Partition, offset, key and value of every record that Kafka's tool decodes."""
    pattern = re.compile(r"\| offset: (\d+) .*? key: (\{.*?\}) payload: (.*)")
    partitions = {segment.name: segment.partition for segment in source.segments}
    found: list[Kept] = []
    partition = -1
    for line in printed(map(Path, partitions), option):
        if line.startswith(DUMPING):
            partition = partitions[line.removeprefix(DUMPING)]
        elif match := pattern.fullmatch(line):
            value = None if match[3] == "<DELETE>" else json.loads(match[3])
            data = {} if value is None else value["data"]
            if isinstance(data.get("transactionStatus"), int):  # the tool prints a word from 4.4 on
                data["transactionStatus"] = TRANSACTION_STATES[data["transactionStatus"]]
            found.append((partition, int(match[1]), json.loads(match[2]), value))
    return found


def kept_by_us(source: LogSource, topic: StateTopic) -> list[Kept]:
    found: list[Kept] = []
    for entry in history(source, topic):
        assert entry.record is not None
        key = {"type": str(entry.record.type), "data": entry.record.key}
        value = None
        if entry.record.value is not None:
            value = {"version": str(entry.record.version), "data": entry.record.value}
        found.append((entry.partition, entry.offset, key, value))
    return found


def test_offsets_and_groups_are_those_of_kafkas_tool(folders: Path) -> None:
    ((topic, source),) = open_state(str(folders), StateTopic.OFFSETS)
    found = kept_by_us(source, topic)
    assert found == kept_by_kafka(source, "--offsets-decoder")
    assert {key["type"] for _, _, key, _ in found} >= {"1", "2"}
    state = list(last_state(history(source, topic), []))
    positions = {(item.group, item.topic, item.partition): item for record in state if (item := record.commit)}
    assert positions["readers", "mixed", 1].offset == 18
    assert positions["readers", "mixed", 1].metadata.rstrip("\0") == "by readers"  # the client sends a zero with it
    assert positions["others", "mixed", 1].offset == 40


def test_transactions_are_those_of_kafkas_tool(folders: Path) -> None:
    ((topic, source),) = open_state(str(folders), StateTopic.TRANSACTIONS)
    found = kept_by_us(source, topic)
    assert found == kept_by_kafka(source, "--transaction-log-decoder")
    state = {record.owner: record.value for record in last_state(history(source, topic), [])}
    assert {name: value["transactionStatus"] for name, value in state.items() if value is not None} == {
        f"tx-{number}": "CompleteAbort" if number % 2 else "CompleteCommit" for number in range(5)
    }


def test_old_messages_are_those_of_kafkas_tool(tmp_path: Path) -> None:
    """The CRC of each message inside is left out."""
    for name, batch in json.loads(GOLDEN.read_text("utf-8")).items():
        if name.startswith("magic2"):
            continue
        log = tmp_path / name / f"{0:020}.log"
        log.parent.mkdir()
        log.write_bytes(bytes.fromhex(batch))
    logs = sorted(tmp_path.glob("*/*.log"))
    assert len(logs) == 12
    theirs = kafkas(logs, "--print-data-log")
    found = [line for log in logs for line in ours(open_source(str(log)).segments, Options(data=True))]
    assert_same(found, [re.sub(r" isValid: true crc: \d+", "", line) for line in theirs])


def test_aborted_transactions_are_marked(folders: Path) -> None:
    source = open_source(str(folders / "mixed-0"))
    aborted = outcomes(source.segments).aborted
    rows = [row for segment in source.segments for row in dump_segment(segment, Options(data=True), aborted)]
    marked = [row for row in rows if row.fields.get("aborted")]
    assert marked
    assert all(row.fields["isTransactional"] for row in marked)
    inside = 0
    in_aborted = False
    for row in rows:
        if row.kind is RowKind.BATCH:
            in_aborted = bool(row.fields.get("aborted"))
        elif in_aborted:
            assert row.fields["payload"].startswith("in a transaction")
            inside += 1
    assert inside == 30


def test_an_archive_and_its_live_topics_are_the_same(broker: KafkaBroker, archive: Path, folders: Path) -> None:
    done = logkeep("log", "diff", archive.as_uri(), "--bootstrap-server", broker.bootstrap)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.startswith("same: 3 partitions compared, ")


def test_a_record_more_in_the_live_topic_is_a_difference(
    broker: KafkaBroker, nursery: Nursery, folders: Path, tmp_path: Path
) -> None:
    topics = Topics(broker)
    topics.create("grows")
    topics.produce("grows", [b"one", b"two"])
    topics.transaction("grows", [b"never seen"], commit=False)
    backups = Backups(broker, folder_spec(tmp_path), nursery=nursery)
    assert backups.run("grows").outcome == "Succeeded"
    topics.transaction("grows", [b"never seen either"], commit=False)
    topics.produce("grows", [b"three"])
    done = logkeep(
        "log", "diff", tmp_path.as_uri(), "--bootstrap-server", broker.bootstrap, "--topic", "grows", "-o", "json"
    )
    assert done.returncode == 6
    found = json.loads(done.stdout)
    assert found["same"] is False
    assert (found["equal"], found["onlyInA"], found["onlyInB"], found["different"]) == (2, 0, 1, 0)
    assert [(item["kind"], item["offsetB"]) for item in found["differences"]] == [("only in B", 6)]
    topics.create("other")
    topics.produce("other", [b"one", b"changed", b"more"])
    renamed = ["--bootstrap-server", broker.bootstrap, "--topic", "grows", "--rename", "grows=other"]
    done = logkeep("log", "diff", tmp_path.as_uri(), *renamed, "--ignore", "timestamp")
    assert done.stdout.splitlines()[:2] == [
        "grows-0: offset 1 of A and offset 1 of B differ in value",
        "grows-0: offset 2 of B is not in A",
    ]


def test_a_topic_that_was_empty_when_it_was_archived_is_compared(
    broker: KafkaBroker, folders: Path, tmp_path: Path
) -> None:
    topics = Topics(broker)
    topics.create("later", partitions=2)
    with begin(open_uri(tmp_path.as_uri())) as writer:
        writer.commit(topics=[TopicEntry("later", "d" * 21 + "A", 2, 1)])
        writer.end(RunOutcome.SUCCEEDED)
    diff = ["log", "diff", tmp_path.as_uri(), "--bootstrap-server", broker.bootstrap]
    done = logkeep(*diff)
    assert done.returncode == 0, done.stderr + done.stdout
    topics.produce("later", [b"one"], partition=1)
    done = logkeep(*diff)
    assert (done.returncode, done.stdout.splitlines()[0]) == (6, "later-1: the partition is only in B")


def test_a_cluster_that_is_not_there_is_said(archive: Path) -> None:
    done = logkeep("log", "diff", archive.as_uri(), "--bootstrap-server", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "127.0.0.1:1" in done.stderr


def test_the_command_prints_what_kafkas_tool_prints(folders: Path) -> None:
    log = sorted((folders / "mixed-1").glob("*.log"))[0]
    done = logkeep("log", "dump", str(log), "--deep")
    assert done.returncode == 0, done.stderr
    theirs = dump_log_segments("--files", log, "--deep-iteration").stdout
    assert [re.sub(" aborted: true$", "", line) for line in done.stdout.splitlines()] == theirs.splitlines()

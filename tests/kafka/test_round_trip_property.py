"""Whatever records a topic holds: backed up and restored, a committed consumer sees the same ones in the same order."""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from pyspark import SparkContext

from logkeep_engine.archive.moments import iso
from logkeep_engine.contract.point import parse_moment
from logkeep_engine.spark.runner import SparkRunner
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import create_topic, end_transaction
from tests.examples import scaled
from tests.kafka.restores import (
    Seen,
    all_committed,
    back_up,
    backup_spec,
    bring_back,
    committed,
    offset_map,
    restore_spec,
    without_offsets,
)

PARTITIONS = 2
START = int(time.time() * 1000) - 3_600_000

Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Row:
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    time: int


@dataclass(frozen=True)
class Write:
    """The records that one producer sends. `outcome` None: without a transaction. `backup_after`: an incremental backup
    follows."""

    rows: tuple[Row, ...]
    codec: str
    batch: int
    outcome: bool | None
    backup_after: bool


@dataclass(frozen=True)
class Example:
    """`point`: the share of the times, or of the offsets, that lie before the point of a second restore."""

    append_time: bool
    compacted: bool
    writes: tuple[Write, ...]
    point: float
    by_time: bool


headers = st.lists(
    st.tuples(st.sampled_from(["", "a", "b", "schlüssel"]), st.none() | st.binary(max_size=20)), max_size=4
).map(tuple)
values = st.one_of(st.none(), st.just(b""), st.binary(max_size=60), st.integers(1, 9).map(lambda n: b"%d" % n * 2000))


@st.composite
def examples(draw: st.DrawFn) -> Example:
    compacted = draw(st.booleans())
    keys = (
        st.sampled_from([b"", b"a", b"b", b"c"])
        if compacted
        else st.one_of(st.none(), st.just(b""), st.binary(max_size=9))
    )
    rows = st.builds(
        Row, st.integers(0, PARTITIONS - 1), keys, values, headers, st.integers(0, 3_000_000).map(lambda at: START + at)
    )
    writes = st.builds(
        Write,
        st.lists(rows, min_size=1, max_size=25).map(tuple),
        st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
        st.sampled_from([1, 3, 100]),
        st.sampled_from([None, None, True, False]),
        st.booleans(),
    )
    some = tuple(draw(st.lists(writes, min_size=1, max_size=4)))
    return Example(draw(st.booleans()), compacted, some, draw(st.floats(0, 1)), draw(st.booleans()))


def send(kafka: KafkaBroker, topic: str, write: Write) -> None:
    config: dict[str, str | int] = {
        "bootstrap.servers": kafka.bootstrap,
        "compression.type": write.codec,
        "batch.num.messages": write.batch,
        "linger.ms": 5,
    }
    if write.outcome is not None:
        config["transactional.id"] = secrets.token_hex(8)
    producer = Producer(config)
    if write.outcome is not None:
        producer.init_transactions(60)
        producer.begin_transaction()
    for row in write.rows:
        producer.produce(
            topic, value=row.value, key=row.key, partition=row.partition, timestamp=row.time, headers=list(row.headers)
        )
    assert producer.flush(120) == 0
    if write.outcome is not None:
        end_transaction(kafka.bootstrap, producer, {(topic, row.partition) for row in write.rows}, commit=write.outcome)


def let_the_cleaner_run(kafka: KafkaBroker, topic: str) -> None:
    """Roll the active segment with one more record a partition, and wait until the cleaner has been at the first."""
    time.sleep(0.3)
    row = [Row(partition, b"last", b"", (), START) for partition in range(PARTITIONS)]
    send(kafka, topic, Write(tuple(row), "none", 1, None, False))
    checkpoint = kafka.data_dir / "cleaner-offset-checkpoint"
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and f"{topic} " not in checkpoint.read_text():
        time.sleep(0.1)


def point_of(topic: str, example: Example, source: Sequence[Sequence[Seen]]) -> dict[str, Any]:
    """The point of the example, in what the topic holds."""
    if example.by_time:
        times = sorted(record[4] for records in source for record in records)
        return {"timestamp": iso(times[round(example.point * (len(times) - 1))])}
    ends = [round(example.point * (records[-1][0] + 1)) if records else 0 for records in source]
    return {"offsets": [{"topic": topic, "partition": at, "offset": end} for at, end in enumerate(ends)]}


def within(example: Example, partition: int, source: Sequence[Seen], point: Mapping[str, Any]) -> list[Seen]:
    """The records of a partition that lie within the point. Transactions follow one another, and the marker of one is
    right after its last record."""
    found: list[Seen] = []
    rest = list(source)
    for write in example.writes:
        if write.outcome is False:
            continue
        count = sum(row.partition == partition for row in write.rows)
        own, rest = rest[:count], rest[count:]
        of_transaction = bool(own) and write.outcome is not None
        if "timestamp" in point:
            end = parse_moment(point["timestamp"])
            latest = max((record[4] for record in own), default=0)
            found += [record for record in own if (latest if of_transaction else record[4]) < end]
        else:
            end = point["offsets"][partition]["offset"]
            found += [record for record in own if (own[-1][0] + 1 if of_transaction else record[0]) < end]
    assert not rest
    return found


@pytest.fixture(scope="module")
def runner(spark_context: SparkContext) -> SparkRunner:
    return SparkRunner(spark_context)


@settings(
    max_examples=scaled(20),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # each example takes seconds: shrinking would take minutes
    suppress_health_check=list(HealthCheck),
)
@given(example=examples())
def test_a_committed_consumer_sees_the_same_records(
    kafka: KafkaBroker, runner: SparkRunner, tmp_path_factory: pytest.TempPathFactory, example: Example
) -> None:
    topic = f"round-trip-{secrets.token_hex(4)}"
    root: Path = tmp_path_factory.mktemp(topic)
    config = {"message.timestamp.type": "LogAppendTime" if example.append_time else "CreateTime"}
    if example.compacted:
        config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", "segment.ms": "100"}
    create_topic(kafka.bootstrap, topic, PARTITIONS, config)
    backups = 0
    for write in example.writes:
        send(kafka, topic, write)
        if write.backup_after:
            backups += 1
            back_up(backup_spec(kafka, root, topic), f"backup-{backups}", runner)
    if example.compacted and backups == 0:
        let_the_cleaner_run(kafka, topic)
    before = list(all_committed(kafka, {topic: PARTITIONS}).values())
    back_up(backup_spec(kafka, root, topic), "backup-last", runner)
    after = list(all_committed(kafka, {topic: PARTITIONS}).values())

    result = bring_back(restore_spec(kafka, root, allowEmpty=True), runner=runner)

    copies = list(all_committed(kafka, {f"{topic}-copy": PARTITIONS}).values())
    note(f"{topic} {backups + 1} backups, {result}")
    assert result.records == sum(map(len, copies))
    for partition, (source, copy) in enumerate(zip(before, copies, strict=True)):
        if example.compacted and (source != after[partition] or backups):
            # The cleaner took some while, or since, they were archived: what it has left must be among the restored,
            # in order.
            remaining = iter(without_offsets(copy))
            assert all(record in remaining for record in without_offsets(after[partition]))
            continue
        assert without_offsets(copy) == without_offsets(source)
        if source:
            found = offset_map(root, "restore-1", f"{topic}-copy", partition)
            assert [found.find(record[0]).target for record in source] == [record[0] for record in copy]

    if example.compacted or not any(before):
        return
    point = point_of(topic, example, before)
    spec = restore_spec(kafka, root, suffix="-point", allowEmpty=True, point=point)
    bring_back(spec, "restore-2", runner=runner)
    for partition, source in enumerate(before):
        expected = within(example, partition, source, point)
        assert without_offsets(committed(kafka, f"{topic}-point", partition)) == without_offsets(expected), point

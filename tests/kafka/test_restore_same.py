"""`offsets: Same`: every committed record at its source offset, whatever the source looks like and whoever dies."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.errors import TargetChanged, TopicExists
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.transactions import PaddingTransactions
from tests import examples
from tests.cluster.kafka import Brokers, KafkaBroker
from tests.data.topics import NO_RETENTION, Record, commit_positions, create_topic, produce, random_records
from tests.kafka.backing_up import Topics
from tests.kafka.raw import plain
from tests.kafka.restores import (
    Only,
    ThreadRunner,
    back_up,
    backup_spec,
    bring_back,
    committed,
    offset_map,
    restore_spec,
    start_driver,
    transactions,
)
from tests.kafka.test_restore_groups import positions

NOW = int(time.time() * 1000) - 3_600_000
SAME = {"offsets": "Same"}


def bounds(kafka: Brokers, topic: str, partitions: int = 1) -> list[tuple[int, int]]:
    """Where the log of each partition starts and ends."""

    async def ask() -> list[tuple[int, int]]:
        async with RawClient(plain(kafka.bootstrap)) as client:
            return [
                (await client.start_offset(topic, number), await client.log_end(topic, number))
                for number in range(partitions)
            ]

    return asyncio.run(ask())


def numbered(count: int, *, start: int = 0, partition: int = 0, size: int = 10) -> Iterator[Record]:
    for number in range(start, start + count):
        yield Record(b"k%d" % (number % 50), b"%d" % number * size, NOW + number, partition=partition)


def assert_same(kafka: KafkaBroker, topic: str, partitions: int = 1, suffix: str = "-copy") -> None:
    assert bounds(kafka, topic + suffix, partitions) == bounds(kafka, topic, partitions)
    for partition in range(partitions):
        found, expected = committed(kafka, topic + suffix, partition), committed(kafka, topic, partition)
        assert found == expected, f"{topic} partition {partition}"


class Difficult:
    """Topics whose offsets no producer can make again."""

    def __init__(self, kafka: Brokers, topics: Topics, name: str) -> None:
        self.kafka = kafka
        self.topics = topics
        self.name = name
        self.made: dict[str, int] = {}

    def create(self, kind: str, partitions: int = 1, **config: str) -> str:
        topic = f"{self.name}-{kind}"
        self.made[topic] = partitions
        settings = {**NO_RETENTION, **{key.replace("_", "."): value for key, value in config.items()}}
        create_topic(self.kafka.bootstrap, topic, partitions, settings)
        return topic

    def produce(self, topic: str, records: Iterator[Record], **config: Any) -> None:
        produce(self.kafka.bootstrap, topic, records, config={key.replace("_", "."): v for key, v in config.items()})

    def make(self) -> None:
        self.retention()
        self.aborts()
        self.compaction()
        self.produce(self.create("tiny"), numbered(300), batch_size=1, linger_ms=0)
        large = self.create("large", max_message_bytes="3000000")
        self.produce(large, random_records(1, 8, record_bytes=2_000_000), message_max_bytes=3_000_000)
        stamped = self.create("stamped", message_timestamp_type="LogAppendTime")
        self.produce(stamped, numbered(500), batch_num_messages=7)
        empty = self.create("empty", 3)
        self.produce(empty, numbered(40, partition=1))
        self.topics.delete_records(empty, 40, partition=1)
        many = self.create("many", 60)
        for partition in range(60):
            self.produce(many, numbered(partition, partition=partition))
            if partition % 6 == 0:
                transactions(self.kafka, many, [1 + partition % 3, -1, 2], partition=partition)
        self.everything()
        self.emptied()

    def retention(self) -> None:
        topic = self.create("retention", 2)
        self.produce(topic, numbered(200_000, size=1))
        self.produce(topic, numbered(100, partition=1))
        self.topics.delete_records(topic, 199_900)
        self.topics.delete_records(topic, 1, partition=1)

    def aborts(self) -> None:
        topic = self.create("aborts")
        transactions(self.kafka, topic, [3, -4, 1, 1, -1, 5])
        held = [self.topics.open_transaction(topic, [b"%d" % number], batch=1) for number in range(4)]
        for number, producer in enumerate(held):  # four markers one after the other
            self.topics.end(producer, topic, commit=number != 2)
        transactions(self.kafka, topic, [-60_000, -60_000, 2])

    def compaction(self) -> None:
        self.topics.create_compacted(f"{self.name}-compacted")
        self.made[f"{self.name}-compacted"] = 1

    def everything(self) -> None:
        topic = self.create("everything")
        self.produce(topic, numbered(100))
        transactions(self.kafka, topic, [20, -30, 40])
        self.topics.delete_records(topic, 115)

    def emptied(self) -> None:
        """A transaction that was aborted at the end of a log, and one at its start."""
        topic = self.create("emptied")
        transactions(self.kafka, topic, [-5, -7])


def test_ten_difficult_topics(kafka: KafkaBroker, unique: str, tmp_path: Path, topics: Topics) -> None:
    source = Difficult(kafka, topics, unique)
    source.make()
    group = f"{unique}-group"
    wanted = {(f"{unique}-aborts", 0): 4, (f"{unique}-retention", 0): 199_950, (f"{unique}-empty", 1): 40}
    wanted[f"{unique}-everything", 0] = bounds(kafka, f"{unique}-everything")[0][1]
    commit_positions(kafka.bootstrap, group, wanted)
    back_up(backup_spec(kafka, tmp_path, f"{unique}-.*", consumerGroups={"include": [group]}))
    restored = restore_spec(
        kafka, tmp_path, offsets="Same", verify="Full", consumerGroups={"restore": "Translate", "include": [group]}
    )
    result = bring_back(restored)
    assert result.verification is not None
    assert result.verification.outcome == "Verified", result.verification
    assert result.groups == len(wanted)
    assert len(source.made) == 10
    for topic, partitions in source.made.items():
        assert_same(kafka, topic, partitions)
    found = {where: offset for where, (offset, _) in positions(kafka, group).items()}
    assert {(f"{topic}-copy", number): offset for (topic, number), offset in wanted.items()}.items() <= found.items()
    for offset, *_ in committed(kafka, f"{unique}-aborts-copy"):
        where = offset_map(tmp_path, "restore-1", f"{unique}-aborts-copy")
        assert where.find(offset).target == offset


def varied(kafka: KafkaBroker, topics: Topics, topic: str) -> None:
    """A log that starts above 0 and has gaps of all kinds, and one at its end."""
    create_topic(kafka.bootstrap, topic, 1, NO_RETENTION)
    produce(kafka.bootstrap, topic, numbered(30))
    transactions(kafka, topic, [3, -4, 2, -1])
    topics.delete_records(topic, 12)


class PowerCut(Exception):
    pass


STEPS = ("_begin", "_write", "_end", "_complete")


def cut_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """The power goes at the given step of all transactions together: in front of it, or, if odd, after it."""
    seen: list[str] = []

    def wrapped(name: str) -> Any:
        step = getattr(PaddingTransactions, name)

        async def run(self: PaddingTransactions, *arguments: Any, **named: Any) -> Any:
            seen.append(name)
            if len(seen) == number // 2 + 1 and number % 2 == 0:
                raise PowerCut(name)
            found = await step(self, *arguments, **named)
            if len(seen) == number // 2 + 1:
                raise PowerCut(name)
            return found

        return run

    for name in STEPS:
        monkeypatch.setattr(PaddingTransactions, name, wrapped(name))
    return seen


@pytest.mark.deep
def test_a_power_cut_at_any_step_of_any_transaction(
    kafka: KafkaBroker, unique: str, tmp_path: Path, topics: Topics
) -> None:
    varied(kafka, topics, unique)
    back_up(backup_spec(kafka, tmp_path, unique))
    with pytest.MonkeyPatch.context() as monkeypatch:
        seen = cut_at(monkeypatch, 1_000_000)
        bring_back(restore_spec(kafka, tmp_path, suffix="-whole", **SAME), "whole")
    assert_same(kafka, unique, suffix="-whole")
    every = range(2 * len(seen))
    for number in every if examples.number(0, deep=1) else every[::5]:
        suffix, run_id = f"-{number}", f"restore-{number}"
        spec = restore_spec(kafka, tmp_path, suffix=suffix, **SAME)
        with pytest.MonkeyPatch.context() as monkeypatch:
            cut_at(monkeypatch, number)
            with pytest.raises(PowerCut):
                bring_back(spec, run_id)
        bring_back(spec, run_id)
        assert_same(kafka, unique, suffix=suffix)


def test_two_tasks_of_one_partition_at_once(kafka: KafkaBroker, unique: str, tmp_path: Path, topics: Topics) -> None:
    varied(kafka, topics, unique)
    back_up(backup_spec(kafka, tmp_path, unique))
    bring_back(restore_spec(kafka, tmp_path, **SAME), runner=Only(ThreadRunner(copies=2), "restore_partitions"))
    assert_same(kafka, unique)


@pytest.mark.deep
def test_a_driver_killed_in_the_middle_continues_where_it_was(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    create_topic(kafka.bootstrap, unique, 2, NO_RETENTION)
    for partition in (0, 1):
        transactions(kafka, unique, [200, -20, 1] * 20, partition=partition)
    back_up(backup_spec(kafka, root, unique))
    spec = restore_spec(kafka, root, **SAME)
    ends = [end for _, end in bounds(kafka, unique, 2)]
    file = tmp_path / "request.json"
    file.write_text(RunRequest(kind="KafkaRestore", name="test", namespace="", run_id="r1", spec=spec).to_json())
    for part in range(1, 1 + examples.number(2, deep=6)):
        driver = start_driver(file)
        while driver.poll() is None and not reached(kafka, f"{unique}-copy", part * ends[0] // 8):
            time.sleep(0.005)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert any(end < ends[0] for _, end in bounds(kafka, f"{unique}-copy", 2)), "it was over before it was killed"
    bring_back(spec, "r1")
    assert_same(kafka, unique, 2)


def test_an_earlier_state_ends_where_it_ended(kafka: KafkaBroker, unique: str, tmp_path: Path, topics: Topics) -> None:
    varied(kafka, topics, unique)
    group = f"{unique}-group"
    end = bounds(kafka, unique)[0][1]
    commit_positions(kafka.bootstrap, group, {(unique, 0): end})
    backup = backup_spec(kafka, tmp_path, unique, consumerGroups={"include": [group]})
    back_up(backup, "early")
    expected = committed(kafka, unique)
    transactions(kafka, unique, [5, -2])
    commit_positions(kafka.bootstrap, group, {(unique, 0): end + 3})
    back_up(backup, "late")
    spec = {"offsets": "Same", "verify": "Full", "consumerGroups": {"restore": "Translate", "include": [group]}}
    early = bring_back(restore_spec(kafka, tmp_path, suffix="-early", point={"run": "early"}, **spec), "r1")
    assert bounds(kafka, f"{unique}-early") == [(12, end)]
    assert committed(kafka, f"{unique}-early") == expected
    assert positions(kafka, group)[f"{unique}-early", 0][0] == end
    assert early.verification is not None
    assert early.verification.outcome == "Verified", early.verification
    point = {"offsets": [{"topic": unique, "partition": 0, "offset": 25}]}
    bring_back(restore_spec(kafka, tmp_path, suffix="-inside", point=point, **SAME), "r2")
    assert bounds(kafka, f"{unique}-inside") == [(12, 25)]
    assert committed(kafka, f"{unique}-inside") == [record for record in expected if record[0] < 25]


def reached(kafka: KafkaBroker, topic: str, offset: int) -> bool:
    if not list(kafka.data_dir.glob(f"{topic}-0")):
        return False
    return max(end for _, end in bounds(kafka, topic, 2)) >= offset


def test_a_topic_that_is_there_is_refused_by_its_name(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)
    produce(kafka.bootstrap, unique, numbered(3))
    back_up(backup_spec(kafka, tmp_path, unique))
    create_topic(kafka.bootstrap, f"{unique}-copy")
    with pytest.raises(TopicExists, match=f"{unique}-copy already exists"):
        bring_back(restore_spec(kafka, tmp_path, **SAME))
    with pytest.raises(SpecInvalid, match="offsets may be Same only in new topics"):
        bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Append", **SAME))


def test_somebody_who_writes_into_the_topic_is_noticed(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)
    transactions(kafka, unique, [3, 3])
    back_up(backup_spec(kafka, tmp_path, unique))

    def write(tasks: Any) -> None:
        if isinstance(tasks, tuple):
            produce(kafka.bootstrap, f"{unique}-copy", numbered(1))

    with pytest.raises(TargetChanged):
        bring_back(restore_spec(kafka, tmp_path, **SAME), runner=Only(ThreadRunner(before=write), "restore_partitions"))


def test_records_in_a_gap_are_noticed(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    """So lies there what a broker took twice, because it had forgotten the producer id between."""
    create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)
    transactions(kafka, unique, [3, -4, 2])
    back_up(backup_spec(kafka, tmp_path, unique))
    spec = restore_spec(kafka, tmp_path, **SAME)
    with pytest.MonkeyPatch.context() as monkeypatch:
        cut_at(monkeypatch, 0)
        with pytest.raises(PowerCut):
            bring_back(spec)
    assert bounds(kafka, f"{unique}-copy") == [(0, 3)]
    produce(kafka.bootstrap, f"{unique}-copy", numbered(1))
    with pytest.raises(TargetChanged, match="holds records at offset 3, where the source has none"):
        bring_back(spec)

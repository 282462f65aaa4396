"""Restores to a point, of what a real broker has, with times that are out of order by hours."""

import json
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from logkeep_engine.archive.moments import iso
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.errors import NothingToRestore, SpecError
from logkeep_engine.restore.sending import without_records as outside
from tests import examples
from tests.cluster.kafka import Brokers, KafkaBroker
from tests.data.topics import (
    NO_RETENTION,
    Record,
    commit_positions,
    create_topic,
    end_transaction,
    produce,
    random_records,
    topic_names,
)
from tests.kafka.restores import (
    Only,
    Seen,
    ThreadRunner,
    back_up,
    backup_spec,
    bring_back,
    committed,
    offset_map,
    restore_spec,
    start_driver,
    transactions,
    wait_for_more,
    without_offsets,
)
from tests.kafka.test_restore_groups import TRANSLATE, positions

NOON = 1_700_000_000_000
HOUR = 3_600_000


def disordered(count: int, *, start: int = 0, partition: int = 0, seed: int = 1) -> Iterator[Record]:
    """Records a second apart, one in seven of which has a clock that is wrong by up to five hours."""
    chance = random.Random(seed)
    for number in range(start, start + count):
        wrong = chance.randrange(-5 * HOUR, 5 * HOUR) if number % 7 == 3 else 0
        yield Record(b"k%d" % number, b"v%d" % number, NOON + 1000 * number + wrong, partition=partition)


def offset_for(kafka: Brokers, topic: str, partition: int, time: int) -> int:
    """The offset that the broker itself finds for a time; -1 if there is none."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "nobody"})
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, time)], timeout=30)
        return found.offset
    finally:
        consumer.close()


def restored_to(kafka: KafkaBroker, root: Path, point: Mapping[str, Any], name: str, **more: Any) -> Any:
    """The result of a restore, which is verified, too."""
    spec = restore_spec(kafka, root, suffix=f"-{name}", point=point, verify="Full", **more)
    result = bring_back(spec, f"restore-{name}")
    assert result.verification is not None
    assert result.verification.outcome == "Verified", result.verification
    assert result.verification.records == result.records
    return result


def check(kafka: KafkaBroker, root: Path, topic: str, name: str, expected: Mapping[int, Sequence[Seen]]) -> None:
    """The restored partitions hold these records of the source and no others, where the offset maps say."""
    for partition, records in expected.items():
        found = committed(kafka, f"{topic}-{name}", partition)
        assert without_offsets(found) == without_offsets(records), (name, partition)
        translated = offset_map(root, f"restore-{name}", f"{topic}-{name}", partition) if records else None
        for source, target in zip(records, found, strict=True):
            assert translated is not None
            assert translated.find(source[0]).target == target[0]


def below(ends: Sequence[int]) -> Callable[[int, Seen], bool]:
    return lambda partition, record: record[0] < ends[partition]


def earlier(time: int) -> Callable[[int, Seen], bool]:
    return lambda _, record: record[4] < time


SMALL = {"batch.size": 3000, "linger.ms": 5}


class TestPoints:
    @pytest.fixture
    def archived(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> Path:
        create_topic(kafka.bootstrap, unique, 2, NO_RETENTION)
        for partition in range(2):
            records = list(disordered(2000, partition=partition, seed=partition))
            produce(kafka.bootstrap, unique, records, compression="lz4", config=SMALL)
        commit_positions(kafka.bootstrap, "readers", {(unique, 0): 150, (unique, 1): 1200})
        back_up(backup_spec(kafka, tmp_path, unique, segment={"maxBytes": "1Mi"}))
        for partition in range(2):
            produce(kafka.bootstrap, unique, disordered(700, start=2000, partition=partition), config=SMALL)
        commit_positions(kafka.bootstrap, "readers", {(unique, 0): 1900, (unique, 1): 2100})
        back_up(backup_spec(kafka, tmp_path, unique, segment={"maxBytes": "1Mi"}), "backup-2")
        return tmp_path

    def test_each_brings_what_it_says(self, kafka: KafkaBroker, unique: str, archived: Path) -> None:
        source = {partition: committed(kafka, unique, partition) for partition in range(2)}
        of_a_record = source[0][1234][4]
        chosen: dict[str, tuple[dict[str, Any], Callable[[int, Seen], bool]]] = {
            "run": ({"run": "backup-1"}, lambda _, record: record[0] < 2000),
            "offsets": (
                {"offsets": [{"topic": unique, "partition": 0, "offset": 1234}]},
                lambda partition, record: partition == 1 or record[0] < 1234,
            ),
        }
        for number, time in enumerate((of_a_record, NOON + 1_000_500, NOON + 2 * HOUR)):
            ends = [offset_for(kafka, unique, partition, time) for partition in range(2)]
            assert -1 not in ends
            text = {"asOf": iso(time)}
            chosen[f"as-of-{number}"] = (text, below(ends))
            text = {"timestamp": iso(time)}
            chosen[f"timestamp-{number}"] = (text, earlier(time))
        low, high = NOON + 300_000, of_a_record
        window: dict[str, Any] = {"window": {"from": iso(low), "to": iso(high)}}
        chosen["window"] = (window, lambda _, record: low <= record[4] < high)
        chosen["since"] = ({"window": {"from": iso(low)}}, lambda _, record: low <= record[4])
        for name, (point, keeps) in chosen.items():
            expected = {
                partition: [record for record in records if keeps(partition, record)]
                for partition, records in source.items()
            }
            result = restored_to(kafka, archived, point, name)
            assert result.records == sum(map(len, expected.values()))
            reported = json.loads((archived / "runs" / f"restore-{name}" / "point.json").read_bytes())
            assert reported["recordsAtMost"] >= result.records
            if name != "window" and not name.startswith(("timestamp", "since")):
                assert reported["recordsAtMost"] == result.records
            check(kafka, archived, unique, name, expected)

    def test_every_attempt_sends_the_same(self, kafka: KafkaBroker, unique: str, archived: Path) -> None:
        source = {partition: committed(kafka, unique, partition) for partition in range(2)}
        time = source[1][777][4]
        spec = restore_spec(kafka, archived, suffix="-twice", point={"timestamp": iso(time)})
        bring_back(spec, "restore-twice", Only(ThreadRunner(copies=3), "restore_partitions"))
        expected = {at: [record for record in records if record[4] < time] for at, records in source.items()}
        check(kafka, archived, unique, "twice", expected)

    def test_before_the_first_and_after_the_last_record(self, kafka: KafkaBroker, unique: str, archived: Path) -> None:
        early, late = iso(NOON - 9 * HOUR), iso(NOON + 99 * HOUR)
        source = {partition: committed(kafka, unique, partition) for partition in range(2)}
        with pytest.raises(NothingToRestore, match=r"is outside of spec\.point"):
            restored_to(kafka, archived, {"asOf": early}, "early")
        result = restored_to(kafka, archived, {"asOf": early}, "early", allowEmpty=True)
        assert result.records == 0
        with pytest.raises(NothingToRestore, match=r"is outside of spec\.point"):
            restored_to(kafka, archived, {"timestamp": early}, "none")
        result = restored_to(kafka, archived, {"timestamp": early}, "none", allowEmpty=True)
        assert result.records == 0
        assert f"no record of 1 topic is within spec.point: nothing was restored to {unique}-none" in result.warnings
        for kind in ("asOf", "timestamp"):
            restored_to(kafka, archived, {kind: late}, f"late-{kind}")
            check(kafka, archived, unique, f"late-{kind}", source)

    def test_groups_are_those_of_the_point(self, kafka: KafkaBroker, unique: str, archived: Path) -> None:
        def moved(point: Mapping[str, Any], name: str) -> dict[int, int]:
            group = f"readers-{name}"
            result = restored_to(kafka, archived, point, name, consumerGroups=TRANSLATE)
            assert result.outcome == "Succeeded", group
            return {
                place[1]: found[0]
                for place, found in positions(kafka, "readers").items()
                if place[0] == f"{unique}-{name}"
            }

        assert moved({"run": "backup-1"}, "run") == {0: 150, 1: 1200}
        offsets = [{"topic": unique, "partition": 0, "offset": 1800}, {"topic": unique, "partition": 1, "offset": 2200}]
        assert moved({"offsets": offsets}, "offsets") == {0: 150, 1: 2100}
        before_all = moved({"timestamp": iso(NOON + 2 * HOUR)}, "early")
        assert before_all == {}  # no run had ended then: it is unknown where the group stood

    def test_what_cannot_be_is_refused(self, kafka: KafkaBroker, unique: str, archived: Path) -> None:
        refused: list[tuple[dict[str, Any], str]] = [
            ({"run": "backup-9"}, "no run 'backup-9'"),
            ({"asOf": "2999-01-01T00:00:00Z"}, "is in the future"),
            ({"offsets": [{"topic": "other", "partition": 0, "offset": 1}]}, "'other' is not restored"),
            ({"offsets": [{"topic": unique, "partition": 2, "offset": 1}]}, "has 2 partitions"),
            ({"offsets": [{"topic": unique, "partition": 1, "offset": 2701}]}, "after the archived end 2700"),
        ]
        for number, (point, message) in enumerate(refused):
            with pytest.raises(SpecError, match=message):
                restored_to(kafka, archived, point, f"refused-{number}")


@pytest.mark.parametrize("kind", ["timestamp", "asOf"][: examples.number(1, deep=2)])
def test_a_killed_driver_started_again_sends_the_same(
    kafka: KafkaBroker, unique: str, tmp_path: Path, kind: str
) -> None:
    """Times are out of order inside of each batch, so about every batch is taken apart."""
    source, copy, seed = f"{unique}-s", f"{unique}-s-copy", int.from_bytes(unique.encode()[-4:])
    chance = random.Random(seed)
    create_topic(kafka.bootstrap, source, 2, NO_RETENTION)
    records = [
        replace(record, timestamp=NOON + chance.randrange(4 * HOUR))
        for record in random_records(2, 16, record_bytes=1000)
    ]
    produce(kafka.bootstrap, source, records, config={"batch.size": 16_000}, compression="zstd")
    root = tmp_path / "archive"
    back_up(backup_spec(kafka, root, source))
    time = NOON + 3 * HOUR if kind == "timestamp" else NOON + 4 * HOUR - 5
    slow = restore_spec(kafka, root, point={kind: iso(time)}, limits={"bytesPerSecond": "1Mi"})
    file = tmp_path / "request.json"
    file.write_text(RunRequest(kind="KafkaRestore", name="test", namespace="", run_id="r1", spec=slow).to_json())
    driver = start_driver(file)
    assert wait_for_more(kafka, copy, driver, 1_500_000)
    assert driver.poll() is None, "the run was over before it could be killed"
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    fast = {**slow, "limits": {}}
    file.write_text(RunRequest(kind="KafkaRestore", name="test", namespace="", run_id="r1", spec=fast).to_json())
    driver = start_driver(file)
    assert driver.wait(180) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    for partition in range(2):
        end = offset_for(kafka, source, partition, time)
        expected = [
            record
            for record in committed(kafka, source, partition)
            if (record[4] < time if kind == "timestamp" else end < 0 or record[0] < end)
        ]
        found = committed(kafka, copy, partition)
        assert without_offsets(found) == without_offsets(expected), seed
        translated = offset_map(root, "r1", copy, partition)
        assert [translated.find(record[0]).target for record in expected] == [record[0] for record in found]


class TestTransactions:
    @pytest.fixture(params=["Passthrough", "Zstd"])
    def archived(self, kafka: KafkaBroker, unique: str, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
        """Offsets: 0 and 1 plain, 2 a, 3 b, 4 plain, 5 a, 6 end of b, 7 c, 8 end of a, 9 plain, 10 abort of c, 11 b,
        12 end of b. Each record has the time NOON + its offset in minutes, but 9 is an hour early."""
        create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)

        def at(*offsets: int) -> list[Record]:
            return [
                Record(b"k", b"v%d" % offset, NOON + 60_000 * offset - (HOUR if offset == 9 else 0), partition=0)
                for offset in offsets
            ]

        def plain(*offsets: int) -> None:
            produce(kafka.bootstrap, unique, at(*offsets), config={"linger.ms": 0})

        plain(0, 1)
        self._write(kafka, unique, plain, at)
        back_up(backup_spec(kafka, tmp_path, unique, segment={"compression": request.param}))
        return tmp_path

    def _write(self, kafka: KafkaBroker, topic: str, plain: Any, at: Any) -> None:
        made: dict[str, Producer] = {}

        def send(name: str, offset: int) -> None:
            (record,) = at(offset)
            made[name].produce(topic, record.value, record.key, 0, timestamp=record.timestamp)
            assert not made[name].flush(60)

        def end(name: str, *, commit: bool = True) -> None:
            end_transaction(kafka.bootstrap, made[name], [(topic, 0)], commit=commit)

        for name in "abc":
            made[name] = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-{name}"})
            made[name].init_transactions(60)
            made[name].begin_transaction()
        send("a", 2)
        send("b", 3)
        plain(4)
        send("a", 5)
        end("b")
        send("c", 7)
        end("a")
        plain(9)
        end("c", commit=False)
        made["b"].begin_transaction()
        send("b", 11)
        end("b")

    def restored(self, kafka: KafkaBroker, unique: str, root: Path, point: Mapping[str, Any], name: str) -> list[int]:
        restored_to(kafka, root, point, name)
        found = committed(kafka, f"{unique}-{name}")
        return [int((record[2] or b"v-1")[1:]) for record in found]

    def test_they_are_whole_or_not_at_all(self, kafka: KafkaBroker, unique: str, archived: Path) -> None:
        everything = [0, 1, 2, 3, 4, 5, 9, 11]
        assert [record[0] for record in committed(kafka, unique)] == everything
        inside = {
            3: [0, 1],  # a is open
            4: [0, 1],  # a and b are open
            6: [0, 1, 4],
            7: [0, 1, 3, 4],  # b has ended
            8: [0, 1, 3, 4],
            9: [0, 1, 2, 3, 4, 5],
            10: [0, 1, 2, 3, 4, 5, 9],
            12: [0, 1, 2, 3, 4, 5, 9],
            13: everything,
        }
        for end, expected in inside.items():
            point = {"offsets": [{"topic": unique, "partition": 0, "offset": end}]}
            assert self.restored(kafka, unique, archived, point, f"at-{end}") == expected
        # By time: a has the time of its latest record, 5.
        for minute, expected in {3: [0, 1, 9], 4: [0, 1, 3, 9], 5: [0, 1, 3, 4, 9], 6: [0, 1, 2, 3, 4, 5, 9]}.items():
            timed = {"timestamp": iso(NOON + 60_000 * minute)}
            assert self.restored(kafka, unique, archived, timed, f"time-{minute}") == expected
        window = {"window": {"from": iso(NOON + 60_000 * 3), "to": iso(NOON + 60_000 * 6)}}
        assert self.restored(kafka, unique, archived, window, "window") == [2, 3, 4, 5]
        window = {"window": {"from": iso(NOON + 60_000 * 6)}}
        assert self.restored(kafka, unique, archived, window, "rest") == [11]


def test_a_point_inside_of_the_first_transaction_is_refused(
    kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records before it are of a transaction that is open there. Beside a topic with records, it comes back
    empty."""
    create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)
    transactions(kafka, unique, [5])
    back_up(backup_spec(kafka, tmp_path, unique))
    inside = {"offsets": [{"topic": unique, "partition": 0, "offset": 3}]}
    before = topic_names(kafka.bootstrap)
    with pytest.raises(NothingToRestore, match=r"is outside of spec\.point.*nothing was written"):
        restored_to(kafka, tmp_path, inside, "refused")
    dry = bring_back(restore_spec(kafka, tmp_path, point=inside, dryRun=True), "dry").dry_run
    assert dry is not None
    assert [refusal.reason for refusal in dry.refusals] == ["NothingToRestore"]
    assert topic_names(kafka.bootstrap) == before
    monkeypatch.setattr(outside, "LOOK_BYTES", 0)
    with pytest.raises(NothingToRestore, match=f"the topics that were created are empty: {unique}-late"):
        restored_to(kafka, tmp_path, inside, "late")
    result = restored_to(kafka, tmp_path, inside, "allowed", allowEmpty=True)
    assert (result.records, committed(kafka, f"{unique}-allowed")) == (0, [])
    text = f"no record of 1 topic is within spec.point: nothing was restored to {unique}-allowed"
    assert text in result.warnings


@pytest.mark.parametrize("format_name", ["Records", "Avro"])
def test_archives_of_records(kafka: KafkaBroker, unique: str, tmp_path: Path, format_name: str) -> None:
    create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)
    produce(kafka.bootstrap, unique, disordered(900), config=SMALL)
    back_up(backup_spec(kafka, tmp_path, unique, format=format_name))
    source = committed(kafka, unique)
    time = NOON + 400_000
    end = offset_for(kafka, unique, 0, time)
    for name, point, expected in (
        ("as-of", {"asOf": iso(time)}, [record for record in source if record[0] < end]),
        ("timestamp", {"timestamp": iso(time)}, [record for record in source if record[4] < time]),
        ("window", {"window": {"from": iso(time)}}, [record for record in source if record[4] >= time]),
    ):
        restored_to(kafka, tmp_path, point, name)
        check(kafka, tmp_path, unique, name, {0: expected})

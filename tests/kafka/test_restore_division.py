"""Restores into another number of partitions: where records go, in which order, and that none is lost or doubled."""

import json
import os
import pickle
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.erasure.run import ErasureAsked, erase
from logkeep_engine.errors import ArchiveMismatch, TargetChanged, TargetUnsuitable, TopicExists
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.limits import Throttle
from logkeep_engine.report import Reporter
from logkeep_engine.restore.sending.outlet import Outlet
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.sending.written import Look, WrittenRecords, look
from logkeep_engine.storage import open_uri
from tests import examples
from tests.cluster.kafka import KafkaBroker
from tests.cluster.kafka_cluster import KafkaCluster
from tests.command import logkeep
from tests.data.murmur2 import target_of
from tests.data.topics import NO_RETENTION, Record, create_topic, produce, topic_names
from tests.kafka.backing_up import FOR_TEST
from tests.kafka.restores import (
    Only,
    Seen,
    ThreadRunner,
    all_committed,
    back_up,
    backup_spec,
    bring_back,
    committed,
    restore_spec,
    start_driver,
    transactions,
    wait_for_more,
)
from tests.runners import Context, Job, Runner

NOW = int(time.time() * 1000) - 3_600_000
CRC32 = {"partitioner": "consistent_random"}


def history(seed: int, count: int, *, start: int = 0, size: int = 20) -> Iterator[Record]:
    """Records of few keys, some without a key; no two have one value. Clocks are wrong now and then."""
    chance = random.Random(seed)
    for number in range(start, start + count):
        key = None if chance.random() < 0.2 else b"key-%d" % chance.randrange(40)
        headers: list[tuple[str, str | bytes | None]] = [("h", b"%d" % number)] * chance.randrange(3)
        value = b"%d-" % number + chance.randbytes(chance.randrange(size))
        yield Record(key, value, NOW + number - chance.randrange(50), headers)


def source(
    kafka: KafkaBroker, topic: str, partitions: int, *, count: int = 2000, seed: int = 1, size: int = 20
) -> None:
    """A topic that Java's producers could have written: they choose partitions as this one does."""
    create_topic(kafka.bootstrap, topic, partitions, NO_RETENTION)
    half = count // 2
    first, rest = history(seed, half, size=size), history(seed + 1, count - half, start=half, size=size)
    produce(kafka.bootstrap, topic, first, compression="lz4", config={"batch.size": 4000})
    produce(kafka.bootstrap, topic, rest, compression="zstd", config={"batch.size": 20_000})


def make_batches(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Divided records go in batches of so many bytes: it takes few records to have many batches."""
    for name in ("_LEAST_BYTES", "_MOST_BYTES"):
        monkeypatch.setattr(f"logkeep_engine.restore.sending.division.stream.{name}", size)


def spec(kafka: KafkaBroker | KafkaCluster, root: Path, partitions: int, **more: Any) -> dict[str, Any]:
    """A restore of every topic, with -copy after its name, into so many partitions."""
    found = restore_spec(kafka, root, **more)
    return {**found, "topics": {**found["topics"], "partitionCount": partitions}}


def read(kafka: KafkaBroker | KafkaCluster, topic: str, partitions: int) -> list[list[Seen]]:
    return list(all_committed(kafka, {topic: partitions}).values())


def assert_divided(before: list[list[Seen]], after: list[list[Seen]]) -> None:
    """Every record is there once, as it was, and those of each pair of partitions are in their order."""
    content = [[record[1:] for record in records] for records in before]
    assert Counter(record for records in content for record in records) == Counter(
        record[1:] for records in after for record in records
    )
    origin = {record[1]: number for number, records in enumerate(content) for record in records}
    for records in after:
        for number, archived in enumerate(content):
            there = [record[1:] for record in records if origin[record[2]] == number]
            wanted = set(there)
            assert there == [record for record in archived if record in wanted]


def places_of_keys(records: list[list[Seen]]) -> dict[bytes, set[int]]:
    found: dict[bytes, set[int]] = {}
    for partition, part in enumerate(records):
        for record in part:
            if record[1] is not None:
                found.setdefault(record[1], set()).add(partition)
    return found


@pytest.mark.parametrize(("partitions", "wanted"), [(3, 5), (5, 2), (1, 4)])
def test_keys_lie_where_producers_put_them_and_keep_their_order(
    kafka: KafkaBroker, unique: str, tmp_path: Path, partitions: int, wanted: int
) -> None:
    for seed in range(examples.number(1, deep=5)):
        topic, root = f"{unique}-{seed}", tmp_path / str(seed)
        source(kafka, topic, partitions, seed=10 * seed)
        back_up(backup_spec(kafka, root, topic))
        result = bring_back(spec(kafka, root, wanted))
        assert (result.records, result.partitions, result.offset_map) == (2000, wanted, "")
        before, after = read(kafka, topic, partitions), read(kafka, f"{topic}-copy", wanted)
        assert_divided(before, after)
        create_topic(kafka.bootstrap, f"{topic}-new", wanted)
        produce(kafka.bootstrap, f"{topic}-new", (Record(key, b"", NOW) for key in places_of_keys(before)))
        assert places_of_keys(after) == places_of_keys(read(kafka, f"{topic}-new", wanted))
        without_key = [sum(record[1] is None for record in records) for records in after]
        assert min(without_key) > 0.4 * max(without_key) > 0


def test_keys_lie_where_librdkafkas_producers_put_them(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    keys = [b"key-%d" % number for number in range(80)]
    create_topic(kafka.bootstrap, unique, 3, NO_RETENTION)
    produce(kafka.bootstrap, unique, (Record(key, b"v", NOW) for key in [*keys, b"", None]), config=CRC32)
    back_up(backup_spec(kafka, tmp_path, unique))
    follow = "records follow crc32, the default of librdkafka's producers, and are divided the same way"
    text = f"{follow}: topic {unique} (of 80"
    dry = bring_back(spec(kafka, tmp_path, 5, dryRun=True))
    assert dry.dry_run is not None
    assert dry.dry_run.refused == 0
    result = bring_back(spec(kafka, tmp_path, 5))
    for warnings in (dry.warnings, result.warnings):
        assert any(text in warning for warning in warnings)
    create_topic(kafka.bootstrap, f"{unique}-new", 5)
    produce(kafka.bootstrap, f"{unique}-new", (Record(key, b"", NOW) for key in keys), config=CRC32)
    after = places_of_keys(read(kafka, f"{unique}-copy", 5))
    after.pop(b"")
    assert after == places_of_keys(read(kafka, f"{unique}-new", 5))
    wrong = spec(kafka, tmp_path, 5, suffix="-wrong")
    wrong["topics"]["partitioner"] = "murmur2"
    with pytest.raises(
        TargetUnsuitable, match=r"spec\.topics\.partitioner is murmur2, but the archived records are not"
    ):
        bring_back(wrong, "restore-2")
    assert f"{unique}-wrong" not in topic_names(kafka.bootstrap)


def test_aborted_records_stay_away_and_a_point_holds(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    create_topic(kafka.bootstrap, unique, 2, NO_RETENTION)
    for partition in range(2):
        transactions(kafka, unique, [3, -4, 1, 1, -2, 5], partition=partition)
    produce(kafka.bootstrap, unique, history(3, 300))
    back_up(backup_spec(kafka, tmp_path, unique))
    before = read(kafka, unique, 2)
    assert sum(map(len, before)) == 320
    bring_back(spec(kafka, tmp_path, 3))
    after = read(kafka, f"{unique}-copy", 3)
    # The transactions of both partitions have the same values.
    assert Counter(record[1:] for records in before for record in records) == Counter(
        record[1:] for records in after for record in records
    )
    assert all(record[1] != b"aborted" for records in after for record in records)
    ends = [{"topic": unique, "partition": 0, "offset": before[0][5][0]}]
    ends.append({"topic": unique, "partition": 1, "offset": before[1][100][0]})
    at_point = spec(kafka, tmp_path, 3, point={"offsets": ends}, suffix="-point")
    assert bring_back(at_point, "restore-2").records == 105
    found = Counter(record[1:] for records in read(kafka, f"{unique}-point", 3) for record in records)
    assert found == Counter(record[1:] for record in [*before[0][:5], *before[1][:100]])


def test_a_topic_that_has_the_number_already_is_restored_as_it_is(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    create_topic(kafka.bootstrap, unique, 2, NO_RETENTION)
    produce(kafka.bootstrap, unique, (replace(record, partition=1) for record in history(1, 100)))
    create_topic(kafka.bootstrap, f"{unique}-b", 3, NO_RETENTION)
    produce(kafka.bootstrap, f"{unique}-b", history(2, 100))
    back_up(backup_spec(kafka, tmp_path, f"{unique}.*"))
    result = bring_back(spec(kafka, tmp_path, 2))
    assert result.offset_map.endswith("offset-maps")
    assert committed(kafka, f"{unique}-copy", 1) == committed(kafka, unique, 1)
    assert_divided(read(kafka, f"{unique}-b", 3), read(kafka, f"{unique}-b-copy", 2))
    maps = tmp_path / "runs/restore-1/offset-maps"
    assert sorted(path.name for path in (maps / f"{unique}-b-copy").iterdir()) == ["0.json", "1.json", "2.json"]


def test_an_empty_topic_has_the_number(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    create_topic(kafka.bootstrap, unique, 2, NO_RETENTION)
    back_up(backup_spec(kafka, tmp_path, unique))
    assert bring_back(spec(kafka, tmp_path, 3, allowEmpty=True)).partitions == 3
    assert read(kafka, f"{unique}-copy", 3) == [[], [], []]


class Dies(Runner):
    """Lets the process die when so many archived partitions of divided topics were restored, and `batches` batches of
    the next one were acknowledged."""

    def __init__(self, partitions: int, batches: int = 0) -> None:
        self._partitions = partitions
        self._batches = batches

    def perform(self, job: Job) -> None:
        if job.name != "restore_partitions":
            ThreadRunner().perform(job)
            return
        tasks = [task for group in job.work for task in group]
        done = tasks[: self._partitions]
        if done:
            ThreadRunner().perform(replace(job, work=[(task,) for task in done]))
        if self._batches:
            following = tasks[self._partitions : self._partitions + 1]
            with pytest.MonkeyPatch.context() as patched:
                _die_after(patched, self._batches)
                ThreadRunner().perform(replace(job, work=[(task,) for task in following]))
        raise ConnectionAbortedError


def _die_after(patched: pytest.MonkeyPatch, batches: int) -> None:
    real, left = Outlet._acknowledge, [batches]

    def dying(self: Outlet, *arguments: Any) -> None:
        real(self, *arguments)
        left[0] -= 1
        if left[0] <= 0:
            raise ConnectionAbortedError

    patched.setattr(Outlet, "_acknowledge", dying)


class Repeated(Runner):
    """Restores all archived partitions in one task, which dies behind some batches and is tried again, as by Spark."""

    def perform(self, job: Job) -> None:
        if job.name != "restore_partitions":
            ThreadRunner().perform(job)
            return
        work = tuple(task for group in job.work for task in group)
        with pytest.MonkeyPatch.context() as patched:
            _die_after(patched, 9)
            with pytest.raises(ConnectionAbortedError):
                job.function(pickle.loads(pickle.dumps(work)), Context(0))
        job.on_result(0, job.function(pickle.loads(pickle.dumps(work)), Context(1)))


class TestCrashes:
    @pytest.fixture
    def small_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pairs have several batches each."""
        make_batches(monkeypatch, 1500)

    @pytest.mark.parametrize("mode", ["Fail", "Append"])
    def test_it_continues_wherever_it_dies(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, small_batches: None, mode: str
    ) -> None:
        source(kafka, unique, 3, size=200)
        back_up(backup_spec(kafka, tmp_path, unique))
        copy, foreign = f"{unique}-copy", 0
        if mode == "Append":
            create_topic(kafka.bootstrap, copy, 5, NO_RETENTION)
            produce(kafka.bootstrap, copy, [Record(b"foreign", b"%d" % at, NOW, partition=at) for at in range(5)])
            foreign += 5
        wanted = spec(kafka, tmp_path, 5, ifTopicExists=mode)
        for partitions, batches in ((0, 1), (0, 9), (1, 0), (0, 12), (1, 3)):
            with pytest.raises(ConnectionAbortedError):
                bring_back(wanted, runner=Dies(partitions, batches))
            if mode == "Append":
                produce(kafka.bootstrap, copy, [Record(b"foreign", b"x", NOW, partition=at) for at in range(5)])
                foreign += 5
        # As if it had been killed before it could say that a partition was done.
        for path in (tmp_path / "runs/restore-1/offset-maps").rglob("*.json"):
            path.unlink()
        assert bring_back(wanted, runner=Only(ThreadRunner(copies=2), "restore_partitions")).records == 2000
        after = read(kafka, copy, 5)
        ours = [[record for record in records if record[1] != b"foreign"] for records in after]
        assert sum(map(len, after)) - sum(map(len, ours)) == foreign
        assert_divided(read(kafka, unique, 3), ours)

    def test_two_attempts_at_once_write_nothing_twice(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, small_batches: None
    ) -> None:
        source(kafka, unique, 2, size=60)
        back_up(backup_spec(kafka, tmp_path, unique))
        bring_back(spec(kafka, tmp_path, 3), runner=Only(ThreadRunner(copies=2), "restore_partitions"))
        assert_divided(read(kafka, unique, 2), read(kafka, f"{unique}-copy", 3))

    def test_another_restore_resumes_it(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, small_batches: None
    ) -> None:
        source(kafka, unique, 3)
        back_up(backup_spec(kafka, tmp_path, unique))
        with pytest.raises(ConnectionAbortedError):
            bring_back(spec(kafka, tmp_path, 2), runner=Dies(1, 4))
        resume = spec(kafka, tmp_path, 2, ifTopicExists="Resume")
        restored: list[Any] = []
        note = ThreadRunner(before=lambda item: restored.extend(_divided(item)))
        assert bring_back(resume, "restore-2", runner=note).records == 2000
        assert len(restored) == 2
        assert_divided(read(kafka, unique, 3), read(kafka, f"{unique}-copy", 2))

    def test_each_target_is_read_once_to_continue(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, small_batches: None
    ) -> None:
        source(kafka, unique, 3)
        back_up(backup_spec(kafka, tmp_path, unique))
        with pytest.raises(ConnectionAbortedError):
            bring_back(spec(kafka, tmp_path, 4), runner=Dies(1, 4))
        seen: list[Any] = []
        bring_back(spec(kafka, tmp_path, 4), runner=ThreadRunner(before=seen.append))
        reads = [item for group in seen if isinstance(group, tuple) for item in group if isinstance(item, Look)]
        assert sorted(item.target.partition for item in reads) == [0, 1, 2, 3]
        assert all(len(item.wanted) == 2 for item in reads)

    def test_a_task_that_is_repeated_reads_each_target_once(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, small_batches: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source(kafka, unique, 3)
        back_up(backup_spec(kafka, tmp_path, unique))
        seen: list[Look] = []

        async def noted(
            client: RawClient, wanted: Look, throttle: Throttle, *, fresh: bool
        ) -> dict[int, WrittenRecords]:
            seen.append(wanted)
            return await look(client, wanted, throttle, fresh=fresh)

        monkeypatch.setattr("logkeep_engine.restore.sending.task.look", noted)
        bring_back(spec(kafka, tmp_path, 4), runner=Repeated())
        assert sorted(item.target.partition for item in seen) == [0, 1, 2, 3]
        assert all(len(item.wanted) == 3 for item in seen)
        assert_divided(read(kafka, unique, 3), read(kafka, f"{unique}-copy", 4))

    def test_what_somebody_else_writes_to_a_created_topic_is_found(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, small_batches: None
    ) -> None:
        source(kafka, unique, 3)
        back_up(backup_spec(kafka, tmp_path, unique))
        with pytest.raises(ConnectionAbortedError):
            bring_back(spec(kafka, tmp_path, 2), runner=Dies(1))
        produce(kafka.bootstrap, f"{unique}-copy", [Record(b"k", b"v", NOW, partition=1)])
        with pytest.raises(TopicExists, match="partition 1 holds records that this restore has not written"):
            bring_back(spec(kafka, tmp_path, 2))
        with pytest.raises(
            TargetChanged, match=r"partition 0 ends at offset \d+ instead of \d+: another producer wrote"
        ):
            bring_back(spec(kafka, tmp_path, 2, suffix="-b"), "restore-2", runner=Writes(kafka, f"{unique}-b"))

    @pytest.mark.parametrize("mode", ["Fail", "Append"])
    def test_a_driver_killed_twice_continues_where_it_was(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, mode: str
    ) -> None:
        root, copy = tmp_path / "archive", f"{unique}-copy"
        source(kafka, unique, 3, count=12_000, size=1500)
        back_up(backup_spec(kafka, root, unique))
        if mode == "Append":
            create_topic(kafka.bootstrap, copy, 5, NO_RETENTION)
        slow = spec(kafka, root, 5, ifTopicExists=mode, limits={"bytesPerSecond": "1Mi"})
        file = tmp_path / "request.json"
        file.write_text(RunRequest(kind="KafkaRestore", name="test", namespace="", run_id="r1", spec=slow).to_json())
        for _ in range(2):
            driver = start_driver(file)
            written = wait_for_more(kafka, copy, driver, 1_200_000, partitions="[0-4]")
            assert driver.poll() is None, "the run was over before it could be killed"
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            assert written
        assert 0 < sum(map(len, read(kafka, copy, 5))) < 12_000
        assert bring_back(spec(kafka, root, 5, ifTopicExists=mode), "r1").records == 12_000
        assert_divided(read(kafka, unique, 3), read(kafka, copy, 5))


class Writes(Runner):
    """Writes a record to a topic, after all that is restored."""

    def __init__(self, kafka: KafkaBroker, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic

    def perform(self, job: Job) -> None:
        ThreadRunner().perform(job)
        if job.name == "restore_partitions":
            produce(self._kafka.bootstrap, self._topic, [Record(b"k", b"v", NOW, partition=0)])


def _divided(item: Any) -> list[RestoreTask]:
    return [task for task in item if isinstance(task, RestoreTask)] if isinstance(item, tuple) else []


class TestRefusals:
    @pytest.fixture
    def archived(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> str:
        create_topic(kafka.bootstrap, unique, 3, NO_RETENTION)
        produce(kafka.bootstrap, unique, history(1, 60))
        back_up(backup_spec(kafka, tmp_path, unique))
        return unique

    def test_a_topic_with_other_partitions_is_refused(self, kafka: KafkaBroker, archived: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, f"{archived}-copy", 4, NO_RETENTION)
        for wanted in (3, 5):
            with pytest.raises(
                TargetUnsuitable, match=f"has 4 partitions already, but {wanted} are requested; nothing was"
            ):
                bring_back(spec(kafka, tmp_path, wanted, ifTopicExists="Append"), f"restore-{wanted}")
        assert read(kafka, f"{archived}-copy", 4) == [[], [], [], []]
        assert bring_back(spec(kafka, tmp_path, 4, ifTopicExists="Append")).records == 60
        replaced = spec(kafka, tmp_path, 2, ifTopicExists="Replace", confirm=[f"{archived}-copy"])
        assert bring_back(replaced, "restore-6").records == 60
        assert_divided(read(kafka, archived, 3), read(kafka, f"{archived}-copy", 2))

    def test_records_without_a_key_are_refused_by_a_compacted_topic(
        self, kafka: KafkaBroker, archived: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, f"{archived}-copy", 2, {**NO_RETENTION, "cleanup.policy": "compact"})
        with pytest.raises(TargetUnsuitable, match="is compacted and refuses records without a key"):
            bring_back(spec(kafka, tmp_path, 2, ifTopicExists="Append"))

    def test_a_dry_run_says_what_would_be_created_and_refused(
        self, kafka: KafkaBroker, archived: str, tmp_path: Path
    ) -> None:
        result = bring_back(spec(kafka, tmp_path, 5, dryRun=True))
        assert result.dry_run is not None
        (topic,) = result.dry_run.topic_list
        assert (result.dry_run.refused, topic.partitions, topic.records, result.dry_run.partitions) == (0, 5, 60, 5)
        create_topic(kafka.bootstrap, f"{archived}-copy", 4, NO_RETENTION)
        result = bring_back(spec(kafka, tmp_path, 5, dryRun=True, ifTopicExists="Append"))
        assert result.dry_run is not None
        assert [refusal.reason for refusal in result.dry_run.refusals] == ["TargetUnsuitable"]
        assert read(kafka, f"{archived}-copy", 4) == [[], [], [], []]

    def test_positions_cannot_be_reset_afterwards(self, kafka: KafkaBroker, archived: str, tmp_path: Path) -> None:
        wanted = spec(kafka, tmp_path, 2)
        bring_back(wanted)
        file = tmp_path / "restore.json"
        resource = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaRestore", "spec": wanted}
        file.write_text(json.dumps({**resource, "metadata": {"name": "r"}}))
        done = logkeep("groups", "reset", "-f", file, "--run-id", "restore-1")
        assert done.returncode != 0
        assert "topics.partitionCount leaves no offset that corresponds to a position" in done.stderr

    def test_topics_in_git_have_the_number(self, kafka: KafkaBroker, archived: str, tmp_path: Path) -> None:
        resource = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaRestore", "spec": spec(kafka, tmp_path, 7)}
        (tmp_path / "restore.json").write_text(json.dumps(resource))
        emit = ("restore", "-f", tmp_path / "restore.json", "--emit-topics", tmp_path / "topics.yaml")
        done = logkeep(*emit, "--strimzi-cluster", "prod")
        assert done.returncode == 0, done.stderr
        assert "partitions: 7\n" in (tmp_path / "topics.yaml").read_text()
        assert f"{archived}-copy" not in topic_names(kafka.bootstrap)


class TestEvidence:
    """By which partitioner a stored plan divides is held to the archive of now."""

    def begun(self, kafka: KafkaBroker, topic: str, root: Path, keys: list[list[bytes]]) -> dict[str, Any]:
        """A restore that has begun. Each backup before it archives some keys where librdkafka's producers put them."""
        small = backup_spec(kafka, root, topic, segment={"packBelow": "8Mi", "mergeCount": 0})
        for run, some in enumerate(keys):
            produce(kafka.bootstrap, topic, [Record(key, b"v", NOW) for key in some], config=CRC32)
            back_up(small, f"backup-{run}")
        wanted = spec(kafka, root, 5)
        with pytest.raises(ConnectionAbortedError):
            bring_back(wanted, runner=Dies(0))
        return wanted

    def test_is_the_same_when_segments_were_merged(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        both, only = keys_by_crc32(2)
        create_topic(kafka.bootstrap, unique, 2, NO_RETENTION)
        wanted = self.begun(kafka, unique, tmp_path, [only[:100], *(both[:20] for _ in range(4))])
        merging = backup_spec(kafka, tmp_path, unique, segment={"packBelow": "8Mi", "mergeCount": 2})
        assert "merged 10 small segments" in back_up(merging, "merge").message
        assert bring_back(wanted).records == 180

    def test_that_was_erased_is_reported_as_an_erasure(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        _, only = keys_by_crc32(2)
        by_hand = [Record(key, b"v", NOW, [], target_of(key, 0, 2)) for key in only[100:108]]
        create_topic(kafka.bootstrap, unique, 2, NO_RETENTION)
        produce(kafka.bootstrap, unique, by_hand)
        wanted = self.begun(kafka, unique, tmp_path, [only[:100]])
        asked = ErasureAsked(unique, tuple(only[:100]))
        done = erase("erasure", open_uri(tmp_path.as_uri()), asked, ThreadRunner, Reporter("erasure"), FOR_TEST)
        assert (done.outcome, done.records) == ("Succeeded", 100)
        with pytest.raises(ArchiveMismatch, match="since it started, an erasure has removed records that it restores"):
            bring_back(wanted)


def keys_by_crc32(count: int) -> tuple[list[bytes], list[bytes]]:
    """Keys that murmur2 puts into the same one of so many partitions, and those that it does not."""
    keys = [b"k%d" % at for at in range(2000)]
    both = [key for key in keys if target_of(key, 0, count) == target_of(key, 0, count, "crc32")]
    return both, [key for key in keys if key not in both]

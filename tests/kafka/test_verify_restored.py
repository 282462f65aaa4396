"""A restore that is verified: what is right is called so, and what is wrong is found and named."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark import SparkContext

from logkeep_engine.archive.maintenance.kept_digests import DigestsPlace
from logkeep_engine.archive.reports import reports_of
from logkeep_engine.contract.facts.outcome import VerificationFacts
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.errors import LogkeepError, SpecError
from logkeep_engine.log.batch import parse_header, walk
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record as LogRecord
from logkeep_engine.log.records import decode, encode
from logkeep_engine.report import Reporter
from logkeep_engine.restore.run.entry import run_of, verify_again
from logkeep_engine.spark.runner import SparkRunner
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import NO_RETENTION, Record, create_topic, delete_topics, produce
from tests.kafka.archived_files import files_of
from tests.kafka.backing_up import Topics
from tests.kafka.raw import eventually
from tests.kafka.restores import ThreadRunner, back_up, backup_spec, bring_back, restore_spec, transactions
from tests.runners import Job

NOW = int(time.time() * 1000) - 3_600_000
FULL = {"verify": "Full"}


def numbered(count: int, *, partition: int = 0, start: int = 0) -> Iterator[Record]:
    for number in range(start, start + count):
        headers: list[tuple[str, str | bytes | None]] = [("h", b"%d" % number), ("g", None), ("h", b"2")]
        yield Record(b"k%d" % number, b"v%d" % number, NOW + number, headers, partition)


def facts_of(result: RunResult) -> VerificationFacts:
    assert result.verification is not None
    return result.verification


def report(root: Path, run_id: str = "restore-1") -> dict[str, Any]:
    """The newest report of a run."""
    name = reports_of(open_uri(root.as_uri()), run_id, "verification.json")[-1]
    found: dict[str, Any] = json.loads((root / "runs" / run_id / name).read_bytes())
    page = (root / "runs" / run_id / name).with_suffix(".html").read_text()
    assert found["outcome"] == {"v": "Verified", "n": "NotVerified", "d": "Different"}[page.split(": ")[1][0]]
    return found


def again(spec: dict[str, Any], run_id: str = "restore-1") -> RunResult:
    """Verify what a run has restored."""
    request = RunRequest(kind="KafkaRestore", name="test", namespace="", run_id=run_id, spec=spec)
    return verify_again(request, parse_restore(spec), ThreadRunner, Reporter(run_id), os.environ)


class TestRight:
    def test_topics_of_all_kinds_are_verified(
        self, kafka: KafkaBroker, second_kafka: KafkaBroker, spark_context: SparkContext, unique: str, tmp_path: Path
    ) -> None:
        plain, stamped, txn, empty = (f"{unique}-{name}" for name in ("plain", "stamped", "txn", "empty"))
        create_topic(
            kafka.bootstrap, plain, 3, {**NO_RETENTION, "cleanup.policy": "compact", "segment.bytes": "1048576"}
        )
        create_topic(kafka.bootstrap, stamped, 1, {"message.timestamp.type": "LogAppendTime"})
        create_topic(kafka.bootstrap, txn, 1)
        create_topic(kafka.bootstrap, empty, 2)
        for partition, codec in enumerate(("zstd", "none")):
            produce(kafka.bootstrap, plain, numbered(30_000, partition=partition), compression=codec)
        produce(kafka.bootstrap, stamped, numbered(500), compression="lz4")
        produce(kafka.bootstrap, stamped, numbered(50), compression="none")
        transactions(kafka, txn, [10, -5, 20, -1, 3])
        back_up(backup_spec(kafka, tmp_path, f"{unique}.*"))

        spec = {**restore_spec(second_kafka, tmp_path), "topics": {}, **FULL}
        result = bring_back(spec, runner=SparkRunner(spark_context))

        facts = facts_of(result)
        assert (facts.outcome, facts.verified, facts.partitions) == ("Verified", 7, 7), report(tmp_path)
        assert facts.records == result.records == 60_000 + 550 + 33
        assert facts.report == f"{tmp_path.as_uri()}/runs/restore-1/verification.html"
        found = report(tmp_path)
        assert found["segmentsRead"] > 0
        for partition in found["partitions"]:
            counts = [sum(row[1] for row in partition[side]["buckets"]) for side in ("before", "after")]
            assert counts == [partition["expected"]] * 2
            sizes = [sum(row[2] for row in partition[side]["buckets"]) for side in ("before", "after")]
            assert sizes[0] == sizes[1]

    def test_a_second_verification_reads_nothing_of_the_archive(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique, 2)
        for partition in range(2):
            produce(kafka.bootstrap, unique, numbered(100, partition=partition))
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = restore_spec(kafka, tmp_path)
        assert bring_back(spec).verification is None
        assert facts_of(bring_back({**spec, **FULL})).outcome == "Verified"  # the run had succeeded without
        assert report(tmp_path)["segmentsRead"] == 2
        for path in (tmp_path / "packs").rglob("*.pack"):
            path.rename(path.with_suffix(".away"))
        assert facts_of(again(spec)).outcome == "Verified"
        assert report(tmp_path)["segmentsRead"] == 0

    def test_a_backup_makes_the_digests_where_it_is_asked_for(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        spec = backup_spec(kafka, tmp_path, unique, segment={"recordDigests": True})
        for number in range(2):
            produce(kafka.bootstrap, unique, numbered(100, start=100 * number))
            transactions(kafka, unique, [10, -5])
            assert back_up(spec, f"backup-{number}").warnings == ()
        facts = facts_of(bring_back({**restore_spec(kafka, tmp_path), **FULL}))
        assert (facts.outcome, facts.records) == ("Verified", 220)
        assert report(tmp_path)["segmentsRead"] == 0

    def test_the_same_offsets(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique, 3)
        for partition in range(2):
            transactions(kafka, unique, [10, -5, 20, -1, 3], partition=partition)
            produce(kafka.bootstrap, unique, numbered(100, partition=partition))
        Topics(kafka).delete_records(unique, 7)
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = {**restore_spec(kafka, tmp_path), "offsets": "Same"}
        facts = facts_of(bring_back({**spec, **FULL}))
        assert (facts.outcome, facts.verified, facts.records) == ("Verified", 3, 2 * 133 - 7)
        Topics(kafka).delete_records(f"{unique}-copy", 9)
        assert "begins at offset 9" in facts_of(again(spec)).message

    @pytest.mark.parametrize("offsets", ["Same", "Any"])
    def test_an_empty_partition_with_markers_and_one_with_a_record(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, offsets: str
    ) -> None:
        create_topic(kafka.bootstrap, unique, 2)
        produce(kafka.bootstrap, unique, numbered(100))
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = {**restore_spec(kafka, tmp_path), "offsets": offsets}
        bring_back(spec)
        transactions(kafka, f"{unique}-copy", [-3], partition=1)  # nothing that a consumer sees
        assert facts_of(again(spec)).outcome == "Verified"
        transactions(kafka, f"{unique}-copy", [1], partition=1)
        assert "partition 1 is not verified: 6 offsets are used where" in facts_of(again(spec)).message

    @pytest.mark.parametrize("name", ["Records", "Avro"])
    def test_other_formats(self, kafka: KafkaBroker, unique: str, tmp_path: Path, name: str) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(3000))
        transactions(kafka, unique, [10, -5, 20])
        back_up({**backup_spec(kafka, tmp_path, unique), "format": name})
        facts = facts_of(bring_back({**restore_spec(kafka, tmp_path), **FULL}))
        assert (facts.outcome, facts.records) == ("Verified", 3030), facts.message


Change = Callable[[list[LogRecord]], list[LogRecord]]


def test_a_state_of_its_own_has_the_digests_and_the_report(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    create_topic(kafka.bootstrap, unique)
    produce(kafka.bootstrap, unique, numbered(100))
    archive, state = tmp_path / "archive", tmp_path / "state"
    back_up(backup_spec(kafka, archive, unique))
    before = sorted(archive.rglob("*"))
    spec = {**restore_spec(kafka, archive), "state": {"uri": state.as_uri()}}
    facts = facts_of(bring_back({**spec, **FULL}))
    assert facts.report == f"{state.as_uri()}/runs/restore-1/verification.html"
    assert sorted(archive.rglob("*")) == before
    assert report(state)["segmentsRead"] == 1
    assert facts_of(again(spec)).outcome == "Verified"
    assert report(state)["segmentsRead"] == 0


def altered(broker: KafkaBroker, topic: str, changes: dict[int, Change]) -> None:
    """Stop the broker, change the records in its log, and start it: as if it had lost or altered them."""
    broker.stop()
    for partition, change in changes.items():
        folder = broker.data_dir / f"{topic}-{partition}"
        log = folder / "00000000000000000000.log"
        data = log.read_bytes()
        first = parse_header(data)
        records = [record for at, _ in walk(data) for record in decode(memoryview(data), at)]
        new = [record._replace(offset=at) for at, record in enumerate(change(records))]
        batches = [
            encode(
                new[at : at + 500],
                codec=Codec.ZSTD,
                base_offset=at,
                producer_id=first.producer_id,
                producer_epoch=0,
                base_sequence=at,
                leader_epoch=first.leader_epoch,
            )
            for at in range(0, len(new), 500)
        ]
        log.write_bytes(b"".join(batches))
        for path in folder.iterdir():
            if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
                path.unlink()
    (broker.data_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)
    checkpoints = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
    for name in checkpoints:
        (broker.data_dir / name).unlink(missing_ok=True)
    broker.start()


AT = 1234


def changed_byte(records: list[LogRecord]) -> list[LogRecord]:
    records[AT] = records[AT]._replace(value=b"V1234")
    return records


def swapped(records: list[LogRecord]) -> list[LogRecord]:
    records[AT], records[AT + 1] = records[AT + 1], records[AT]
    return records


def lost(records: list[LogRecord]) -> list[LogRecord]:
    return records[:AT] + records[AT + 1 :]


def doubled(records: list[LogRecord]) -> list[LogRecord]:
    return [*records[: AT + 1], *records[AT:]]


def header_order(records: list[LogRecord]) -> list[LogRecord]:
    one, two, three = records[AT].headers
    records[AT] = records[AT]._replace(headers=(three, two, one))
    return records


def later(records: list[LogRecord]) -> list[LogRecord]:
    records[AT] = records[AT]._replace(timestamp=records[AT].timestamp + 1)
    return records


def cut_off(records: list[LogRecord]) -> list[LogRecord]:
    return records[:AT]


def one_more(records: list[LogRecord]) -> list[LogRecord]:
    return [*records, records[-1]]


CHANGES: dict[Change, tuple[str, int | None, int | None, int, list[str]]] = {
    changed_byte: ("Changed", AT, AT, 1, ["value"]),
    swapped: ("Swapped", AT, AT, 1, []),
    lost: ("Lost", AT, None, 1, []),
    doubled: ("Twice", None, AT + 1, 1, []),
    header_order: ("Changed", AT, AT, 1, ["headers"]),
    later: ("Changed", AT, AT, 1, ["timestamp"]),
    cut_off: ("Lost", AT, None, 3000 - AT, []),
    one_more: ("Twice", None, 3000, 1, []),
}


class TestWrong:
    def test_each_change_is_found_and_named(
        self, kafka: KafkaBroker, second_kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique, len(CHANGES) + 1, NO_RETENTION)
        for partition in range(len(CHANGES) + 1):
            produce(kafka.bootstrap, unique, numbered(3000, partition=partition))
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = restore_spec(second_kafka, tmp_path)
        assert facts_of(bring_back({**spec, **FULL})).outcome == "Verified"

        altered(second_kafka, f"{unique}-copy", dict(enumerate(CHANGES)))

        first = f"{unique}-copy partition 0: source offset {AT} and target offset {AT} differ in value, and 7 more"
        result = again(spec)
        assert (result.outcome, result.exit_code, result.error_code) == ("Different", 5, "RecordsDiffer")
        assert first in result.message
        found = report(tmp_path)
        assert (found["outcome"], found["different"], found["verified"]) == ("Different", len(CHANGES), 1)
        for partition, (change, expected) in enumerate(CHANGES.items()):
            part = found["partitions"][partition]
            assert part["verdict"] == "Different", change
            keys = ("kind", "sourceOffset", "targetOffset", "records", "fields")
            assert [tuple(item[key] for key in keys) for item in part["differences"]] == [expected], change
        assert found["partitions"][-1]["verdict"] == "Verified"


class TestGone:
    def test_an_empty_topic_that_somebody_has_deleted(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique, 1)
        produce(kafka.bootstrap, unique, numbered(100))
        create_topic(kafka.bootstrap, f"{unique}-empty", 2)
        back_up(backup_spec(kafka, tmp_path, f"{unique}.*"))
        spec = restore_spec(kafka, tmp_path)
        assert facts_of(bring_back({**spec, **FULL})).verified == 3
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for done in admin.delete_topics([f"{unique}-empty-copy"]).values():
            done.result(30)
        eventually(lambda: f"{unique}-empty-copy" not in admin.list_topics(timeout=30).topics)
        result = again(spec)
        assert (result.outcome, result.exit_code) == ("Different", 5)
        assert "partition 0: the partition is gone, and 1 more partition differs" in result.message
        assert report(tmp_path)["different"] == 2

    def test_a_topic_with_records_that_somebody_has_deleted(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        for name in (unique, f"{unique}-b"):
            create_topic(kafka.bootstrap, name)
            produce(kafka.bootstrap, name, numbered(100))
        back_up(backup_spec(kafka, tmp_path, f"{unique}.*"))
        spec = restore_spec(kafka, tmp_path)
        bring_back(spec)
        delete_topics(kafka.bootstrap, [f"{unique}-b-copy"])
        result = again(spec)
        assert (result.outcome, result.exit_code, result.error_code) == ("Different", 5, "RecordsDiffer")
        assert f"topic {unique}-b-copy partition 0: the partition is gone" in result.message
        delete_topics(kafka.bootstrap, [f"{unique}-copy"])
        result = again(spec)
        assert "the partition is gone, and 1 more partition differs" in result.message
        assert (report(tmp_path)["different"], report(tmp_path)["expected"], facts_of(result).records) == (2, 200, 0)

    def test_the_plan_of_the_run_is_never_made_again(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(100))
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = {**restore_spec(kafka, tmp_path), "ifTopicExists": "Append"}
        bring_back(spec)
        plan = tmp_path / "runs" / "restore-1" / "restore-plan.json"
        plan.unlink()
        with pytest.raises(SpecError, match=r"restore-plan\.json is gone: it is unknown what run"):
            again(spec)
        with pytest.raises(SpecError, match=r"restore-plan\.json is gone: it is unknown what run"):
            bring_back({**spec, **FULL})
        assert not plan.exists()


class Watched(Reporter):
    """Notes what is told of a run."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.seen: list[tuple[str, int]] = []

    def done(self, task: int, records: int, bytes: int) -> None:
        before = self.snapshot()
        super().done(task, records, bytes)
        self.seen += [(item.phase, item.percent) for item in (before, self.snapshot())]


def test_a_verification_shows_how_far_it_is(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    create_topic(kafka.bootstrap, unique, 2)
    for partition in range(2):
        produce(kafka.bootstrap, unique, numbered(100, partition=partition))
    back_up(backup_spec(kafka, tmp_path, unique))
    spec = {**restore_spec(kafka, tmp_path), **FULL}
    reporter = Watched("restore-1")
    request = RunRequest(kind="KafkaRestore", name="test", namespace="", run_id="restore-1", spec=spec)
    result = run_of(request, parse_restore(spec), ThreadRunner, reporter, os.environ).perform_or_raise()
    assert facts_of(result).outcome == "Verified"
    restored, verified = reporter.seen[:4], reporter.seen[4:]
    assert {phase for phase, _ in restored} == {"Running"}
    assert {phase for phase, _ in verified} == {"Verifying"}
    assert verified[0][1] < 100
    assert verified[-1][1] == 100
    assert reporter.snapshot().phase == "Finishing", "groups and configurations are set after it"


class TestPoint:
    def test_what_is_known_of_transactions_is_read_once_for_all_segments(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        for number in range(4):
            transactions(kafka, unique, [10, -5, 20])
            back_up(backup_spec(kafka, tmp_path, unique), f"backup-{number}")
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
        works: list[int] = []

        class Counted(ThreadRunner):
            def perform(self, job: Job) -> None:
                if job.name == "clip_expected":
                    works.extend(len(item.digests) for item in job.work)
                super().perform(job)

        time.sleep(2)  # a point must not lie in the future
        spec = {**restore_spec(kafka, tmp_path), "point": {"timestamp": moment}, **FULL}
        facts = facts_of(bring_back(spec, runner=Counted()))
        assert (facts.outcome, facts.records) == ("Verified", 120)
        assert works == [4], "one work item for the four segments"
        assert report(tmp_path)["segmentsRead"] == 4, "each once: the point lies behind all of them"

    def test_digests_of_segments_outside_of_a_window_stay(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        for number in range(3):
            produce(kafka.bootstrap, unique, numbered(100, start=10_000 * number))
            back_up(backup_spec(kafka, tmp_path, unique), f"backup-{number}")
        assert facts_of(bring_back({**restore_spec(kafka, tmp_path), **FULL})).outcome == "Verified"
        (path,) = (tmp_path / "digests").rglob("0.json")
        topic_id = path.parent.name
        place = DigestsPlace(open_uri(tmp_path.as_uri()), unique, topic_id, 0)
        known = place.load()
        assert sorted(known) == [0, 100, 200]
        place.keep(found for base, found in known.items() if base != 100)

        def moment(number: int) -> str:
            return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((NOW + number) / 1000))

        window = {"window": {"from": moment(5_000), "to": moment(15_000)}}
        spec = {**restore_spec(kafka, tmp_path, suffix="-window"), "point": window, **FULL}
        facts = facts_of(bring_back(spec, "restore-2"))
        assert (facts.outcome, facts.records) == ("Verified", 100)
        assert sorted(place.load()) == [0, 100, 200]


def test_digests_that_were_made_are_kept_although_others_cannot_be_made(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    create_topic(kafka.bootstrap, unique, 3)
    for partition in range(3):
        produce(kafka.bootstrap, unique, numbered(100, partition=partition))
    back_up(backup_spec(kafka, tmp_path, unique, segment={"packBelow": "0"}))
    spec = restore_spec(kafka, tmp_path)
    bring_back(spec)
    (log,) = (tmp_path / "topics").rglob("partition=2/*.log")
    log.rename(log.with_suffix(".away"))
    with pytest.raises(LogkeepError):
        again(spec)
    assert sorted(path.name for path in (tmp_path / "digests").rglob("*.json")) == ["0.json", "1.json"]


class TestNotVerified:
    def test_a_target_that_others_write_to(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(100))
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = restore_spec(kafka, tmp_path)
        bring_back(spec)
        produce(kafka.bootstrap, f"{unique}-copy", numbered(3, start=500))
        facts = facts_of(again(spec))
        assert (facts.outcome, facts.not_verified) == ("NotVerified", 1)
        assert "others have written 3 records to the target, from offset 100 on" in facts.message

    def test_records_behind_those_of_a_topic_that_was_there(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(100))
        back_up(backup_spec(kafka, tmp_path, unique))
        create_topic(kafka.bootstrap, f"{unique}-copy")
        produce(kafka.bootstrap, f"{unique}-copy", numbered(7))
        spec = {**restore_spec(kafka, tmp_path), "ifTopicExists": "Append", **FULL}
        assert facts_of(bring_back(spec)).outcome == "Verified"
        produce(kafka.bootstrap, f"{unique}-copy", numbered(3, start=500))
        facts = facts_of(again(spec))
        assert (facts.outcome, facts.not_verified) == ("NotVerified", 1)
        assert "others have written 3 records to the target, from offset 107 on" in facts.message

    def test_a_compacted_target(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(100))
        back_up(backup_spec(kafka, tmp_path, unique))
        create_topic(kafka.bootstrap, f"{unique}-copy", 1, {"cleanup.policy": "compact"})
        result = bring_back({**restore_spec(kafka, tmp_path), "ifTopicExists": "Append", **FULL})
        assert facts_of(result).outcome == "NotVerified"
        assert "cleanup.policy=compact" in facts_of(result).message
        assert any(one.startswith("not verified: ") for one in result.warnings)

    def test_an_archive_of_which_a_part_cannot_be_read(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique)
        for start in (0, 100):
            produce(kafka.bootstrap, unique, numbered(100, start=start))
        back_up(backup_spec(kafka, tmp_path, unique))
        (log,) = files_of(tmp_path, unique)
        data = bytearray(log.read_bytes())
        data[-5] ^= 1
        log.write_bytes(data)
        facts = facts_of(bring_back({**restore_spec(kafka, tmp_path), "onDamagedArchive": "Skip", **FULL}))
        assert (facts.outcome, facts.records) == ("NotVerified", 100)
        assert "the archive lacks offsets 100 to 199" in facts.message
        assert not list((tmp_path / "digests").rglob("*.json"))

    @pytest.mark.parametrize("gone", [40, 100], ids=["beginning", "all"])
    def test_a_target_whose_beginning_is_gone(self, kafka: KafkaBroker, unique: str, tmp_path: Path, gone: int) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(100))
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = restore_spec(kafka, tmp_path)
        proved = facts_of(bring_back({**spec, **FULL}))
        files = sorted((tmp_path / "runs/restore-1").glob("verification*"))
        proof = [path.read_bytes() for path in files]
        Topics(kafka).delete_records(f"{unique}-copy", gone)
        result = again(spec)
        assert (result.outcome, result.exit_code, result.error_code) == ("NotVerified", 5, "RecordsNotVerified")
        assert f"begins at offset {gone}" in result.message
        assert facts_of(result).outcome == "NotVerified"
        assert proved.report == f"{tmp_path.as_uri()}/runs/restore-1/verification.html"
        assert facts_of(result).report == f"{tmp_path.as_uri()}/runs/restore-1/verification-2.html"
        assert [path.read_bytes() for path in files] == proof, "the proof of the restore stays"
        assert bring_back({**spec, **FULL}).verification == proved, "the restore has succeeded"


def test_a_verification_of_what_was_restored_before_warns_too(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    create_topic(kafka.bootstrap, unique)
    produce(kafka.bootstrap, unique, numbered(100))
    back_up(backup_spec(kafka, tmp_path, unique))
    spec = restore_spec(kafka, tmp_path)
    bring_back(spec)
    Topics(kafka).delete_records(f"{unique}-copy", 40)
    result = bring_back({**spec, **FULL})
    assert (result.outcome, facts_of(result).outcome) == ("Succeeded", "NotVerified")
    assert any("not verified: " in one and "begins at offset 40" in one for one in result.warnings)


def test_a_run_that_has_restored_nothing_cannot_be_verified(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    create_topic(kafka.bootstrap, unique)
    produce(kafka.bootstrap, unique, numbered(3))
    back_up(backup_spec(kafka, tmp_path, unique))
    with pytest.raises(SpecError, match="has restored nothing"):
        again(restore_spec(kafka, tmp_path))


@pytest.mark.parametrize("existing", [True, False], ids=["topic that was there", "topic of the restore"])
def test_an_open_transaction_of_others_hides_no_restored_record(
    kafka: KafkaBroker, unique: str, tmp_path: Path, existing: bool
) -> None:
    copy = f"{unique}-copy"
    create_topic(kafka.bootstrap, unique)
    produce(kafka.bootstrap, unique, numbered(100))
    back_up(backup_spec(kafka, tmp_path, unique))
    spec = restore_spec(kafka, tmp_path)
    if existing:
        create_topic(kafka.bootstrap, copy)
        transactions(kafka, copy, [3, -2])
        spec |= {"ifTopicExists": "Append"}
    other = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique})
    other.init_transactions(60)

    def begin(value: bytes) -> None:
        other.begin_transaction()
        other.produce(copy, value, partition=0)
        assert other.flush(30) == 0

    if existing:
        begin(b"in front")
        assert facts_of(bring_back({**spec, **FULL})).outcome == "Verified"
        other.abort_transaction(60)
        eventually(lambda: facts_of(again(spec)).outcome == "Verified")
    else:
        bring_back(spec)
    begin(b"behind")
    facts = facts_of(again(spec))
    assert (facts.outcome, facts.different, facts.records) == ("NotVerified", 0, 100)
    assert "others have written 1 record to the target" in facts.message
    other.abort_transaction(60)
    eventually(lambda: facts_of(again(spec)).outcome == "Verified")


def test_transactions_in_the_target_are_read_as_a_consumer_reads_them(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    create_topic(kafka.bootstrap, unique)
    produce(kafka.bootstrap, unique, numbered(10))
    back_up(backup_spec(kafka, tmp_path, unique))
    create_topic(kafka.bootstrap, f"{unique}-copy")
    spec = {**restore_spec(kafka, tmp_path), "ifTopicExists": "Append", **FULL}
    bring_back(spec)
    transactions(kafka, f"{unique}-copy", [-5])
    assert facts_of(again(spec)).outcome == "Verified"
    transactions(kafka, f"{unique}-copy", [4])
    assert facts_of(again(spec)).outcome == "NotVerified"

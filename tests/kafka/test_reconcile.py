"""Keys that are alive in the archive and gone from the cluster, on a broker whose cleaner removes tombstones."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.backup.reconcile import step, task
from logkeep_engine.backup.reconcile.report import ReconcileReport
from logkeep_engine.backup.reconcile.step import reconcile_archive
from logkeep_engine.backup.reconcile.task import KeyVerdict, ReconciledPartition
from logkeep_engine.compare.account import compare
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.erasure.run import ErasureAsked, erase
from logkeep_engine.errors import BackupUnfinished, KeysMissing, NotReconciled, SpecError
from logkeep_engine.report import Reporter
from logkeep_engine.tasks import TaskRunner
from tests.cluster.kafka import KafkaBroker
from tests.command import logkeep
from tests.kafka.backing_up import FOR_TEST, Backups, Topics, numbers
from tests.kafka.keyed import contents, wait_until_cleaned_away
from tests.kafka.raw import plain
from tests.kafka.restores import ThreadRunner, bring_back, committed, restore_spec

CLEANED: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_ms": "50",
    "delete_retention_ms": "0",
    "min_cleanable_dirty_ratio": "0.0",
    "max_compaction_lag_ms": "1",
    "file_delete_delay_ms": "0",
}
"""A topic of which the cleaner takes what it may as soon as the active segment is rolled."""


@pytest.fixture(scope="module")
def cleaning_broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(overrides={"log.cleaner.backoff.ms": "50"}) as broker:
        yield broker


@pytest.fixture
def kafka(cleaning_broker: KafkaBroker) -> KafkaBroker:
    """The broker of these tests: its cleaner hardly rests."""
    return cleaning_broker


def put(kafka: KafkaBroker, topic: str, *keys: str, value: bytes | None = b"value") -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for key in keys:
        producer.produce(topic, key=key.encode(), value=value, partition=0)
    assert producer.flush(60) == 0


def reconcile(backups: Backups, *include: str, runner: TaskRunner | None = None, **options: Any) -> ReconcileReport:
    spec = parse_backup(backups.spec(*include))
    return reconcile_archive(
        "compare",
        spec,
        lambda: runner or backups.wrap(backups.runner()),
        Reporter("compare"),
        backups.environ,
        claim=FOR_TEST,
        **options,
    )[0]


def restored(kafka: KafkaBroker, backups: Backups, topic: str) -> set[bytes]:
    """The keys that a restore of the newest point brings back, into a topic of its own."""
    spec = restore_spec(kafka, Path("/"), source={"storage": dict(backups.storage_spec)})
    assert bring_back(spec, f"restore-{topic}").outcome == "Succeeded"
    return set(contents({item[0]: (item[1], item[2]) for item in committed(kafka, f"{topic}-copy")}))


def only(report: ReconcileReport) -> ReconciledPartition:
    (found,) = report.partitions
    return found


def test_a_key_whose_tombstone_was_cleaned_before_it_was_archived_is_found_and_healed_and_nothing_else(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str
) -> None:
    topics.create(unique, **CLEANED)
    put(kafka, unique, "stale", "replaced", "stays", "buried", "stale too")
    put(kafka, unique, "buried", value=None)
    assert backups.run(unique).outcome == "Succeeded"
    before = reconcile(backups, unique)
    assert (before.outcome, only(before).counts.stale) == (KeyVerdict.SAME, 0)
    put(kafka, unique, "stale", "stale too", value=None)
    wait_until_cleaned_away(kafka, unique, ["stale", "stale too", "buried"], lambda: put(kafka, unique, "another"))
    put(kafka, unique, "replaced", "new")  # not archived yet: no difference
    report = reconcile(backups, unique)
    found = only(report)
    assert found.keys is not None
    assert (report.outcome, found.counts.stale, found.counts.wrong) == (KeyVerdict.STALE_KEYS, 2, 0)
    assert found.keys.stale == (0, 4)
    assert "2 keys" in report.message
    kept = json.loads(backups.storage.read(report.document.removeprefix(f"{backups.storage.uri}/")))
    assert (kept["outcome"], kept["partitions"][0]["stale"]) == ("StaleKeys", 2)
    assert "stale too" not in json.dumps(kept)
    snapshots = {"maxRecordBytesBetweenSnapshots": "1", "minCleanableRatio": 0}
    backups.run(unique, snapshots=snapshots)  # the next backup cannot mend it: the tombstones are gone
    assert backups.state().snapshots
    healed = reconcile(backups, unique, heal=True)
    assert (only(healed).counts.stale, only(healed).counts.wrong) == (2, 0)
    assert "the next backup reads 1 partition again" in healed.message
    backups.run(unique, snapshots=snapshots)
    ((key, known),) = backups.state().generations.items()
    (made,) = backups.state().snapshots[key]
    assert (known.number, known.due, made.end >= known.exact) == (2, False, True)
    clean = reconcile(backups, unique)
    assert (clean.outcome, only(clean).counts.stale, clean.healing) == (KeyVerdict.SAME, 0, {})
    assert restored(kafka, backups, unique) == {b"replaced", b"new", b"stays", b"another"}
    assert verify(backups.archive).faults == []


def test_the_command_writes_the_stale_keys_only_where_it_is_told_to(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str, tmp_path: Path
) -> None:
    topics.create(unique, **CLEANED)
    put(kafka, unique, "secret-key", "other")
    backups.run(unique)
    document = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaBackup", "metadata": {"name": "test"}}
    file, keys = tmp_path / "backup.yaml", tmp_path / "keys"
    file.write_text(yaml.safe_dump({**document, "spec": backups.spec(unique)}))
    put(kafka, unique, "secret-key", value=None)
    wait_until_cleaned_away(kafka, unique, ["secret-key"], lambda: put(kafka, unique, "another"))
    chosen = ("--topic", unique, "--keys-file", keys, "--heal")
    done = logkeep("reconcile", "-f", file, *chosen, "-o", "json")
    assert done.returncode == 6, done.stderr
    assert json.loads(done.stdout)["partitions"][0]["healing"] == "Due"
    assert [known.due for known in backups.state().generations.values()] == [True]
    assert json.loads(done.stdout)["partitions"][0]["staleOffsets"] == [0]
    assert "secret-key" not in done.stdout + done.stderr
    (line,) = keys.read_text().splitlines()
    reported = json.loads(line)
    assert (reported["topic"], reported["offset"], base64.b64decode(reported["key"])) == (unique, 0, b"secret-key")
    assert keys.stat().st_mode & 0o777 == 0o600
    refused = logkeep("reconcile", "-f", file, "--keys-file", keys)
    assert (refused.returncode, "File exists" in refused.stderr) == (2, True)


class Killed(BaseException):
    """The end of a process, as far as the archive can tell."""


@pytest.mark.parametrize("how", ["Generations", "Log"])
def test_a_backup_that_was_asked_to_tells_stale_keys_in_its_result_and_the_next_one_heals_them(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str, how: str
) -> None:
    topics.create(unique, **CLEANED)
    put(kafka, unique, "stale", "stays")
    assert backups.run(unique, compactedTopics=how).reconciled is None
    put(kafka, unique, "stale", value=None)
    wait_until_cleaned_away(kafka, unique, ["stale"], lambda: put(kafka, unique, "another"))
    result = backups.run(unique, reconcile=True, compactedTopics=how)
    assert result.outcome == "Succeeded"
    facts = result.reconciled
    assert facts is not None
    assert (facts.outcome, facts.stale, facts.missing, facts.partitions) == ("StaleKeys", 1, 0, 1)
    assert facts.report.endswith(f"runs/{result.run_id}/reconcile.json")
    assert RunResult.from_json(result.to_json()).reconciled == facts

    def run(run_id: str) -> RunResult:
        return backups.run(unique, run_id=run_id, reconcile=True, heal=True, compactedTopics=how)

    def killed(*_: object, **__: object) -> ReconcileReport:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "make_due", killed)
        with pytest.raises(Killed):
            run("finds")
    assert not any(known.due for known in backups.state().generations.values())
    found = run("finds").reconciled
    assert found is not None
    assert (found.stale, "the next backup reads 1 partition again" in found.message) == (1, True)
    healed = run("heals").reconciled
    assert healed is not None
    assert (healed.outcome, healed.stale) == ("Same", 0)
    assert restored(kafka, backups, unique) == {b"stays", b"another"}


def test_records_that_the_archive_lacks_are_a_loud_error(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str
) -> None:
    topics.create(unique, cleanup_policy="compact")
    put(kafka, unique, "archived", "archived too")
    backups.run(unique)
    put(kafka, unique, "lost", "archived")
    (topic_id,) = backups.state().topics
    writer = begin_run(backups.archive, "liar")
    writer.commit(receipts=[Receipt(coverage=(Coverage(topic_id, 0, 2, 4),))])
    writer.end(RunOutcome.SUCCEEDED)
    report = reconcile(backups, unique)
    found = only(report)
    assert found.keys is not None
    assert (report.outcome, found.keys.wrong) == (KeyVerdict.KEYS_MISSING, (2, 3))
    with pytest.raises(KeysMissing, match="the archive lacks the last record of 2 keys"):
        report.raise_if_wrong()


def test_only_compacted_topics_are_compared_and_what_a_log_has_deleted_by_age_is_no_stale_key(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str
) -> None:
    plain, both = f"{unique}-plain", f"{unique}-both"
    topics.create(plain)
    topics.produce(plain, numbers(10))
    topics.create(both, cleanup_policy="compact,delete")
    put(kafka, both, "old", "older", "new")
    Archive.create_or_open(backups.storage, kafka.cluster_id, FormatName.KAFKA)
    with pytest.raises(BackupUnfinished, match="there is nothing to compare"):
        reconcile(backups, f"{unique}.*")
    backups.run(f"{unique}.*")
    topics.delete_records(both, 2)
    report = reconcile(backups, f"{unique}.*")
    found = only(report)
    assert (found.topic, found.verdict, found.counts.expired, found.counts.keys) == (both, KeyVerdict.SAME, 2, 3)
    with pytest.raises(SpecError, match="matches no compacted topic"):
        reconcile(backups, f"{unique}.*", only={plain})
    with pytest.raises(SpecError, match="matches none of the topics"):
        reconcile(backups, f"{unique}.*", only={"none"})


def test_a_partition_that_cannot_be_read_is_no_pass(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str
) -> None:
    topics.create(unique, cleanup_policy="compact")
    put(kafka, unique, "one", "two")
    backups.run(unique)
    (entry,) = backups.segments(unique)
    backups.storage.delete(entry.objects(unique))
    report = reconcile(backups, unique)
    assert (report.outcome, only(report).keys) == (KeyVerdict.NOT_COMPARED, None)
    with pytest.raises(NotReconciled, match=f"not compared: topic {unique} partition 0"):
        report.raise_if_wrong()


def test_a_log_with_offsets_that_no_comparison_holds_is_no_pass(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.create(unique, cleanup_policy="compact")
    put(kafka, unique, "one", "two", "three")
    backups.run(unique)
    monkeypatch.setattr(task, "MOST_OFFSETS", 2)
    report = reconcile(backups, unique, runner=ThreadRunner())
    assert (report.outcome, only(report).keys) == (KeyVerdict.NOT_COMPARED, None)
    assert only(report).failed == "its log ends at offset 3, and the keys of offsets from 2 on cannot be compared"


@pytest.mark.parametrize("kept", ["log", "snapshot", "snapshot alone"])
def test_records_that_were_erased_from_the_archive_are_not_missing(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str, kept: str
) -> None:
    topics.create(unique, cleanup_policy="compact")
    put(kafka, unique, "erased", "stays", "erased", "stays")
    log = kept == "log"
    options: dict[str, Any] = {"snapshots": {"maxRecordBytesBetweenSnapshots": "1", "minCleanableRatio": 0}}
    if kept == "snapshot alone":
        options["retention"] = {"keepRuns": 1, "grace": "0s"}
    backups.run(unique, **({"compactedTopics": "Log"} if log else options))
    assert bool(backups.state().snapshots) is not log
    assert bool(backups.state().segments) is (kept != "snapshot alone")
    asked = ErasureAsked(unique, (b"erased",))
    done = erase("erasure", backups.storage, asked, backups.runner, Reporter("erasure"), FOR_TEST)
    assert (done.outcome, done.records) == ("Succeeded", {"log": 2, "snapshot": 3, "snapshot alone": 1}[kept])
    found = only(reconcile(backups, unique))
    assert (found.verdict, found.counts.keys) == (KeyVerdict.SAME, 1)
    if kept == "snapshot alone":
        return
    (compared,) = compare(backups.archive, plain(kafka.bootstrap)).partitions
    assert (compared.missing, compared.failed) == ([], "")
    assert "2 records of the live log are not in segments from which an erasure" in compared.not_compared[0]

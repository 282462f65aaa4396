"""`logkeep verify --against`: what an archive lacks of the live log, as far as the log can prove it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.compare.account import AgainstReport, ComparedPartition, Missing, compare
from logkeep_engine.errors import ArchiveMismatch
from tests.cluster.kafka import KafkaBroker
from tests.command import logkeep
from tests.kafka.backing_up import Backups, Topics, numbers
from tests.kafka.raw import plain
from tests.kafka.test_cli import assert_refused


def against(backups: Backups, broker: KafkaBroker) -> AgainstReport:
    return compare(backups.archive, plain(broker.bootstrap))


def of_topic(report: AgainstReport, topic: str) -> list[ComparedPartition]:
    """The partitions of one topic: an archive of format Avro has `__consumer_offsets` too, once the broker has it."""
    return [found for found in report.partitions if found.topic == topic]


def claim(backups: Backups, topic: str, *ranges: tuple[int, int]) -> None:
    """Commit that these offsets are archived, without any segment: what a reader that takes silence for
    the end of a log would do when a remote store is slow.
    """
    (topic_id,) = [found.topic_id for found in backups.state().topics.values() if found.name == topic]
    writer = begin_run(backups.archive, "slow-store")
    writer.commit(receipts=[Receipt(coverage=(Coverage(topic_id, 0, start, end),)) for start, end in ranges])
    writer.end(RunOutcome.SUCCEEDED)


def test_records_that_were_told_as_archived_are_found_missing(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(500))
    backups.run(unique)
    topics.produce(unique, numbers(500))
    assert against(backups, kafka).whole  # what is not archived yet is not claimed
    claim(backups, unique, (500, 700), (700, 1000))
    assert backups.faults() == []  # the archive alone cannot know
    report = against(backups, kafka)
    (found,) = report.partitions
    assert (report.whole, found.missing_records, found.missing) == (False, 500, [Missing(500, 1000, 500)])
    assert (found.live, found.archived, found.ranges) == (1000, 500, [(0, 1000)])


def test_command_tells_what_is_missing_and_ends_with_code_1(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str, tmp_path: Path
) -> None:
    root = (tmp_path / "archive").as_uri()
    topics.create(unique)
    topics.produce(unique, numbers(300))
    backups.run(unique)
    done = logkeep("verify", root, "--against", kafka.bootstrap)
    assert done.returncode == 0, done.stderr
    assert "nothing missing: 300 records of the live log in 1 of 1 archived partition compared" in done.stdout
    topics.produce(unique, numbers(200))
    claim(backups, unique, (300, 500))
    done = logkeep("verify", root, "--against", kafka.bootstrap)
    assert done.returncode == 6
    assert f"{unique}-0: 200 records of the live log at offsets 300 to 499 are missing in the archive" in done.stdout
    assert "200 records missing" in done.stdout
    found = json.loads(logkeep("verify", root, "--against", kafka.bootstrap, "-o", "json").stdout)
    assert (found["whole"], found["faults"], found["against"]["whole"]) == (False, [], False)
    assert found["against"]["partitions"][0]["missing"] == [{"start": 300, "end": 500, "records": 200}]
    assert "against" not in json.loads(logkeep("verify", root, "-o", "json").stdout)


def test_what_the_cluster_has_removed_is_not_compared_and_no_fault(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str
) -> None:
    names = {kind: f"{unique}-{kind}" for kind in ("cut", "deleted", "again", "compacted")}
    for kind, name in names.items():
        if kind == "compacted":
            topics.create_compacted(name)
        else:
            topics.create(name)
            topics.produce(name, numbers(200), batch=10)
    backups.run(f"{unique}-.*")
    topics.delete_records(names["cut"], 95)  # inside of a batch
    topics.delete(names["deleted"])
    topics.delete(names["again"])
    topics.create(names["again"])
    topics.produce(names["again"], numbers(10))
    report = against(backups, kafka)
    assert report.whole
    by_name = {item.topic: item for item in report.partitions}
    assert by_name[names["cut"]].ranges == [(95, 200)]
    assert "below 95 are gone" in by_name[names["cut"]].not_compared[0]
    for kind in ("deleted", "again"):
        item = by_name[names[kind]]
        assert item.ranges == []
        assert f"no topic with the id {item.topic_id}" in item.not_compared[0]
    compacted = by_name[names["compacted"]]
    assert compacted.not_compared == []  # the cleaner had been there before the backup
    assert compacted.live == compacted.archived > 0


def test_records_of_a_batch_that_the_log_s_start_lies_in_are_compared(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(100), batch=100)
    topics.delete_records(unique, 40)
    backups.run(unique)
    (found,) = against(backups, kafka).partitions
    assert (found.ranges, found.live, found.archived, found.not_compared) == ([(40, 100)], 60, 60, [])
    topics.produce(unique, numbers(100), batch=100)
    topics.delete_records(unique, 150)
    claim(backups, unique, (100, 200))
    (found,) = against(backups, kafka).partitions
    assert found.missing == [Missing(150, 200, 50)]


@pytest.mark.parametrize("archive_format", ["Kafka", "Records", "Avro"])
def test_transactions_and_bounds_of_segments_are_no_difference(
    kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str, archive_format: str
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(3000, 1000), batch=700)
    topics.transaction(unique, numbers(50), commit=False)
    topics.transaction(unique, numbers(50), commit=True)
    topics.produce(unique, numbers(100))
    result = backups.run(unique, format=archive_format, segment={"maxBytes": "1Mi"})
    assert result.outcome == "Succeeded"
    report = against(backups, kafka)
    (found,) = of_topic(report, unique)
    assert (report.whole, found.missing) == (True, [])
    if archive_format == "Kafka":
        assert (found.live, found.archived, found.not_compared) == (3200, 3200, [])
    else:
        assert found.not_compared == ["records of transactions: this format keeps only the committed ones"]
    claim(backups, unique, (3202, 3300))
    topics.produce(unique, numbers(98))
    assert [item.missing for item in of_topic(against(backups, kafka), unique)] == [[Missing(3202, 3300, 98)]]


def test_archive_of_another_cluster_is_refused(
    kafka: KafkaBroker, second_kafka: KafkaBroker, topics: Topics, backups: Backups, unique: str
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(1))
    backups.run(unique)
    with pytest.raises(ArchiveMismatch, match=f"cluster {kafka.cluster_id}.*cluster {second_kafka.cluster_id}"):
        against(backups, second_kafka)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--security-protocol", "SSL"], "--security-protocol has no effect: it is for --against"),
        (["--against", "nonsense"], "--against 'nonsense' with --security-protocol PLAINTEXT"),
        (["--against", "localhost:1", "--security-protocol", "SASL_PLAINTEXT"], "--against 'localhost:1'"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: Sequence[str], said: str) -> None:
    assert_refused(logkeep("verify", tmp_path.as_uri(), *options), said)

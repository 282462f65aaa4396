"""`logkeep inspect` shows an archive from the catalog alone."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Gap, GroupEntry, Receipt, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.maintenance.inspect import describe
from logkeep_engine.archive.moments import moment
from logkeep_engine.backup.model.plan import BackupPlan
from logkeep_engine.cli import app
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.names import HOLD
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import CLUSTER, ORDERS, TIME, begin, chunk
from tests.unit.archive.catalog.test_snapshots import snapshot

ID = ORDERS.topic_id
AGAIN = TopicEntry("orders", "cccccccccccccccccccccc", 1, 3)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def test_a_description_says_the_format_and_whether_it_was_imported(storage: Storage) -> None:
    archive = Archive.create_or_open(storage, "-", FormatName.RECORDS, imported=True)
    described = describe(archive.info, archive.load())
    assert (described.segment_format, described.imported) == ("Records", True)


def test_a_description_says_runs_topics_partitions_and_groups(storage: Storage) -> None:
    with begin(storage) as writer:
        lost = Receipt(gaps=(Gap(ID, 0, 0, 20, "retention"),))
        receipts = [lost, chunk(storage, 20, 50), chunk(storage, 60, 70), chunk(storage, 0, 10, topic=AGAIN)]
        writer.commit(topics=[ORDERS, AGAIN], receipts=receipts)
        writer.end(RunOutcome.SUCCEEDED, groups=[GroupEntry("billing", "orders", ID, 1, 5, 2, "m")])
    archive = Archive.open(storage)
    found = json.loads(json.dumps(describe(archive.info, archive.load()).to_json()))
    assert found["clusterId"] == CLUSTER
    assert (found["segmentFormat"], found["imported"]) == ("Kafka", False)
    assert (found["format"], found["commit"], found["epoch"]) == (1, 2, 1)
    assert (found["records"], found["segments"], found["digests"]) == (50, 3, {"BLAKE3": 3})
    assert found["storedBytes"] == found["bytes"] > 0
    (run,) = found["runs"]
    assert (run["runId"], run["outcome"], run["records"], run["attempts"]) == ("run-1", "Succeeded", 50, 1)
    assert run["beginTime"].endswith("Z")
    first, second = found["topics"]
    assert (first["topicId"], first["incarnation"], first["incarnations"]) == (ID, 1, 2)
    assert (second["topicId"], second["incarnation"], second["records"]) == (AGAIN.topic_id, 2, 10)
    assert (first["taken"], second["taken"]) == (False, True)
    assert first["configs"] == {"cleanup.policy": "delete"}
    zero, one = first["partitions"]
    assert (zero["start"], zero["end"], zero["records"], zero["segments"]) == (0, 70, 40, 2)
    assert zero["gaps"] == [{"start": 0, "end": 20, "reason": "retention"}]
    assert zero["holes"] == [[50, 60]]
    assert zero["times"] == {
        "first": TIME + 20,
        "last": TIME + 69,
        "firstTime": "2023-11-14T22:13:20.020Z",
        "lastTime": "2023-11-14T22:13:20.069Z",
    }
    assert (one["start"], one["end"], one["records"], one["times"]["lastTime"]) == (-1, -1, 0, "")
    assert found["groups"] == [
        {
            "groupId": "billing",
            "positions": [
                {
                    "topic": "orders",
                    "topicId": ID,
                    "partition": 1,
                    "offset": 5,
                    "leaderEpoch": 2,
                    "metadata": "m",
                }
            ],
            "share": False,
        }
    ]


def test_runs_have_their_kinds_where_not_all_are_backups(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.end(RunOutcome.SUCCEEDED)
    assert "kind" not in CliRunner().invoke(app, ["inspect", storage.uri]).stdout
    with begin_run(Archive.open(storage), "hold-1", kind=HOLD) as writer:
        writer.end(RunOutcome.SUCCEEDED)
    shown = CliRunner().invoke(app, ["inspect", storage.uri]).stdout.splitlines()
    assert [line.split()[1] for line in shown if line.startswith(("run ", "hold-1 "))] == ["kind", "Hold"]


def test_the_incarnation_that_a_restore_takes_is_the_newest_with_records(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS, AGAIN], receipts=[chunk(storage, 20, 50)])
        writer.end(RunOutcome.SUCCEEDED)
    done = CliRunner().invoke(app, ["inspect", storage.uri])
    shown = {
        topic_id: line.split()
        for line in done.stdout.splitlines()
        for topic_id in (ID, AGAIN.topic_id)
        if topic_id in line
    }
    assert shown[ID] == [
        "orders",
        "(1",
        "of",
        "2)",
        ID,
        "30",
        "2023-11-14T22:13:20.020Z",
        "2023-11-14T22:13:20.049Z",
        "yes",
    ]
    assert shown[AGAIN.topic_id] == ["orders", "(2", "of", "2)", AGAIN.topic_id, "0", "-", "-", "no"]


def test_topics_can_be_chosen(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 10)])
        writer.end(RunOutcome.SUCCEEDED)
    archive = Archive.open(storage)
    assert describe(archive.info, archive.load(), topics=lambda name: name == "x").topics == ()


def test_an_archive_without_commits_can_be_described(storage: Storage) -> None:
    archive = Archive.create_or_open(storage, CLUSTER)
    found = describe(archive.info, archive.load())
    assert (found.commit, found.runs, found.topics, found.groups) == (-1, (), (), ())


def test_a_line_a_topic_and_partitions_only_for_who_asks(storage: Storage) -> None:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 10), chunk(storage, 20, 30)])
        writer.end(RunOutcome.SUCCEEDED)
    with begin(storage, "run-2") as writer:
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, 0, 10, partition=1, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)
        begun = writer.state.runs["run-2"].begin_time
        plan = BackupPlan("run-2", (ORDERS,))
        storage.create(names.run_file("run-2", "plan.json"), plan.to_json())
    shown = CliRunner().invoke(app, ["inspect", storage.uri]).stdout
    (line,) = (line.split() for line in shown.splitlines() if line.startswith("orders"))
    first, last = "2023-11-14T22:13:20.000Z", "2023-11-14T22:13:20.029Z"
    assert line[:3] == ["orders", "2", "30"]
    assert line[5:] == ["2023-11-14T22:13:20Z", f"{moment(begun)[:19]}Z", "10", "offsets"]
    assert max(map(len, shown.splitlines())) <= 100
    wide = CliRunner().invoke(app, ["inspect", storage.uri, "--wide"]).stdout
    (line,) = (line.split() for line in wide.splitlines() if line.startswith("orders"))
    assert (line[:3], line[5:]) == (["orders", "2", "30"], ["2", "3", first, last, moment(begun), "10", "offsets"])
    by_partition = CliRunner().invoke(app, ["inspect", storage.uri, "--partitions"]).stdout
    lines = [line.split()[:4] for line in by_partition.splitlines() if line.startswith("orders")]
    assert lines == [["orders", "0", "0", "to"], ["orders", "1", "0", "to"]]
    found = json.loads(CliRunner().invoke(app, ["inspect", storage.uri, "-o", "json"]).stdout)
    (topic,) = found["topics"]
    assert (topic["runs"], topic["complete"], topic["completeTime"]) == (2, begun, moment(begun))
    assert [part["partition"] for part in topic["partitions"]] == [0, 1]


def test_attempts_of_a_run_are_one_run(storage: Storage) -> None:
    for start in (0, 10):
        with begin(storage) as writer:
            writer.commit(topics=[ORDERS], receipts=[chunk(storage, start, start + 10, epoch=writer.epoch)])
            if start:
                writer.end(RunOutcome.SUCCEEDED)
    archive = Archive.open(storage)
    (topic,) = describe(archive.info, archive.load()).topics
    assert (topic.runs, topic.segments) == (1, 2)


def test_snapshots_are_shown_with_their_partitions(storage: Storage) -> None:
    for number, (end, cuts) in enumerate([(50, ()), (100, (20, 70))], start=1):
        with begin(storage, f"run-{number}") as writer:
            writer.commit(topics=[ORDERS], receipts=[chunk(storage, 50 * (number - 1), end, epoch=number)])
            writer.end(RunOutcome.SUCCEEDED)
            writer.snapshot([snapshot(end, *cuts, epoch=number)])
    (topic,) = json.loads(CliRunner().invoke(app, ["inspect", storage.uri, "-o", "json"]).stdout)["topics"]
    assert [item["end"] for item in topic["partitions"][0]["snapshots"]] == [50, 100]
    shown = CliRunner().invoke(app, ["inspect", storage.uri, "--partitions"]).stdout
    assert re.search(r"^snapshot of +partition +end +leader epoch +last record +records +size +parts$", shown, re.M)
    assert re.search(r"^orders +0 +100 +3 +1970-01-01T00:00:01.100Z +\d+ +\S+ \S+ +3$", shown, re.M)
    assert "snapshot of" not in CliRunner().invoke(app, ["inspect", storage.uri]).stdout

"""The main road: back up, back up again, restore."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.data.topics import NO_RETENTION, Record, commit_positions, create_topic, produce
from tests.e2e.home import Home, ProgressWatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_status_moves_partition_by_partition_and_the_restored_topic_equals_its_source(home: Home) -> None:
    records = home.fill("measured", 8, 60)

    # A run with a limit has several tasks for each slot, also where it has little to do. Each tells its end.
    saved = home.backup("measured", executors=2, limits={"bytesPerSecond": "4Mi"})
    again = home.restore(executors=2)  # applied together, as GitOps does
    with ProgressWatch(saved) as watch:
        saved.wait_for_progress(1)
        assert again.condition("Ready")["reason"] == "WaitingForBackup"
        assert not again.jobs()
        status = saved.wait("Succeeded")
    assert status["progress"]["records"] == records
    assert status["progress"]["display"] == "8/8"
    done, counted = watch.values("partitionsDone"), watch.values("records")
    assert all(one < other for one, other in pairwise(done)), f"partitions done went back: {done}"
    assert all(one < other for one, other in pairwise(counted)), f"records went back: {counted}"
    # Who looks may miss a moment: a busy machine has few.
    assert len(done) >= 3, f"partitions were only seen to be done all at once: {done}"
    assert len(counted) >= 4, f"records were seen at few moments: {counted}"
    assert saved.condition("Ready")["status"] == "True"

    again.wait("Succeeded")

    home.check_restored("measured", records)
    home.verify()


def records_of_all_kinds(count: int, start: int = 0) -> Iterator[Record]:
    """All that a record can carry: no key, no value, headers that repeat, are empty or null."""
    for number in range(start, start + count):
        yield Record(
            key=None if number % 5 == 0 else b"key %d" % number,
            value=None if number % 7 == 0 else b"value %d" % number,
            timestamp=1_700_000_000_000 + number,
            headers=[("number", b"%d" % number), ("number", None), ("", b"")],
            partition=number % 2,
        )


def test_the_next_run_adds_only_what_is_new_and_a_verified_restore_has_the_consumer_groups(home: Home) -> None:
    topic, group, bootstrap = "growing", "readers", home.broker.bootstrap
    create_topic(bootstrap, topic, 2, NO_RETENTION)
    produce(bootstrap, topic, records_of_all_kinds(400), compression="lz4")
    saved = home.backup(topic, spark={}, format="Avro")
    first = saved.wait("Succeeded")
    assert first["progress"]["records"] == 400
    old = home.objects()
    files = {name: size for name, size in old.items() if name.endswith(".data")}
    assert len(files) == 2, old

    produce(bootstrap, topic, records_of_all_kinds(60, start=400), compression="lz4")
    commit_positions(bootstrap, group, {(topic, 0): 40, (topic, 1): 230})
    saved.run_again("after-more-came")
    second = saved.wait("Succeeded", run_not=first["run"]["id"])

    assert second["progress"]["records"] == 60
    assert [run["records"] for run in second["history"]] == [60, 400]
    assert files.items() <= home.objects().items(), "files of the first run must stay as they were"
    home.verify()

    groups = {"restore": "Translate", "include": [group]}
    batches = {"maxRecords": 30, "compression": "Zstd"}
    again = home.restore(spark={}, consumerGroups=groups, recordBatches=batches, verify="Full")
    restored = again.wait("Succeeded")

    home.check_restored(topic, 460)
    found = restored["verification"]
    assert (found["outcome"], found["records"], found["verified"], found["partitions"]) == ("Verified", 460, 2, 2), (
        found
    )
    assert found["runId"] == restored["run"]["id"]
    assert found["report"] == f"{home.uri}/runs/{found['runId']}/verification.html"
    folder = f"archive/runs/{found['runId']}"
    assert home.objects().keys() >= {f"{folder}/verification.html", f"{folder}/verification.json"}
    assert home.positions(group, f"restored.{topic}", 2) == {0: 40, 1: 230}

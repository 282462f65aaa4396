"""The main road: back up, back up again, restore."""

from itertools import pairwise

import pytest

from tests.data.topics import produce, random_records
from tests.e2e.home import Home, ProgressWatch, Throttle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_status_moves_partition_by_partition_and_the_restored_topic_equals_its_source(
    home: Home, throttle: Throttle
) -> None:
    records = home.fill("measured", 8, 60)

    with throttle.to(4_000_000):
        saved = home.backup("measured", executors=2)
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


def test_the_next_run_fetches_only_what_is_new(home: Home) -> None:
    before = home.fill("growing", 3, 10)
    saved = home.backup("growing")
    first = saved.wait("Succeeded")
    old = home.objects()
    bootstrap = home.broker.bootstrap
    new = produce(bootstrap, "growing", random_records(3, 2, start=before))

    saved.run_again("after-more-came")
    second = saved.wait("Succeeded", run_not=first["run"]["id"])

    assert second["progress"]["records"] == new
    assert [run["records"] for run in second["history"]] == [new, before]
    segments = {name: size for name, size in old.items() if name.endswith(".log")}
    assert segments.items() <= home.objects().items(), "segments of the first run must stay as they were"
    home.restore().wait("Succeeded")
    home.check_restored("growing", before + new)

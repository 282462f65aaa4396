"""Whatever is killed in the middle, the run completes, the archive is whole, and each record is restored once."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.cluster.kube_api import Document
from tests.cluster.logkeep import Resource, backup, kill_pod
from tests.cluster.process import wait_until
from tests.e2e.home import Home, Throttle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MEGABYTES = 90
SLOW = 2_500_000  # bytes a second: a run of 90 MB then has more than 30 s left when it is caught
SLOWER = 700_000  # two minutes left: longer than a Lease lasts
SOME = 400  # records of 20 kB that must be done before the kill


def test_sigkill_of_an_executor_and_then_of_the_driver_in_a_backup_and_in_its_restore(
    home: Home, throttle: Throttle
) -> None:
    node = home.logkeep.node
    records = home.fill("crashed", 6, MEGABYTES)

    with throttle.to(SLOW) as lift:
        saved = home.backup("crashed", executors=2)
        done = saved.wait_for_progress(SOME)["progress"]["records"]
        kill_pod(node, saved.executors()[0])
        status = saved.wait_for_progress(done + SOME)
        assert status["run"]["attempt"] == 1, "a lost executor must not cost the driver"
        kill_pod(node, saved.drivers()[0])
        lift()
        status = saved.wait("Succeeded")
    assert status["run"]["attempt"] == 2
    home.verify()

    with throttle.to(SLOW) as lift:
        again = home.restore(executors=1, runPolicy={"backoffLimit": 0})
        done = again.wait_for_progress(SOME)["progress"]["records"]
        kill_pod(node, again.executors()[0])
        status = again.wait_for_progress(done + SOME)
        assert status["run"]["attempt"] == 1, "a lost executor must not cost the driver"
        kill_pod(node, again.drivers()[0])
        failed = again.wait("Failed")
        lift()
    again.patch({"spark": {"driver": {"memory": "1200Mi"}}})
    again.retry("with-more-memory")
    status = again.wait("Succeeded")
    assert status["run"]["id"] == failed["run"]["id"]
    assert [run["outcome"] for run in status["history"]] == ["Succeeded", "Failed"]
    home.check_restored("crashed", records)


def kill_the_acting_operator(home: Home) -> str:
    """SIGKILL to the replica that holds the Lease. Returns the mark of its process there."""
    holder, pods = home.logkeep.acting(), home.logkeep.operator_pods()
    assert len(pods) == 2
    assert holder.startswith(pods[0]["metadata"]["name"] + "_")
    kill_pod(home.logkeep.node, pods[0])
    return holder


def scheduled(home: Home) -> tuple[Resource, str]:
    """A backup that has had its first run, and a time of its schedule that soon comes, in more than a minute."""
    home.fill("crashed-nightly", 1, 1)
    time = (datetime.now(UTC) + timedelta(minutes=2)).replace(second=0, microsecond=0)
    schedule = {"cron": f"{time.minute} {time.hour} * * *", "jitterSeconds": 0}
    uri = f"s3://{home.bucket}/nightly"
    document = backup("nightly", home.broker.bootstrap, home.s3, uri, ["crashed-nightly"], spark={}, schedule=schedule)
    nightly = home.apply(document)
    nightly.wait("Succeeded")
    return nightly, time.strftime("%Y-%m-%dT%H:%M:%SZ")


def run_time(job: Document) -> str:
    return str(job["metadata"]["annotations"].get("logkeep.dev/run-scheduled", ""))


def test_sigkill_of_the_acting_operator_during_a_backup_during_the_restore_and_a_restart_after_it(
    home: Home, throttle: Throttle
) -> None:
    records = home.fill("crashed-c", 6, MEGABYTES)
    nightly, time = scheduled(home)

    with throttle.to(SLOWER) as lift:
        saved = home.backup("crashed-c", spark={})
        saved.wait_for_progress(SOME)
        killed = kill_the_acting_operator(home)
        wait_until(lambda: home.logkeep.acting() not in ("", killed), 120, "another process to hold the Lease")
        assert saved.status["phase"] == "Running", "it takes over in the middle of the run"
        lift()
        status = saved.wait("Succeeded")
    assert status["run"]["attempt"] == 1, "the run must not notice"
    assert status["progress"]["records"] == records
    assert len(status["history"]) == len(saved.jobs()) == 1, "no second run"
    home.verify()

    with throttle.to(SLOW) as lift:
        again = home.restore(spark={})
        again.wait_for_progress(SOME)
        killed = kill_the_acting_operator(home)
        lift()  # it may end while nobody acts
        status = again.wait("Succeeded")
    assert home.logkeep.acting() not in ("", killed), "the process that was killed has told nothing since"
    assert status["run"]["attempt"] == 1, "the run must not notice"
    assert len(again.jobs()) == 1
    home.check_restored("crashed-c", records)

    # Whoever acted at this moment, or came later, has started the run of the schedule, once.
    wait_until(lambda: nightly.status.get("lastScheduleTime") == time, 240, "the run of the schedule")
    wait_until(lambda: len(nightly.status["history"]) == 2, 240, "the run of the schedule to end")
    assert [run["outcome"] for run in nightly.status["history"]] == ["Succeeded", "Succeeded"]
    assert sorted(run_time(job) for job in nightly.jobs()) == ["", time]

    pod = home.logkeep.operator_pods()[0]["metadata"]["name"]
    home.logkeep.node.kubectl("-n", home.logkeep.namespace, "delete", "pod", pod)
    home.logkeep.wait_ready()
    assert len(again.jobs()) == 1, "a restore that succeeded is not run again by an operator that starts"
    home.check_restored("crashed-c", records)

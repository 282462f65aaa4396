"""Whatever is killed in the middle, the run completes, the archive is whole, and each record is restored once."""

import pytest

from tests.cluster.logkeep import kill_pod
from tests.e2e.home import Home, Throttle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MEGABYTES = 90
SLOW = 2_500_000  # bytes a second: a run of 90 MB then has more than 30 s left when it is caught
SOME = 400  # records of 20 kB that must be done before the kill


def test_sigkill_of_the_driver_during_a_backup_and_of_an_executor_during_the_restore(
    home: Home, throttle: Throttle
) -> None:
    records = home.fill("crashed-a", 6, MEGABYTES)

    with throttle.to(SLOW) as lift:
        saved = home.backup("crashed-a", executors=2)
        saved.wait_for_progress(SOME)
        kill_pod(home.logkeep.node, saved.drivers()[0])
        lift()
        status = saved.wait("Succeeded")
    assert status["run"]["attempt"] == 2
    home.verify()

    with throttle.to(SLOW) as lift:
        again = home.restore(executors=2)
        again.wait_for_progress(SOME)
        victim = again.executors()[0]
        kill_pod(home.logkeep.node, victim)
        lift()
        status = again.wait("Succeeded")
    assert status["run"]["attempt"] == 1, "a lost executor must not cost the driver"
    home.check_restored("crashed-a", records)


def test_sigkill_of_an_executor_during_a_backup_and_of_the_only_driver_of_a_restore(
    home: Home, throttle: Throttle
) -> None:
    records = home.fill("crashed-b", 6, MEGABYTES)

    with throttle.to(SLOW) as lift:
        saved = home.backup("crashed-b", executors=2)
        saved.wait_for_progress(SOME)
        kill_pod(home.logkeep.node, saved.executors()[0])
        lift()
        status = saved.wait("Succeeded")
    assert status["run"]["attempt"] == 1, "a lost executor must not cost the driver"
    home.verify()

    with throttle.to(SLOW) as lift:
        again = home.restore(runPolicy={"backoffLimit": 0})
        again.wait_for_progress(SOME)
        kill_pod(home.logkeep.node, again.drivers()[0])
        failed = again.wait("Failed")
        lift()
    again.patch({"spark": {"driver": {"memory": "1200Mi"}}})
    again.retry("with-more-memory")
    status = again.wait("Succeeded")
    assert status["run"]["id"] == failed["run"]["id"]
    assert [run["outcome"] for run in status["history"]] == ["Succeeded", "Failed"]
    home.check_restored("crashed-b", records)


def test_sigkill_of_the_operator_during_a_backup_during_the_restore_and_a_restart_after_it(
    home: Home, throttle: Throttle
) -> None:
    records = home.fill("crashed-c", 6, MEGABYTES)

    with throttle.to(SLOW) as lift:
        saved = home.backup("crashed-c")
        saved.wait_for_progress(SOME)
        kill_pod(home.logkeep.node, home.logkeep.operator_pods()[0])
        lift()
        status = saved.wait("Succeeded")
    assert status["run"]["attempt"] == 1, "the run must not notice"
    assert status["progress"]["records"] == records
    home.verify()

    with throttle.to(SLOW) as lift:
        again = home.restore()
        again.wait_for_progress(SOME)
        kill_pod(home.logkeep.node, home.logkeep.operator_pods()[0])
        lift()
        status = again.wait("Succeeded")
    assert status["run"]["attempt"] == 1, "the run must not notice"
    assert len(again.jobs()) == 1
    home.check_restored("crashed-c", records)

    pod = home.logkeep.operator_pods()[0]["metadata"]["name"]
    home.logkeep.node.kubectl("-n", home.logkeep.namespace, "delete", "pod", pod)
    home.logkeep.wait_ready()
    assert len(again.jobs()) == 1, "a restore that succeeded is not run again by an operator that starts"
    home.check_restored("crashed-c", records)

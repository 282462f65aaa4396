"""Whatever is killed in the middle, the run completes, the archive is whole, and each record is restored once."""

import pytest

from tests.cluster.logkeep import kill_pod
from tests.e2e.home import Home, Throttle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MEGABYTES = 90
SLOW = 2_500_000  # bytes a second: a run of 90 MB then has more than 30 s left when it is caught
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
        again = home.restore(executors=2, runPolicy={"backoffLimit": 0})
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


def test_sigkill_of_the_acting_operator_during_a_backup_during_the_restore_and_a_restart_after_it(
    home: Home, throttle: Throttle
) -> None:
    records = home.fill("crashed-c", 6, MEGABYTES)

    with throttle.to(SLOW) as lift:
        saved = home.backup("crashed-c")
        saved.wait_for_progress(SOME)
        acting, pods = home.logkeep.acting(), home.logkeep.operator_pods()
        assert len(pods) == 2
        kill_pod(home.logkeep.node, pods[0])
        lift()
        status = saved.wait("Succeeded")
    assert home.logkeep.acting() not in ("", acting), "the process that was killed has told nothing since"
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

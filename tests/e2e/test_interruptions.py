"""A person stops a run: by suspending it, or by deleting the resource."""

import pytest

from tests.cluster.process import wait_until
from tests.e2e.home import Home, Throttle

pytestmark = pytest.mark.timeout(1200)


def test_a_suspended_backup_continues_where_it_was_and_a_deleted_one_keeps_its_archive(
    home: Home, throttle: Throttle
) -> None:
    home.fill("interrupted", 6, 60)
    with throttle.to(2_000_000):
        saved = home.backup("interrupted")
        saved.wait_for_progress(400)
        saved.patch({"suspend": True})
        saved.wait("Suspended")
        wait_until(lambda: not home.pods(), 120, "the pods of a suspended backup to go")

        # A new operator must find out by itself that there is nothing to do yet.
        logkeep = home.logkeep
        logkeep.node.kubectl("-n", logkeep.namespace, "delete", "pod", logkeep.operator_pods()[0]["metadata"]["name"])
        logkeep.wait_ready()
        suspended = saved.status
        assert suspended["phase"] == "Suspended"
        assert not home.pods()

        saved.patch({"suspend": False})
        wait_until(lambda: bool(saved.executors()), 240, "the executors of a resumed backup")
        status = saved.wait_for_progress(suspended["progress"]["records"] + 200)
        assert status["run"]["id"] == suspended["run"]["id"], "a resumed run is the same run"
        archived = {name for name in home.objects() if "/catalog/" in name or name.endswith("archive.json")}
        assert archived

        saved.delete()

        wait_until(lambda: not home.pods(), 120, "the pods of a deleted backup to go")

    def nothing_left() -> bool:  # what Kubernetes collects comes after the pods, one owner after the other
        items = home.logkeep.node.get("jobs,configmaps", "-n", home.namespace)["items"]
        return {item["metadata"]["name"] for item in items} <= {"kube-root-ca.crt"}

    wait_until(nothing_left, 120, "the Jobs and ConfigMaps of a deleted backup to go")
    assert archived <= set(home.objects())
    home.verify()

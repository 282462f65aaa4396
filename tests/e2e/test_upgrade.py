"""The life of an installation: a version, the next one, the one before again, and none, while a backup runs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.chart import CHART
from tests.cluster.logkeep import Installation, Resource
from tests.cluster.process import wait_until
from tests.e2e.home import Home, Throttle

pytestmark = pytest.mark.timeout(1200)

LABEL = "app.kubernetes.io/part-of=logkeep"
KINDS = (
    "crd,clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding,deployment,service,"
    "serviceaccount,role,rolebinding,networkpolicy,poddisruptionbudget,lease"
)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """The chart of the version before: nothing is released, so it is this one under a lower version."""
    chart = tmp_path / "logkeep"
    shutil.copytree(CHART, chart)
    about = chart / "Chart.yaml"
    about.write_text(about.read_text().replace("version: 0.1.0", "version: 0.0.9"))
    return chart


@pytest.fixture
def installed_after(logkeep: Installation) -> Iterator[None]:
    """Other tests of the node find the chart as it was."""
    yield
    logkeep.install()


def left(logkeep: Installation) -> set[str]:
    """All that has Logkeep's label, without the hashes of names."""
    listed = logkeep.node.kubectl("get", "-A", KINDS, "-l", LABEL, "-o", "name").stdout.split()
    return {name.partition(".")[0] if name.startswith("customresource") else name for name in listed}


def driver_of(saved: Resource) -> tuple[str, str]:
    """The run and its driver's pod: another one of either would show a run that was disturbed."""
    (pod,) = saved.drivers()
    return saved.status["run"]["id"], pod["metadata"]["uid"]


@pytest.mark.usefixtures("installed_after")
def test_a_run_goes_on_through_an_upgrade_and_a_rollback_and_an_uninstalled_chart_leaves_what_the_page_says(
    home: Home, throttle: Throttle, before: Path
) -> None:
    logkeep = home.logkeep
    logkeep.helm("uninstall", logkeep.release, "--wait")
    logkeep.install(package=before)  # over what an installation leaves
    home.fill("upgraded", 6, 60)
    with throttle.to(2_000_000):
        saved = home.backup("upgraded")
        saved.wait_for_progress(200)
        begun = driver_of(saved)

        logkeep.install({"podLabels": {"changed": "yes"}, "crds": {"upgrade": True}})
        logkeep.wait_ready()
        records = saved.wait_for_progress(400)["progress"]["records"]
        assert driver_of(saved) == begun

        logkeep.helm("rollback", logkeep.release, "--wait", "--timeout", "240s")
        assert "logkeep-0.0.9" in logkeep.helm("list")
        saved.wait_for_progress(records + 200)
        assert driver_of(saved) == begun
    done = saved.wait("Succeeded")
    assert done["run"]["id"] == begun[0]
    home.verify()

    logkeep.helm("uninstall", logkeep.release, "--wait")

    found = left(logkeep)
    crds = {name for name in found if name.startswith("customresourcedefinition")}
    assert crds
    assert found - crds == {
        "serviceaccount/logkeep-engine", "serviceaccount/logkeep-executor", "lease.coordination.k8s.io/logkeep",
        "rolebinding.rbac.authorization.k8s.io/logkeep-driver", "networkpolicy.networking.k8s.io/logkeep-runs",
    }  # fmt: skip
    assert saved.read() is not None
    assert home.objects()

    logkeep.install()
    wait_until(lambda: bool(logkeep.acting()), 120, "a replica that acts")
    assert saved.status["run"] == done["run"], "nothing new was asked for"

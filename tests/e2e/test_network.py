"""Who may connect to the pods of Logkeep, and what others see on the network between them."""

from collections.abc import Iterator

import pytest

from tests.cluster import names
from tests.cluster.kube_api import path_of
from tests.cluster.logkeep import small
from tests.cluster.netpol import Enforcer
from tests.cluster.node import Node
from tests.cluster.process import wait_until
from tests.e2e.home import Home, Throttle
from tests.e2e.wire import Wire, connect

pytestmark = pytest.mark.timeout(900)

DRIVER_PORT = 7078
SPARKS_MESSAGES = b"org.apache.spark"  # in each message, which is a serialized object of one of Spark's classes


@pytest.fixture
def stranger(node: Node, namespace: str) -> str:
    """A pod that is not part of a run."""
    image = [f"--image={names.image('operator')}", "--image-pull-policy=Never"]
    node.kubectl("run", "stranger", "-n", namespace, *image, "--command", "--", "sleep", "1000")
    node.kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/stranger", "--timeout=240s")
    return "stranger"


@pytest.fixture
def enforcer(node: Node) -> Iterator[Enforcer]:
    """The node's network enforces NetworkPolicies."""
    with Enforcer(node) as started:
        yield started


def test_only_executors_connect_to_a_driver_and_nobody_reads_what_they_say(
    home: Home, throttle: Throttle, stranger: str, enforcer: Enforcer
) -> None:
    node, namespace = home.logkeep.node, home.namespace
    records = home.fill("encrypted", 2, 24)
    spark = small(executors=1)
    spark["conf"]["spark.driver.port"] = str(DRIVER_PORT)
    with Wire(node, DRIVER_PORT) as wire, throttle.to(150_000) as lift:
        saved = home.backup("encrypted", spark=spark)
        saved.wait_for_progress(1)
        (driver,) = saved.drivers()
        address = driver["status"]["podIP"]

        wait_until(lambda: connect(node, namespace, stranger, address, DRIVER_PORT) == "lost", 60, "the policy to hold")
        labels = {"app.kubernetes.io/managed-by": "logkeep", "logkeep.dev/role": "executor"}
        home.logkeep.api.patch(path_of(namespace, "pod", stranger), {"metadata": {"labels": labels}})
        wait_until(
            lambda: connect(node, namespace, stranger, address, DRIVER_PORT) == "connected",
            60,
            "a pod with the labels of a run to connect",
        )

        lift()
        assert saved.wait("Succeeded")["progress"]["records"] == records
        said = wire.bytes
    assert len(said) > 50_000, "driver and executor have talked"
    assert SPARKS_MESSAGES not in said


def test_the_operator_is_reached_for_its_metrics_and_on_no_other_port(
    home: Home, stranger: str, enforcer: Enforcer
) -> None:
    address = home.logkeep.operator_pods()[0]["status"]["podIP"]

    def asks(port: int) -> str:
        return connect(home.logkeep.node, home.namespace, stranger, address, port)

    wait_until(lambda: asks(22) == "lost", 60, "the policy to hold")  # else it would be refused: nobody listens there
    assert asks(8081) == "connected"

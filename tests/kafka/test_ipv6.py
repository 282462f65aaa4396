"""Backups and restores where every address is one of IPv6: the broker's, the S3 server's, the driver's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.names import ENV_KAFKA_CA_FILE, ENV_KAFKA_PASSWORD
from logkeep_engine.errors import BrokerUnavailable
from logkeep_engine.kafka.connection import KafkaConnection, Limits, connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.spark.conf import kubernetes_conf
from tests.cluster import system
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.cluster.s3 import S3Server
from tests.kafka.backing_up import POD, Topics, numbers
from tests.kafka.restores import back_up, bring_back, committed

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(host="::1", overrides=STEADY, secure=True) as running:
        yield running


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with S3Server(host="::1") as running:
        yield running


def test_a_topic_goes_into_a_bucket_and_comes_back(
    broker: KafkaBroker, store: S3Server, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broker.bootstrap.startswith("[::1]:")
    assert store.endpoint.startswith("http://[::1]:")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.secret_key)
    Topics(broker).create(unique)
    Topics(broker).produce(unique, numbers(1000))
    bucket = store.create_bucket(unique)
    storage = {"uri": f"s3://{bucket}/kafka", "endpoint": store.endpoint, "region": store.region}
    cluster = {"bootstrapServers": [broker.bootstrap]}
    done = back_up({"cluster": cluster, "topics": {"include": [unique]}, "storage": storage})
    assert done.records == 1000
    bring_back(
        {
            "cluster": cluster,
            "source": {"storage": storage},
            "topics": {"rename": [{"from": "(.*)", "to": r"\1-copy"}]},
        }
    )
    assert committed(broker, f"{unique}-copy") == committed(broker, unique)


def test_a_secure_broker_is_reached_by_the_address_in_its_certificate(broker: KafkaBroker) -> None:
    sasl = {"mechanism": "SCRAM-SHA-512", "username": broker.username, "secretRef": {"name": "login"}}
    spec = {"bootstrapServers": [broker.sasl_ssl_bootstrap], "security": {"protocol": "SASL_SSL", "sasl": sasl}}
    environ = {ENV_KAFKA_PASSWORD: broker.password, ENV_KAFKA_CA_FILE: str(broker.ca_pem)}
    connection = connection_from(ClusterSpec.model_validate(spec), environ)
    with ControlPlane(connection) as control:
        assert control.cluster_id() == broker.cluster_id


def test_a_broker_that_is_not_there_is_named_with_brackets() -> None:
    (port,) = system.free_ports(1, "::1")
    limits = Limits(connect=1.0, control=1.0)
    with (
        ControlPlane(KafkaConnection((f"[::1]:{port}",), limits=limits)) as control,
        pytest.raises(BrokerUnavailable, match=rf"\[::1\]:{port}"),
    ):
        control.cluster_id()


def test_executors_talk_to_a_driver_whose_pod_has_an_address_of_ipv6(tmp_path: Path) -> None:
    """Spark refuses an address without brackets; the driver's own listener for tasks takes it without."""
    conf = kubernetes_conf({}, {**POD, "LOGKEEP_POD_IP": "::1"})
    script = tmp_path / "job.py"
    script.write_text(_JOB)
    path = os.pathsep.join([str(ROOT / "docker"), *sys.path])
    keys = ("spark.driver.host", "spark.driver.bindAddress")
    done = subprocess.run(
        [sys.executable, script, *(conf[key] for key in keys)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["url spark://CoarseGrainedScheduler@[::1]", "done [2, 4, 6] reported 3"]


# The driver and the executors are processes here, and Kubernetes is what docker/classes.py plays of it.
_JOB = """
import sys
import classes
from pyspark import SparkConf, SparkContext
from logkeep_engine.spark.runner import SparkRunner
from tests.kafka.spark_functions import doubled_and_reported

def start(pod, start=classes.start_executor):
    for item in pod["spec"]["containers"][0]["env"]:
        if item["name"] == "SPARK_DRIVER_URL":
            print("url", item["value"].rpartition(":")[0], flush=True)
    return start(pod, "::1")

classes.start_executor = start
api = classes.Api()
conf = classes.settings(api) | {"spark.driver.host": sys.argv[1], "spark.driver.bindAddress": sys.argv[2]}
context = SparkContext(conf=SparkConf(loadDefaults=False).setAll(list(conf.items())))
results, updates = {}, []
SparkRunner(context).run([1, 2, 3], doubled_and_reported, results.__setitem__, updates.append)
context.stop()
print("done", [results[at] for at in range(3)], "reported", len(updates))
"""

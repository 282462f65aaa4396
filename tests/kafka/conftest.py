"""One Spark for all tests of this folder: it takes seconds to start. And what many of them begin with.

Brokers that few files ask for end with the file: in three minutes of doing nothing, a broker takes more of a processor
than its next start.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from py4j.java_gateway import java_import
from pyspark import SparkContext
from pyspark.sql import SparkSession

from logkeep_engine.contract import names
from logkeep_engine.spark.conf import local_conf
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.spark.session import Session
from tests.cluster.azure import AzureServer
from tests.cluster.gcs import GcsServer
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.cluster.kafka_cluster import KafkaCluster
from tests.cluster.process import wait_until
from tests.cluster.s3 import S3Server
from tests.cluster.s3_proxy import S3Proxy
from tests.cluster.tiered import TieredBroker
from tests.kafka.backing_up import Backups, Topics, folder_spec


@pytest.fixture(scope="session")
def storage_environment(s3: S3Server) -> Iterator[None]:
    """The S3 server's credentials in this process's environment, where Python workers inherit them."""
    values = {names.ENV_S3_ACCESS_KEY: s3.access_key, names.ENV_S3_SECRET_KEY: s3.secret_key}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setitem(os.environ, name, value)
        yield


@pytest.fixture
def cluster(three_brokers: KafkaCluster) -> Iterator[KafkaCluster]:
    """Three brokers that run and are in sync, and do so again when the test has ended."""
    yield three_brokers
    three_brokers.restore()


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[S3Proxy]:
    """A proxy in front of the S3 server, which fails on command."""
    with S3Proxy(s3) as server:
        yield server


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    """A server of Google Cloud Storage's interface."""
    with GcsServer() as server:
        yield server


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureServer]:
    """A server of Azure Blob Storage's interface."""
    with AzureServer() as server:
        yield server


@pytest.fixture(scope="session")
def spark_context(storage_environment: None) -> Iterator[SparkContext]:
    """A context with two task slots, started as the command line starts its own."""
    with Session(local_conf(2)) as session:
        yield session.context()


@pytest.fixture(scope="session")
def sql_session(spark_context: SparkContext) -> SparkSession:
    """SQL on that context. Our own runs use no SQL, so their gateway does not know its classes by their short names."""
    for name in ("Encoders", "OnSuccessCall", "functions", "classic.*", "api.python.*"):
        java_import(spark_context._jvm, f"org.apache.spark.sql.{name}")
    found = SparkSession(spark_context)
    found.conf.set("spark.sql.session.timeZone", "UTC")
    found.conf.set("spark.sql.shuffle.partitions", "1")
    return found


@pytest.fixture(scope="module")
def second_broker() -> Iterator[KafkaBroker]:
    """A cluster of its own, whose broker may register again soon after it was killed; ask for `second_kafka`."""
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def second_kafka(second_broker: KafkaBroker) -> KafkaBroker:
    """A cluster to restore into, and a broker that tests may stop, kill and start: it runs when a test begins."""
    return running(second_broker)


def running(broker: KafkaBroker) -> KafkaBroker:
    """The broker, started if it does not run: the test before may have failed between its end and its start."""
    if not broker.process.running:
        broker.start()
    return broker


@pytest.fixture(scope="module")
def secure_kafka() -> Iterator[KafkaBroker]:
    """A broker on loopback with SASL and TLS listeners beside the plain one."""
    with KafkaBroker(overrides=STEADY, secure=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[KafkaBroker]:
    """A broker with an authorizer; ask for `strict`."""
    checks = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaBroker(secure=True, overrides={**STEADY, **checks}) as broker:
        yield broker


@pytest.fixture
def strict(strict_broker: KafkaBroker) -> Iterator[KafkaBroker]:
    """The user `logkeep` may do what ACLs allow, at first nothing; the plain listener may do everything."""
    yield strict_broker
    admin = AdminClient({"bootstrap.servers": strict_broker.bootstrap})
    anything: Any = None
    kinds = ResourceType.ANY, anything, ResourcePatternType.ANY
    every = AclBindingFilter(*kinds, anything, anything, AclOperation.ANY, AclPermissionType.ANY)
    for deleted in admin.delete_acls([every]).values():
        deleted.result(30)
    wait_until(lambda: not admin.describe_acls(every).result(30), 30, "all ACLs to be gone")


@pytest.fixture(scope="module")
def tiered_broker() -> Iterator[TieredBroker]:
    """A broker with tiered storage on loopback; ask for `tiered`."""
    with TieredBroker(overrides=STEADY) as broker:
        yield broker


@pytest.fixture
def tiered(tiered_broker: TieredBroker) -> Iterator[TieredBroker]:
    """The broker with tiered storage; its remote store does what it should before and after each test."""
    tiered_broker.command()
    yield tiered_broker
    tiered_broker.command()


@pytest.fixture
def topics(kafka: KafkaBroker) -> Topics:
    return Topics(kafka)


@pytest.fixture(scope="session")
def nursery(storage_environment: None) -> Iterator[Nursery]:
    """Processes for tasks that run without Spark."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def backups(kafka: KafkaBroker, request: pytest.FixtureRequest, tmp_path: Path, nursery: Nursery) -> Backups:
    """Backups into a folder of this test's own, without Spark; `nursery = None` has them on Spark."""
    return Backups(kafka, folder_spec(tmp_path / "archive"), _later(request), nursery=nursery)


@pytest.fixture
def s3_backups(
    kafka: KafkaBroker, request: pytest.FixtureRequest, s3: S3Server, bucket: str, nursery: Nursery
) -> Backups:
    """Backups into a bucket of this test's own, without Spark; `nursery = None` has them on Spark."""
    spec = {"uri": f"s3://{bucket}/kafka", "endpoint": s3.endpoint, "region": s3.region}
    return Backups(kafka, spec, _later(request), nursery=nursery)


def _later(request: pytest.FixtureRequest) -> Callable[[], SparkContext]:
    """The Spark of the folder, which starts when it is asked for."""

    def context() -> SparkContext:
        found: SparkContext = request.getfixturevalue("spark_context")
        return found

    return context

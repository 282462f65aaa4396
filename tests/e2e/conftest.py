"""Logkeep installed on the node, a broker and a place for each test's resources and archive."""

from collections.abc import Iterator

import pytest

from tests.cluster.kafka import CALM, STEADY, KafkaBroker
from tests.cluster.logkeep import Installation
from tests.cluster.node import Node
from tests.cluster.s3 import S3Server
from tests.e2e.home import Home, Throttle


@pytest.fixture(scope="session")
def logkeep(node: Node, node_s3: S3Server) -> Installation:
    """The chart, installed by Helm with its default values, the node's images and its S3 server."""
    installation = Installation(node, node_s3)
    installation.install()
    return installation


@pytest.fixture(scope="session")
def broker(node: Node) -> Iterator[KafkaBroker]:
    """A broker on the node's address with SASL and TLS beside plain, whose quotas act within two seconds. Its listener
    SSL takes only clients with a certificate."""
    overrides = {"quota.window.num": "2", "listener.name.ssl.ssl.client.auth": "required"}
    with KafkaBroker(host=node.ip, netns=node.netns, secure=True, overrides={**STEADY, **CALM, **overrides}) as started:
        yield started


@pytest.fixture
def throttle(broker: KafkaBroker) -> Throttle:
    """For runs that must be caught in the middle."""
    return Throttle(broker)


@pytest.fixture
def home(logkeep: Installation, broker: KafkaBroker, node_s3: S3Server, namespace: str) -> Home:
    """A namespace and a bucket of this test's own."""
    keys = {"accessKeyId": node_s3.access_key, "secretAccessKey": node_s3.secret_key}
    logkeep.create_secret(namespace, "archive-s3", keys)
    return Home(logkeep, broker, node_s3, namespace, node_s3.create_bucket(namespace))

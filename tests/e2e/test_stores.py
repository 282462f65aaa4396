"""A backup and its restore with pods that keep the archive in Google Cloud Storage, and in Azure."""

import pytest

from tests.cluster.azure import AzureServer
from tests.cluster.gcs import GcsServer
from tests.cluster.logkeep import backup
from tests.cluster.node import Node
from tests.data.topics import NO_RETENTION, create_topic, produce, random_records
from tests.e2e.home import Home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_a_backup_into_another_store_and_its_restore(home: Home, node: Node, scheme: str) -> None:
    topic = f"orders-{scheme}"
    create_topic(home.broker.bootstrap, topic, 2, NO_RETENTION)
    records = produce(home.broker.bootstrap, topic, random_records(2, 2))
    server = GcsServer(node.ip, node.netns) if scheme == "gs" else AzureServer(node.ip, node.netns)
    with server:
        if isinstance(server, GcsServer):
            server.create_bucket(home.bucket)
            keys = {"serviceAccountKey": server.account_key()}
        else:
            server.create_container(home.bucket)
            keys = {"accountKey": server.key}
        home.logkeep.create_secret(home.namespace, "archive", keys)
        document = backup("saved", home.broker.bootstrap, home.s3, f"{scheme}://{home.bucket}/kafka", [topic])
        document["spec"]["spark"] = {}
        document["spec"]["storage"] = {
            "uri": f"{scheme}://{home.bucket}/kafka",
            "endpoint": server.endpoint,
            "credentials": {"secretRef": {"name": "archive"}},
        }
        status = home.apply(document).wait("Succeeded")
        assert status["progress"]["records"] == records
        home.restore(spark={}).wait("Succeeded")
        home.check_restored(topic, records)

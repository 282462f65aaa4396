"""A backup into each object store, what `logkeep` says of it, and its restore."""

import os
import secrets
from typing import Any

import pytest

from tests.cluster.azure import AzureServer
from tests.cluster.gcs import GcsServer
from tests.cluster.kafka import KafkaBroker
from tests.command import logkeep
from tests.data.compare import compare_topics
from tests.kafka.backing_up import Topics, numbers
from tests.kafka.restores import back_up, bring_back


@pytest.fixture(params=["gs", "az"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The `storage` of a resource in a new bucket; its keys are in this process's environment, as a Secret brings
    them."""
    name = f"backups-{secrets.token_hex(4)}"
    if request.param == "gs":
        gcs: GcsServer = request.getfixturevalue("gcs")
        monkeypatch.setenv("LOGKEEP_GOOGLE_KEY", gcs.account_key())
        gcs.create_bucket(name)
        endpoint = gcs.endpoint
    else:
        azure: AzureServer = request.getfixturevalue("azure")
        monkeypatch.setenv("AZURE_STORAGE_KEY", azure.key)
        azure.create_container(name)
        endpoint = azure.endpoint
    return {"uri": f"{request.param}://{name}/kafka", "endpoint": endpoint}


def login() -> dict[str, str]:
    """The keys of the store, for a command: it has no others of this process."""
    return {name: os.environ[name] for name in ("LOGKEEP_GOOGLE_KEY", "AZURE_STORAGE_KEY") if name in os.environ}


def test_a_backup_its_check_and_its_restore(kafka: KafkaBroker, topics: Topics, store: dict[str, Any]) -> None:
    topic = topics.create(f"orders-{secrets.token_hex(4)}", 2)
    topics.produce(topic, numbers(500), partition=0)
    topics.produce(topic, numbers(500), partition=1)
    cluster = {"bootstrapServers": [kafka.bootstrap]}
    backup = {"cluster": cluster, "topics": {"include": [topic]}, "storage": store}
    assert back_up(backup).records == 1000
    topics.produce(topic, numbers(10), partition=1)
    assert back_up(backup, "backup-2").records == 10
    where = (store["uri"], "--endpoint", store["endpoint"])
    verified = logkeep("verify", *where, environ=login())
    assert verified.returncode == 0, verified.stdout + verified.stderr
    inspected = logkeep("inspect", *where, environ=login())
    assert topic in inspected.stdout
    renamed = {"rename": [{"from": "(.*)", "to": r"\1-copy"}]}
    restore = {"cluster": cluster, "source": {"storage": store}, "topics": renamed}
    assert bring_back(restore).records == 1010
    assert compare_topics(kafka.bootstrap, topic, f"{topic}-copy").equal

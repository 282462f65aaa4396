"""Many resources at once on a small node: each gets its turn, and none keeps another from ending."""

import time
from datetime import datetime

import pytest
import yaml

from tests import examples
from tests.cluster.kube_api import Document
from tests.cluster.logkeep import Resource, backup
from tests.cluster.process import wait_until
from tests.data.topics import NO_RETENTION, create_topic, produce, random_records
from tests.e2e.home import Home

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]

COUNT = examples.number(6, deep=20)
EVERY = examples.number(2, deep=1)  # one topic of so many has records, as in a night in which little has changed
AT_ONCE = 5  # maxConcurrentRuns of the chart


def lifetime(pod: Document) -> tuple[datetime, datetime]:
    """From when the kubelet took the pod to when its container ended."""
    (container,) = pod["status"]["containerStatuses"]
    ended = container["state"]["terminated"]["finishedAt"]
    return datetime.fromisoformat(pod["status"]["startTime"]), datetime.fromisoformat(ended)


def test_backups_applied_at_once_all_succeed_with_no_setting_changed(home: Home) -> None:
    resources, documents = {}, []
    records: dict[str, int] = {}
    for number in range(COUNT):
        topic = f"small-{number}"
        create_topic(home.broker.bootstrap, topic, 1, NO_RETENTION)
        if number % EVERY == 0:
            records[topic] = produce(home.broker.bootstrap, topic, random_records(1, 1))
        uri = f"s3://{home.bucket}/{topic}"
        document = backup(topic, home.broker.bootstrap, home.s3, uri, [topic])
        del document["spec"]["spark"]
        documents.append(document)
        resources[topic] = Resource(home.logkeep, home.namespace, "KafkaBackup", topic)

    began = time.monotonic()
    home.logkeep.node.kubectl("apply", "-n", home.namespace, "-f", "-", stdin=yaml.safe_dump_all(documents))
    assert AT_ONCE < COUNT
    for topic, resource in resources.items():
        status = resource.wait("Succeeded", timeout=1200)
        assert status.get("progress", {}).get("records", 0) == records.get(topic, 0)
    wall = time.monotonic() - began

    def pods_of_all() -> list[Document]:
        return home.logkeep.api.items(f"/api/v1/namespaces/{home.namespace}/pods")

    def ended() -> bool:  # a run has succeeded when its driver says so, which then ends
        return all(pod["status"]["phase"] == "Succeeded" for pod in pods_of_all())

    wait_until(ended, 120, "the drivers to end")
    pods = pods_of_all()
    assert {pod["metadata"]["labels"]["logkeep.dev/role"] for pod in pods} == {"driver"}, "the drivers do small work"
    assert len(pods) == COUNT, "no run needed a second attempt"
    lives = sorted(lifetime(pod) for pod in pods)
    seconds = sum((end - start).total_seconds() for start, end in lives)
    print(f"{COUNT} backups: {wall:.0f} s, {seconds:.0f} pod-seconds")
    most = max(sum(start <= moment < end for start, end in lives) for moment, _ in lives)
    assert most <= AT_ONCE, f"{most} drivers at once"

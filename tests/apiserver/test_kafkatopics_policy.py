"""The chart's ValidatingAdmissionPolicy of KafkaTopics, on a real API server with Strimzi's own CRDs: which topics may
be deleted by whoever deletes them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from logkeep_engine.contract.facts.outcome import TopicCoverage
from tests.apiserver import strimzi
from tests.apiserver.conftest import chart
from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.world import backup_spec

pytestmark = pytest.mark.timeout(300)

POLICY = "templates/kafkatopics-policy.yaml"
TOPICS = {"include": ["orders.*", "__.*"], "exclude": ["orders.tmp"]}
FINALIZER = "strimzi.io/topic-operator"


@pytest.fixture(scope="module", params=strimzi.RELEASES)
def release(api: ApiServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The release of Strimzi whose CRDs the API server has."""
    name: str = request.param
    strimzi.install(api, name)
    yield name
    strimzi.remove(api)


@dataclass(frozen=True)
class Kafka:
    """A namespace with KafkaTopics of the cluster `prod`, which the KafkaBackup `nightly` there must have archived."""

    namespace: Namespace
    release: str

    @property
    def policy(self) -> str:
        name = self.namespace.name
        item = {"namespace": name, "cluster": "prod", "backup": {"namespace": name, "name": "nightly"}}
        return chart("--show-only", POLICY, "--set-json", f"admissionPolicies.kafkaTopics={json.dumps([item])}")

    def topic(self, name: str, topic_name: str = "", cluster: str = "prod", **annotations: str) -> None:
        """Make a KafkaTopic with the finalizer that Strimzi's Topic Operator gives it."""
        metadata = {"name": name, "labels": {"strimzi.io/cluster": cluster}, "finalizers": [FINALIZER]}
        spec = {"partitions": 1, "replicas": 1} | ({"topicName": topic_name} if topic_name else {})
        body = {"apiVersion": strimzi.version(self.release), "kind": "KafkaTopic", "spec": spec}
        body["metadata"] = metadata | {
            "annotations": {f"strimzi.io/{key}": value for key, value in annotations.items()}
        }
        self.namespace.kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(body))

    def refusal(self, name: str, *options: str) -> str:
        """Return why a KafkaTopic may not be deleted, nothing if it may be. It is not deleted."""
        command = ("delete", "kafkatopic", name, "--wait=false", "--dry-run=server", *options)
        done = self.namespace.kubectl(*command, check=False)
        assert (done.returncode == 0) == ("deleted" in done.stdout), done
        return done.stderr

    def wait_refused(self, name: str, said: str) -> None:
        """Wait until the policy says so: the API server's own copy of the KafkaBackup can be a moment behind."""
        wait_for(f"the refusal of {name}: {said}", lambda: said in self.refusal(name))

    def wait_allowed(self, name: str) -> None:
        """Wait until the policy lets the KafkaTopic be deleted."""
        wait_for(f"the right to delete {name}", lambda: self.refusal(name) == "")

    def names(self) -> set[str]:
        """Return the KafkaTopics that are there."""
        return set(self.namespace.kubectl("get", "kafkatopics", "-o", "name").stdout.split())

    def let_go(self, *names: str) -> None:
        """Take the finalizer away, as the Topic Operator does when it has deleted the topic in Kafka."""
        for name in names:
            nothing = '{"metadata":{"finalizers":[]}}'
            self.namespace.kubectl("patch", "kafkatopic", name, "--type=merge", "-p", nothing)

    def back_up(self, outcome: str = "Succeeded", **changes: Any) -> None:
        """End the first run, or ask for another one and end it."""
        known = {run["runId"] for run in self.namespace.status("kbak", "nightly").get("history", ())}
        if known:
            asked = {"metadata": {"annotations": {"logkeep.dev/run": str(time.time())}}}
            self.namespace.patch("kbak", "nightly", asked)

        def new() -> list[dict[str, Any]]:
            return [job for job in self.namespace.items("jobs") if run_id_of(job) not in known]

        job = wait_for("a Job", new)[0]
        self.namespace.write(job, result=result(run_id_of(job), outcome=outcome, **changes))
        self.namespace.job_ends(job, "Complete" if outcome == "Succeeded" else "Failed")
        self.namespace.phase("kbak", "nightly", outcome)


@pytest.fixture
def kafka(release: str, namespace: Namespace) -> Iterator[Kafka]:
    """The policy, as long as the test continues."""
    made = Kafka(namespace, release)
    policy = made.policy
    namespace.kubectl("apply", "-f", "-", stdin=policy)
    made.topic("probe")
    wait_for("the policy", lambda: made.refusal("probe"))
    yield made
    namespace.kubectl("delete", "-f", "-", stdin=policy)
    made.let_go(*(name.rpartition("/")[2] for name in made.names()))


def a_second_later() -> None:
    """Wait: the API server says in seconds when something was created."""
    begun = int(time.time())
    wait_for("the next second", lambda: int(time.time()) > begun)


def test_a_topic_may_be_deleted_once_a_run_has_archived_it(kafka: Kafka, operator: Operator) -> None:
    kafka.topic("orders-eu", topic_name="orders.eu")
    kafka.wait_refused("orders-eu", "no params found")
    a_second_later()
    assert kafka.namespace.apply("KafkaBackup", "nightly", backup_spec(topics=TOPICS)).returncode == 0
    not_ready = f"topic orders.eu would be deleted, and KafkaBackup {kafka.namespace.name}/nightly is not Ready"
    wait_for("the KafkaBackup", lambda: not_ready in kafka.refusal("orders-eu"))
    kafka.wait_refused("orders-eu", "give the KafkaTopic the label logkeep.dev/delete=unprotected")
    kafka.back_up()
    kafka.wait_allowed("orders-eu")
    kafka.topic("orders-late")
    operator.kill()
    late = "no successful run of KafkaBackup .* has begun since its KafkaTopic was created"
    assert re.search(late, kafka.refusal("orders-late"))
    kafka.wait_allowed("orders-eu")
    kafka.namespace.kubectl("delete", "kafkatopic", "orders-eu", "--wait=false")
    kafka.let_go("orders-eu")
    assert "orders-eu" not in " ".join(kafka.names())
    a_second_later()
    operator.start()
    kafka.back_up()
    kafka.wait_allowed("orders-late")


def test_what_the_last_run_has_not_archived_is_kept(kafka: Kafka, operator: Operator) -> None:
    for name in ("orders", "orders.tmp", "orders.secret", "payments"):
        kafka.topic(name)
    kafka.topic("offsets", topic_name="__consumer_offsets")
    a_second_later()
    assert kafka.namespace.apply("KafkaBackup", "nightly", backup_spec(topics=TOPICS)).returncode == 0
    unseen = TopicCoverage(protected=1, unreadable=1, topics_unreadable=("orders.secret",))
    kafka.back_up(coverage=unseen)
    kafka.wait_allowed("orders")
    for name in ("orders.tmp", "payments", "offsets"):
        kafka.wait_refused(name, "/nightly does not choose it")
    kafka.wait_refused("orders.secret", "could not see all topics (status.coverage)")
    kafka.back_up(coverage=TopicCoverage(protected=1, vanished=2, topics_vanished=("x",)))
    kafka.wait_refused("orders", "could not see all topics")
    kafka.back_up("Failed", exit_code=2, error_code="BrokerRefused", message="no")
    kafka.wait_refused("orders", "is not Ready (BrokerRefused)")
    kafka.back_up(coverage=TopicCoverage(protected=1))
    kafka.wait_allowed("orders")
    operator.kill()
    of_another = {"strimzi": {"name": "staging", "listener": "tls"}, "kafkaUserRef": {"name": "logkeep"}}
    spec = backup_spec(topics=TOPICS, cluster=of_another)
    assert kafka.namespace.apply("KafkaBackup", "nightly", spec).returncode == 0
    wait_for("the new spec", lambda: "archives another cluster" in kafka.refusal("orders"))
    spec = backup_spec(topics={"include": ["orders.*", "payments"]})
    assert kafka.namespace.apply("KafkaBackup", "nightly", spec).returncode == 0
    wait_for("the new spec", lambda: "is not Ready" in kafka.refusal("payments"))


def test_whoever_deletes_is_refused_until_a_label_lets_the_topic_go(kafka: Kafka) -> None:
    """Neither the controller that empties namespaces nor one that prunes has a way around it."""
    kafka.topic("elsewhere", cluster="staging")
    kafka.wait_allowed("elsewhere")
    kafka.topic("left-in-kafka", managed="false")
    kafka.wait_refused("left-in-kafka", "no params found")
    assert kafka.namespace.apply("KafkaBackup", "nightly", backup_spec(topics=TOPICS)).returncode == 0
    wait_for("the KafkaBackup", lambda: kafka.refusal("left-in-kafka") == "")
    kafka.topic("orders")
    controllers = [
        f"system:serviceaccount:kube-system:{name}" for name in ("namespace-controller", "generic-garbage-collector")
    ]
    for account in controllers:
        assert "is not Ready" in kafka.refusal("orders", f"--as={account}"), account
    place = f"/apis/{strimzi.version(kafka.release)}/namespaces/{kafka.namespace.name}/kafkatopics"
    selected = f"{place}?labelSelector=strimzi.io/cluster%3Dprod"
    emptied = kafka.namespace.kubectl("delete", "--raw", selected, f"--as={controllers[0]}", check=False)
    assert emptied.returncode != 0
    assert "is not Ready" in emptied.stderr
    assert {name.rpartition("/")[2] for name in kafka.names()} >= {"orders", "probe"}
    kafka.namespace.kubectl("delete", "kbak", "nightly")
    wait_for("the KafkaBackup to be gone", lambda: "no params found" in kafka.refusal("orders"))
    kafka.namespace.kubectl("label", "kafkatopic", "-l", "strimzi.io/cluster=prod", "logkeep.dev/delete=unprotected")
    kafka.wait_allowed("orders")
    kafka.namespace.kubectl("delete", "--raw", selected, f"--as={controllers[0]}")
    kafka.let_go("orders", "probe", "left-in-kafka")
    assert kafka.names() == {"kafkatopic.kafka.strimzi.io/elsewhere"}

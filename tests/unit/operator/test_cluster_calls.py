"""Single calls to an API that answers oddly: each ends, within its deadline, as an ApiError."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from kubernetes import client

from logkeep_operator.api import Key, Resource
from logkeep_operator.cluster import KubernetesCluster
from logkeep_operator.controller import Controller
from logkeep_operator.errors import ApiUnavailable
from logkeep_operator.metrics import Metrics
from logkeep_operator.reconcile import reconcile
from logkeep_operator.served_namespaces import RETRY_MAX_SECONDS, ServedNamespaces, retry_pause
from logkeep_operator.snapshot import ResourceSnapshot
from logkeep_operator.watches import watch
from tests.unit.operator.world import ENGINE, START, backup_spec

KEY = Key("KafkaBackup", "team", "nightly")


@contextmanager
def api(handler: type[BaseHTTPRequestHandler], call_seconds: float = 30.0) -> Iterator[KubernetesCluster]:
    """A cluster whose API answers as the handler does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{server.server_port}"
        try:
            yield KubernetesCluster(client.ApiClient(configuration), call_seconds)
        finally:
            server.shutdown()


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""

    def answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


KINDS_BY_PLURAL = {
    "configmaps": ("v1", "ConfigMap"),
    "events": ("v1", "Event"),
    "jobs": ("batch/v1", "Job"),
    "kafkaarchives": ("logkeep.dev/v1alpha1", "KafkaArchive"),
    "kafkabackupruns": ("logkeep.dev/v1alpha1", "KafkaBackupRun"),
    "kafkabackups": ("logkeep.dev/v1alpha1", "KafkaBackup"),
    "kafkarestores": ("logkeep.dev/v1alpha1", "KafkaRestore"),
    "pods": ("v1", "Pod"),
    "rolebindings": ("rbac.authorization.k8s.io/v1", "RoleBinding"),
}


def listed(path: str, *items: dict[str, Any], following: str = "") -> dict[str, Any]:
    """The answer to a GET of all objects at this path."""
    version, kind = KINDS_BY_PLURAL[path.partition("?")[0].rpartition("/")[2]]
    metadata = {"resourceVersion": "5", **({"continue": following} if following else {})}
    return {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": list(items)}


def item(name: str, **more: str) -> dict[str, Any]:
    """An object as lists have it, without its kind."""
    return {"metadata": {"name": name, "namespace": "team", **more}}


class Trickle(Quiet):
    """A byte now and then, and never the last."""

    ended = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        while not self.ended.wait(0.05):
            try:
                self.wfile.write(b" ")
            except OSError:
                return


def test_an_answer_that_trickles_ends_at_the_deadline() -> None:
    with api(Trickle, call_seconds=1.0) as cluster:
        begun = time.monotonic()
        try:
            with pytest.raises(ApiUnavailable, match="did not answer: TimeoutError"):
                cluster.resource(KEY)
        finally:
            Trickle.ended.set()
        assert time.monotonic() - begun < 30


class Odd(Quiet):
    """Answers with the next of these; then as a server of no objects does, whose watches end at once."""

    answers: ClassVar[list[tuple[int, bytes]]] = []
    requested: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        if "/kafkabackups" in self.path:
            self.requested.append(self.path)
            if self.answers:
                status, body = self.answers.pop(0)
                return self.answer(body, status)
        if "watch=true" in self.path:
            return self.answer(b"")
        return self.answer(json.dumps(listed(self.path)).encode())


@pytest.mark.parametrize("body", [b"<html>", b"[" * 100_000, b"[]", b"5", b""])
def test_an_answer_that_is_no_object_is_an_api_error(body: bytes) -> None:
    Odd.answers = [(200, body)]
    with api(Odd) as cluster, pytest.raises(ApiUnavailable, match="the Kubernetes API's answer is no"):
        cluster.resource(KEY)


def test_a_token_that_is_refused_now_may_be_taken_later() -> None:
    Odd.answers = [(401, b'{"reason": "Unauthorized"}')]
    with api(Odd) as cluster, pytest.raises(ApiUnavailable, match="401"):
        cluster.resource(KEY)


WATCHED = json.dumps({"type": "MODIFIED", "object": item("c", resourceVersion="9")}).encode() + b"\n"
GONE = b'{"type": "ERROR", "object": {"kind": "Status", "code": 410}}\n'
LIST = json.dumps(listed("/kafkabackups", item("b"))).encode()


def test_a_watch_outlives_every_odd_answer_and_continues_where_it_was() -> None:
    """A change; then a version that is gone, an error in the stream, no JSON in it, no list, and a version that is gone
    at once."""
    failed = b'{"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd"}}\n'
    Odd.answers = [(200, LIST), (200, WATCHED), (200, GONE), (200, LIST), (200, failed), (200, LIST)]
    Odd.answers += [(200, b"<html>\n"), (200, b"<html>"), (200, LIST), (410, b"{}"), (200, LIST)]
    Odd.requested = []
    lines: list[tuple[str, str]] = []
    missed: list[str | None] = []
    metrics = Metrics()

    def tell(kind: str, body: Mapping[str, Any], how: str) -> None:
        assert kind == "KafkaBackup"
        lines.append((body["metadata"]["name"], how))

    async def main(cluster: KubernetesCluster) -> None:
        task = asyncio.create_task(watch(cluster, ServedNamespaces(metrics), ["team"], tell, missed.append))
        end = time.monotonic() + 60
        while len(Odd.requested) < 12 or served(metrics) != 1:
            assert time.monotonic() < end, (lines, Odd.requested)
            assert not task.done()
            await asyncio.sleep(0.05)
        task.cancel()

    with api(Odd) as cluster:
        asyncio.run(main(cluster))
    assert lines == [("c", "MODIFIED")]
    begun = ["limit=1" in path for path in Odd.requested[:12]]
    assert begun == [True, False, False, True, False, True, False, True, True, False, True, False]
    from_versions = [path.partition("resourceVersion=")[2] for path in Odd.requested[1:3]]
    assert from_versions == ["5", "9"]
    assert set(missed) == {"team"}
    assert len(missed) == 5 + 6  # the watches of the six other kinds begin once


def served(metrics: Metrics, namespace: str = "team") -> float | None:
    return metrics.registry.get_sample_value("logkeep_namespace_served", {"namespace": namespace})


def test_a_namespace_is_served_when_nothing_in_it_is_lost() -> None:
    metrics = Metrics()
    reach = ServedNamespaces(metrics)
    reach.lost("team", "watch of Job", "403")
    reach.found("team", "list of resources")
    reach.found("other", "list of resources")
    assert (served(metrics), served(metrics, "other")) == (0, 1)
    reach.found("team", "watch of Job")
    assert served(metrics) == 1


def test_pauses_grow_to_a_limit() -> None:
    assert [retry_pause(failures) for failures in (1, 2, 3)] == [1.0, 2.0, 4.0]
    assert retry_pause(1000) == RETRY_MAX_SECONDS


class Strimzi(Quiet):
    """An API with a Kafka resource in one version, and one that may not be read."""

    version = "v1"
    requested: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.requested.append(self.path)
        if self.path == f"/apis/kafka.strimzi.io/{self.version}/namespaces/kafka/kafkas/prod":
            kafka = {"kind": "Kafka", "apiVersion": f"kafka.strimzi.io/{self.version}", "spec": {"kafka": {}}}
            return self.answer(json.dumps({**kafka, "metadata": {"name": "prod", "namespace": "kafka"}}).encode())
        if "/namespaces/closed/" in self.path:
            return self.answer(b'{"reason": "Forbidden", "message": "kafkas is forbidden"}', 403)
        if "/namespaces/team/kafkabackups/" in self.path:
            return self.answer(json.dumps({"metadata": METADATA, "spec": SPEC}).encode())
        if self.path.startswith("/apis/kafka.strimzi.io/"):
            return self.answer(b"404 page not found\n", 404)
        return self.answer(json.dumps(listed(self.path)).encode())


METADATA = {"name": "nightly", "namespace": "team", "uid": "u"}
SPEC = backup_spec(cluster={"strimzi": {"name": "prod", "namespace": "kafka", "listener": "plain"}})


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
def test_a_kafka_resource_is_found_in_the_version_that_strimzi_serves(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Strimzi, "version", version)
    with api(Strimzi) as cluster:
        found = cluster.strimzi_kafka("kafka", "prod")
        assert found is not None
        assert found["kind"] == "Kafka"
        assert cluster.strimzi_kafka("kafka", "other") is None


@pytest.mark.parametrize(
    ("namespace", "reason"), [("kafka", "KafkaListenerUnfit"), ("closed", "KafkaNotReadable"), ("x", "KafkaNotFound")]
)
def test_the_controller_asks_for_the_kafka_resource_that_a_spec_names(
    namespace: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Strimzi, "version", "v1")
    cluster = SPEC["cluster"] | {"strimzi": SPEC["cluster"]["strimzi"] | {"namespace": namespace}}
    resource = Resource.from_object("KafkaBackup", {"metadata": METADATA, "spec": SPEC | {"cluster": cluster}})
    with api(Strimzi) as there:
        controller = Controller(there, ENGINE, Metrics())
        plan = reconcile(controller.observe(resource, START), START, ENGINE)
        snapshot = ResourceSnapshot(there, "team", lambda _: True)
        if namespace != "closed":
            Strimzi.requested = []
            assert snapshot.strimzi_kafka(namespace, "prod") == snapshot.strimzi_kafka(namespace, "prod")
            assert len(Strimzi.requested) == len(set(Strimzi.requested)), "once for all resources"
    assert plan.status is not None
    ready = plan.status.condition("Ready")
    assert ready is not None
    assert ready.reason == reason
    assert plan.actions == ()

"""The plugin asks the API for names only, whatever a tenant's resource says: an administrator may run it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from logkeep_engine.cli.kubectl import app
from logkeep_engine.cli.kubectl.calls import Kubernetes
from logkeep_engine.cli.kubectl.errors import ApiFailed
from logkeep_engine.contract.objects import MAX_OBJECT_BYTES
from logkeep_engine.errors import SpecError
from tests.unit.contract.test_objects import TRAPS
from tests.unit.operator.fake_api import FakeApi
from tests.unit.operator.world import backup_spec

KUBE_SYSTEM = "../../kube-system/secrets/cloud-admin"
SECRET_OF_OTHERS = "/api/v1/namespaces/kube-system/secrets/cloud-admin"


def plugin(api: FakeApi, folder: Path, *arguments: str) -> Result:
    """The plugin as an administrator calls it for the namespace team-a."""
    cluster = {"name": "t", "cluster": {"server": api.address}}
    user = {"name": "admin", "user": {"token": "x"}}
    context = {"name": "t", "context": {"cluster": "t", "user": "admin", "namespace": "team-a"}}
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "t"}
    file = folder / "kubeconfig"
    file.write_text(json.dumps({**config, "clusters": [cluster], "users": [user], "contexts": [context]}))
    return CliRunner().invoke(app, [*arguments, "--kubeconfig", str(file)])


@contextmanager
def tenants_store() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The endpoint of a tenant's object store, and the headers that it was sent."""
    sent: list[dict[str, str]] = []

    class Store(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(dict(self.headers))
            self.send_response(403)
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()


@pytest.mark.parametrize("secret", [KUBE_SYSTEM, "..", "cloud-admin/../../../kube-system/secrets/cloud-admin"])
def test_inspect_reads_no_secret_of_another_namespace(secret: str, tmp_path: Path) -> None:
    reference = {"name": secret, "accessKeyIdKey": "user", "secretAccessKeyKey": "user", "sessionTokenKey": "password"}
    with FakeApi() as api, tenants_store() as (endpoint, sent):
        storage = {"uri": "s3://bucket/x", "endpoint": endpoint, "credentials": {"secretRef": reference}}
        api.put("KafkaBackup", "team-a", "bait", spec=backup_spec(storage=storage))
        api.instead[SECRET_OF_OTHERS] = b'{"kind": "Secret", "data": {"user": "cm9vdA==", "password": "cm9vdA=="}}'
        done = plugin(api, tmp_path, "inspect", "kbak/bait")
        assert done.exit_code == 2, done.output
        assert f"{secret!r} is not a name in Kubernetes" in done.output
        assert [path.partition("?")[0] for path in api.requested] == [
            "/apis/logkeep.dev/v1alpha1/namespaces/team-a/kafkabackups/bait"
        ]
        assert sent == []


def test_inspect_of_a_restore_follows_no_reference_out_of_the_namespace(tmp_path: Path) -> None:
    with FakeApi() as api:
        source = {"backupRef": {"name": "../../team-b/kafkabackups/nightly"}}
        api.put("KafkaRestore", "team-a", "bait", spec={"source": source, "cluster": {"bootstrapServers": ["k:9092"]}})
        api.put("KafkaBackup", "team-b", "nightly", spec=backup_spec())
        done = plugin(api, tmp_path, "inspect", "krst/bait")
        assert done.exit_code == 2, done.output
        assert "'../../team-b/kafkabackups/nightly' is not the name of a KafkaBackup, so no request" in done.output
        assert not any("team-b" in path for path in api.requested)


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "kbak/.."),
        ("inspect", "kbak/"),
        ("run", "nightly?x=1"),
        ("logs", "krst/.."),
        ("restore", "%2e%2e", "--bootstrap-server", "k:9092"),
        ("status", "x", "-n", "../../kube-system"),
    ],
)
def test_commands_take_names_only(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with FakeApi() as api:
        done = plugin(api, tmp_path, *arguments)
        assert done.exit_code == 2, done.output
        assert "is not the name of a " in done.output
        assert (api.requested, api.writes) == ([], [])


@pytest.mark.parametrize("name", TRAPS)
def test_what_is_not_a_name_is_not_asked_for(name: str) -> None:
    with FakeApi() as api:
        cluster = Kubernetes(api.client(), "team-a")
        for kind in ("Secret", "ConfigMap", "KafkaBackup"):
            with pytest.raises(SpecError, match=f"is not the name of a {kind}"):
                cluster.get(kind, name)
        with pytest.raises(SpecError, match="is not the name of a Pod"):
            list(cluster.log_lines(name, {}))
        with pytest.raises(SpecError, match="is not the name of a namespace"):
            Kubernetes(api.client(), name).items("Pod")
        assert api.requested == []


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "PodList", "apiVersion": "v1", "items": []},
        {"kind": "Secret", "apiVersion": "v1", "metadata": {"namespace": "kube-system", "name": "s3"}},
        {"kind": "Secret", "apiVersion": "v1", "metadata": {"namespace": "team-a", "name": "other"}},
    ],
)
def test_an_answer_about_something_else_is_not_used(other: dict[str, Any]) -> None:
    with FakeApi() as api:
        api.instead["/api/v1/namespaces/team-a/secrets/s3"] = json.dumps(other).encode()
        said = "answered about something else: asked for Secret team-a/s3 of v1; answered with "
        with pytest.raises(ApiFailed, match=said):
            Kubernetes(api.client(), "team-a").get("Secret", "s3")


def test_an_object_with_more_bytes_than_it_can_have_is_not_read() -> None:
    body = {"kind": "Secret", "apiVersion": "v1", "data": {"k": base64.b64encode(b"x" * MAX_OBJECT_BYTES).decode()}}
    with FakeApi() as api:
        api.instead["/api/v1/namespaces/team-a/secrets/s3"] = json.dumps(body).encode()
        with pytest.raises(ApiFailed, match="to GET /api/v1/namespaces/team-a/secrets/s3 has more than 16 MiB"):
            Kubernetes(api.client(), "team-a").get("Secret", "s3")


def test_a_page_that_is_too_long_is_asked_for_again_with_fewer_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some dozens of resources with long annotations kept `status -A` from everybody."""
    monkeypatch.setattr("logkeep_engine.cli.kubectl.calls._MAX_PAGE_BYTES", 1000)
    requested: list[str] = []
    with FakeApi() as api:
        cluster = Kubernetes(api.client(), "team-a")
        ask = cluster._ask

        def asks(method: str, path: str, query: dict[str, str], *more: Any, **how: Any) -> Any:
            requested.append(query["limit"])
            notes = {} if int(query["limit"]) < 100 else {"annotations": {"a": "x" * 1000}}
            api.put("KafkaBackup", "team-a", "nightly", metadata=notes)
            return ask(method, path, query, *more, **how)

        monkeypatch.setattr(cluster, "_ask", asks)
        assert [one["metadata"]["name"] for one in cluster.items("KafkaBackup")] == ["nightly"]
        assert requested == ["500", "250", "125", "63"]
        monkeypatch.setattr("logkeep_engine.cli.kubectl.calls._MAX_PAGE_BYTES", 10)
        with pytest.raises(ApiFailed, match="has more than 0 MiB"):
            cluster.items("KafkaBackup")

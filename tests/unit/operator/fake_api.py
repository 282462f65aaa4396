"""A Kubernetes API in memory, at network level: objects by path, and every write that was asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

import yaml
from kubernetes import client

from logkeep_engine.contract.names import PLURALS
from logkeep_engine.contract.objects import api_path
from logkeep_operator.api.fields import Fields, served_fields
from logkeep_operator.cluster import KubernetesCluster
from logkeep_operator.controller import Controller
from logkeep_operator.metrics import Metrics
from tests.unit.operator.test_cluster_calls import KINDS_BY_PLURAL, listed
from tests.unit.operator.world import ENGINE

OPENAPI = "/openapi/v3/apis/logkeep.dev/v1alpha1"
CRDS = Path(__file__).parents[3] / "crds"


@cache
def published() -> bytes:
    """The document that an API server publishes of our CRDs."""
    schemas: dict[str, Any] = {}
    for kind, plural in PLURALS.items():
        crd = yaml.load((CRDS / f"{plural}.yaml").read_text(), yaml.CSafeLoader)
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        named = {"group": "logkeep.dev", "kind": kind, "version": "v1alpha1"}
        schemas[f"dev.logkeep.v1alpha1.{kind}"] = {**schema, "x-kubernetes-group-version-kind": [named]}
    return json.dumps({"openapi": "3.0.0", "components": {"schemas": schemas}}).encode()


def our_fields() -> dict[str, Fields]:
    """The fields of our CRDs, for clusters that are no `FakeApi`."""
    return served_fields(json.loads(published()))


class Write(NamedTuple):
    """A request that is no GET."""

    verb: str
    path: str
    body: dict[str, Any]


class FakeApi:
    """Objects are kept as given and as they are made; a path that is not known has none. `requested` are the paths of
    all GETs, as they arrive."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.writes: list[Write] = []
        self.requested: list[str] = []
        self.instead: dict[str, bytes] = {OPENAPI: published()}  # answers to GETs, by path
        self.refused: dict[str, tuple[int, dict[str, Any]]] = {}  # answers to PATCHes, by path
        self.comes_back: dict[str, Callable[[], object]] = {}  # what makes an object just before it is created, by path
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def client(self) -> client.ApiClient:
        configuration = client.Configuration()
        configuration.host = self.address
        return client.ApiClient(configuration)

    def cluster(self) -> KubernetesCluster:
        return KubernetesCluster(self.client())

    def controller(self) -> Controller:
        return Controller(self.cluster(), ENGINE, Metrics())

    def put(self, kind: str, namespace: str, name: str, **parts: Any) -> dict[str, Any]:
        """An object is there. `parts` are its top fields; those of `metadata` are added to name and uid."""
        path = api_path(kind, namespace, name)
        version, _ = KINDS_BY_PLURAL[path.split("/")[-2]]
        own: dict[str, Any] = {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"}
        own |= {"generation": 1, "resourceVersion": "1"}
        metadata = {**own, "creationTimestamp": "2026-11-01T00:00:00Z", **parts.pop("metadata", {})}
        body = {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}
        self.objects[path] = body
        return body

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        return self.objects[api_path(kind, namespace, name)]

    def names(self, kind: str, namespace: str) -> list[str]:
        """The names of all objects of a kind."""
        folder = api_path(kind, namespace)
        return [path.rpartition("/")[2] for path in self.objects if path.rpartition("/")[0] == folder]

    def written(self, namespace: str) -> list[Write]:
        """The writes into a namespace, events left out."""
        return [w for w in self.writes if f"/namespaces/{namespace}/" in w.path and "/events" not in w.path]

    def items(self, path: str, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        """The objects at the path of a collection, of those that the selector chooses."""
        wanted = dict(pair.split("=", 1) for pair in query.get("labelSelector", [""])[0].split(",") if pair)
        scope = path.replace("/namespaces/", "\0").partition("\0")
        found = [body for key, body in self.objects.items() if key.rpartition("/")[0] == path]
        if not scope[1]:  # of the whole cluster
            base, _, plural = path.rpartition("/")
            found = [b for key, b in self.objects.items() if key.startswith(base) and key.split("/")[-2] == plural]
        return [body for body in found if wanted.items() <= (body["metadata"].get("labels") or {}).items()]


def _handler(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *_: object) -> None:
            pass

        def reply(self, code: int, body: dict[str, Any] | bytes) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            api.requested.append(self.path)
            where = urlsplit(self.path)
            if where.path in api.instead:
                return self.reply(200, api.instead[where.path])
            if where.path.rpartition("/")[2] in KINDS_BY_PLURAL:
                return self.reply(200, listed(where.path, *api.items(where.path, parse_qs(where.query))))
            if where.path in api.objects:
                return self.reply(200, api.objects[where.path])
            return self.reply(404, {"reason": "NotFound", "details": {"name": "it"}, "message": "there is none"})

        def taken(self, verb: str) -> tuple[str, dict[str, Any]]:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            if isinstance(body, list):  # a patch of operations
                body = {change["path"].removeprefix("/"): change["value"] for change in body}
            path = urlsplit(self.path).path
            api.writes.append(Write(verb, path, body))
            return path, body

        def do_POST(self) -> None:
            path, body = self.taken("POST")
            key = f"{path}/{body['metadata']['name']}"
            body["metadata"].setdefault("uid", f"uid-{body['metadata']['name']}")
            if key in api.comes_back:
                api.comes_back[key]()
            if key in api.objects:
                api.writes.pop()
                return self.reply(409, {"reason": "AlreadyExists", "message": "it already exists"})
            api.objects[key] = body
            return self.reply(201, body)

        def do_PATCH(self) -> None:
            path, body = self.taken("PATCH")
            if path.endswith("/status"):
                api.objects[path.removesuffix("/status")]["status"] = body["status"]
            self.reply(*api.refused.get(path, (200, body)))

        def do_DELETE(self) -> None:
            path, _ = self.taken("DELETE")
            api.objects.pop(path, None)
            self.reply(200, {"kind": "Status"})

    return Handler

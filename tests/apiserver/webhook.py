"""A validating admission webhook that refuses Jobs with another text each time."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster.apiserver import ApiServer
from tests.cluster.pki import Authority

NAME = "no-jobs.logkeep.test"


class RefusesJobs:
    """For the Jobs of one namespace. `posts` are the times of the refusals."""

    def __init__(self, api: ApiServer, namespace: str, folder: Path) -> None:
        self._api = api
        self._namespace = namespace
        self._authority = Authority(folder)
        certificate = self._authority.issue("webhook", "/CN=webhook", "IP:127.0.0.1")
        self.posts: list[float] = []
        posts = self.posts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                posts.append(time.monotonic())
                refusal = {"message": f"refused for the {len(posts)}. time", "code": 403}
                answer = {"uid": review["request"]["uid"], "allowed": False, "status": refusal}
                body = json.dumps({**review, "request": None, "response": answer}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.cert, certificate.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._api.kubectl("apply", "-f", "-", stdin=json.dumps(self._configuration()))
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._api.kubectl("delete", "validatingwebhookconfiguration", NAME)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _configuration(self) -> dict[str, Any]:
        bundle = base64.b64encode(self._authority.cert.read_bytes()).decode()
        rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
        hook = {
            "name": NAME,
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            "clientConfig": {"url": f"https://127.0.0.1:{self._server.server_port}/", "caBundle": bundle},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
        }
        kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
        return {**kind, "metadata": {"name": NAME}, "webhooks": [hook]}

"""An admission webhook that a test answers itself."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster.apiserver import ApiServer
from tests.cluster.kube_api import Document
from tests.cluster.node import Node
from tests.cluster.pki import Authority

_NEW_NET = 0x40000000  # CLONE_NEWNET


class Webhook:
    """`answer` makes an AdmissionResponse, without its uid, of an AdmissionRequest.

    It is asked about the objects that are created in the namespaces. `group` and `resource` name their kind, `does` is
    `Validating` or `Mutating`. It listens on loopback, with `netns` on that of the network namespace.
    """

    def __init__(
        self,
        api: ApiServer | Node,
        does: str,
        asked: tuple[str, str],
        namespaces: Sequence[str],
        answer: Callable[[Document], Document],
        folder: Path,
        netns: str | None = None,
    ) -> None:
        self._api = api
        self._kind = f"{does}WebhookConfiguration"
        self._group, self._resource = asked
        self._name = f"{self._resource}.logkeep.test"
        self._namespaces = list(namespaces)
        self._authority = Authority(folder)
        with ThreadPoolExecutor(1) as thread:  # only this thread enters the network namespace; the socket stays there
            self._server = thread.submit(_listen, netns, _handler(answer)).result()
        certificate = self._authority.issue("webhook", "/CN=webhook", "IP:127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.cert, certificate.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._api.kubectl("apply", "-f", "-", stdin=json.dumps(self._configuration()))
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._api.kubectl("delete", self._kind.lower(), self._name)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _configuration(self) -> dict[str, Any]:
        bundle = base64.b64encode(self._authority.cert.read_bytes()).decode()
        what = {"apiGroups": [self._group], "apiVersions": ["v1"], "resources": [self._resource]}
        names = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": self._namespaces}
        hook = {
            "name": self._name,
            "rules": [{**what, "operations": ["CREATE"]}],
            "namespaceSelector": {"matchExpressions": [names]},
            "clientConfig": {"url": f"https://127.0.0.1:{self._server.server_port}/", "caBundle": bundle},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
        }
        kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": self._kind}
        return {**kind, "metadata": {"name": self._name}, "webhooks": [hook]}


def _handler(answer: Callable[[Document], Document]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            response = {"uid": review["request"]["uid"], **answer(review["request"])}
            body = json.dumps({**review, "request": None, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


def _listen(netns: str | None, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    if netns:
        with Path(f"/run/netns/{netns}").open() as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _NEW_NET):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return ThreadingHTTPServer(("127.0.0.1", 0), handler)

"""`kubectl logkeep` as a user calls it, and users with few rights."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from logkeep_engine.cli.kubectl import app
from tests.apiserver.operator import Namespace
from tests.cluster.pki import Authority

Rights = Sequence[tuple[str, str, Sequence[str]]]  # group, resource, verbs


class Plugin:
    """The plugin for one namespace, as the user of a kubeconfig."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._where = ["--kubeconfig", str(kubeconfig), "--namespace", namespace]

    def __call__(self, command: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, [command, *arguments, *self._where])

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        """The command as a process of its own, which continues while the test plays the cluster."""
        code = "from logkeep_engine.cli.kubectl import main; main()"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            [sys.executable, "-c", code, command, *arguments, *self._where],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def json(self, command: str, *arguments: str) -> Any:
        """The JSON that the command prints. It must succeed."""
        done = self(command, *arguments, "-o", "json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)


def administrator(namespace: Namespace) -> Plugin:
    """The plugin as the cluster's administrator."""
    return Plugin(namespace.api.kubeconfig, namespace.name)


def user(namespace: Namespace, folder: Path, rights: Rights, name: str = "somebody") -> Plugin:
    """The plugin as a user who has these rights in the namespace, and no others."""
    return Plugin(account(namespace, folder, rights, name), namespace.name)


def account(namespace: Namespace, folder: Path, rights: Rights, name: str = "somebody") -> Path:
    """The kubeconfig of a ServiceAccount with these rights in its namespace."""
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": list(verbs)} for group, resource, verbs in rights]
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace.name}
    bodies: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules},
        {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": {"name": name}, "subjects": [subject],
         "roleRef": {"apiGroup": group, "kind": "Role", "name": name}},
    ]  # fmt: skip
    items = {"apiVersion": "v1", "kind": "List", "items": bodies}
    namespace.kubectl("apply", "-f", "-", stdin=json.dumps(items))
    token = namespace.kubectl("create", "token", name, "--duration=1h").stdout.strip()
    config = json.loads(namespace.api.kubeconfig.read_text())
    config["users"] = [{"name": name, "user": {"token": token}}]
    config["contexts"] = [{"name": "test", "context": {"cluster": "test", "user": name}}]
    path = folder / f"{name}.kubeconfig"
    path.write_text(json.dumps(config))
    return path


@contextmanager
def kubelet(folder: Path, logs: dict[str, str]) -> Iterator[int]:
    """A kubelet on loopback that has these logs by the path that the API server asks for; its port."""
    certificate = Authority(folder / "kubelet").issue("kubelet", "/CN=kubelet", "IP:127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            lines = logs[path].splitlines(keepends=True)
            tail = next((int(item[10:]) for item in query.split("&") if item.startswith("tailLines=")), len(lines))
            text = "".join(lines[len(lines) - tail :]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

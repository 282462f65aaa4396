"""Kubernetes' control plane: etcd and kube-apiserver, and the `kubectl` that talks to it.

`ApiServer` is the small form for tests of the operator: no kubelet, so a test plays the status of Jobs and pods by
hand. `Node` (in `node.py`) puts the same `ControlPlane` into a network namespace and adds what runs pods.
"""

import base64
import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster import system, tools
from tests.cluster.kube_api import KubeApi
from tests.cluster.pki import Authority, Certificate
from tests.cluster.process import Process
from tests.cluster.state import State


class ControlPlane:
    """etcd and kube-apiserver in a state folder, on free ports of `host`, inside `netns` if given."""

    def __init__(
        self, state: State, host: str = "127.0.0.1", netns: str | None = None, services: str = "10.96.0.0/24"
    ) -> None:
        self.state = state
        self.host = host
        self.netns = netns
        self.services = services
        self.authority = Authority(state.path / "pki")
        self.admin = self.authority.issue("admin", "/O=system:masters/CN=admin")
        self.service_accounts = self.authority.issue("service-accounts", "/CN=service-accounts")
        self.port, client, peer = system.free_ports(3, host, netns)
        self.url = f"https://{host}:{self.port}"
        self.kubeconfig = self.write_kubeconfig("admin", self.admin)
        self.processes: list[Process] = []
        self.audited_group = ""
        self._etcd, self._peer = f"http://{host}:{client}", f"http://{host}:{peer}"

    def start(self) -> None:
        """Start both; returns when the API server is ready, its default roles and namespaces in place."""
        data, server = self.state.path / "etcd", self._certificate()
        self.run(
            "etcd",
            [
                f"--data-dir={data}",
                f"--listen-client-urls={self._etcd}",
                f"--advertise-client-urls={self._etcd}",
                f"--listen-peer-urls={self._peer}",
                f"--initial-advertise-peer-urls={self._peer}",
                f"--initial-cluster=default={self._peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )
        apiserver = self.run(
            "kube-apiserver",
            [
                f"--etcd-servers={self._etcd}",
                f"--secure-port={self.port}",
                f"--bind-address={self.host if self.netns else '::'}",  # on loopback of both families
                f"--tls-cert-file={server.cert}",
                f"--tls-private-key-file={server.key}",
                f"--client-ca-file={self.authority.cert}",
                "--authorization-mode=Node,RBAC",
                "--allow-privileged",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-cluster-ip-range={self.services}",
                f"--service-account-key-file={self.service_accounts.cert}",
                f"--service-account-signing-key-file={self.service_accounts.key}",
                f"--kubelet-client-certificate={self.admin.cert}",
                f"--kubelet-client-key={self.admin.key}",
                "--kubelet-preferred-address-types=InternalIP",
                *self.apiserver_flags(),
            ],
        )
        apiserver.wait_ready(self._ready, timeout=240)

    def apiserver_flags(self) -> list[str]:
        """Flags beyond the common ones."""
        if self.netns:
            return [f"--advertise-address={self.host}"]
        # Nothing here makes the service accounts that pods would need, and loopback is no address for an endpoint.
        flags = ["--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none"]
        return flags + (self._audit_flags() if self.audited_group else [])

    @property
    def audit_log(self) -> Path:
        """A line of JSON for each call of the audited group, and one more when a watch begins."""
        return self.state.path / "audit.log"

    def _audit_flags(self) -> list[str]:
        policy = self.state.path / "audit-policy.yaml"
        rules = [{"level": "Metadata", "userGroups": [self.audited_group]}, {"level": "None"}]
        kind = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy"}
        policy.write_text(json.dumps({**kind, "omitStages": ["RequestReceived"], "rules": rules}))
        return [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]

    def run(self, part: str, arguments: list[str]) -> Process:
        """Start a part of the Kubernetes binary beside this control plane."""
        process = Process(self.state, part, [tools.kube() / part, *arguments], netns=self.netns)
        process.start()
        self.processes.append(process)
        return process

    def write_kubeconfig(self, user: str, certificate: Certificate) -> Path:
        """A kubeconfig file that needs no other file."""
        path = self.state.path / f"{user}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority-data": _inline(self.authority.cert)}
        login = {"client-certificate-data": _inline(certificate.cert), "client-key-data": _inline(certificate.key)}
        config: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": login}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user, "namespace": "default"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config, indent=1))
        return path

    def kubectl(
        self, *arguments: str | Path, check: bool = True, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the cluster's administrator."""
        return system.run([tools.kubectl(), f"--kubeconfig={self.kubeconfig}", *arguments], check=check, stdin=stdin)

    def _certificate(self) -> Certificate:
        first = self.services.rpartition(".")[0] + ".1"
        names = ",".join(
            f"DNS:{name}" for name in ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        )
        return self.authority.issue(
            "apiserver", "/CN=kube-apiserver", f"{names},IP:127.0.0.1,IP:::1,IP:{self.host},IP:{first}"
        )

    def _ready(self) -> bool:
        trust = ssl.create_default_context(cafile=str(self.authority.cert))
        trust.load_cert_chain(self.admin.cert, self.admin.key)
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", context=trust, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


class ApiServer:
    """A real Kubernetes API on loopback. `kubeconfig` is its administrator's; `kubectl` runs as the same.

    No controllers run but those that are named: nothing deletes owned objects, finishes the deletion of namespaces or
    makes pods. `audited_group` is the group of users whose calls are written to `audit_log`.
    """

    def __init__(self, controllers: Sequence[str] = (), audited_group: str = "") -> None:
        self._controllers = controllers
        self._audited_group = audited_group

    def __enter__(self) -> Self:
        self._state = State.create("apiserver")
        try:
            self._control = ControlPlane(self._state)
            self._control.audited_group = self._audited_group
            self._control.start()
            if self._controllers:
                self._start_controllers()
        except BaseException:
            self._state.destroy(grace=0)
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for process in self._control.processes:
            process.kill()
        self._state.destroy(grace=0)

    def _start_controllers(self) -> None:
        flags = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0"]
        self._control.run("kube-controller-manager", [*flags, f"--controllers={','.join(self._controllers)}"])

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig file."""
        return self._control.kubeconfig

    @cached_property
    def connection(self) -> KubeApi:
        """A connection as the administrator, for a test that asks often."""
        return KubeApi(self.kubeconfig)

    @property
    def audit_log(self) -> Path:
        """The calls of the audited group."""
        return self._control.audit_log

    @property
    def url(self) -> str:
        """The API's address."""
        return self._control.url

    def kubectl(
        self, *arguments: str | Path, check: bool = True, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the cluster's administrator."""
        return self._control.kubectl(*arguments, check=check, stdin=stdin)

    def collect_logs(self, folder: Path) -> None:
        """Copy what explains a failure."""
        for process in self._control.processes:
            (folder / f"apiserver-{process.name}.log").write_text(process.output)

"""CRDs, and the operator with exactly the permissions that the chart gives it."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from logkeep_engine.contract.names import PLURALS
from tests.apiserver.operator import ROOT, Namespace, Operator, wait_for
from tests.cluster import system, tools
from tests.cluster.apiserver import ApiServer

SYSTEM = "logkeep-system"
OPERATOR_GROUP = f"system:serviceaccounts:{SYSTEM}"


def chart(*arguments: str) -> str:
    """The chart rendered for the release `logkeep` in the namespace SYSTEM."""
    command = [str(tools.helm()), "template", "logkeep", str(ROOT / "charts/logkeep"), "--namespace", SYSTEM]
    return system.run([*command, "--kube-version", "1.34.0", *arguments]).stdout


@pytest.fixture(scope="session")
def api(apiserver: ApiServer) -> ApiServer:
    """The API server with the CRDs."""
    return install_crds(apiserver)


def install_crds(apiserver: ApiServer) -> ApiServer:
    """Until they are served."""
    apiserver.kubectl("apply", "--server-side", "-f", ROOT / "crds")
    # `kubectl wait` fails on a CRD that has no conditions yet.
    established = (
        *("wait", "--for=condition=Established", "--timeout=60s"),
        *("crd", *(f"{plural}.logkeep.dev" for plural in PLURALS.values())),
    )
    wait_for("the CRDs", lambda: apiserver.kubectl(*established, check=False).returncode == 0, 240)
    return apiserver


@pytest.fixture(scope="session")
def operator_kubeconfig(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubeconfig of the operator's ServiceAccount with the chart's cluster-wide permissions."""
    return install_operator_account(api, tmp_path_factory.mktemp("kubeconfig") / "operator")


def install_operator_account(api: ApiServer, path: Path) -> Path:
    """The ServiceAccount with the chart's cluster-wide permissions; its kubeconfig."""
    api.kubectl("create", "namespace", SYSTEM)
    apply_permissions(api)
    return service_account_kubeconfig(api, "logkeep", path)


def apply_permissions(api: ApiServer) -> None:
    """The chart's cluster-wide permissions, also after another installation in SYSTEM has taken over the Lease's."""
    api.kubectl("apply", "-f", "-", stdin=chart("--show-only", "templates/rbac.yaml"))


def service_account_kubeconfig(api: ApiServer, account: str, path: Path, namespace: str = SYSTEM, *bound: str) -> Path:
    """A kubeconfig with a token of a ServiceAccount. `bound`: flags that bind it to an object."""
    token = api.kubectl("-n", namespace, "create", "token", account, "--duration=1h", *bound).stdout.strip()
    config = json.loads(api.kubeconfig.read_text())
    config["users"] = [{"name": "operator", "user": {"token": token}}]
    config["contexts"] = [{"name": "test", "context": {"cluster": "test", "user": "operator"}}]
    path.write_text(json.dumps(config))
    return path


def pod_account(api: ApiServer, account: str, folder: Path, namespace: str, *bound: str) -> dict[str, str]:
    """Put into the folder what the kubelet puts into the pods of a ServiceAccount. Returns the pod's environment.
    `bound`: flags that bind the token to an object."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(api.kubectl("-n", namespace, "create", "token", account, *bound).stdout)
    cluster = json.loads(api.kubeconfig.read_text())["clusters"][0]["cluster"]
    (folder / "ca.crt").write_bytes(b64decode(cluster["certificate-authority-data"]))
    address = urlsplit(api.url)
    return {"KUBERNETES_SERVICE_HOST": str(address.hostname), "KUBERNETES_SERVICE_PORT": str(address.port)}


@pytest.fixture
def namespace(api: ApiServer, unique: str) -> Namespace:
    """A namespace of this test's own."""
    return Namespace(api, unique)


@pytest.fixture
def operator(namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path) -> Iterator[Operator]:
    """The operator, serving this test's namespace."""
    with Operator(operator_kubeconfig, namespace.name, tmp_path / "operator.log") as running:
        yield running


@pytest.fixture(scope="module")
def controlled(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    """An API server with the controllers that the module names in CONTROLLERS, the CRDs, and a log of the operator's
    calls."""
    with ApiServer(request.module.CONTROLLERS, OPERATOR_GROUP) as server:
        yield install_crds(server)


@pytest.fixture(scope="module")
def account(controlled: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operator's kubeconfig for that API server."""
    return install_operator_account(controlled, tmp_path_factory.mktemp("kubeconfig") / "operator")


@pytest.fixture
def place(controlled: ApiServer, unique: str) -> Namespace:
    """A namespace of this test's own there."""
    return Namespace(controlled, unique)

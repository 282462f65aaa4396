"""A Kubernetes API asked over one connection: a test polls often, and each kubectl is a process of 0.1 CPU seconds."""

import json
import ssl
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import urllib3
import yaml

Document = dict[str, Any]
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
_NAMESPACES = "/api/v1/namespaces"
_BUSY = urllib3.Retry(6, backoff_factor=0.5, status_forcelist=(429, 500, 503, 504), raise_on_status=False)


class KubeApi:
    """The API that a kubeconfig names, asked as its user. The kubeconfig holds all certificates itself."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority, *login = (
            b64decode(text).decode()
            for text in (
                cluster["certificate-authority-data"],
                user["client-certificate-data"],
                user["client-key-data"],
            )
        )
        context = ssl.create_default_context(cadata=authority)
        with NamedTemporaryFile("w", suffix=".pem") as both:  # Python reads client certificates from files only
            both.write("".join(login))
            both.flush()
            context.load_cert_chain(both.name)
        self._url = cluster["server"]
        self._pool = urllib3.PoolManager(ssl_context=context)

    def get(self, path: str) -> Document | None:
        """The object or list at a path such as `/api/v1/namespaces/a/pods`; None if there is none."""
        return self._ask("GET", path, missing=True)

    def items(self, path: str) -> list[Document]:
        """The items of a list."""
        return list((self.get(path) or {}).get("items", []))

    def create(self, path: str, document: Document) -> Document:
        """Make an object in the list at the path."""
        return self._ask("POST", path, document) or {}

    def create_namespace(self, name: str) -> None:
        """Make a namespace."""
        self.create(_NAMESPACES, {"metadata": {"name": name}})

    def delete_namespace(self, name: str) -> None:
        """Begin the deletion of a namespace and of all that is in it."""
        self.delete(f"{_NAMESPACES}/{name}")

    def patch(self, path: str, changes: Document) -> Document:
        """Merge into the object at the path, which may be a subresource."""
        return self._ask("PATCH", path, changes, MERGE) or {}

    def delete(self, path: str) -> None:
        """Delete the object at the path; there may be none. Finalizers may keep it for a while."""
        self._ask("DELETE", path, missing=True)

    def apply(self, path: str, document: Document, manager: str) -> str:
        """Apply an object as kubectl does with --server-side. Returns why the API refuses it, "" if it does not."""
        asked = f"{path}?fieldManager={manager}&fieldValidation=Strict"
        answer = self._request("PATCH", asked, document, APPLY)
        return "" if answer.status in (200, 201) else str(json.loads(answer.data)["message"])

    def _ask(
        self,
        method: str,
        path: str,
        body: Document | None = None,
        content: str = "application/json",
        *,
        missing: bool = False,
    ) -> Document | None:
        answer = self._request(method, path, body, content)
        if answer.status == 404 and missing:
            return None
        if answer.status not in (200, 201, 202):
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.data.decode()[:500]}")
        found: Document = json.loads(answer.data)
        return found

    def _request(self, method: str, path: str, body: Document | None, content: str) -> urllib3.BaseHTTPResponse:
        raw = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": content}
        return self._pool.request(method, self._url + path, raw, headers=headers, timeout=30.0, retries=_BUSY)


_CORE = ("configmaps", "events", "namespaces", "pods", "secrets", "serviceaccounts")
_GROUPS = {
    "jobs": "/apis/batch/v1",
    "kafkaarchives": "/apis/logkeep.dev/v1alpha1",
    "kafkabackupruns": "/apis/logkeep.dev/v1alpha1",
    "kafkabackups": "/apis/logkeep.dev/v1alpha1",
    "kafkarestores": "/apis/logkeep.dev/v1alpha1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
}
_SHORT = {
    "kbak": "kafkabackups",
    "kbrun": "kafkabackupruns",
    "krst": "kafkarestores",
    "karc": "kafkaarchives",
    "cm": "configmaps",
}


def path_of(namespace: str, kind: str, *name: str) -> str:
    """The path of objects of a kind, by its names as kubectl takes them, or of the object (and subresource) named."""
    plural = _SHORT.get(kind, kind if kind.endswith("s") else f"{kind}s")
    known: Sequence[str] = (*_CORE, *_GROUPS)
    if plural not in known:
        raise LookupError(f"{kind} is none of {', '.join(known)}: name it in {__name__}")
    return "/".join((_GROUPS.get(plural, "/api/v1"), "namespaces", namespace, plural, *name))

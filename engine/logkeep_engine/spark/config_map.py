"""The ConfigMap of a run, which the operator has made and the driver writes its progress and its result to.

The driver makes one call of Kubernetes' API, so it goes without Kubernetes' client: importing that takes as much
computing as all that a driver imports of ours.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logkeep_engine.contract.names import KEY_PROGRESS, KEY_RESULT
from logkeep_engine.contract.objects import api_path
from logkeep_engine.contract.run import Progress, RunResult
from logkeep_engine.contract.values import host_port
from logkeep_engine.report import ConfigMapChanges

if TYPE_CHECKING:
    import urllib3

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder in a pod with the token of its account and the certificate of the API."""


class ConfigMaps:
    """The ConfigMaps of a cluster, changed with the account of this pod. `account` is the folder with its files."""

    def __init__(self, environ: Mapping[str, str] = os.environ, account: Path | None = None) -> None:
        host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
        account = ACCOUNT if account is None else account
        self._url = f"https://{host_port(host, port)}"
        self._token = account / "token"
        self._pool = _pool(self._url, account / "ca.crt")

    def patch(self, name: str, namespace: str, body: Mapping[str, Any], timeout: float) -> None:
        """Merge `body` into a ConfigMap. Raises ApiException unless the answer is a success, and NotAName."""
        from urllib3 import Timeout

        answer = self._pool.request(
            "PATCH",
            self._url + api_path("ConfigMap", namespace, name),
            body=json.dumps(body),
            headers={
                "Accept": "application/json",
                "Content-Type": "application/merge-patch+json",
                "Authorization": f"Bearer {self._token.read_text().strip()}",  # the kubelet renews it
            },
            timeout=Timeout(total=timeout),
        )
        if not 200 <= answer.status < 300:
            from kubernetes.client.exceptions import ApiException  # only what has failed takes the time for it

            ApiException.from_response(http_resp=answer, body=answer.data.decode(errors="replace"), data=None)


def _pool(url: str, authority: Path) -> urllib3.PoolManager:
    """Connections to the API, through the proxy that the environment names, as those of Kubernetes' client."""
    from urllib.request import getproxies

    import urllib3

    proxies = getproxies()
    proxy = proxies.get("https") or proxies.get("all")
    if proxy:
        from kubernetes.client.rest import should_bypass_proxies

        if not should_bypass_proxies(url, proxies.get("no") or ""):
            return urllib3.ProxyManager(proxy, cert_reqs="CERT_REQUIRED", ca_certs=str(authority))
    return urllib3.PoolManager(cert_reqs="CERT_REQUIRED", ca_certs=str(authority))


class ConfigMapSink:
    """Patches the keys `progress.json` and `result.json` of a ConfigMap that the operator has made.

    The pod's account is used. Its client is made on first use, in the reporter's thread, while the run starts.
    """

    def __init__(self, name: str, namespace: str, *, api: ConfigMaps | None = None, timeout: float = 5.0) -> None:
        self.name = name
        self.namespace = namespace
        self._api = api
        self._timeout = timeout
        self._lock = threading.Lock()

    def progress(self, progress: Progress) -> None:
        self._patch(KEY_PROGRESS, progress.to_json())

    def result(self, result: RunResult) -> None:
        self._patch(KEY_RESULT, result.to_json())

    def emit(self, name: str, changes: ConfigMapChanges) -> None:
        """Merge into another ConfigMap of the namespace."""
        self._merge(name, changes)

    def _patch(self, key: str, text: str) -> None:
        self._merge(self.name, {"data": {key: text}})

    def _merge(self, name: str, changes: ConfigMapChanges) -> None:
        with self._lock:
            if self._api is None:
                self._api = ConfigMaps()
            self._api.patch(name, self.namespace, changes, self._timeout)

"""The calls of the plugin to the Kubernetes API, with the credentials of the user's kubeconfig. JSON in and out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from logkeep_engine.cli.kubectl.errors import ApiFailed, ClusterUnreachable, NoSuchResource, api_error
from logkeep_engine.contract.nesting import loads_cut
from logkeep_engine.contract.objects import (
    MAX_OBJECT_BYTES,
    NotAName,
    OtherObject,
    api_path,
    check_item,
    check_list,
    check_object,
    plural,
)
from logkeep_engine.errors import SpecError

if TYPE_CHECKING:
    import urllib3
    from kubernetes.client import ApiClient

_CONNECT_SECONDS = 10.0
_READ_SECONDS = 30.0
_PAGE = 500
_MAX_PAGE_BYTES = 64 << 20
_MAX_LINE_BYTES = 1 << 20
_NO_KUBECONFIG = "Set KUBECONFIG or --kubeconfig, and try kubectl with the same settings."


class _TooLong(ApiFailed):
    """An answer has more bytes than are read at once."""


def connect(kubeconfig: str | None, context: str | None, namespace: str | None) -> Kubernetes:
    """Return the cluster of the kubeconfig, or in a pod without one that of the pod. Raises ClusterUnreachable."""
    import urllib3
    import yaml
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    configuration = client.Configuration()
    try:
        config.load_kube_config(kubeconfig, context, client_configuration=configuration)  # type: ignore[no-untyped-call]
        found = _namespace_of(kubeconfig, context)
    except (ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError) as error:
        if kubeconfig is not None or context is not None or not _in_pod(configuration):
            where = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
            raise ClusterUnreachable(f"The kubeconfig {where}: {_first_line(error)}", hint=_NO_KUBECONFIG) from error
        found = _namespace_of_pod()
    configuration.retries = urllib3.Retry(total=0)
    return Kubernetes(client.ApiClient(configuration), namespace or found)


def _namespace_of(kubeconfig: str | None, context: str | None) -> str:
    from kubernetes import config

    contexts, current = config.list_kube_config_contexts(kubeconfig)  # type: ignore[no-untyped-call]
    chosen = current if context is None else next(one for one in contexts if one["name"] == context)
    return str((chosen.get("context") or {}).get("namespace") or "default")


def _in_pod(configuration: Any) -> bool:
    from kubernetes import config
    from kubernetes.config.config_exception import ConfigException

    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except ConfigException:
        return False
    return True


def _namespace_of_pod() -> str:
    with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8") as file:
        return file.read().strip()


class Kubernetes:
    """A Kubernetes API, asked as the user. Every method raises ClusterUnreachable, LoginRefused, RightMissing,
    KindNotServed, RequestRefused or ApiFailed, and SpecError for a name that is none."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    def in_namespace(self, namespace: str) -> Kubernetes:
        """Return the same API, asked about another namespace."""
        return Kubernetes(self._api, namespace)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return the object. Raises NoSuchResource, too."""
        body = self._json("GET", kind, name)
        with self._compared():
            check_object(body, kind, self.namespace, name)
        return body

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return the object, None if there is none."""
        try:
            return self.get(kind, name)
        except NoSuchResource:
            return None

    def items(self, kind: str, *, everywhere: bool = False, labels: Mapping[str, str] | None = None) -> list[Any]:
        """Return the objects of a kind in the namespace, or in all of them, read page by page. A page that is too long
        is asked for again with half as many."""
        limit, query = _PAGE, {"limit": str(_PAGE)}
        if labels:
            query["labelSelector"] = ",".join(f"{key}={value}" for key, value in labels.items())
        found: list[Any] = []
        while True:
            try:
                page = self._json("GET", kind, query=query, everywhere=everywhere)
            except _TooLong:
                if limit == 1:
                    raise
                limit = -(-limit // 2)
                query["limit"] = str(limit)
                continue
            with self._compared():
                check_list(page, kind)
                for item in page.get("items") or ():
                    check_item(item, kind, None if everywhere else self.namespace)
            found += page.get("items") or ()
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return found
            query["continue"] = following

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make the object. The answer is the object as made."""
        query = {"fieldManager": "kubectl-logkeep", "fieldValidation": "Strict"}
        return self._json("POST", body["kind"], query=query, body=body)

    def log_lines(self, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of a pod's log as they come."""
        path = self._path("Pod", self.namespace, pod, "log")
        answer = self._ask("GET", path, query, None, read=None)
        try:
            if answer.status >= 300:
                raise self._error(answer, "Pod", pod)
            rest = b""
            for piece in answer.stream(1 << 16):
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > _MAX_LINE_BYTES:
                    lines, rest = [*lines, rest], b""
                yield from (line.decode(errors="replace") for line in lines)
            if rest:
                yield rest.decode(errors="replace")
        except _transport() as error:
            raise ApiFailed(f"The log of pod {pod} broke off: {_first_line(error)}", hint="Try it again.") from error
        finally:
            answer.close()

    # ---- requests

    def _json(
        self,
        method: str,
        kind: str,
        name: str | None = None,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        everywhere: bool = False,
    ) -> dict[str, Any]:
        path = self._path(kind, None if everywhere else self.namespace, name)
        answer = self._ask(method, path, query or {}, body, read=_READ_SECONDS)
        most = MAX_OBJECT_BYTES if name is not None or body is not None else _MAX_PAGE_BYTES
        try:
            data = answer.read(most + 1)
        except _transport() as error:
            raise self._unreachable(error) from error
        if len(data) > most:
            answer.close()
            raise _TooLong(
                f"The answer of {self._api.configuration.host} to GET {path} has more than {most >> 20} MiB."
            )
        if answer.status >= 300:
            named = name or str(((body or {}).get("metadata") or {}).get("name", ""))
            raise self._refusal(answer.status, data, kind, named, everywhere)
        try:
            found = loads_cut(data)
        except ValueError as error:
            raise ApiFailed(f"{self._api.configuration.host} did not answer with JSON: {data[:80]!r}") from error
        if not isinstance(found, dict):
            raise ApiFailed(f"{self._api.configuration.host} did not answer with a JSON object: {data[:80]!r}")
        return found

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        *,
        read: float | None,
    ) -> urllib3.BaseHTTPResponse:
        import urllib3

        headers = {"Accept": "application/json, */*"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = self._api.param_serialize(
            method, path, query_params=list(query.items()), header_params=headers, auth_settings=["BearerToken"]
        )
        try:
            return self._api.rest_client.pool_manager.request(
                method,
                request[1],
                headers=request[2],
                body=None if body is None else json.dumps(body).encode(),
                timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=read),
                preload_content=False,
            )
        except _transport() as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ClusterUnreachable:
        return ClusterUnreachable(
            f"The Kubernetes API at {self._api.configuration.host} does not answer: {_first_line(error)}",
            hint="Is this the cluster that you mean (--context)? Does kubectl reach it?",
        )

    def _error(self, answer: urllib3.BaseHTTPResponse, kind: str, name: str) -> Exception:
        return self._refusal(answer.status, answer.read(MAX_OBJECT_BYTES), kind, name, everywhere=False)

    def _refusal(self, status: int, data: bytes, kind: str, name: str, everywhere: bool) -> Exception:
        namespace = None if everywhere else self.namespace
        return api_error(status, data, kind=kind, plural=plural(kind), namespace=namespace, name=name)

    @staticmethod
    def _path(kind: str, namespace: str | None, name: str | None = None, part: str | None = None) -> str:
        try:
            return api_path(kind, namespace, name, part=part)
        except NotAName as error:
            raise SpecError(
                str(error), hint="Names in Kubernetes have lower-case letters, digits, '-' and '.'."
            ) from error

    @contextmanager
    def _compared(self) -> Iterator[None]:
        """In here an answer is compared with the question. Raises ApiFailed for another object."""
        try:
            yield
        except OtherObject as error:
            raise ApiFailed(f"{self._api.configuration.host} answered about something else: {error}.") from error


def _transport() -> tuple[type[Exception], ...]:
    import urllib3

    return (urllib3.exceptions.HTTPError, OSError)


def _first_line(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    text = str(reason if isinstance(reason, Exception) else error) or type(error).__name__
    return text.strip().splitlines()[0]

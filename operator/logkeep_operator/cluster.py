"""The only module that talks to the Kubernetes API: a small facade over the official client, JSON in and out.

All calls are synchronous, since `controller` calls them from threads, and have a deadline. Every problem becomes one of
the classes of `errors.ApiError`, also an answer that is not JSON, is too long, or is another object than the one that
was asked for. Nothing is retried here, since every caller looks again anyway. `watches` asks for addresses and trust
only: its answers have no end.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import urllib3
from kubernetes import client, config

from logkeep_engine.contract.names import BACKUP_RUN, KAFKA_ARCHIVE, PLURALS
from logkeep_engine.contract.objects import (
    MAX_OBJECT_BYTES,
    STRIMZI_GROUP,
    NotAName,
    OtherObject,
    api_path,
    check_object,
)
from logkeep_engine.contract.spec import GROUP, VERSION
from logkeep_operator.answers import (
    MAX_PAGE_BYTES,
    api_error,
    check_stored,
    checked_page,
    page_bytes,
    page_size,
    parsed,
    read,
    too_long,
)
from logkeep_operator.api import API_VERSION, KINDS, Key, Resource, Status
from logkeep_operator.api.archive import KafkaArchive, KafkaArchiveStatus, named_by, resolved
from logkeep_operator.api.backup_run import RequestedRun, RequestedStatus
from logkeep_operator.api.fields import Fields, known_fields, own_fields, served_fields
from logkeep_operator.bounds import MAX_CHILDREN_BYTES, MemoryBound, own_child
from logkeep_operator.errors import AlreadyExists, AnswerTooLong, AnswerWrong, ApiUnavailable, Conflict, NotFound
from logkeep_operator.resources import (
    ANNOTATION_SUSPENDED,
    LABEL_MANAGED_BY,
    MANAGED_BY,
    OWN_LABELS,
    event_body,
    resource_labels,
)

FIELD_MANAGER = "logkeep-operator"
_Body = Mapping[str, Any] | Sequence[Mapping[str, Any]]
_AS_OPERATOR = {"fieldManager": FIELD_MANAGER}  # of every write, so that managedFields name who owns a field
_CONNECT_SECONDS = 5.0
_SLOW_SECONDS = 2.0
CALL_SECONDS = 30.0  # for a whole call, however slowly its answer comes
STRIMZI_VERSIONS = ("v1", "v1beta2")  # Strimzi 1.0 serves the first only, before 0.49 the second
CHILDREN = ("Job", "Pod", "ConfigMap")
CHILDREN_QUERY = {"labelSelector": f"{LABEL_MANAGED_BY}={MANAGED_BY}"}  # those of all resources


@dataclass(frozen=True)
class Right:
    """A right in the words of the API's access reviews."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    name: str = ""


def connect() -> client.ApiClient:
    """Return a client with the pod's ServiceAccount, or outside a cluster with the current kubeconfig."""
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    # A repeated call could outlive its deadline, and a write the moment at which the Lease was looked at.
    configuration.retries = urllib3.Retry(total=0)
    configuration.connection_pool_maxsize = 32
    return client.ApiClient(configuration)


class KubernetesCluster:
    """Reads resources and their children, makes and changes children, writes statuses and events. Each call that is not
    a GET is made in a context of `writing`, which may refuse it."""

    def __init__(
        self,
        api: client.ApiClient,
        call_seconds: float = CALL_SECONDS,
        writing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._api = api
        self._call_seconds = call_seconds
        self._writing = writing
        self._clock: tuple[datetime, float] | None = None

    def now(self) -> datetime:
        """Return the time of the API server, which is the clock of all times that it stamps. It is counted on from the
        last answer. Before the first answer it is the time of this machine."""
        clock = self._clock
        if clock is None:
            return datetime.now(UTC)
        return clock[0] + timedelta(seconds=time.monotonic() - clock[1])

    # ---- resources

    def resource(self, key: Key) -> Resource | None:
        """Return the KafkaBackup or KafkaRestore with the storage of the KafkaArchive that it names, None if there is
        none."""
        if (body := self._get(key.kind, key.namespace, key.name)) is None:
            return None
        resource = Resource.from_object(key.kind, body)
        named = named_by(resource)
        return resource if named is None else resolved(resource, self.archive(named))

    def resources(self, namespaces: Collection[str], archives: Mapping[Key, KafkaArchive]) -> Iterator[Resource]:
        """Yield all resources of both kinds, of the whole cluster if no namespace is given, read page by page, with the
        storages of the KafkaArchives that they name."""
        for kind in KINDS:
            for namespace in namespaces or (None,):
                for body in self._pages(kind, namespace):
                    resource = Resource.from_object(kind, body)
                    named = named_by(resource)
                    yield resource if named is None else resolved(resource, archives.get(named))

    def archive(self, key: Key) -> KafkaArchive | None:
        """Return the KafkaArchive, None if there is none."""
        body = self._get(KAFKA_ARCHIVE, key.namespace, key.name)
        return KafkaArchive.from_object(body) if body is not None else None

    def archives(self, namespaces: Collection[str]) -> Iterator[KafkaArchive]:
        """Yield all KafkaArchives, of the whole cluster if no namespace is given, read page by page."""
        for namespace in namespaces or (None,):
            yield from map(KafkaArchive.from_object, self._pages(KAFKA_ARCHIVE, namespace))

    def serves_kinds(self) -> bool:
        """Return whether the CRDs are installed."""
        try:
            listed = self._call("GET", f"/apis/{GROUP}/{VERSION}")
        except NotFound:
            return False
        names = {item["name"] for item in listed.get("resources", ())}
        return all(plural in names and f"{plural}/status" in names for plural in PLURALS.values())

    def served_fields(self) -> dict[str, Fields]:
        """Return the fields that the CRDs have, by kind, as the API server publishes them."""
        path = f"/openapi/v3/apis/{GROUP}/{VERSION}"
        try:
            return served_fields(self._call("GET", path))
        except NotFound as error:  # a moment after the CRDs were made
            raise ApiUnavailable(f"GET {path}: the API server has not published the CRDs of {GROUP} yet") from error
        except ValueError as error:
            raise AnswerWrong(f"GET {path}: the answer is not an OpenAPI document: {error}") from error

    def write_status(self, resource: Resource | KafkaArchive, status: Status | KafkaArchiveStatus) -> None:
        """Replace the whole status. Raises Conflict when the resource is not what was read any more, and NotStored if
        fields were dropped."""
        path = object_path(resource.key.kind, resource.key.namespace, resource.key.name, "status")
        own = own_fields(status.to_dict(), known_fields(resource.key.kind)["status"])
        self._replace_status(path, resource.body, own)

    # ---- KafkaBackupRuns

    def requested_runs(self, namespace: str | None) -> Iterator[RequestedRun]:
        """Return the KafkaBackupRuns of a namespace, or of the whole cluster, read page by page."""
        return (RequestedRun.from_object(body) for body in self._pages(BACKUP_RUN, namespace))

    def answer_requested_run(self, requested: RequestedRun, status: RequestedStatus) -> None:
        """Replace its whole status. Raises Conflict when it is not what was read any more."""
        path = object_path(BACKUP_RUN, requested.namespace, requested.name, "status")
        self._replace_status(path, requested.body, status.to_dict())

    def adopt_requested_run(self, requested: RequestedRun, uid: str) -> None:
        """Add its KafkaBackup to its owners. Nothing happens if it is gone."""
        owner = {"apiVersion": API_VERSION, "kind": requested.key.kind, "name": requested.backup, "uid": uid}
        body = self._get(BACKUP_RUN, requested.namespace, requested.name)
        known = body["metadata"].get("ownerReferences") or [] if body is not None else []
        if body is None or any(one.get("uid") == uid for one in known):
            return
        try:
            self._merge(
                BACKUP_RUN, requested.namespace, requested.name, {"metadata": {"ownerReferences": [*known, owner]}}
            )
        except NotFound:
            return

    # ---- children

    def children(self, kind: str, key: Key) -> list[dict[str, Any]]:
        """Return the needed parts of Jobs, Pods or ConfigMaps that belong to a resource of this name, also to one that
        was deleted since: the uid is not compared."""
        selector = ",".join(f"{name}={value}" for name, value in resource_labels(key).items())
        found, bound = [], MemoryBound(MAX_CHILDREN_BYTES)
        for body in self._pages(kind, key.namespace, {"labelSelector": selector}):
            kept = own_child(kind, body)
            if not bound.take(kept):
                raise AnswerTooLong(
                    f"{key}: the {kind}s with its labels take more than {MAX_CHILDREN_BYTES >> 20} MiB, so they are "
                    f"not read. Find out who created them: kubectl -n {key.namespace} get {kind.lower()} -l {selector}"
                )
            found.append(kept)
        return found

    def all_children(self, kind: str, namespace: str | None) -> Iterator[dict[str, Any]]:
        """Return the needed parts of Jobs, Pods or ConfigMaps of all resources of a namespace, or of the whole cluster.
        They are read page by page: memory is needed for what the caller keeps."""
        return (own_child(kind, body) for body in self._pages(kind, namespace, CHILDREN_QUERY))

    def newest_warning(self, namespace: str, kind: str, name: str) -> str | None:
        """Return the message of the newest event that says that something about an object has failed (FailedCreate,
        FailedMount and the like)."""
        selector = f"involvedObject.kind={kind},involvedObject.name={name},type=Warning"
        try:
            page = self._page("Event", namespace, {"fieldSelector": selector, "limit": "50"})
        except AnswerTooLong:
            return None  # a user who may write events can make them long, and nothing depends on them
        events = [event for event in page.get("items") or () if str(event.get("reason", "")).startswith("Failed")]
        if not events:
            return None
        newest = max(
            events, key=lambda e: e.get("lastTimestamp") or e.get("eventTime") or e["metadata"]["creationTimestamp"]
        )
        return str(newest.get("message") or newest.get("reason") or "")

    def create(self, body: Mapping[str, Any]) -> bool:
        """Make the object unless there is one of its name. The answer says whether it was made."""
        metadata = body["metadata"]
        try:
            self._call("POST", object_path(body["kind"], metadata["namespace"]), body=body, query=_AS_OPERATOR)
        except AlreadyExists:  # no other conflict: a quota that many objects change at once is one, too
            return False
        return True

    def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object, None if there is none."""
        return self._get(kind, namespace, name)

    def apply(self, body: Mapping[str, Any]) -> None:
        """Apply the object on the server's side: our fields get the given values, fields of others stay."""
        metadata = body["metadata"]
        path = object_path(body["kind"], metadata.get("namespace"), metadata["name"])
        query = {**_AS_OPERATOR, "force": "true"}
        self._call("PATCH", path, body=body, query=query, content_type="application/apply-patch+yaml")

    def annotate(self, kind: str, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Give an object these annotations. One that it has keeps its value. Nothing happens if the object is gone."""
        found = self._get(kind, namespace, name)
        has = (found["metadata"].get("annotations") or {}) if found is not None else annotations
        if lacks := {key: value for key, value in annotations.items() if key not in has}:
            with suppress(NotFound):
                self._merge(kind, namespace, name, {"metadata": {"annotations": lacks}})

    def suspend_job(self, namespace: str, name: str, suspend: bool) -> None:
        """Set spec.suspend, and note in an annotation that the operator did it. Nothing happens if the Job is gone."""
        annotations = {ANNOTATION_SUSPENDED: "true" if suspend else "false"}
        try:
            self._merge(
                "Job", namespace, name, {"metadata": {"annotations": annotations}, "spec": {"suspend": suspend}}
            )
        except NotFound:
            return

    def delete(self, kind: str, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete with its dependents in the background; only the object of that uid, if one is given."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            self._call("DELETE", object_path(kind, namespace, name), body=options)
        # Conflict: the object of that uid is gone, and another one has its name.
        except (NotFound, Conflict):
            return

    # ---- others' resources

    def strimzi_kafka(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Strimzi's `Kafka` resource, None if there is none, or if this cluster has no Strimzi."""
        for version in STRIMZI_VERSIONS:
            try:
                return self._object("Kafka", namespace, name, f"{STRIMZI_GROUP}/{version}")
            except NotFound:
                continue
        return None

    # ---- events

    def event(self, resource: Resource | KafkaArchive, kind: str, reason: str, message: str, run_id: str) -> None:
        """Post a core/v1 Event about the resource. One that is reported twice is counted and not doubled."""
        key = resource.key
        body = event_body(key, resource.uid, kind, reason, message, run_id, self.now(), FIELD_MANAGER)
        if self.create(body):
            return
        name = body["metadata"]["name"]
        known = self._get("Event", key.namespace, name)
        if known is not None and (known.get("involvedObject") or {}).get("uid") == resource.uid:
            counted = {"count": known.get("count", 1) + 1, "lastTimestamp": body["lastTimestamp"]}
            self._merge("Event", key.namespace, name, counted)

    # ---- the Lease of the replicas

    def lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the Lease, None if there is none."""
        return self._get("Lease", namespace, name)

    def write_lease(self, namespace: str, name: str, spec: Mapping[str, Any], version: str | None) -> dict[str, Any]:
        """Make the Lease, or replace the one of this version. Raises Conflict if it is not what was read any more."""
        metadata = {"name": name, "namespace": namespace, "labels": dict(OWN_LABELS)}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        if version is None:
            return self._call("POST", object_path("Lease", namespace), body=body, query=_AS_OPERATOR)
        metadata["resourceVersion"] = version
        return self._call("PUT", object_path("Lease", namespace, name), body=body, query=_AS_OPERATOR)

    # ---- permissions

    def may(self, right: Right, namespace: str | None) -> bool:
        """Return whether the API allows this client to do it."""
        attributes = asdict(right)
        if namespace is not None:
            attributes["namespace"] = namespace
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = self._call("POST", object_path("SelfSubjectAccessReview", None), body=body)
        return bool(answer["status"]["allowed"])

    # ---- requests

    def _get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        try:
            return self._object(kind, namespace, name)
        except NotFound:
            return None

    def _object(self, kind: str, namespace: str, name: str, api_version: str | None = None) -> dict[str, Any]:
        path = object_path(kind, namespace, name, api_version=api_version)
        body = self._call("GET", path)
        try:
            check_object(body, kind, namespace, name, api_version)
        except OtherObject as error:
            raise AnswerWrong(f"GET {path}: {error}") from error
        return body

    def _pages(
        self, kind: str, namespace: str | None, query: Mapping[str, str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield all objects of a kind. A page that is too long is asked for again with half as many."""
        limit = int(page_size(kind))
        following: str | None = None
        while True:
            page_query = {**(query or {}), "limit": str(limit), **({"continue": following} if following else {})}
            try:
                page = self._page(kind, namespace, page_query, page_bytes(limit))
            except AnswerTooLong:
                if limit == 1:
                    raise
                limit = -(-limit // 2)
                continue
            yield from page.get("items") or ()
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return

    def _page(
        self, kind: str, namespace: str | None, query: Mapping[str, str], most: int = MAX_PAGE_BYTES
    ) -> dict[str, Any]:
        path = object_path(kind, namespace)
        return checked_page(kind, namespace, path, self._call("GET", path, query=query, most=most))

    def _merge(self, kind: str, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        path = object_path(kind, namespace, name)
        self._call("PATCH", path, body=patch, query=_AS_OPERATOR, content_type="application/merge-patch+json")

    def _replace_status(self, path: str, read: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        # With a PUT the API takes labels and annotations that are left out for given up by those who apply them.
        patch = [
            # The API refuses the patch, with Conflict, if the object has another version by now.
            {"op": "replace", "path": "/metadata/resourceVersion", "value": read["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/status", "value": status},
        ]
        answer = self._call("PATCH", path, body=patch, query=_AS_OPERATOR, content_type="application/json-patch+json")
        check_stored("PATCH", path, status, answer)

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: _Body | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        most: int = MAX_OBJECT_BYTES,
    ) -> dict[str, Any]:
        with self._writing() if method != "GET" else nullcontext():
            return self._send(method, path, body, query, content_type, most)

    def _send(
        self,
        method: str,
        path: str,
        body: _Body | None,
        query: Mapping[str, str] | None,
        content_type: str,
        most: int,
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        text = None
        if body is not None:
            headers["Content-Type"] = content_type
            text = json.dumps(body).encode()
        url, all_headers = self.address(method, path, query, headers)
        sent = time.monotonic()
        try:
            # The client's own encoding knows no apply-patch: the body goes as bytes, past it.
            answer = self._api.rest_client.pool_manager.request(
                method,
                url,
                headers=all_headers,
                body=text,
                timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=self._call_seconds),
                preload_content=False,
            )
            self._read_clock(answer.headers.get("Date"), sent)
            data = read(answer, sent + self._call_seconds, most)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiUnavailable(
                f"{method} {path}: the Kubernetes API did not answer: {type(error).__name__}"
            ) from error
        if data is None:
            raise too_long(method, path, most)
        if answer.status >= 300:
            raise api_error(method, path, answer.status, data)
        return parsed(method, path, data)

    def _read_clock(self, date: str | None, sent: float) -> None:
        """Take the server's time from an answer. An answer that was long on its way has an old time, so a slow
        namespace could set the clock back for all: an old time is not taken."""
        answered = time.monotonic()
        if self._clock is not None and answered - sent > _SLOW_SECONDS:
            return
        try:
            reported = parsedate_to_datetime(date) if date else None
        except ValueError:
            return
        if reported is not None and reported.tzinfo is not None:
            self._clock = (reported, answered)

    def address(
        self, method: str, path: str, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[str, dict[str, str]]:
        """Return the URL and the headers of a request, with the current token."""
        request = self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=dict(headers or {"Accept": "application/json"}),
            auth_settings=["BearerToken"],
        )
        return request[1], request[2]

    def trust(self) -> ssl.SSLContext:
        """Return the certificates that the client trusts and shows, for connections that the client did not open."""
        configuration = self._api.configuration
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def object_path(
    kind: str,
    namespace: str | None,
    name: str | None = None,
    part: str | None = None,
    api_version: str | None = None,
) -> str:
    """Return the path of an object, or without a name that of all. Raises AnswerWrong."""
    try:
        return api_path(kind, namespace, name, part=part, api_version=api_version)
    except NotAName as error:
        raise AnswerWrong(str(error)) from error

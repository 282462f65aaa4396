"""Objects of the Kubernetes API: their paths, and whether an answer is the object that was asked for.

A name from a resource is a claim. `..` in it would lead into another namespace, because clients resolve it before they
send the path. So every path of the API is made by `api_path`, which refuses what is not a name, and whatever was read
is compared with what was asked for before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from logkeep_engine.contract.names import PLURALS
from logkeep_engine.contract.spec import API_VERSION
from logkeep_engine.contract.values import DNS_LABEL, DNS_NAME, MAX_DNS_LABEL, MAX_DNS_NAME

STRIMZI_GROUP = "kafka.strimzi.io"
# An object in etcd has 1.5 MiB at most unless its administrator allows more. In JSON a `<` or a control character takes
# six bytes, so a ConfigMap of that size takes more than 9 MiB.
MAX_OBJECT_BYTES = 16 << 20

_NAME, _LABEL = re.compile(DNS_NAME), re.compile(DNS_LABEL)


@dataclass(frozen=True, slots=True)
class _Place:
    api_version: str
    plural: str
    of_cluster: bool = False

    def base(self, api_version: str | None) -> str:
        version = api_version or self.api_version
        return f"/apis/{version}" if "/" in version else f"/api/{version}"


_PLACES = {
    **{kind: _Place(API_VERSION, plural) for kind, plural in PLURALS.items()},
    "ConfigMap": _Place("v1", "configmaps"),
    "CustomResourceDefinition": _Place("apiextensions.k8s.io/v1", "customresourcedefinitions", of_cluster=True),
    "Event": _Place("v1", "events"),
    "Job": _Place("batch/v1", "jobs"),
    "Kafka": _Place(f"{STRIMZI_GROUP}/v1", "kafkas"),
    "Lease": _Place("coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": _Place("networking.k8s.io/v1", "networkpolicies"),
    "Pod": _Place("v1", "pods"),
    "RoleBinding": _Place("rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": _Place("v1", "secrets"),
    "SelfSubjectAccessReview": _Place("authorization.k8s.io/v1", "selfsubjectaccessreviews"),
    "ServiceAccount": _Place("v1", "serviceaccounts"),
}


class NotAName(ValueError):
    """A text that is to be a part of a path of the API is not the name of an object or of a namespace."""


class OtherObject(ValueError):
    """The API has answered with another object than the one that was asked for. The message names both."""


def is_name(text: object) -> TypeGuard[str]:
    """Return whether this can be the name of an object: a DNS subdomain as RFC 1123 has it."""
    return isinstance(text, str) and len(text) <= MAX_DNS_NAME and _NAME.fullmatch(text) is not None


def is_namespace(text: object) -> TypeGuard[str]:
    """Return whether this can be the name of a namespace: a DNS label as RFC 1123 has it."""
    return isinstance(text, str) and len(text) <= MAX_DNS_LABEL and _LABEL.fullmatch(text) is not None


def plural(kind: str) -> str:
    """Return the name of a kind in paths."""
    return _PLACES[kind].plural


def api_path(
    kind: str,
    namespace: str | None,
    name: str | None = None,
    *,
    part: str | None = None,
    api_version: str | None = None,
) -> str:
    """Return the path of an object, or without a name of all objects of a kind. Namespace None stands for the whole
    cluster.

    `part` is the last segment, such as `status` or `log`. `api_version` is another version than the usual one. Raises
    NotAName, which says what is wrong."""
    place = _PLACES[kind]
    segments = [place.base(api_version)]
    if namespace is not None:
        if not is_namespace(namespace):
            raise NotAName(f"{namespace!r} is not the name of a namespace, so no request is made.")
        segments += ["namespaces", namespace]
    segments.append(place.plural)
    if name is not None:
        if (namespace is None) is not place.of_cluster or not is_name(name):
            raise NotAName(f"{name!r} is not the name of a {kind}, so no request is made.")
        segments.append(name)
    if part is not None:
        if name is None or not is_namespace(part):
            raise NotAName(f"{part!r} is not a part of a {kind}.")
        segments.append(part)
    return "/".join(segments)


def check_object(body: Mapping[str, Any], kind: str, namespace: str, name: str, api_version: str | None = None) -> None:
    """Raises OtherObject if this is not the object that was asked for."""
    metadata = _metadata(body)
    wanted = (api_version or _PLACES[kind].api_version, kind, namespace, name)
    found = (body.get("apiVersion"), body.get("kind"), metadata.get("namespace"), metadata.get("name"))
    if found != wanted:
        raise OtherObject(f"asked for {_say(*wanted)}; answered with {_say(*found)}")


def check_list(body: Mapping[str, Any], kind: str) -> None:
    """Raises OtherObject if this is not a list of the kind that was asked for."""
    wanted = (_PLACES[kind].api_version, f"{kind}List")
    found = (body.get("apiVersion"), body.get("kind"))
    if found != wanted:
        raise OtherObject(f"asked for {wanted[1]} of {wanted[0]}; answered with {_text(found[1])} of {_text(found[0])}")


def check_item(body: Mapping[str, Any], kind: str, namespace: str | None) -> None:
    """Raises OtherObject if an object in a list, or of a watch, is of another kind or namespace. Objects in lists need
    not say their kind."""
    version, metadata = _PLACES[kind].api_version, _metadata(body)
    found = (body.get("apiVersion", version), body.get("kind", kind), metadata.get("namespace"))
    if found != (version, kind, namespace if namespace is not None else found[2]) or not is_namespace(found[2]):
        wanted = _say(version, kind, namespace if namespace is not None else "*", "*")
        raise OtherObject(f"asked for {wanted}; answered with {_say(*found, metadata.get('name'))}")


def _metadata(body: Mapping[str, Any]) -> Mapping[str, Any]:
    found = body.get("metadata")
    return found if isinstance(found, Mapping) else {}


def _say(version: object, kind: object, namespace: object, name: object) -> str:
    return f"{_text(kind)} {_text(namespace)}/{_text(name)} of {_text(version)}"


def _text(value: object) -> str:
    return "?" if value is None else ascii(str(value)[:MAX_DNS_NAME])[1:-1]

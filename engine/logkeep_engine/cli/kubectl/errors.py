"""Errors of the plugin: what the Kubernetes API did not give, and what the user needs to get it."""

from __future__ import annotations

import re

from logkeep_engine.contract.names import APPLY_CRDS
from logkeep_engine.contract.nesting import loads
from logkeep_engine.errors import LogkeepError, Refused

# A role of the chart that has a right, by resource and verb; each verb is in a role beyond the first, too.
_ROLES = {
    ("kafkaarchives", "get"): "logkeep-view",
    ("kafkaarchives", "list"): "logkeep-view",
    ("kafkabackupruns", "create"): "logkeep-run",
    ("kafkabackupruns", "get"): "logkeep-view",
    ("kafkabackups", "get"): "logkeep-view",
    ("kafkabackups", "list"): "logkeep-view",
    ("kafkarestores", "get"): "logkeep-view",
    ("kafkarestores", "list"): "logkeep-view",
    ("kafkarestores", "create"): "logkeep-edit",
}
_MAKE_IT = "Make it there: the pods of runs take it from the namespace of the resource that names it."
_LACKING = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"')


class ClusterUnreachable(LogkeepError):
    """No Kubernetes API answers, or no kubeconfig says where one is."""

    code = "ClusterUnreachable"


class LoginRefused(Refused):
    """The Kubernetes API does not know the user."""

    code = "LoginRefused"


class RightMissing(Refused):
    """The user lacks a right; the message names it."""

    code = "RightMissing"


class NoSuchResource(Refused):
    """There is no object of that name."""

    code = "NoSuchResource"


class KindNotServed(Refused):
    """The API server does not know the kind: its CRD is not installed."""

    code = "KindNotServed"


class RequestRefused(Refused):
    """The API server refused a request for another reason: a schema, a quota, an admission webhook."""

    code = "RequestRefused"


class BackupInvalid(Refused):
    """The operator has found a KafkaBackup invalid, or not allowed, so it never runs."""

    code = "BackupInvalid"


class EndpointNotAllowed(Refused):
    """A resource names an endpoint that no credentials may be sent to."""

    code = "EndpointNotAllowed"


class ApiFailed(LogkeepError):
    """The API server could not answer now."""

    code = "ApiFailed"


def api_error(status: int, data: bytes, *, kind: str, plural: str, namespace: str | None, name: str) -> LogkeepError:
    """Return the error that an answer with an error status means, about the objects that were asked for."""
    names_object, message = _from_api(data)
    where = f"namespace {namespace}" if namespace is not None else "the whole cluster"
    if status == 401:
        return LoginRefused(
            f"The Kubernetes API does not accept the credentials of the kubeconfig: {message}",
            hint="Log in again, or choose another --context.",
        )
    if status == 403 and (lacking := _LACKING.search(message)) is not None:
        return _right_missing(lacking, namespace, where, message)
    if status == 404 and not names_object:
        return KindNotServed(
            f"The cluster does not serve {plural}.",
            hint=f"Is this the cluster that you mean? If so, its CRDs are missing or old: {APPLY_CRDS}",
        )
    if status == 404:
        hint = _MAKE_IT if kind in ("Secret", "ConfigMap") else "Is it in another -n/--namespace?"
        return NoSuchResource(f"There is no {kind} {name!r} in {where}.", hint=hint)
    if status == 409:
        return RequestRefused(message, hint="Choose another name, or let one be made.")
    if status == 429 or status >= 500:
        return ApiFailed(f"The Kubernetes API could not answer: {status} {message}", hint="Try it again.")
    return RequestRefused(message)


def _right_missing(lacking: re.Match[str], namespace: str | None, where: str, message: str) -> RightMissing:
    verb, resource = lacking["verb"], lacking["resource"]
    role = _ROLES.get((resource, verb))
    scope = f"-n {namespace}" if namespace is not None else "-A"
    group = ".logkeep.dev" if resource.startswith("kafka") else ""
    helps = f" The ClusterRole {role} of the chart has this right." if role is not None else ""
    other = " Without it, name one namespace with -n." if namespace is None else ""
    return RightMissing(
        f"User {lacking['user']!r} lacks a right: {verb} on {resource}{group} in {where}.",
        hint=f"Ask the cluster's administrator for it.{helps}{other} kubectl auth can-i {verb} {resource}{group} "
        f"{scope} says whether you have it.",
    )


def _from_api(data: bytes) -> tuple[bool, str]:
    """Return whether the answer is about an object, and what it says. The answer for an unknown path is plain text."""
    text = data[:500].decode(errors="replace").strip()
    try:
        answer = loads(data)
    except ValueError:
        return False, text
    if not isinstance(answer, dict):
        return False, text
    details = answer.get("details")
    return isinstance(details, dict) and bool(details.get("name")), str(answer.get("message") or text)

"""Access reviews: what the API server answers to `kubectl auth can-i`."""

from __future__ import annotations

from tests.cluster.apiserver import ApiServer


def may(api: ApiServer, user: str, verb: str, what: str, namespace: str, name: str = "") -> bool:
    """Whether the user may do this to `plural.group/subresource` in the namespace."""
    resource, _, subresource = what.partition("/")
    plural, _, group = resource.partition(".")
    attributes = {
        "namespace": namespace, "verb": verb, "group": group, "resource": plural, "subresource": subresource,
        "name": name,
    }  # fmt: skip
    groups = ["system:authenticated"]
    if user.startswith("system:serviceaccount:"):
        groups += ["system:serviceaccounts", f"system:serviceaccounts:{user.split(':')[2]}"]
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": groups, "resourceAttributes": attributes},
    }
    answer = api.connection.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])

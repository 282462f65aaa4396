"""The command `python -m logkeep_operator.selfcheck`, for `helm test`. It checks that the CRDs are served, and that
this ServiceAccount may do what the operator does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from logkeep_operator.api import GROUP, KINDS
from logkeep_operator.cluster import STRIMZI_GROUP, KubernetesCluster, connect
from logkeep_operator.errors import ApiError
from logkeep_operator.resources.access import DRIVER_RULES

RBAC = "rbac.authorization.k8s.io"
# (API group, resource, subresource, verbs): what `cluster` calls and `watches` watch.
NEEDED: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    *((GROUP, plural, "", ("get", "list", "watch")) for plural in KINDS.values()),
    *((GROUP, plural, "status", ("update",)) for plural in KINDS.values()),
    ("batch", "jobs", "", ("get", "list", "watch", "create", "patch", "delete")),
    (STRIMZI_GROUP, "kafkas", "", ("get",)),
    ("", "events", "", ("get", "list", "create", "patch")),
    ("", "serviceaccounts", "", ("create",)),
    (RBAC, "roles", "", ("get", "create", "patch")),
    (RBAC, "rolebindings", "", ("get", "create", "patch")),
    *(("", resource, "", tuple(rule["verbs"])) for rule in DRIVER_RULES for resource in rule["resources"]),
)


def missing(cluster: KubernetesCluster, namespaces: Sequence[str]) -> Iterator[str]:
    """Sentences that say what the operator lacks."""
    if not cluster.serves_kinds():
        yield f"the CRDs of {GROUP} are not installed"
    for namespace in namespaces or (None,):
        for group, resource, subresource, verbs in NEEDED:
            for verb in verbs:
                if not cluster.may(verb, group, resource, namespace, subresource):
                    what = f"{resource}/{subresource}" if subresource else resource
                    yield f"may not {verb} {what}.{group or 'core'} in {namespace or 'all namespaces'}"


def main() -> int:
    """Print what is missing. The exit code is 1 if anything is."""
    namespaces = [name for name in os.environ.get("LOGKEEP_NAMESPACES", "").split(",") if name]
    try:
        problems = list(missing(KubernetesCluster(connect()), namespaces))
    except ApiError as error:
        problems = [str(error)]
    for problem in problems:
        print(f"logkeep: {problem}", file=sys.stderr)
    if not problems:
        print("logkeep: the CRDs are served and all permissions are there")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""The command `python -m logkeep_operator.selfcheck`, for `helm test`. It checks that the CRDs are served with
all their fields, and that this ServiceAccount may do what the operator does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from logkeep_engine.contract.names import APPLY_CRDS
from logkeep_engine.contract.objects import STRIMZI_GROUP
from logkeep_engine.contract.visible import print_line, say
from logkeep_operator.api import GROUP, KINDS
from logkeep_operator.api.archive import KAFKA_ARCHIVES
from logkeep_operator.api.backup_run import BACKUP_RUNS
from logkeep_operator.cluster import KubernetesCluster, Right, connect
from logkeep_operator.crds import problem_of
from logkeep_operator.errors import ApiError, SettingsInvalid
from logkeep_operator.resources.access import DRIVER_ACCOUNT, DRIVER_BINDING, EXECUTOR_ACCOUNT
from logkeep_operator.settings import LeaseSettings, Settings, from_environ

RBAC = "rbac.authorization.k8s.io"
NETWORKING = "networking.k8s.io"
LEASES = "coordination.k8s.io"
# (API group, resource, subresource, verbs): what `cluster` calls and `watches` watch.
NEEDED: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    *((GROUP, plural, "", ("get", "list", "watch")) for plural in KINDS.values()),
    *((GROUP, plural, "status", ("patch",)) for plural in KINDS.values()),
    (GROUP, BACKUP_RUNS, "", ("list", "watch", "patch", "delete")),
    (GROUP, BACKUP_RUNS, "status", ("patch",)),
    (GROUP, KAFKA_ARCHIVES, "", ("get", "list", "watch")),
    (GROUP, KAFKA_ARCHIVES, "status", ("patch",)),
    ("batch", "jobs", "", ("get", "list", "watch", "create", "patch", "delete")),
    (STRIMZI_GROUP, "kafkas", "", ("get",)),
    ("", "events", "", ("get", "list", "create", "patch")),
    ("", "serviceaccounts", "", ("create",)),
    ("", "pods", "", ("get", "list", "watch", "delete")),
    ("", "configmaps", "", ("get", "list", "watch", "create", "delete")),
    (RBAC, "rolebindings", "", ("create",)),
    (NETWORKING, "networkpolicies", "", ("create",)),
)


def needed(settings: Settings) -> Iterator[Right]:
    """Yield the rights that the operator needs in each namespace."""
    for group, resource, subresource, verbs in NEEDED:
        yield from (Right(verb, group, resource, subresource) for verb in verbs)
    yield from (Right(verb, RBAC, "rolebindings", name=DRIVER_BINDING) for verb in ("get", "patch", "delete"))
    if settings.engine.account_annotations:
        accounts = (DRIVER_ACCOUNT, EXECUTOR_ACCOUNT)
        yield from (Right(verb, "", "serviceaccounts", name=name) for name in accounts for verb in ("get", "patch"))
    role = settings.engine.driver_role
    yield Right("bind", RBAC, f"{role.kind.lower()}s", name=role.name)


def needed_for_lease(lease: LeaseSettings) -> Iterator[Right]:
    """Yield the rights that a replica needs in the namespace of the Lease."""
    yield Right("create", LEASES, "leases")
    yield from (Right(verb, LEASES, "leases", name=lease.name) for verb in ("get", "update"))


def missing(cluster: KubernetesCluster, settings: Settings) -> Iterator[str]:
    """Sentences that say what the operator lacks."""
    if not cluster.serves_kinds():
        yield f"the CRDs of {GROUP} are not installed: {APPLY_CRDS}"
    elif problem := problem_of(cluster.served_fields()):
        yield problem
    rights = [(right, namespace) for namespace in settings.namespaces or (None,) for right in needed(settings)]
    if settings.lease is not None:
        rights += [(right, settings.lease.namespace) for right in needed_for_lease(settings.lease)]
    for right, namespace in rights:
        if not cluster.may(right, namespace):
            what = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
            which = f" {right.name}" if right.name else ""
            yield f"may not {right.verb} {what}.{right.group or 'core'}{which} in {namespace or 'all namespaces'}"


def main() -> int:
    """Print what is missing. The exit code is 1 if anything is."""
    try:
        problems = list(missing(KubernetesCluster(connect()), from_environ(os.environ)))
    except (ApiError, SettingsInvalid) as error:
        problems = [str(error)]
    for problem in problems:
        say(f"logkeep: {problem}")
    if not problems:
        print_line("logkeep: the CRDs have all fields, and no right is missing")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

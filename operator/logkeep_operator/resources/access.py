"""The rights of driver and executors in a namespace, and who may connect to them. They are made when the first run
starts there, and stay when the resources go.

The driver's rules are in the chart, as a role that the operator may bind and cannot change. A driver makes and watches
executors and writes its progress. It deletes nothing: Kubernetes cannot allow that by label or owner, so who may delete
executors may delete the brokers next to them. Owner references take its pods away, and before them the operator does
(`reconcile.executors`). It changes no pod either: another image in a pod is the end of it as well. Executors need
nothing of the API and get no token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logkeep_engine.contract.pods import PodTemplate
from logkeep_engine.contract.running import SparkSpec
from logkeep_operator.resources.names import (
    LABEL_MANAGED_BY,
    LABEL_ROLE,
    MANAGED_BY,
    OWN_LABELS,
    ROLE_DRIVER,
    ROLE_EXECUTOR,
)
from logkeep_operator.settings import RoleName

DRIVER_ACCOUNT = "logkeep-engine"
EXECUTOR_ACCOUNT = "logkeep-executor"
DRIVER_BINDING = "logkeep-driver"
NETWORK_POLICY = "logkeep-runs"
_DRIVER_ROLE = "-driver"  # how the names of the chart's roles end, whatever the release is called


def driver_account(spark: SparkSpec) -> str:
    """Return the ServiceAccount of the driver: that of its template, else that of both, else the operator's."""
    return _of_template(spark.driver.pod_template) or spark.service_account_name or DRIVER_ACCOUNT


def executor_account(spark: SparkSpec) -> str:
    """Return the ServiceAccount of executors, found in the same way."""
    return _of_template(spark.executor.pod_template) or spark.service_account_name or EXECUTOR_ACCOUNT


def needs_access_objects(spark: SparkSpec) -> bool:
    """Return whether a pod of the run has an account that the operator makes."""
    return not {driver_account(spark), executor_account(spark)}.isdisjoint((DRIVER_ACCOUNT, EXECUTOR_ACCOUNT))


def _of_template(template: PodTemplate | None) -> str | None:
    return template.spec.service_account_name if template is not None else None


def network_policy(namespace: str) -> dict[str, Any]:
    """Return the NetworkPolicy of the drivers and executors of a namespace: nothing else connects to them. It does not
    say where they connect to."""
    pods = {
        "matchLabels": {LABEL_MANAGED_BY: MANAGED_BY},
        "matchExpressions": [{"key": LABEL_ROLE, "operator": "In", "values": [ROLE_DRIVER, ROLE_EXECUTOR]}],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": NETWORK_POLICY, "namespace": namespace, "labels": dict(OWN_LABELS)},
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": pods}]}]},
    }


def is_earlier_binding(found: Mapping[str, Any]) -> bool:
    """Return whether a RoleBinding is what an operator of another installation has made for drivers here. Its label
    alone says little, since anybody can write it. It must bind a role of the chart's drivers, and to their account
    only, so that no other account loses rights with it."""
    metadata = found["metadata"]
    labelled = (metadata.get("labels") or {}).get(LABEL_MANAGED_BY) == MANAGED_BY
    role = str((found.get("roleRef") or {}).get("name"))
    return labelled and role.endswith(_DRIVER_ROLE) and found.get("subjects") == _subjects(metadata["namespace"])


def _subjects(namespace: str) -> list[dict[str, str]]:
    return [{"kind": "ServiceAccount", "name": DRIVER_ACCOUNT, "namespace": namespace}]


def access_objects(
    namespace: str, role: RoleName, annotations: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """ServiceAccounts and RoleBinding, in the order in which they are to be made. The accounts get the annotations."""

    def metadata(name: str) -> dict[str, Any]:
        return {"name": name, "namespace": namespace, "labels": dict(OWN_LABELS)}

    def account(name: str) -> dict[str, Any]:
        said = {"annotations": dict(annotations)} if annotations else {}
        return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**metadata(name), **said}}

    return [
        account(DRIVER_ACCOUNT),
        {**account(EXECUTOR_ACCOUNT), "automountServiceAccountToken": False},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata(DRIVER_BINDING),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role.kind, "name": role.name},
            "subjects": _subjects(namespace),
        },
    ]

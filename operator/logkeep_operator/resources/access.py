"""The rights of driver and executors in a namespace. They are made when the first run starts there, and stay when the
resources go.

The driver's rules are those that Spark's scheduler needs in client mode (`deletecollection` when it stops), and
writing progress. Executors need nothing of the API and get no token.
"""

from __future__ import annotations

from typing import Any

from logkeep_operator.resources.names import LABEL_MANAGED_BY, MANAGED_BY

DRIVER_ACCOUNT = "logkeep-engine"
EXECUTOR_ACCOUNT = "logkeep-executor"

DRIVER_RULES: list[dict[str, list[str]]] = [
    {
        "apiGroups": [""],
        "resources": ["pods", "services", "configmaps", "persistentvolumeclaims"],
        "verbs": ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"],
    }
]


def access_objects(namespace: str) -> list[dict[str, Any]]:
    """ServiceAccounts, Role and RoleBinding, in the order in which they are to be made."""

    def metadata(name: str) -> dict[str, Any]:
        return {"name": name, "namespace": namespace, "labels": {LABEL_MANAGED_BY: MANAGED_BY}}

    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(DRIVER_ACCOUNT)},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(EXECUTOR_ACCOUNT),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata(DRIVER_ACCOUNT),
            "rules": DRIVER_RULES,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata(DRIVER_ACCOUNT),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": DRIVER_ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": DRIVER_ACCOUNT, "namespace": namespace}],
        },
    ]

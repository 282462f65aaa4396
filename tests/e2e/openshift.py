"""Admission as OpenShift's restricted-v2 does it: a namespace has a user, and pods that ask for ids are refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.kube_api import Document
from tests.cluster.node import Node
from tests.cluster.webhook import Webhook

USER = 1000730000  # as OpenShift gives them: no image has it in its passwd file
_IDS = ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")

# By this API the chart sees that it is on OpenShift.
SECURITY_API: Document = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "securitycontextconstraints.security.openshift.io"},
    "spec": {
        "group": "security.openshift.io",
        "scope": "Cluster",
        "names": {"kind": "SecurityContextConstraints", "plural": "securitycontextconstraints"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}},
        ],
    },
}


class RestrictedV2(Webhook):
    """For the pods of some namespaces. `admitted` has those that it gave its user, `refused` what others asked for.

    OpenShift also gives an fsGroup. Here there is none: a platform need not have one.
    """

    def __init__(self, node: Node, namespaces: Sequence[str], folder: Path) -> None:
        self.admitted: list[Document] = []
        self.refused: list[list[str]] = []
        super().__init__(node, "Mutating", ("", "pods"), namespaces, self._admit, folder, node.netns)

    def _admit(self, request: Document) -> Document:
        spec = request["object"]["spec"]
        contexts = [spec, *spec["containers"], *spec.get("initContainers", [])]
        asked = sorted({name for part in contexts for name in _IDS if name in part.get("securityContext", {})})
        if asked:
            self.refused.append(asked)
            message = f"unable to validate against any security context constraint: the pod asks for {asked}"
            return {"allowed": False, "status": {"message": message, "code": 403}}
        self.admitted.append(request["object"])
        patch: list[dict[str, Any]] = [
            {
                "op": "add",
                "path": f"/spec/{kind}/{number}/securityContext",
                "value": {**container.get("securityContext", {}), "runAsUser": USER},
            }
            for kind in ("containers", "initContainers")
            for number, container in enumerate(spec.get(kind, []))
        ]
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()
        return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}

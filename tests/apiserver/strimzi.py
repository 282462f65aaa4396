"""Strimzi's `Kafka` resource on the API server, with the fields that its operator reads and writes.

The CRD is hand-made: the group, names and version of Strimzi's, and a schema that keeps everything.
"""

from __future__ import annotations

import json
from typing import Any

from tests.apiserver.operator import Namespace
from tests.cluster.apiserver import ApiServer

KEEP = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "kafkas.kafka.strimzi.io"},
    "spec": {
        "group": "kafka.strimzi.io",
        "scope": "Namespaced",
        "names": {"kind": "Kafka", "listKind": "KafkaList", "plural": "kafkas", "singular": "kafka"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": KEEP, "status": KEEP}}},
            }
        ],
    },
}


def install(api: ApiServer) -> None:
    """The CRD, until it is served."""
    api.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(CRD))
    api.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", "kafkas.kafka.strimzi.io")


def create(namespace: Namespace, body: dict[str, Any]) -> None:
    """The resource as a user applies it; Strimzi has not seen it yet."""
    namespace.kubectl("create", "-f", "-", stdin=json.dumps({**body, "metadata": {"name": body["metadata"]["name"]}}))


def write_status(namespace: Namespace, body: dict[str, Any]) -> None:
    """Write the status like Strimzi's operator."""
    patch = json.dumps({"status": body["status"]})
    name = body["metadata"]["name"]
    namespace.kubectl("patch", "kafka", name, "--subresource=status", "--type=merge", "-p", patch)

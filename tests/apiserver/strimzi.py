"""Strimzi's `Kafka` resource on the API server, with the fields that its operator reads and writes.

The CRD is hand-made: the group, names and version of Strimzi's, and of its schema what Logkeep reads, with the same
types and limits. The API server takes every other field away.
"""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.apiserver import ApiServer
from tests.cluster.node import Node

STRING = {"type": "string"}


def fields(required: tuple[str, ...] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object."""
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def listed(item: dict[str, Any]) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": item}


LISTENER = fields(
    ("name", "port", "type", "tls"),
    name={"type": "string", "pattern": "^[a-z0-9]{1,11}$"},
    port={"type": "integer", "minimum": 9092},
    type={
        "type": "string",
        "enum": ["internal", "route", "tlsroute", "loadbalancer", "nodeport", "ingress", "cluster-ip"],
    },
    tls={"type": "boolean"},
    authentication=fields(("type",), type={"type": "string", "enum": ["tls", "scram-sha-512", "custom"]}),
    configuration=fields(
        brokerCertChainAndKey=fields(
            ("secretName", "certificate", "key"), secretName=STRING, certificate=STRING, key=STRING
        )
    ),
)
SPEC = fields(("kafka",), kafka=fields(("listeners",), listeners=listed(LISTENER)))
STATUS = fields(
    conditions=listed(fields(type=STRING, status=STRING, lastTransitionTime=STRING, reason=STRING, message=STRING)),
    clusterId=STRING,
    listeners=listed(
        fields(
            name=STRING,
            addresses=listed(fields(host=STRING, port={"type": "integer"})),
            bootstrapServers=STRING,
            certificates=listed(STRING),
        )
    ),
)
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
                "schema": {"openAPIV3Schema": fields(spec=SPEC, status=STATUS)},
            }
        ],
    },
}


def install(api: ApiServer | Node) -> None:
    """The CRD, until it is served."""
    api.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(CRD))
    api.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", "kafkas.kafka.strimzi.io")


def create(api: ApiServer | Node, namespace: str, body: dict[str, Any]) -> None:
    """The resource as a user applies it; Strimzi has not seen it yet."""
    bare = {**body, "metadata": {"name": body["metadata"]["name"]}}
    api.kubectl("create", "--validate=strict", "-n", namespace, "-f", "-", stdin=json.dumps(bare))


def write_status(api: ApiServer | Node, namespace: str, body: dict[str, Any]) -> None:
    """Write the status like Strimzi's operator."""
    patch = json.dumps({"status": body["status"]})
    place = ("-n", namespace, "--subresource=status", "--type=merge")
    api.kubectl("patch", "kafka", body["metadata"]["name"], *place, "-p", patch)

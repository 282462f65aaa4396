"""Strimzi's resources on the API server, by the CRDs that its releases install, and its operator played by hand."""

from __future__ import annotations

import json
from typing import Any

from tests.apiserver.operator import wait_for
from tests.cluster import tools
from tests.cluster.apiserver import ApiServer
from tests.cluster.node import Node

RELEASES = tuple(tools.STRIMZI)
NEWEST = RELEASES[0]
CRDS = tuple(f"{plural}.kafka.strimzi.io" for plural in ("kafkas", "kafkanodepools", "kafkausers", "kafkatopics"))


def install(api: ApiServer | Node, release: str = NEWEST) -> None:
    """The CRDs of Kafka, KafkaNodePool, KafkaUser and KafkaTopic, until they are served."""
    api.kubectl("apply", "--server-side", "-f", tools.strimzi_crds(release))
    # `kubectl wait` fails on a CRD that has no conditions yet.
    established = ("wait", "--for=condition=Established", "--timeout=60s", "crd", *CRDS)
    wait_for("Strimzi's CRDs", lambda: api.kubectl(*established, check=False).returncode == 0, 240)


def remove(api: ApiServer) -> None:
    """The CRDs with all resources."""
    api.kubectl("delete", "crd", *CRDS)


def version(release: str) -> str:
    """The `apiVersion` that a release stores."""
    return "kafka.strimzi.io/" + tools.STRIMZI[release]["kafka.Kafka"].rpartition(",")[2]


def create(api: ApiServer | Node, namespace: str, body: dict[str, Any], release: str = NEWEST) -> None:
    """The resource as a user applies it; Strimzi has not seen it yet. A field that its schema does not have is an
    error."""
    metadata = {key: body["metadata"][key] for key in ("name", "labels") if key in body["metadata"]}
    bare = {"apiVersion": version(release), "kind": body["kind"], "metadata": metadata, "spec": body["spec"]}
    api.kubectl("create", "--validate=strict", "-n", namespace, "-f", "-", stdin=json.dumps(bare))


def write_status(api: ApiServer | Node, namespace: str, body: dict[str, Any]) -> None:
    """Write the status like Strimzi's operator. The API server takes away what its schema does not have: so nothing
    may be missing afterwards."""
    name, patch = body["metadata"]["name"], json.dumps({"status": body["status"]})
    place = ("-n", namespace, "--subresource=status", "--type=merge")
    kept = api.kubectl("patch", body["kind"].lower(), name, *place, "-p", patch, "-o", "json").stdout
    assert json.loads(kept)["status"] == body["status"]

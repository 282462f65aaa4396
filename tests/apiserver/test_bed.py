"""The API server of the test bed stores objects and checks access."""

import json

from tests.cluster.apiserver import ApiServer


def test_objects_are_stored(apiserver: ApiServer, unique: str) -> None:
    apiserver.kubectl("create", "namespace", unique)
    apiserver.kubectl("-n", unique, "create", "configmap", "progress", "--from-literal=percent=5")
    stored = json.loads(apiserver.kubectl("-n", unique, "get", "configmap", "progress", "-o", "json").stdout)
    assert stored["data"] == {"percent": "5"}


def test_roles_are_enforced(apiserver: ApiServer) -> None:
    allowed = apiserver.kubectl("auth", "can-i", "get", "pods", "--as=nobody", check=False)
    assert allowed.stdout.strip() == "no"

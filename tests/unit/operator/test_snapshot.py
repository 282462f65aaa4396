"""A resync keeps no more in memory than it needs."""

from __future__ import annotations

import json
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from logkeep_operator.api import Key, Resource
from logkeep_operator.snapshot import ResourceSnapshot
from tests.unit.operator.test_cluster_calls import Quiet, api, listed

NAMES = [f"b{number}" for number in range(5)]


def config_map(owner: str, number: int) -> dict[str, Any]:
    labels = {"logkeep.dev/kind": "KafkaBackup", "logkeep.dev/name": owner}
    data = {"progress.json": "{}", "kafka-topics.yaml": "long"} if number == 0 else {"kafka-topics.yaml": "long"}
    metadata = {"name": f"{owner}-{number}", "namespace": "team", "labels": labels}
    return {"metadata": metadata, "data": data, "binaryData": {"kafka-topics.yaml.gz": "long"}}


class Pages(Quiet):
    """An API that lists one ConfigMap after the other, whatever the limit."""

    requested: ClassVar[list[dict[str, list[str]]]] = []
    config_maps = [config_map(name, number) for number in range(2) for name in NAMES]  # noqa: RUF012

    def do_GET(self) -> None:  # noqa: N802 (http.server calls it so)
        where = urlsplit(self.path)
        answer = listed(where.path)
        if where.path.endswith("/kafkabackups"):
            answer["items"] = [{"metadata": {"name": name, "namespace": "team", "uid": name}} for name in NAMES]
        if where.path.endswith("/configmaps"):
            query = parse_qs(where.query)
            self.requested.append(query)
            at = int(query.get("continue", ["0"])[0])
            answer["items"] = self.config_maps[at : at + 1]
            if at + 1 < len(self.config_maps):
                answer["metadata"]["continue"] = str(at + 1)
        self.answer(json.dumps(answer).encode())


def test_documents_are_read_page_by_page_and_those_of_settled_resources_are_not_kept() -> None:
    wanted = Key("KafkaBackup", "team", "b3")

    def is_wanted(resource: Resource) -> bool:
        return resource.key == wanted

    with api(Pages) as cluster:
        Pages.requested = []
        snapshot = ResourceSnapshot(cluster, "team", is_wanted)
        assert {int(query["limit"][0]) <= 50 for query in Pages.requested} == {True}
        assert len(Pages.requested) == len(Pages.config_maps)
        assert [body["metadata"]["name"] for body in snapshot.children("ConfigMap", wanted)] == ["b3-0", "b3-1"]
        assert len(snapshot.resources) == len(NAMES)
        kept = [body for bodies in vars(snapshot)["_children"].values() for body in bodies]
        assert [body.get("data") for body in kept] == [{"progress.json": "{}"}, {}], "no decision needs the topics"
        assert not any("binaryData" in body for body in kept)

        Pages.requested = []
        ResourceSnapshot(cluster, "team", lambda resource: False)
        assert Pages.requested == [], "nothing is wanted"

"""All resources of a namespace, or of the cluster, with their children, in as many calls as there are kinds.

A resync asks `reconcile` about this instead of reading each resource's children: its cost does not grow with the
number of resources, and only those get a look of their own for which there is something to do. What is read here is a
moment old and of several moments, so nothing is ever done because of it alone.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Protocol

from logkeep_operator.api import Key, Resource
from logkeep_operator.cluster import CHILDREN, Cluster
from logkeep_operator.resources import LABEL_KIND, LABEL_NAME, resource_labels

_Place = tuple[str, str, str, str]


class Source(Protocol):
    """Where a resource and what belongs to it are read."""

    def resource(self, key: Key) -> Resource | None: ...

    def children(self, kind: str, key: Key) -> list[dict[str, Any]]: ...

    def newest_warning(self, namespace: str, kind: str, name: str) -> str | None: ...


class Snapshot:
    """A `Source` without Events: what only they know is found when the resource is looked at."""

    def __init__(self, cluster: Cluster, namespace: str | None) -> None:
        scope = [namespace] if namespace is not None else []
        self.resources = {resource.key: resource for resource in cluster.resources(scope)}
        self._children: dict[_Place, list[dict[str, Any]]] = defaultdict(list)
        for kind in CHILDREN if self.resources else ():
            for body in cluster.all_children(kind, namespace):
                metadata = body["metadata"]
                labels = metadata.get("labels") or {}
                place = (kind, metadata["namespace"], labels.get(LABEL_KIND, ""), labels.get(LABEL_NAME, ""))
                self._children[place].append(body)

    def resource(self, key: Key) -> Resource | None:
        return self.resources.get(key)

    def children(self, kind: str, key: Key) -> list[dict[str, Any]]:
        labels = resource_labels(key)
        return self._children.get((kind, key.namespace, labels[LABEL_KIND], labels[LABEL_NAME]), [])

    def newest_warning(self, namespace: str, kind: str, name: str) -> str | None:
        return None

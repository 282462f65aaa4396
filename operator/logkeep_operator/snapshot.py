"""All resources of a namespace, or of the cluster, with the children of those that are needed, in a list for each kind.

A resync asks `reconcile` about this instead of reading each resource's children. So its cost does not grow with the
number of resources, and only resources for which there is something to do get a look of their own. The lists are a
moment old, and of several moments, so nothing is ever done because of them alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from logkeep_operator.api import Key, Resource
from logkeep_operator.api.archive import KafkaArchive
from logkeep_operator.bounds import MAX_SNAPSHOT_BYTES, MemoryBound
from logkeep_operator.cluster import CHILDREN, KubernetesCluster
from logkeep_operator.resources import LABEL_KIND, LABEL_NAME, resource_labels

_Place = tuple[str, str, str, str]


class ResourceReader(Protocol):
    """The reader of a resource and of what belongs to it."""

    def resource(self, key: Key) -> Resource | None: ...

    def children(self, kind: str, key: Key) -> list[dict[str, Any]]: ...

    def newest_warning(self, namespace: str, kind: str, name: str) -> str | None: ...

    def strimzi_kafka(self, namespace: str, name: str) -> dict[str, Any] | None: ...


class ResourceSnapshot:
    """A `ResourceReader` from lists, without Events: the controller finds what only Events know when it looks at the
    resource. It knows the children of `wanted` resources only: the documents of all may be too much for memory. It
    holds no more than MAX_SNAPSHOT_BYTES: `left_out` are resources that it does not know, and of those that are short
    it lacks children. They need looks of their own."""

    def __init__(self, cluster: KubernetesCluster, namespace: str | None, wanted: Callable[[Resource], bool]) -> None:
        self._cluster = cluster
        self._kafkas: dict[tuple[str, str], dict[str, Any] | None] = {}
        scope = [namespace] if namespace is not None else []
        self._bound = MemoryBound(MAX_SNAPSHOT_BYTES)
        self.resources: dict[Key, Resource] = {}
        self.left_out: set[Key] = set()
        self.archives: dict[Key, KafkaArchive] = {}
        for archive in cluster.archives(scope):
            if self._bound.take([archive.spec, archive.status.to_dict()]):
                self.archives[archive.key] = archive
            else:
                self.left_out.add(archive.key)
        for resource in cluster.resources(scope, self.archives):
            if self._bound.take([resource.spec, resource.status.to_dict(), *resource.annotations.values()]):
                self.resources[resource.key] = resource
            else:
                self.left_out.add(resource.key)
        self.wanted = frozenset(key for key, resource in self.resources.items() if wanted(resource))
        self._children: dict[_Place, list[dict[str, Any]]] = {
            _place(kind, key): [] for key in self.wanted for kind in CHILDREN
        }
        self._short: set[tuple[str, str, str]] = set()
        for kind in CHILDREN if self.wanted else ():
            for body in cluster.all_children(kind, namespace):
                metadata = body["metadata"]
                labels = metadata.get("labels") or {}
                place = (kind, metadata["namespace"], labels.get(LABEL_KIND, ""), labels.get(LABEL_NAME, ""))
                if place in self._children:
                    self._keep(place, body)

    def _keep(self, place: _Place, body: dict[str, Any]) -> None:
        if self._bound.take(body):
            self._children[place].append(body)
        else:
            self._short.add(place[1:])

    def resource(self, key: Key) -> Resource | None:
        return self.resources.get(key)

    def is_short(self, key: Key) -> bool:
        """Return whether there was no space for a child of the resource."""
        return _place("", key)[1:] in self._short

    def children(self, kind: str, key: Key) -> list[dict[str, Any]]:
        return self._children[_place(kind, key)]

    def newest_warning(self, namespace: str, kind: str, name: str) -> str | None:
        return None

    def strimzi_kafka(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Asked for once, however many resources name it."""
        place = (namespace, name)
        if place not in self._kafkas:
            self._kafkas[place] = self._cluster.strimzi_kafka(namespace, name)
        return self._kafkas[place]


def _place(kind: str, key: Key) -> _Place:
    labels = resource_labels(key)
    return kind, key.namespace, labels[LABEL_KIND], labels[LABEL_NAME]

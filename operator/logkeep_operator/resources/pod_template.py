"""Puts a pod together from layers: the operator's defaults, the template in the resource, `spark.conf`, and what the
operator needs. A later layer wins over an earlier one.

`merge` follows Kubernetes' strategic merge patch, for the fields that a template can have: objects are merged by key,
the lists in `_KEYS` by the field that names their items, and an item, like every other value, is replaced as a whole.
Containers are the exception: they are merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from logkeep_engine.contract.driver_conf import DriverConf
from logkeep_engine.contract.pods import PodTemplate

Layer = Mapping[str, Any]

_KEYS = {
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
_MERGED_ITEMS = ("containers",)
# One of them replaces the others: an object with parts of two would say neither.
_WHOLE = ("affinity", "seccompProfile")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_NO_PROXY = ("NO_PROXY", "no_proxy")
_API_SERVER = "$(KUBERNETES_SERVICE_HOST)"  # the kubelet puts the address in


def merged(*layers: Layer) -> dict[str, Any]:
    """Return the layers as one, the lowest first."""
    return reduce(merge, layers, {})


def merge(under: Layer, over: Layer) -> dict[str, Any]:
    """Both as one; where they say different things, `over` wins. Items of `over` come first in a list, so that the
    operator's variables can be referred to by those of a template."""
    result = dict(under)
    for name, value in over.items():
        result[name] = _one(name, under[name], value) if name in under else value
    return result


def _one(name: str, under: Any, over: Any) -> Any:
    if name in _KEYS and isinstance(under, list):
        return _list(under, over, _KEYS[name], merge_items=name in _MERGED_ITEMS)
    if isinstance(under, dict) and isinstance(over, dict) and name not in _WHOLE:
        return merge(under, over)
    return over


def _list(under: Sequence[Layer], over: Sequence[Layer], key: str, *, merge_items: bool) -> list[Any]:
    below = {item[key]: item for item in under}
    first = [merge(below.get(item[key], {}), item) if merge_items else item for item in over]
    named = {item[key] for item in over}
    return [*first, *(item for item in under if item[key] not in named)]


def layer_of(template: PodTemplate | None) -> dict[str, Any]:
    """Return the layer of the resource's template. Empty fields are left out."""
    if template is None:
        return {}
    dumped = template.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {part: {name: value for name, value in fields.items() if value not in ({}, [])}
            for part, fields in dumped.items() if fields}  # fmt: skip


def of_conf(settings: DriverConf, container: str) -> dict[str, Any]:
    """Return the layer of `spark.conf` for the driver's pod. For executors Spark lays it over the template itself."""
    spec: dict[str, Any] = {"nodeSelector": dict(settings.node_selector)} if settings.node_selector else {}
    if settings.scheduler is not None:
        spec["schedulerName"] = settings.scheduler
    if settings.environment:
        env = [{"name": name, "value": value} for name, value in settings.environment.items()]
        spec["containers"] = [{"name": container, "env": env}]
    metadata = {"labels": dict(settings.labels), "annotations": dict(settings.annotations)}
    return {"metadata": metadata, "spec": spec}


def reach_api_server(env: Sequence[Layer]) -> list[Layer]:
    """Return the variables with which the driver asks the API server itself, whatever proxy they name: a proxy for the
    object store knows nothing of the cluster's own addresses. A NO_PROXY from a Secret or a ConfigMap stays as it
    is."""
    values = {item["name"]: item for item in env}
    proxied = any(name in values or name.lower() in values for name in _PROXIES)
    given = [values[name] for name in _NO_PROXY if name in values]
    if not proxied or any("valueFrom" in item for item in given):
        return list(env)
    result = [item for item in env if item["name"] not in _NO_PROXY]
    for name in _NO_PROXY:  # libraries differ in which one they read
        exempt = values.get(name, given[0] if given else {}).get("value")
        result.append({"name": name, "value": f"{exempt},{_API_SERVER}" if exempt else _API_SERVER})
    return result

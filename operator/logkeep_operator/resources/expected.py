"""Whether an object under the name of a run's child is the one that the operator would make.

The names of children follow from the resource, so anybody can compute them. Who may create objects in the namespace can
take such a name beforehand. Labels, annotations and owner references are claims, too: their author writes
them. So what identifies a run is compared with its content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logkeep_engine.contract.request_files import hash_of_job

_OWNER = ("apiVersion", "kind", "name", "uid", "controller")


def difference(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """Say how the object which is there differs from the wanted one. None if it is the wanted one."""
    (owner,) = wanted["metadata"]["ownerReferences"]
    if not owned_by(found, owner):
        return f"its controller is not {owner['kind']} {owner['name']} of this uid"
    labels = found["metadata"].get("labels") or {}
    if not wanted["metadata"]["labels"].items() <= labels.items():
        return "it lacks labels of the run"
    if wanted["kind"] == "Job":
        return None if hash_of_job(found) == hash_of_job(wanted) else "it runs another request"
    if wanted.get("immutable"):
        if found.get("immutable") is not True:
            return "it can be changed"
        return None if _content(found) == _content(wanted) else "it holds another request"
    if found.get("immutable"):
        return "it cannot be changed"
    return "the driver has not run yet, but it holds something" if any(_content(found)) else None


def owned_by(body: Mapping[str, Any], owner: Mapping[str, Any]) -> bool:
    """Return whether the object names this owner as its controller."""
    owners = body["metadata"].get("ownerReferences") or ()
    return any(all(one.get(field) == owner[field] for field in _OWNER) for one in owners)


def _content(body: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    return body.get("data") or {}, body.get("binaryData") or {}

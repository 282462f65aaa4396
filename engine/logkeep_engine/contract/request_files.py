"""The files of a run's request, and the hash that the run's Job carries of them.

They lie in a ConfigMap, and a user who may create ConfigMaps can put another one in its place before the operator does.
The arguments of a Job's container never change. So the driver compares what it has mounted with the hash there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ARGUMENT_HASH = "--request-hash"
ARGUMENT_RUN = "--run-id"


def request_hash(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256, in hexadecimal, of names and contents of all files."""
    digest = hashlib.sha256()
    for name in sorted(files):
        for part in (name.encode(), files[name]):
            digest.update(len(part).to_bytes(8))
            digest.update(part)
    return digest.hexdigest()


def hash_of_config_map(body: Mapping[str, Any]) -> str:
    """Return the hash of the files that a ConfigMap becomes when it is mounted."""
    return request_hash({name: text.encode() for name, text in body["data"].items()})


def hash_of_job(body: Mapping[str, Any]) -> str | None:
    """Return the hash that a Job carries of its request, None if it carries none."""
    pod = (body.get("spec") or {}).get("template", {}).get("spec") or {}
    for container in pod.get("containers") or ():
        found = _value(container.get("args") or ())
        if found is not None:
            return found
    return None


def mounted_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a ConfigMap that is mounted here. The kubelet's own entries begin with two dots."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith("..")}


def _value(arguments: Iterable[object]) -> str | None:
    rest = iter(arguments)
    for argument in rest:
        if argument == ARGUMENT_HASH:
            found = next(rest, None)
            return found if isinstance(found, str) else None
    return None

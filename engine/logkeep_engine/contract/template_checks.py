"""Checks of a pod template beyond those of the contract's models: it may neither take the run's pods away from the
operator, nor hide what the operator mounts, nor wait for the API server to be refused.

The API server looks at the driver's pod when the Job is made. Executors are made by Spark, in the middle of a run, so
what it would refuse there is said here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from logkeep_engine.contract import driver_conf
from logkeep_engine.contract.folders import resolved
from logkeep_engine.contract.names import ENV_TASK_MEMORY, ROLE_EXECUTOR
from logkeep_engine.contract.objects import is_name
from logkeep_engine.contract.pods import PodContainer, PodSpec, PodTemplate

Problem = tuple[str, str]

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VOLUMES = frozenset(["archive", "kafka-ca", "kafka-client", "request", "s3-ca", "state", "state-ca", "tmp"])
# Spark adds volumes of its own, and refuses a template that has one of them elsewhere.
_SPARK_VOLUMES = "spark-"
_FOLDERS = (
    "/dev", "/etc/logkeep", "/opt/code", "/opt/java", "/opt/logkeep", "/opt/spark", "/proc", "/sys", "/tmp",
    "/usr", "/var/data", "/var/run/secrets/kubernetes.io",
)  # fmt: skip
_SYSTEM_CLASSES = "system-"
_TWICE = "appears twice"


def template_problems(path: str, role: str, template: PodTemplate | None, archives: Iterable[str]) -> list[Problem]:
    """Problems of the template at `path`, for the pods of a role. `archives`: where volumes of the storages are
    mounted."""
    if template is None:
        return []
    folders = (*_FOLDERS, *archives)
    return [
        *_metadata(f"{path}.metadata", role, template),
        *_map(f"{path}.spec.nodeSelector", template.spec.node_selector, values_are_names=True),
        *_priority(f"{path}.spec.priorityClassName", template.spec),
        *_volumes(f"{path}.spec.volumes", template.spec),
        *(
            problem
            for number, container in enumerate(template.spec.containers)
            for problem in _container(f"{path}.spec.containers[{number}]", role, container, template.spec, folders)
        ),
    ]


def _metadata(path: str, role: str, template: PodTemplate) -> Iterator[Problem]:
    metadata = template.metadata
    yield from _map(f"{path}.labels", metadata.labels, values_are_names=True)
    yield from _map(f"{path}.annotations", metadata.annotations, values_are_names=False)
    for kind in ("labels", "annotations"):
        for key in sorted(getattr(metadata, kind)):
            if driver_conf.is_own(key):
                yield f"{path}.{kind}[{key}]", driver_conf.OWN
            elif kind == "annotations" and key.startswith(driver_conf.APPARMOR):
                yield f"{path}.{kind}[{key}]", driver_conf.KEEPS_APPARMOR
            elif kind == "labels" and role == ROLE_EXECUTOR and key in driver_conf.SPARKS_LABELS:
                yield f"{path}.{kind}[{key}]", "is set by Spark and cannot be changed"


def _map(path: str, pairs: dict[str, str], *, values_are_names: bool) -> Iterator[Problem]:
    for key, value in sorted(pairs.items()):
        prefix, slash, name = key.rpartition("/")
        if not _NAME.fullmatch(name) or (slash and not is_name(prefix)):
            yield f"{path}[{key}]", "is not a name such as team or example.com/team"
        elif values_are_names and value and not _NAME.fullmatch(value):
            yield f"{path}[{key}]", f"{value!r} is not a value of at most 63 letters, digits, '-', '_' and '.'"


def _priority(path: str, spec: PodSpec) -> Iterator[Problem]:
    if spec.priority_class_name is not None and spec.priority_class_name.startswith(_SYSTEM_CLASSES):
        yield path, f"{spec.priority_class_name!r} is for the cluster's own pods, which a run may not displace"


def _volumes(path: str, spec: PodSpec) -> Iterator[Problem]:
    seen = set()
    for number, volume in enumerate(spec.volumes):
        where = f"{path}[{number}].name"
        if volume.name in _VOLUMES or volume.name.startswith(_SPARK_VOLUMES):
            yield where, f"{volume.name!r} is the name of a volume of Logkeep or Spark; choose another"
        elif volume.name in seen:
            yield where, f"{volume.name!r} {_TWICE}"
        seen.add(volume.name)


def _container(
    path: str, role: str, container: PodContainer, spec: PodSpec, folders: tuple[str, ...]
) -> Iterator[Problem]:
    if container.name != role:
        yield f"{path}.name", f"must be {role!r}: there is no other container"
    yield from _env(f"{path}.env", container)
    volumes, seen = {volume.name for volume in spec.volumes}, set()
    for number, mount in enumerate(container.volume_mounts):
        where = f"{path}.volumeMounts[{number}]"
        if mount.name not in volumes:
            yield f"{where}.name", f"{mount.name!r} is not in the template's volumes"
        if mount.sub_path is not None and (mount.sub_path.startswith("/") or ".." in mount.sub_path.split("/")):
            yield f"{where}.subPath", f"{mount.sub_path!r} must be a path below the volume, without '..'"
        place = resolved(mount.mount_path)
        hidden = next((own for own in folders if _meet(place, resolved(own))), None)
        if ".." in place.parts:
            yield f"{where}.mountPath", "may not have '..' in it"
        elif hidden is not None:
            yield f"{where}.mountPath", f"{mount.mount_path!r} would hide or change {hidden!r}, which runs need"
        elif place in seen:
            yield f"{where}.mountPath", f"{mount.mount_path!r} {_TWICE}"
        seen.add(place)


def _meet(one: PurePosixPath, other: PurePosixPath) -> bool:
    """Return whether one of the paths lies in the other."""
    return one.is_relative_to(other) or other.is_relative_to(one)


def _env(path: str, container: PodContainer) -> Iterator[Problem]:
    seen = set()
    for number, variable in enumerate(container.env):
        where = f"{path}[{number}].name"
        if (wrong := driver_conf.variable_problem(variable.name)) is not None:
            yield where, f"{variable.name} {wrong}"
        elif variable.name == ENV_TASK_MEMORY:
            yield where, f"{variable.name} {driver_conf.TASK_MEMORY}"
        elif variable.name in seen:
            yield where, f"{variable.name} {_TWICE}"
        seen.add(variable.name)

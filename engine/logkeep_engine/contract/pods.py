"""The template of the driver's pod or of executors' pods (`podTemplate` in `spark.driver` and `spark.executor`).

It has the fields of Kubernetes' PodTemplateSpec with which a platform fits pods in, and no others. What weakens the
pod's isolation (host paths, the host's namespaces, privileges) is not there, so the models refuse it. Where nothing of
ours depends on what is in a field, it is passed on as it is. No field has a default that the API server would write
into the resource.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from logkeep_engine.contract.model import Model, meant, schema
from logkeep_engine.contract.nesting import check_levels
from logkeep_engine.contract.values import MAX_DNS_NAME, ResourceName

MAX_ID = 2**31 - 1


def _flat_enough(value: dict[str, Any]) -> dict[str, Any]:
    check_levels(value)
    return value


Free = Annotated[dict[str, Any], AfterValidator(_flat_enough)]
Id = Annotated[int, Field(ge=0, le=MAX_ID)]
Text = Annotated[str, Field(min_length=1), schema(maxLength=1024)]
Texts = Annotated[dict[str, Annotated[str, schema(maxLength=4096)]], schema(maxProperties=100)]
FEW, SOME = schema(maxItems=64), schema(maxItems=100)


def _empty() -> tuple[Any, ...]:
    return ()  # in place of `tuple`, whose signature pydantic would take from its docstring, in 3 ms


class PodMetadata(Model):
    labels: Texts = Field(default_factory=dict)
    """Labels of the pod. Logkeep's own cannot be changed."""
    annotations: Texts = Field(default_factory=dict)
    """Annotations of the pod. Logkeep's own cannot be changed."""


class TolerationOperator(StrEnum):
    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Model):
    """A taint that is tolerated."""

    key: Annotated[str | None, schema(maxLength=317)] = None
    """Key of the taint, by default every key."""
    operator: TolerationOperator | None = None
    """Whether the value must be equal, by default so, or the key be there."""
    value: Annotated[str | None, schema(maxLength=63)] = None
    """Value of the taint."""
    effect: TaintEffect | None = None
    """Effect of the taint, by default every effect."""
    toleration_seconds: int | None = None
    """How long a taint with effect NoExecute is tolerated, by default for ever."""

    @model_validator(mode="after")
    def _is_whole(self) -> Toleration:
        if not self.key and self.operator is not TolerationOperator.EXISTS:
            raise ValueError("key may be left out only with operator Exists")
        if self.value and self.operator is TolerationOperator.EXISTS:
            raise ValueError("value may not be set with operator Exists")
        if self.toleration_seconds is not None and self.effect is not TaintEffect.NO_EXECUTE:
            raise ValueError("tolerationSeconds may be set only with effect NoExecute")
        return self


class Affinity(Model):
    node_affinity: Free | None = None
    """Nodes that the pod must or should run on."""
    pod_affinity: Free | None = None
    """Pods that the pod must or should be near."""
    pod_anti_affinity: Free | None = None
    """Pods that the pod must not or should not be near."""


class WhenUnsatisfiable(StrEnum):
    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class NodeInclusion(StrEnum):
    HONOR = "Honor"
    IGNORE = "Ignore"


class TopologySpreadConstraint(Model):
    """A rule for spreading pods."""

    max_skew: Annotated[int, Field(ge=1)]
    """By how many pods domains may differ."""
    topology_key: Text
    """Label of nodes that names their domain."""
    when_unsatisfiable: WhenUnsatisfiable
    """The consequence if the rule cannot be kept."""
    label_selector: Free | None = None
    """Pods that are counted."""
    match_label_keys: Annotated[tuple[Text, ...] | None, FEW] = None
    """Labels of this pod that counted pods must have too."""
    min_domains: Annotated[int, Field(ge=1)] | None = None
    """The fewest domains that the rule is kept with."""
    node_affinity_policy: NodeInclusion | None = None
    """Whether node affinity and node selector are kept in counting."""
    node_taints_policy: NodeInclusion | None = None
    """Whether taints are kept in counting."""


class ImagePullSecret(Model):
    """A Secret."""

    name: ResourceName
    """Name of the Secret, in the same namespace."""


class SeLinuxOptions(Model):
    """Only the level: another user, role or type may give the pod more rights than it has."""

    level: Text
    """Level, such as s0:c123,c456."""


class SeccompType(StrEnum):
    RUNTIME_DEFAULT = "RuntimeDefault"
    LOCALHOST = "Localhost"


class SeccompProfile(Model):
    type: SeccompType
    """Whether the profile is that of the container runtime, or a file on the node."""
    localhost_profile: Text | None = None
    """Path of the file, set exactly when type is Localhost."""

    @model_validator(mode="after")
    def _is_whole(self) -> SeccompProfile:
        if (self.type is SeccompType.LOCALHOST) != (self.localhost_profile is not None):
            raise ValueError("localhostProfile must be set exactly when type is Localhost")
        return self


class FsGroupChangePolicy(StrEnum):
    ON_ROOT_MISMATCH = "OnRootMismatch"
    ALWAYS = "Always"


class PodSecurityContext(Model):
    """`runAsNonRoot` is always true, and so is not a field."""

    run_as_user: Annotated[int, Field(ge=1, le=MAX_ID)] | None = None
    """User id of the processes."""
    run_as_group: Id | None = None
    """Group id of the processes."""
    fs_group: Id | None = None
    """Group that volumes are given to."""
    fs_group_change_policy: FsGroupChangePolicy | None = None
    """When the files of a volume are given to fsGroup."""
    supplemental_groups: Annotated[tuple[Id, ...] | None, FEW] = None
    """More groups of the processes."""
    se_linux_options: SeLinuxOptions | None = None
    """SELinux label of the containers."""
    seccomp_profile: SeccompProfile | None = None
    """System calls that the containers may use."""


VOLUME = meant(
    r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
    "the name of a volume: at most 63 lower-case letters, digits, and '-' between them",
)


class PodVolume(Model):
    """A volume; exactly one kind must be set. Nothing of the node can be mounted."""

    name: Annotated[str, Field(pattern=VOLUME), schema(maxLength=63)]
    """Name of the volume. Those of Logkeep's and Spark's own volumes are refused."""
    config_map: Free | None = None
    """A ConfigMap."""
    csi: Free | None = None
    """A volume that a CSI driver makes for the pod."""
    downward_api: Annotated[Free | None, Field(alias="downwardAPI")] = None
    """Facts of the pod."""
    empty_dir: Free | None = None
    """An empty folder that goes with the pod."""
    ephemeral: Free | None = None
    """A PersistentVolumeClaim that goes with the pod."""
    persistent_volume_claim: Free | None = None
    """A PersistentVolumeClaim."""
    projected: Free | None = None
    """Several sources in one folder."""
    secret: Free | None = None
    """A Secret."""

    @model_validator(mode="after")
    def _has_one_kind(self) -> PodVolume:
        kinds = sorted(field.alias or name for name, field in type(self).model_fields.items() if name != "name")
        if len([value for name, value in self if name != "name" and value is not None]) != 1:
            raise ValueError(f"exactly one of {', '.join(kinds[:-1])} and {kinds[-1]} must be set")
        return self


class VolumeMount(Model):
    """The place of a volume."""

    name: Text
    """Name of the volume, which must be in volumes."""
    mount_path: Annotated[
        str, Field(pattern=meant(r"^/[^:]*$", "an absolute path without ':'")), schema(maxLength=1024)
    ]
    """Folder or file in the container. One that would hide what runs need is refused."""
    read_only: bool | None = None
    """Whether the container may only read."""
    sub_path: Text | None = None
    """Path in the volume, by default its root."""


VARIABLE = meant(
    r"^[-._a-zA-Z][-._a-zA-Z0-9]*$",
    "the name of a variable: letters, digits, '-', '_' and '.', and no digit first",
)


class EnvVar(Model):
    """A variable; a name that Logkeep or Spark sets is refused."""

    name: Annotated[str, Field(pattern=VARIABLE), schema(maxLength=253)]
    """Name of the variable."""
    value: Annotated[str | None, schema(maxLength=32768)] = None
    """Value of the variable."""
    value_from: Free | None = None
    """Where the value comes from: one of configMapKeyRef, fieldRef, resourceFieldRef and secretKeyRef."""

    @model_validator(mode="after")
    def _has_one_value(self) -> EnvVar:
        if self.value is not None and self.value_from is not None:
            raise ValueError("value and valueFrom may not both be set")
        if self.value_from is not None and (
            len(self.value_from) != 1 or not self.value_from.keys() <= set(VALUE_SOURCES)
        ):
            raise ValueError(f"valueFrom must have one of {', '.join(VALUE_SOURCES)}")
        return self


VALUE_SOURCES = ("configMapKeyRef", "fieldRef", "resourceFieldRef", "secretKeyRef")


class PodContainer(Model):
    """The container: the template can only add to it."""

    name: Text
    """driver for the driver, executor for executors."""
    env: Annotated[tuple[EnvVar, ...], SOME] = Field(default_factory=_empty)
    """Environment, for example of proxies. NO_PROXY gets the API server's address in the driver."""
    volume_mounts: Annotated[tuple[VolumeMount, ...], SOME] = Field(default_factory=_empty)
    """Where volumes of the template are mounted."""


class PodSpec(Model):
    node_selector: Texts = Field(default_factory=dict)
    """Labels that nodes must have."""
    tolerations: Annotated[tuple[Toleration, ...], SOME] = Field(default_factory=_empty)
    """Taints of nodes that the pod tolerates."""
    affinity: Affinity | None = None
    """Nodes and pods that the pod wants to be near, or not near."""
    topology_spread_constraints: Annotated[tuple[TopologySpreadConstraint, ...], FEW] = Field(default_factory=_empty)
    """How pods are spread over domains, such as zones."""
    priority_class_name: ResourceName | None = None
    """Name of a PriorityClass."""
    runtime_class_name: ResourceName | None = None
    """Name of a RuntimeClass."""
    scheduler_name: Annotated[str, Field(min_length=1, max_length=MAX_DNS_NAME)] | None = None
    """Name of the scheduler."""
    service_account_name: ResourceName | None = None
    """Name of the ServiceAccount, before spark.serviceAccountName. The chart says which are allowed."""
    image_pull_secrets: Annotated[tuple[ImagePullSecret, ...], FEW] = Field(default_factory=_empty)
    """Secrets for pulling the image, next to those of the installation."""
    security_context: PodSecurityContext | None = None
    """User and groups of the containers, and what they may ask of the node. What is not set here stays as the operator
    sets it; runAsNonRoot is always true."""
    volumes: Annotated[tuple[PodVolume, ...], FEW] = Field(default_factory=_empty)
    """Volumes next to Logkeep's own."""
    containers: Annotated[tuple[PodContainer, ...], Field(max_length=1)] = Field(default_factory=_empty)
    """Additions to the one container that the pod has."""


class PodTemplate(Model):
    metadata: PodMetadata = Field(default_factory=PodMetadata)
    """Labels and annotations."""
    spec: PodSpec = Field(default_factory=PodSpec)
    """Specification of the pod."""

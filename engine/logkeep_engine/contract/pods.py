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

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.nesting import check_levels
from logkeep_engine.contract.values import MAX_DNS_NAME, ResourceName

MAX_ID = 2**31 - 1


def _flat_enough(value: dict[str, Any]) -> dict[str, Any]:
    check_levels(value)
    return value


Free = Annotated[dict[str, Any], AfterValidator(_flat_enough)]
Id = Annotated[int, Field(ge=0, le=MAX_ID)]
Text = Annotated[str, Field(min_length=1)]


class PodMetadata(Model):
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class TolerationOperator(StrEnum):
    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Model):
    key: str | None = None
    operator: TolerationOperator | None = None
    value: str | None = None
    effect: TaintEffect | None = None
    toleration_seconds: int | None = None

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
    pod_affinity: Free | None = None
    pod_anti_affinity: Free | None = None


class WhenUnsatisfiable(StrEnum):
    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class NodeInclusion(StrEnum):
    HONOR = "Honor"
    IGNORE = "Ignore"


class TopologySpreadConstraint(Model):
    max_skew: Annotated[int, Field(ge=1)]
    topology_key: Text
    when_unsatisfiable: WhenUnsatisfiable
    label_selector: Free | None = None
    match_label_keys: tuple[Text, ...] | None = None
    min_domains: Annotated[int, Field(ge=1)] | None = None
    node_affinity_policy: NodeInclusion | None = None
    node_taints_policy: NodeInclusion | None = None


class ImagePullSecret(Model):
    name: ResourceName


class SeLinuxOptions(Model):
    """Only the level: another user, role or type may give the pod more rights than it has."""

    level: Text


class SeccompType(StrEnum):
    RUNTIME_DEFAULT = "RuntimeDefault"
    LOCALHOST = "Localhost"


class SeccompProfile(Model):
    type: SeccompType
    localhost_profile: Text | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> SeccompProfile:
        if (self.type is SeccompType.LOCALHOST) != (self.localhost_profile is not None):
            raise ValueError("localhostProfile must be set exactly when type is Localhost")
        return self


class FsGroupChangePolicy(StrEnum):
    ON_ROOT_MISMATCH = "OnRootMismatch"
    ALWAYS = "Always"


class PodSecurityContext(Model):
    """`runAsNonRoot` is always true, and so is no field."""

    run_as_user: Annotated[int, Field(ge=1, le=MAX_ID)] | None = None
    run_as_group: Id | None = None
    fs_group: Id | None = None
    fs_group_change_policy: FsGroupChangePolicy | None = None
    supplemental_groups: tuple[Id, ...] | None = None
    se_linux_options: SeLinuxOptions | None = None
    seccomp_profile: SeccompProfile | None = None


class PodVolume(Model):
    """The kinds that the Pod Security Standard `restricted` has: nothing of the node."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
    config_map: Free | None = None
    csi: Free | None = None
    downward_api: Annotated[Free | None, Field(alias="downwardAPI")] = None
    empty_dir: Free | None = None
    ephemeral: Free | None = None
    persistent_volume_claim: Free | None = None
    projected: Free | None = None
    secret: Free | None = None

    @model_validator(mode="after")
    def _has_one_kind(self) -> PodVolume:
        kinds = sorted(field.alias or name for name, field in type(self).model_fields.items() if name != "name")
        if len([value for name, value in self if name != "name" and value is not None]) != 1:
            raise ValueError(f"exactly one of {', '.join(kinds[:-1])} and {kinds[-1]} must be set")
        return self


class VolumeMount(Model):
    name: Text
    mount_path: Annotated[str, Field(pattern=r"^/[^:]*$")]
    read_only: bool | None = None
    sub_path: Text | None = None


class EnvVar(Model):
    name: Annotated[str, Field(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
    value: str | None = None
    value_from: Free | None = None

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
    """`name` is `driver` or `executor`: there is no other container."""

    name: Text
    env: tuple[EnvVar, ...] = Field(default_factory=tuple)
    volume_mounts: tuple[VolumeMount, ...] = Field(default_factory=tuple)


class PodSpec(Model):
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = Field(default_factory=tuple)
    affinity: Affinity | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = Field(default_factory=tuple)
    priority_class_name: ResourceName | None = None
    runtime_class_name: ResourceName | None = None
    scheduler_name: Annotated[str, Field(min_length=1, max_length=MAX_DNS_NAME)] | None = None
    service_account_name: ResourceName | None = None
    image_pull_secrets: tuple[ImagePullSecret, ...] = Field(default_factory=tuple)
    security_context: PodSecurityContext | None = None
    volumes: tuple[PodVolume, ...] = Field(default_factory=tuple)
    containers: Annotated[tuple[PodContainer, ...], Field(max_length=1)] = Field(default_factory=tuple)


class PodTemplate(Model):
    metadata: PodMetadata = Field(default_factory=PodMetadata)
    spec: PodSpec = Field(default_factory=PodSpec)

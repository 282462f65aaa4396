"""Refusals: of what a pod template may not say, and of what an installation does not allow."""

from __future__ import annotations

from typing import Any

import pytest

from logkeep_engine.contract.checks import check_spec
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.spec import parse_backup
from logkeep_operator.api import Phase
from logkeep_operator.reconcile import is_at_rest, reconcile
from logkeep_operator.reconcile.observed import Observed
from logkeep_operator.resources import NotAllowed, check_allowed
from logkeep_operator.settings import EngineSettings
from tests.unit.operator.world import START, World, backup_spec


def problems(role: str, template: dict[str, Any], **more: Any) -> list[tuple[str, str]]:
    """The problems of a template, with their places below it."""
    found: list[tuple[str, str]] = []
    try:
        check_spec(parse_backup(backup_spec(spark={role: {"podTemplate": template}}, **more)))
    except SpecInvalid as refused:
        found = refused.problems
    root = f"spec.spark.{role}.podTemplate."
    assert all(path.startswith(root) for path, _ in found)
    return [(path.removeprefix(root), what) for path, what in found]


def mounts(*places: str) -> dict[str, Any]:
    volume = {"name": "more", "emptyDir": {}}
    found = [{"name": "more", "mountPath": place} for place in places]
    return {"spec": {"volumes": [volume], "containers": [{"name": "driver", "volumeMounts": found}]}}


def below(path: str) -> dict[str, Any]:
    template = mounts("/mnt")
    template["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = path
    return template


def env(*variables: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "driver", "env": list(variables)}]}}


def volumes(*found: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"volumes": list(found)}}


APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
MOUNT = "spec.containers[0].volumeMounts[0]"


@pytest.mark.parametrize(
    ("template", "path", "why"),
    [
        (
            {"metadata": {"labels": {"logkeep.dev/run": "x"}}},
            "metadata.labels[logkeep.dev/run]",
            "finds the run's pods",
        ),
        (
            {"metadata": {"annotations": {"logkeep.dev/resource": "x"}}},
            "metadata.annotations[logkeep.dev/resource]",
            "finds the run's pods",
        ),
        (
            {"metadata": {"annotations": {f"{APPARMOR}driver": "unconfined"}}},
            f"metadata.annotations[{APPARMOR}driver]",
            "AppArmor profile",
        ),
        ({"metadata": {"labels": {"-a": "x"}}}, "metadata.labels[-a]", "is not a name"),
        ({"metadata": {"labels": {"A_b/c": "x"}}}, "metadata.labels[A_b/c]", "is not a name"),
        ({"metadata": {"labels": {"a": "b c"}}}, "metadata.labels[a]", "'b c' is not a value of at most 63"),
        ({"metadata": {"labels": {"a": "b" * 64}}}, "metadata.labels[a]", "is not a value of at most 63"),
        ({"metadata": {"annotations": {"a b": "x"}}}, "metadata.annotations[a b]", "is not a name"),
        ({"spec": {"nodeSelector": {"a": "b c"}}}, "spec.nodeSelector[a]", "is not a value of at most 63"),
        ({"spec": {"containers": [{"name": "executor"}]}}, "spec.containers[0].name", "must be 'driver'"),
        (env({"name": "AWS_ACCESS_KEY_ID"}), "spec.containers[0].env[0].name", "is set by Logkeep"),
        (env({"name": "LOGKEEP_S3_CA_FILE"}), "spec.containers[0].env[0].name", "is set by Logkeep"),
        (
            env({"name": "LOGKEEP_TASK_MEMORY"}),
            "spec.containers[0].env[0].name",
            "set spec.spark.conf[spark.executorEnv.LOGKEEP_TASK_MEMORY]",
        ),
        (env({"name": "SPARK_JAVA_OPT_1"}), "spec.containers[0].env[0].name", "is set by Spark"),
        (env({"name": "A"}, {"name": "A"}), "spec.containers[0].env[1].name", "A appears twice"),
        (
            env({"name": "A", "value": "x", "valueFrom": {"fieldRef": {}}}),
            "spec.containers[0].env[0]",
            "value and valueFrom may not both be set",
        ),
        (
            env({"name": "A", "valueFrom": {"fileKeyRef": {}}}),
            "spec.containers[0].env[0]",
            "valueFrom must have one of",
        ),
        (env({"name": "A", "valueFrom": {}}), "spec.containers[0].env[0]", "valueFrom must have one of"),
        (volumes({"name": "tmp", "emptyDir": {}}), "spec.volumes[0].name", "'tmp' is the name of a volume of Logkeep"),
        (
            volumes({"name": "spark-local-dir-1", "emptyDir": {}}),
            "spec.volumes[0].name",
            "is the name of a volume of Logkeep or Spark",
        ),
        (
            volumes({"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}),
            "spec.volumes[1].name",
            "'a' appears twice",
        ),
        (volumes({"name": "a", "hostPath": {"path": "/"}}), "spec.volumes[0].hostPath", "unknown field"),
        (volumes({"name": "a", "nfs": {}}), "spec.volumes[0].nfs", "unknown field"),
        (volumes({"name": "a"}), "spec.volumes[0]", "exactly one of configMap, csi, downwardAPI"),
        (volumes({"name": "a", "secret": {}, "emptyDir": {}}), "spec.volumes[0]", "projected and secret must be set"),
        (mounts("/tmp"), f"{MOUNT}.mountPath", "would hide or change '/tmp'"),
        (mounts("/tmp/more"), f"{MOUNT}.mountPath", "would hide or change '/tmp'"),
        (mounts("/etc"), f"{MOUNT}.mountPath", "would hide or change '/etc/logkeep'"),
        (mounts("/"), f"{MOUNT}.mountPath", "would hide or change"),
        (mounts("/etc/logkeep/run/../run"), f"{MOUNT}.mountPath", "may not have '..' in it"),
        (mounts("/mnt/a", "/mnt/a/"), "spec.containers[0].volumeMounts[1].mountPath", "appears twice"),
        (mounts("//opt/code"), f"{MOUNT}.mountPath", "would hide or change '/opt/code'"),
        (mounts("/opt//code/./x"), f"{MOUNT}.mountPath", "would hide or change '/opt/code'"),
        (mounts("/lib/python3"), f"{MOUNT}.mountPath", "would hide or change '/usr'"),
        (mounts("/run/secrets/kubernetes.io"), f"{MOUNT}.mountPath", "change '/var/run/secrets/kubernetes.io'"),
        (below("../x"), f"{MOUNT}.subPath", "'../x' must be a path below the volume"),
        (below("/x"), f"{MOUNT}.subPath", "'/x' must be a path below the volume"),
        (
            {"spec": {"priorityClassName": "system-node-critical"}},
            "spec.priorityClassName",
            "is for the cluster's own pods",
        ),
        (
            {"spec": {"containers": [{"name": "driver", "volumeMounts": [{"name": "tmp", "mountPath": "/a"}]}]}},
            f"{MOUNT}.name",
            "'tmp' is not in the template's volumes",
        ),
        ({"spec": {"hostNetwork": True}}, "spec.hostNetwork", "unknown field"),
        ({"spec": {"hostPID": True}}, "spec.hostPID", "unknown field"),
        ({"spec": {"initContainers": []}}, "spec.initContainers", "unknown field"),
        ({"spec": {"containers": [{"name": "driver"}, {"name": "more"}]}}, "spec.containers", "at most 1 item"),
        (
            {"spec": {"containers": [{"name": "driver", "securityContext": {"privileged": True}}]}},
            "spec.containers[0].securityContext",
            "unknown field",
        ),
        ({"spec": {"containers": [{"name": "driver", "image": "x"}]}}, "spec.containers[0].image", "unknown field"),
        (
            {"spec": {"securityContext": {"runAsUser": 0}}},
            "spec.securityContext.runAsUser",
            "greater than or equal to 1",
        ),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "spec.securityContext.runAsNonRoot", "unknown field"),
        (
            {"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}},
            "spec.securityContext.seccompProfile.type",
            "RuntimeDefault",
        ),
        (
            {"spec": {"securityContext": {"seccompProfile": {"type": "Localhost"}}}},
            "spec.securityContext.seccompProfile",
            "localhostProfile must be set exactly when",
        ),
        (
            {"spec": {"securityContext": {"seLinuxOptions": {"level": "s0", "type": "spc_t"}}}},
            "spec.securityContext.seLinuxOptions.type",
            "unknown field",
        ),
        ({"spec": {"tolerations": [{"value": "a"}]}}, "spec.tolerations[0]", "only with operator Exists"),
        (
            {"spec": {"tolerations": [{"key": "a", "operator": "Exists", "value": "a"}]}},
            "spec.tolerations[0]",
            "value may not be set with operator Exists",
        ),
        (
            {"spec": {"tolerations": [{"key": "a", "tolerationSeconds": 1}]}},
            "spec.tolerations[0]",
            "only with effect NoExecute",
        ),
        ({"spec": {"affinity": {"nodeAfinity": {}}}}, "spec.affinity.nodeAfinity", "unknown field"),
    ],
)
def test_what_a_template_may_not_say_is_named(template: dict[str, Any], path: str, why: str) -> None:
    ((found, what),) = problems("driver", template)
    assert found == path
    assert why in what


def test_a_template_may_not_hide_the_archive() -> None:
    storage = {"uri": "file:///archive/kafka", "volume": {"claimName": "backups"}}
    ((_, what),) = problems("driver", mounts("/archive"), storage=storage)
    assert "would hide or change '/archive/kafka'" in what
    assert problems("driver", mounts("/archive"), storage={"uri": "s3://bucket"}) == []


def test_labels_by_which_spark_knows_executors_cannot_be_changed() -> None:
    labels = {"metadata": {"labels": {"spark-role": "driver"}}}
    assert problems("executor", labels) == [
        ("metadata.labels[spark-role]", "is set by Spark and cannot be changed"),
    ]
    assert problems("driver", labels) == []


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("spark.kubernetes.executor.volumes.hostPath.a.mount.path", "past the checks"),
        ("spark.kubernetes.executor.volumes.nfs.a.options.server", "past the checks"),
        ("spark.kubernetes.executor.volumes.persistentVolumeClaim.a.options.claimName", "past the checks"),
        ("spark.kubernetes.executor.pod.featureSteps", "past the checks"),
        ("spark.kubernetes.executor.pod.excludedFeatureSteps", "past the checks"),
        (f"spark.kubernetes.driver.annotation.{APPARMOR}driver", "AppArmor profile"),
        (f"spark.kubernetes.executor.annotation.{APPARMOR}executor", "AppArmor profile"),
    ],
)
def test_spark_conf_is_no_way_around(key: str, why: str) -> None:
    with pytest.raises(SpecInvalid, match=why):
        check_spec(parse_backup(backup_spec(spark={"conf": {key: "x"}})))


def asking(**spark: Any) -> list[str]:
    """The fields that are refused where the images of one registry, and one account, are allowed."""
    engine = EngineSettings("engine:1", allowed_images=("registry.example/*:1.?", "b"), allowed_accounts=("team-*",))
    try:
        check_allowed(parse_backup(backup_spec(spark=spark)), engine)
    except NotAllowed as refused:
        return [path for path, _ in refused.problems]
    return []


@pytest.mark.parametrize(
    ("image", "allowed"),
    [
        ("engine:1", True), ("b", True), ("registry.example/a/b:1.?", True), ("registry.example/a:1.2", False),
        ("engine:2", False), ("evil/registry.example/a:1.?", False), ("registry-example/a:1.?", False),
    ],
)  # fmt: skip
def test_images_are_those_that_the_installation_allows(image: str, allowed: bool) -> None:
    assert asking(image=image) == ([] if allowed else ["spec.spark.image"])


def test_accounts_are_those_that_the_installation_allows() -> None:
    def of_template(name: str) -> dict[str, Any]:
        return {"podTemplate": {"spec": {"serviceAccountName": name}}}

    assert asking() == []
    assert asking(serviceAccountName="team-a", driver=of_template("logkeep-engine")) == []
    assert asking(serviceAccountName="admin") == ["spec.spark.serviceAccountName"]
    assert asking(driver=of_template("admin"), executor=of_template("admin")) == [
        "spec.spark.driver.podTemplate.spec.serviceAccountName",
        "spec.spark.executor.podTemplate.spec.serviceAccountName",
    ]


def test_a_resource_that_is_not_allowed_runs_once_the_installation_allows_it() -> None:
    world = World(spec=backup_spec(spark={"image": "other:1"}))
    strict = EngineSettings("engine:1")
    plan = reconcile(Observed(world.resource), START, strict)
    assert plan.actions == ()
    assert plan.status is not None
    ready = plan.status.condition("Ready")
    assert ready is not None
    assert (plan.status.phase, ready.reason) == (Phase.INVALID, "NotAllowed")
    assert "engine.allowed.images" in ready.message
    world.resource = replace(world.resource, status=plan.status)
    assert not is_at_rest(world.resource, START)
    world.step()
    assert world.status.phase is Phase.PENDING
    assert len(world.jobs) == 1

"""Values of the chart that platforms expect: names, registries, accounts, rights, and defaults of runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from logkeep_engine import __version__
from logkeep_engine.contract.pods import PodMetadata, PodSpec
from logkeep_engine.contract.running import DriverSpec, ExecutorSpec
from logkeep_operator.errors import SettingsInvalid
from logkeep_operator.resources import check_defaults
from logkeep_operator.selfcheck import needed
from logkeep_operator.settings import from_environ
from tests.unit.operator.chart import CHART, environment, one, refused, render

DIGEST = "sha256:" + "0123456789abcdef" * 4
WHERE = ("image", "engine.image")


def images(*values: str) -> set[str]:
    """The images of the operator, of its test, and of runs, without their names."""
    pods = [one("Deployment", *values)["spec"]["template"]["spec"], one("Pod", *values)["spec"]]
    found = [container["image"] for pod in pods for container in pod["containers"]]
    found.append(from_environ(environment(*values)).engine.image)
    return {image.replace("logkeep-operator", "*").replace("logkeep-engine", "*") for image in found}


@pytest.mark.parametrize(
    ("values", "image"),
    [
        (("global.imageRegistry=mirror.example:5000/proxy",), f"mirror.example:5000/proxy/*:{__version__}"),
        (("global.imageRegistry=mirror.example/",), f"mirror.example/*:{__version__}"),
        (
            (*(f"{where}.registry=own.example" for where in WHERE), "global.imageRegistry=x"),
            f"own.example/*:{__version__}",
        ),
        (
            ("global.imageRegistry=mirror.example", "image.repository=logkeep-operator"),
            f"mirror.example/*:{__version__}",
        ),
        (
            ("global.imageRegistry=mirror.example", *(f"{where}.digest={DIGEST}" for where in WHERE)),
            f"mirror.example/*@{DIGEST}",
        ),
    ],
)
def test_a_registry_replaces_the_one_in_the_names_of_images(values: tuple[str, ...], image: str) -> None:
    assert images(*values) == {image}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (f"repository=r.example/op@{DIGEST}", "put the tag into {0}.tag, and the digest into {0}.digest"),
        ("repository=r.example/op:v1", "put the tag into {0}.tag, and the digest into {0}.digest"),
        (f"tag={DIGEST}", "put the digest into {0}.digest"),
        (f"tag=v1@{DIGEST}", "put the digest into {0}.digest"),
    ],
)
def test_a_digest_or_a_tag_in_the_wrong_value_is_refused(where: str, value: str, sentence: str) -> None:
    """A repository with a digest became op@sha256:...:0.1.0, which no kubelet can pull."""
    assert sentence.format(where) in refused(f"{where}.{value}")


def test_global_secrets_pull_both_images_in_whatever_form_other_charts_have_them() -> None:
    said = ("global.imagePullSecrets={text,both}", "imagePullSecrets[0].name=own", "imagePullSecrets[1].name=both")
    names = [{"name": name} for name in ("text", "both", "own")]
    assert one("Deployment", *said)["spec"]["template"]["spec"]["imagePullSecrets"] == names
    assert one("Pod", *said)["spec"]["imagePullSecrets"] == names
    assert from_environ(environment(*said)).engine.pull_secrets == ("text", "both", "own")
    form = ("global.imagePullSecrets[0].name=object",)
    assert from_environ(environment(*form)).engine.pull_secrets == ("object",)
    assert "imagePullSecrets" not in one("Deployment")["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("values", "name", "label"),
    [
        ((), "logkeep", "logkeep"),
        (("nameOverride=kafka-archive",), "logkeep-kafka-archive", "kafka-archive"),
        (("nameOverride=keep",), "logkeep", "keep"),
        (("fullnameOverride=archives",), "archives", "logkeep"),
        (("fullnameOverride=" + "a" * 52,), "a" * 52, "logkeep"),
    ],
)
def test_objects_are_named_as_the_overrides_say(values: tuple[str, ...], name: str, label: str) -> None:
    deployment = one("Deployment", *values)
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert (deployment["metadata"]["name"], selector["app.kubernetes.io/name"]) == (name, label)
    assert one("Service", *values)["spec"]["selector"] == selector
    settings = from_environ(environment(*values))
    assert settings.lease is not None
    assert settings.lease.name == name
    drivers = settings.engine.driver_role.name
    (role,) = (body for body in render(*values) if body["metadata"]["name"] == drivers)
    assert role["kind"] == "ClusterRole"
    assert drivers.endswith("-driver")  # by which the operator knows a binding of an earlier installation


def test_all_that_the_chart_makes_is_part_of_logkeep() -> None:
    """By this label people find what an installation has made."""
    for body in render("metrics.dashboard.enabled=true", "metrics.prometheusRule.enabled=true", "crds.upgrade=true"):
        assert body["metadata"]["labels"]["app.kubernetes.io/part-of"] == "logkeep", body["metadata"]["name"]


def kinds(*values: str) -> set[str]:
    return {body["kind"] for body in render(*values)}


@pytest.mark.parametrize("values", [(), ("watchNamespaces={a}", "strimzi.namespaces={kafka}")])
def test_without_rbac_create_there_are_no_roles(values: tuple[str, ...]) -> None:
    rights = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    assert kinds(*values) & rights
    assert not kinds("rbac.create=false", *values) & rights
    assert "ServiceAccount" in kinds("rbac.create=false", *values)


def test_an_account_that_is_there_gets_the_rights() -> None:
    said = ("serviceAccount.create=false", "serviceAccount.name=platform")
    assert "ServiceAccount" not in kinds(*said)
    assert one("Deployment", *said)["spec"]["template"]["spec"]["serviceAccountName"] == "platform"
    subjects = [body["subjects"] for body in render(*said) if body["kind"] == "ClusterRoleBinding"]
    assert subjects == [[{"kind": "ServiceAccount", "name": "platform", "namespace": "sys"}]]
    sentence = "serviceAccount.create is false: serviceAccount.name must name an account that is there"
    assert sentence in refused("serviceAccount.create=false")


def test_the_operators_pods_get_what_the_platform_adds() -> None:
    pod = one(
        "Deployment", "extraEnv[0].name=HTTPS_PROXY", "extraEnv[0].value=http://proxy:3128",
        "extraVolumes[0].name=ca", "extraVolumes[0].configMap.name=bundle",
        "extraVolumeMounts[0].name=ca", "extraVolumeMounts[0].mountPath=/etc/ssl/own",
        "topologySpreadConstraints[0].maxSkew=1", "topologySpreadConstraints[0].topologyKey=zone",
        "topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
        "podLabels.team=data", "podAnnotations.note=x",
    )["spec"]["template"]  # fmt: skip
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert container["env"][-1] == {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    assert spec["volumes"][-1] == {"name": "ca", "configMap": {"name": "bundle"}}
    assert container["volumeMounts"][-1] == {"name": "ca", "mountPath": "/etc/ssl/own"}
    (spread,) = spec["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["topologyKey"]) == (1, "zone")
    assert (pod["metadata"]["labels"]["team"], pod["metadata"]["annotations"]) == ("data", {"note": "x"})


def test_a_variable_of_the_chart_is_not_set_twice() -> None:
    assert "LOGKEEP_WORKERS is set by the chart" in refused(
        "extraEnv[0].name=LOGKEEP_WORKERS", "extraEnv[0].value=many"
    )


@pytest.mark.parametrize(
    "value",
    [
        "nameOverride=A", "fullnameOverride=" + "a" * 53, "rbac.create=1", "serviceAccount.create=maybe",
        "extraEnv[0].value=x", "extraVolumes[0].name=tmp", "global.imageRegistry=a@b", "image.registry=a b",
        "engine.defaults.spark.image=x", "engine.defaults.driver.instances=2", "engine.defaults.driver.memory=1 Gi",
        "engine.defaults.driver.podTemplate.spec.hostNetwork=true", "engine.defaults.executor.memory=much",
        "engine.defaults.executor.podTemplate.spec.nodeSelector.pool=1",
        "engine.defaults.serviceAccountAnnotations.a=1",
        "metrics.prometheusRule.disabled={LogkeepNothing}", "metrics.dashboard.folder=x",
        "metrics.serviceMonitor.interval=often", "metrics.prometheusRule.backupHours=-1",
    ],
)  # fmt: skip
def test_wrong_values_are_refused(value: str) -> None:
    assert "values don't meet the specifications" in refused(value)


def test_crds_are_applied_before_an_upgrade_only_if_that_is_asked_for() -> None:
    asked = [body for body in render("crds.upgrade=true") if body["metadata"]["name"].endswith("logkeep-crds")]
    assert [body for body in render() if body["metadata"]["name"].endswith("logkeep-crds")] == []
    assert {body["kind"] for body in asked} == {
        "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "Job",
    }  # fmt: skip
    for body in asked:
        said = body["metadata"]["annotations"]
        assert (said["helm.sh/hook"], said["helm.sh/hook-delete-policy"]) == (
            "pre-upgrade", "before-hook-creation,hook-succeeded",
        )  # fmt: skip
    (job,) = (body for body in asked if body["kind"] == "Job")
    pod = job["spec"]["template"]
    operators = one("Deployment")["spec"]["selector"]["matchLabels"]
    assert not operators.items() <= pod["metadata"]["labels"].items()  # its Service and its budget leave it out
    (crds,) = (body["data"] for body in asked if body["kind"] == "ConfigMap")
    assert len(json.dumps(crds)) < 900_000  # a ConfigMap has room for 1 MiB
    for value in ("watchNamespaces={a}", "rbac.create=false"):
        assert "crds.upgrade needs rights in the whole cluster" in refused("crds.upgrade=true", value)


# ---- defaults of runs

TEMPLATE = "engine.defaults.{}.podTemplate.spec"


def test_defaults_of_runs_and_annotations_of_their_accounts_reach_the_operator() -> None:
    default = from_environ(environment()).engine
    assert (default.defaults, default.account_annotations) == ({}, {})
    said = (
        "engine.defaults.driver.memory=1Gi", f"{TEMPLATE.format('driver')}.nodeSelector.pool=batch",
        "engine.defaults.executor.instances=4", f"{TEMPLATE.format('executor')}.tolerations[0].operator=Exists",
        "engine.defaults.serviceAccountAnnotations.role=arn:x",
    )  # fmt: skip
    engine = from_environ(environment(*said)).engine
    check_defaults(engine)
    assert engine.defaults == {
        "driver": {"memory": "1Gi", "podTemplate": {"spec": {"nodeSelector": {"pool": "batch"}}}},
        "executor": {"instances": 4, "podTemplate": {"spec": {"tolerations": [{"operator": "Exists"}]}}},
    }
    assert engine.account_annotations == {"role": "arn:x"}


@pytest.mark.parametrize("values", [(), ("watchNamespaces={a}",)])
def test_the_operator_may_change_accounts_only_where_they_get_annotations(values: tuple[str, ...]) -> None:
    def given(*more: str) -> set[tuple[str, str]]:
        rules = one("Role" if values else "ClusterRole", *values, *more)["rules"]
        found = [rule for rule in rules if rule["resources"] == ["serviceaccounts"]]
        return {(verb, name) for rule in found for verb in rule["verbs"] for name in rule.get("resourceNames", [""])}

    annotated = (*values, "engine.defaults.serviceAccountAnnotations.role=x")
    both = {(verb, name) for verb in ("get", "patch") for name in ("logkeep-engine", "logkeep-executor")}
    assert (given(), given(*annotated)) == ({("create", "")}, {("create", "")} | both)
    uses = {
        (right.verb, right.name)
        for right in needed(from_environ(environment(*annotated)))
        if right.resource == "serviceaccounts"
    }
    assert uses == given(*annotated)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (("driver.memory=16Mi",), "engine.defaults.driver.memory: 16Mi is too little"),
        (
            ("executor.coreRequest=2000m", "executor.coreLimit=1000m"),
            "engine.defaults.executor.coreLimit: 1000m is less than the 2000m",
        ),
        (
            ("driver.podTemplate.spec.tolerations[0].effect=Never",),
            "engine.defaults.driver.podTemplate.spec.tolerations[0].effect",
        ),
        (
            ("executor.podTemplate.spec.serviceAccountName=own",),
            "engine.defaults.executor.podTemplate.spec.serviceAccountName: the account 'own' is not in the chart's",
        ),
        (
            ("driver.podTemplate.spec.containers[0].name=driver",
             "driver.podTemplate.spec.containers[0].env[0].name=PYTHONPATH",
             "driver.podTemplate.spec.containers[0].env[0].value=/x"),
            "engine.defaults.driver.podTemplate.spec.containers[0].env[0].name: PYTHONPATH is not on the list",
        ),
    ],
)  # fmt: skip
def test_defaults_that_no_resource_could_say_stop_the_operator(values: tuple[str, ...], problem: str) -> None:
    engine = from_environ(environment(*(f"engine.defaults.{value}" for value in values))).engine
    with pytest.raises(SettingsInvalid) as raised:
        check_defaults(engine)
    assert problem in str(raised.value)


def names_of(*models: Any) -> list[set[str]]:
    return [{field.alias or name for name, field in model.model_fields.items()} for model in models]


def test_the_schema_of_defaults_has_the_fields_of_resources() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    runs = schema["properties"]["engine"]["properties"]["defaults"]["properties"]
    template = schema["definitions"]["podTemplate"]["properties"]
    parts = (runs["driver"], runs["executor"], template["metadata"], template["spec"])
    found = [set(part["properties"]) for part in parts]
    assert found == names_of(DriverSpec, ExecutorSpec, PodMetadata, PodSpec)


def test_an_example_in_the_values_is_right() -> None:
    text = (CHART / "values.yaml").read_text()
    line = next(line for line in text.splitlines() if line.lstrip().startswith("# {memory:"))
    driver = yaml.safe_load(line.strip(" #."))
    values = (f"engine.defaults.driver={json.dumps(driver)}",)
    engine = from_environ(environment(as_json=values)).engine
    check_defaults(engine)
    assert engine.defaults == {"driver": driver}

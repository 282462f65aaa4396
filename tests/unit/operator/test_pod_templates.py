"""The pods of a run as the platform wants them: templates, merged with what the operator makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from logkeep_engine.contract import names as contract
from logkeep_engine.contract import pods
from logkeep_engine.contract.checks import check_spec
from logkeep_engine.contract.model import Model, replace
from logkeep_engine.contract.pods import PodTemplate
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.contract.spec import parse_backup
from logkeep_operator.resources import RunToStart, job, needs_access_objects, request_config_map
from logkeep_operator.resources.credentials import KafkaAccess
from logkeep_operator.resources.pod_template import merge, merged, reach_api_server
from logkeep_operator.settings import EngineSettings
from tests.unit.operator.pod_templates import KINDS, PASSED_ON, ROLES, SECURITY, whole
from tests.unit.operator.world import ENGINE, backup_spec, resource, restore_spec


def run_of(spark: dict[str, Any], engine: EngineSettings = ENGINE, **more: Any) -> RunToStart:
    spec = backup_spec(spark=spark, **more)
    typed = parse_backup(spec)
    check_spec(typed)
    kafka = KafkaAccess(typed.cluster)
    return RunToStart(resource("KafkaBackup", spec), "0123456789", typed, typed.place, spec["storage"], engine, kafka)


def pod_of(made: RunToStart, role: str) -> dict[str, Any]:
    if role == "driver":
        template: dict[str, Any] = job(made)["spec"]["template"]
        arguments = template["spec"]["containers"][0]["args"]
        assert arguments[-2] == "--request-hash"
        arguments[-1] = "that of the request, with the executors' template in it"
    else:
        template = yaml.safe_load(request_config_map(made)["data"][contract.KEY_EXECUTOR_TEMPLATE])
    return template


def pod(role: str, template: dict[str, Any], engine: EngineSettings = ENGINE, **spark: Any) -> dict[str, Any]:
    return pod_of(run_of({**spark, role: {"podTemplate": template}}, engine), role)


def with_env(role: str, *env: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": role, "env": list(env)}]}}


def values(made: dict[str, Any]) -> dict[str, Any]:
    found = made["spec"]["containers"][0]["env"]
    assert len({item["name"] for item in found}) == len(found)
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in found}


def set_fields(value: Any) -> Iterator[tuple[type[Model], str]]:
    """The fields that are set somewhere in a model."""
    if isinstance(value, Model):
        for name in value.model_fields_set:
            yield type(value), name
            yield from set_fields(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from set_fields(item)


def test_the_template_of_these_tests_has_every_field() -> None:
    found = set(set_fields(PodTemplate.model_validate(whole("driver"))))
    models = {model for model in vars(pods).values() if isinstance(model, type) and issubclass(model, Model)} - {Model}
    assert {(model, name) for model in models for name in model.model_fields} - found == set()


@pytest.mark.parametrize("role", ROLES)
def test_every_field_of_a_template_is_in_the_pod(role: str) -> None:
    plain, made = pod_of(run_of({}), role), pod(role, whole(role))
    assert made["metadata"]["labels"] == {**plain["metadata"]["labels"], "team": "data"}
    annotations = {**plain["metadata"]["annotations"], "sidecar.istio.io/inject": "false"}
    assert made["metadata"]["annotations"] == annotations
    spec = made["spec"]
    assert {name: spec[name] for name in PASSED_ON} == PASSED_ON
    assert spec["imagePullSecrets"] == [{"name": "mirror"}]
    assert spec["securityContext"] == {"runAsNonRoot": True, **SECURITY}
    own = plain["spec"]["volumes"]
    assert spec["volumes"] == [*own, *({"name": kind.lower(), kind: source} for kind, source in KINDS.items())]
    (container,) = spec["containers"]
    (before,) = plain["spec"]["containers"]
    assert values(made) == {**values(plain), "TZ": "UTC", "NODE": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    mount = {"name": "secret", "mountPath": "/mnt/a", "readOnly": True, "subPath": "b"}
    assert container["volumeMounts"] == [*before["volumeMounts"], mount]
    assert {name: value for name, value in container.items() if name not in ("env", "volumeMounts")} == {
        name: value for name, value in before.items() if name not in ("env", "volumeMounts")
    }


@pytest.mark.parametrize("role", ROLES)
def test_a_template_is_of_its_own_pods_only(role: str) -> None:
    (other,) = set(ROLES) - {role}
    assert pod_of(run_of({role: {"podTemplate": whole(role)}}), other) == pod_of(run_of({}), other)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("template", [{}, {"metadata": {}}, {"spec": {}}, {"spec": {"containers": []}}])
def test_an_empty_template_changes_nothing(role: str, template: dict[str, Any]) -> None:
    assert pod(role, template) == pod_of(run_of({}), role)


def test_spark_conf_wins_over_the_drivers_template() -> None:
    conf = {
        "spark.kubernetes.driver.label.team": "conf",
        "spark.kubernetes.driver.annotation.a": "conf",
        "spark.kubernetes.driver.node.selector.disk": "conf",
        "spark.kubernetes.driver.scheduler.name": "conf",
        "spark.kubernetes.driverEnv.TZ": "conf",
    }
    template = {
        "metadata": {"labels": {"team": "template"}, "annotations": {"a": "template"}},
        "spec": {
            "nodeSelector": {"disk": "template", "zone": "template"},
            "schedulerName": "template",
            **with_env("driver", {"name": "TZ", "value": "template"})["spec"],
        },
    }
    made = pod("driver", template, conf=conf)
    assert made["metadata"]["labels"]["team"] == made["metadata"]["annotations"]["a"] == "conf"
    assert made["spec"]["nodeSelector"] == {"disk": "conf", "zone": "template"}
    assert made["spec"]["schedulerName"] == values(made)["TZ"] == "conf"


def test_a_security_context_keeps_what_the_template_does_not_name() -> None:
    made = pod("driver", {"spec": {"securityContext": {"runAsUser": 1000}}})["spec"]["securityContext"]
    assert made == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 185,
        "fsGroup": 185,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.mark.parametrize("role", ROLES)
def test_where_the_platform_gives_ids_none_is_asked_for(role: str) -> None:
    platform = replace(ENGINE, user=None)
    plain = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod_of(run_of({}, platform), role)["spec"]["securityContext"] == plain
    template = {"spec": {"securityContext": {"supplementalGroups": [1]}}}
    assert pod(role, template, platform)["spec"]["securityContext"] == {**plain, "supplementalGroups": [1]}


def test_each_role_may_have_an_account_of_its_own() -> None:
    def accounts(**spark: Any) -> tuple[str, str, bool]:
        made = run_of(spark)
        request = RunRequest.from_json(request_config_map(made)["data"][contract.KEY_REQUEST])
        executor = request.spark_conf["spark.kubernetes.authenticate.executor.serviceAccountName"]
        return pod_of(made, "driver")["spec"]["serviceAccountName"], executor, needs_access_objects(made.spec.spark)

    own = {"podTemplate": {"spec": {"serviceAccountName": "own"}}}
    assert accounts() == ("logkeep-engine", "logkeep-executor", True)
    assert accounts(driver=own) == ("own", "logkeep-executor", True)
    assert accounts(executor=own) == ("logkeep-engine", "own", True)
    assert accounts(driver=own, executor=own) == ("own", "own", False)
    assert accounts(driver=own, serviceAccountName="both") == ("own", "both", False)


def test_pull_secrets_are_those_of_the_installation_and_of_the_template() -> None:
    engine = replace(ENGINE, pull_secrets=("registry",))
    template = {"spec": {"imagePullSecrets": [{"name": "registry"}, {"name": "mirror"}]}}
    driver = pod("driver", template, engine)["spec"]["imagePullSecrets"]
    assert sorted(item["name"] for item in driver) == ["mirror", "registry"]
    # Spark adds those of its configuration to the executors' template, and would have one twice.
    assert pod("executor", template, engine)["spec"]["imagePullSecrets"] == [{"name": "mirror"}]
    instead = {"spark.kubernetes.container.image.pullSecrets": "mirror"}
    assert pod("executor", template, engine, conf=instead)["spec"]["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize("proxy", ["HTTPS_PROXY", "https_proxy", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize(
    ("given", "exempt"),
    [
        ({}, ("$(KUBERNETES_SERVICE_HOST)", "$(KUBERNETES_SERVICE_HOST)")),
        ({"NO_PROXY": ".svc"}, (".svc,$(KUBERNETES_SERVICE_HOST)", ".svc,$(KUBERNETES_SERVICE_HOST)")),
        ({"no_proxy": "a", "NO_PROXY": "b"}, ("b,$(KUBERNETES_SERVICE_HOST)", "a,$(KUBERNETES_SERVICE_HOST)")),
    ],
)
def test_a_driver_behind_a_proxy_reaches_the_api_server(
    proxy: str, given: dict[str, str], exempt: tuple[str, str]
) -> None:
    env = [{"name": name, "value": value} for name, value in {proxy: "http://proxy:3128", **given}.items()]
    found = values(pod("driver", with_env("driver", *env)))
    assert (found["NO_PROXY"], found["no_proxy"]) == exempt
    conf = {f"spark.kubernetes.driverEnv.{item['name']}": item["value"] for item in env}
    assert {name: value for name, value in values(pod("driver", {}, conf=conf)).items() if name in found} == found


def test_no_proxy_stays_as_it_is_without_a_proxy_or_from_elsewhere() -> None:
    assert "NO_PROXY" not in values(pod("driver", {}))
    assert values(pod("driver", with_env("driver", {"name": "NO_PROXY", "value": "a"})))["NO_PROXY"] == "a"
    elsewhere: list[dict[str, Any]] = [
        {"name": "HTTPS_PROXY", "value": "http://proxy"},
        {"name": "NO_PROXY", "valueFrom": {"configMapKeyRef": {"name": "proxy", "key": "none"}}},
    ]
    assert reach_api_server(elsewhere) == elsewhere


def test_layers_are_merged_by_the_keys_of_kubernetes() -> None:
    under = {
        "a": 1,
        "labels": {"a": "under", "b": "under"},
        "volumes": [{"name": "x", "secret": {}}, {"name": "y", "emptyDir": {}}],
        "containers": [{"name": "c", "image": "i", "env": [{"name": "E", "value": "v"}]}],
        "tolerations": [{"key": "under"}],
        "affinity": {"nodeAffinity": {}},
    }
    over = {
        "labels": {"b": "over"},
        "volumes": [{"name": "x", "configMap": {}}],
        "containers": [{"name": "c", "env": [{"name": "E", "valueFrom": {}}, {"name": "F", "value": "f"}]}],
        "tolerations": [{"key": "over"}],
        "affinity": {"podAffinity": {}},
    }
    before = repr((under, over))
    assert merge(under, over) == {
        "a": 1,
        "labels": {"a": "under", "b": "over"},
        "volumes": [{"name": "x", "configMap": {}}, {"name": "y", "emptyDir": {}}],
        "containers": [
            {"name": "c", "image": "i", "env": [{"name": "E", "valueFrom": {}}, {"name": "F", "value": "f"}]}
        ],
        "tolerations": [{"key": "over"}],
        "affinity": {"podAffinity": {}},
    }
    assert repr((under, over)) == before
    assert merged() == {}
    assert merged({"a": 1}, {"a": 2}, {"b": 3}) == {"a": 2, "b": 3}


@pytest.mark.parametrize("kind", ["Secret", "ConfigMap"])
@pytest.mark.parametrize("role", ROLES)
def test_certificate_authorities_are_mounted_from_where_the_spec_says(kind: str, role: str) -> None:
    field = {"Secret": "caSecretRef", "ConfigMap": "caConfigMapRef"}[kind]
    tls = {field: {"name": "bundle", "certificateKey": "ca-bundle.crt"}}
    made = pod_of(run_of({}, storage={"uri": "s3://bucket", "tls": tls}), role)
    items = [{"key": "ca-bundle.crt", "path": "ca.crt"}]
    source = {
        "Secret": {"secret": {"secretName": "bundle", "items": items, "defaultMode": 0o444}},
        "ConfigMap": {"configMap": {"name": "bundle", "items": items, "defaultMode": 0o444}},
    }[kind]
    assert {"name": "s3-ca", **source} in made["spec"]["volumes"]
    mount = {"name": "s3-ca", "mountPath": "/etc/logkeep/s3-ca", "readOnly": True}
    assert mount in made["spec"]["containers"][0]["volumeMounts"]
    assert values(made)["LOGKEEP_S3_CA_FILE"] == "/etc/logkeep/s3-ca/ca.crt"


def test_the_state_of_a_restore_has_certificate_authorities_of_its_own() -> None:
    archive, state = ({"uri": f"s3://{n}", "tls": {"caSecretRef": {"name": n}}} for n in ("archive", "state"))
    spec = restore_spec(source={"storage": archive}, state=state)
    typed = parse_restore(spec)
    assert typed.source.storage is not None
    kafka, source = KafkaAccess(typed.cluster), typed.source.storage
    made = RunToStart(resource("KafkaRestore", spec), "0123456789", typed, source, archive, ENGINE, kafka)
    for role in ROLES:
        found = values(pod_of(made, role))
        assert found["LOGKEEP_S3_CA_FILE"] == "/etc/logkeep/s3-ca/ca.crt"
        assert found["LOGKEEP_STATE_S3_CA_FILE"] == "/etc/logkeep/state-ca/ca.crt"
        secrets = {v["name"]: v["secret"]["secretName"] for v in pod_of(made, role)["spec"]["volumes"] if "secret" in v}
        assert secrets == {"s3-ca": "archive", "state-ca": "state"}


@pytest.mark.parametrize("role", ROLES)
def test_kafkas_certificate_authorities_may_be_in_a_config_map(role: str) -> None:
    tls = {"caConfigMapRef": {"name": "trusted"}}
    cluster = {"bootstrapServers": ["kafka:9093"], "security": {"protocol": "SSL", "tls": tls}}
    made = pod_of(run_of({}, cluster=cluster), role)
    source = {"name": "trusted", "items": [{"key": "ca.crt", "path": "ca.crt"}], "defaultMode": 0o444}
    assert {"name": "kafka-ca", "configMap": source} in made["spec"]["volumes"]
    assert values(made)["LOGKEEP_KAFKA_CA_FILE"] == "/etc/logkeep/kafka-ca/ca.crt"

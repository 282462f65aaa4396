"""The words that a resource may say of its pods: case 05, line by line, without and with engine.allowed.code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.checks import check_spec
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.spec import parse_backup
from logkeep_operator.resources import NotAllowed, check_allowed
from logkeep_operator.resources.foreign_code import CSI_DRIVERS, SETTING_PREFIXES, SETTINGS, VARIABLES
from logkeep_operator.settings import EngineSettings
from tests.unit.operator.pod_templates import whole
from tests.unit.operator.world import backup_spec

ROOT = Path(__file__).parents[3]
STRICT, ALLOWING = EngineSettings("engine:1"), EngineSettings("engine:1", allowed_code=True)


def refusals(engine: EngineSettings, spark: dict[str, Any]) -> list[tuple[type[SpecInvalid], str, str]]:
    """How a resource is refused: the error, the field, the message. Empty if it is accepted."""
    try:
        spec = parse_backup(backup_spec(spark=spark))
        check_spec(spec)
        check_allowed(spec, engine)
    except SpecInvalid as refused:
        return [(type(refused), path, what) for path, what in refused.problems]
    return []


def conf(key: str, value: str = "x") -> dict[str, Any]:
    return {"conf": {key: value}}


def pod(**spec: Any) -> dict[str, Any]:
    return {"driver": {"podTemplate": {"spec": spec}}}


def container(**fields: Any) -> dict[str, Any]:
    return pod(volumes=[{"name": "x", "emptyDir": {}}], containers=[{"name": "driver", **fields}])


def mount(path: str, **fields: Any) -> dict[str, Any]:
    return container(volumeMounts=[{"name": "x", "mountPath": path, **fields}])


CODE = [
    conf("spark.driver.extraJavaOptions", "-javaagent:/mnt/x.jar"), conf("spark.jars"), conf("spark.plugins"),
    conf("spark.driver.extraClassPath"), conf("spark.executor.extraClassPath"),
    conf("spark.executor.extraLibraryPath"), conf("spark.executor.extraJavaOptions"),
    conf("spark.executorEnv.LD_PRELOAD"), conf("spark.kubernetes.driverEnv.PYTHONPATH"), conf("spark.pyspark.python"),
    conf("spark.python.daemon.module"), conf("spark.python.worker.module"), conf("spark.submit.pyFiles"),
    conf("spark.files"), conf("spark.archives"), conf("spark.driver.log.dfsDir"),
    conf("spark.metrics.conf.*.sink.servlet.class"), conf("spark.extraListeners"),
    container(env=[{"name": "PYTHONPATH", "value": "/mnt/code:/opt/code"}]),
    container(env=[{"name": "JAVA_TOOL_OPTIONS", "value": "-javaagent:/mnt/x.jar"}]),
    container(env=[{"name": "LD_LIBRARY_PATH", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]),
    mount("/etc/ssl"), mount("/etc/java-17-openjdk"),
    pod(volumes=[{"name": "v", "csi": {"driver": "nfs.csi.k8s.io"}}]), pod(volumes=[{"name": "v", "csi": {}}]),
    # Attacks of the same kind: a script of Spark's, a command of botocore's, a variable of the image's own entry point.
    conf("spark.kubernetes.decommission.script", "/mnt/x"), conf("spark.resources.discoveryPlugin"),
    conf("spark.executorEnv.AWS_CONFIG_FILE", "/mnt/credential-process"),
    container(env=[{"name": "HOME", "value": "/mnt"}]),
    container(env=[{"name": "LOGKEEP_CLASS_ARCHIVE", "value": "/mnt/spark.jsa"}]),
    container(env=[{"name": "AWS_ENDPOINT_URL", "value": "https://evil.example"}]),
]  # fmt: skip


@pytest.mark.parametrize("spark", CODE, ids=str)
def test_code_comes_into_a_pod_only_where_the_chart_allows_it(spark: dict[str, Any]) -> None:
    ((error, _, what),) = refusals(STRICT, spark)
    assert error is NotAllowed
    assert "(the chart's engine.allowed.code is false)" in what
    assert refusals(ALLOWING, spark) == []


NEVER = [
    *(
        conf(key)
        for key in (
            "spark.authenticate", "spark.network.crypto.enabled", "spark.network.crypto.saslFallback",
            "spark.acls.enable", "spark.io.encryption.enabled", "spark.ssl.enabled", "spark.redaction.regex",
            "spark.logConf", "spark.ui.enabled", "spark.security.credentials.hadoopfs.enabled",
            "spark.kubernetes.context", "spark.kubernetes.trust.certificates", "spark.kubernetes.namespace",
            "spark.kubernetes.container.image", "spark.kubernetes.executor.container.image", "spark.master",
            "spark.kubernetes.authenticate.executor.serviceAccountName",
            "spark.kubernetes.executor.secretKeyRef.X", "spark.kubernetes.driver.secretKeyRef.X",
            "spark.kubernetes.executor.secrets.x", "spark.kubernetes.executor.podTemplateFile",
            "spark.kubernetes.executor.volumes.nfs.n.mount.path",
            "spark.kubernetes.executor.volumes.nfs.n.options.server",
            "spark.kubernetes.executor.volumes.hostPath.h.mount.path",
            # Attacks of the same kind.
            "spark.executorEnv.SPARK_JAVA_OPT_99", "spark.executorEnv._SPARK_AUTH_SECRET",
            "spark.kubernetes.driverEnv.SPARK_CONF_DIR", "spark.authenticate.secret.file",
        )
    ),
    pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
    pod(volumes=[{"name": "v", "nfs": {"server": "x", "path": "/"}}]),
    pod(initContainers=[]), pod(ephemeralContainers=[]), pod(hostNetwork=True), pod(hostUsers=False),
    pod(shareProcessNamespace=True), pod(dnsConfig={}), pod(hostAliases=[]),
    pod(securityContext={"runAsUser": 0}), pod(securityContext={"sysctls": []}),
    pod(priorityClassName="system-node-critical"),
    container(envFrom=[{"secretRef": {"name": "x"}}]), container(image="evil"), container(command=["sh"]),
    container(lifecycle={}), container(securityContext={"privileged": True}),
    mount("/opt"), mount("/"), mount("/lib"), mount("//opt/code"), mount("/mnt", subPath="../x"),
    mount("/mnt", mountPropagation="Bidirectional"), mount("/mnt", subPathExpr="$(X)"),
    # Attacks of the same kind: the links of the image, and a token of another identity in the place of the driver's.
    mount("/mnt/../opt/code"), mount("/lib64/x"), mount("/sbin"), mount("/run/secrets/kubernetes.io/serviceaccount"),
    container(env=[{"name": "_SPARK_AUTH_SECRET", "value": "known"}]),
]  # fmt: skip


@pytest.mark.parametrize("spark", NEVER, ids=str)
def test_what_lowers_the_protection_of_runs_is_allowed_by_no_installation(spark: dict[str, Any]) -> None:
    for engine in (STRICT, ALLOWING):
        assert [error for error, _, _ in refusals(engine, spark)] == [SpecInvalid]


ACCEPTED = [
    *(
        conf(key)
        for key in (
            "spark.eventLog.enabled", "spark.eventLog.dir", "spark.driver.port", "spark.task.maxFailures",
            "spark.kubernetes.allocation.driver.readinessTimeout", "spark.network.timeout",
            "spark.kubernetes.executor.label.team", "spark.kubernetes.executor.annotation.a",
            "spark.kubernetes.node.selector.disk", "spark.executorEnv.HTTPS_PROXY", "spark.executorEnv.LC_ALL",
            "spark.executorEnv.LOGKEEP_TASK_MEMORY", "spark.kubernetes.driverEnv.TZ",
        )
    ),
    # A token of the pod's account: the allow-list of accounts says which that may be, and no code of others reads it.
    pod(volumes=[{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"audience": "sts", "path": "t"}}]}}]),
    mount("/mnt"), mount("/var/run/secrets/tokens"), mount("/srv/ca", subPath="ca..pem"),
    container(env=[{"name": "no_proxy", "value": ".svc"}, {"name": "AWS_ROLE_ARN", "value": "arn"}]),
]  # fmt: skip


@pytest.mark.parametrize("spark", ACCEPTED, ids=str)
def test_what_a_platform_needs_is_accepted(spark: dict[str, Any]) -> None:
    assert refusals(STRICT, spark) == []


def test_a_template_with_every_field_needs_leave_for_its_own_variable_and_account() -> None:
    template = {"driver": {"podTemplate": whole("driver")}}
    paths = [path.removeprefix("spec.spark.driver.podTemplate.spec.") for _, path, _ in refusals(STRICT, template)]
    assert paths == ["serviceAccountName", "containers[0].env[1].name"]


def test_the_reference_and_the_chart_have_the_lists() -> None:
    reference = (ROOT / "docs/reference/crds.md").read_text()
    said = reference[reference.index("## What may be said of pods without leave") :].split("\n## ")[0]
    names = [*SETTINGS, *(f"{prefix}*" for prefix in SETTING_PREFIXES), *VARIABLES, *CSI_DRIVERS]
    assert [name for name in names if f"`{name}`" not in said] == []
    policies = (ROOT / "charts/logkeep/templates/_helpers.tpl").read_text()
    assert json.dumps(list(CSI_DRIVERS)) in policies

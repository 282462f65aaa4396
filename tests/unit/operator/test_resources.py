"""The objects that a run puts into a cluster."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from logkeep_engine.contract import names as contract
from logkeep_engine.contract.checks import check_spec, executor_min_mib
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.contract.spark_keys import is_for_spark
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.contract.storage import ArchiveSpec
from logkeep_operator.api import Key
from logkeep_operator.resources import (
    RunToStart,
    access_objects,
    job,
    job_name,
    network_policy,
    request_config_map,
    resource_labels,
)
from logkeep_operator.resources.credentials import KafkaAccess
from logkeep_operator.resources.spark_conf import split_memory
from logkeep_operator.settings import EngineSettings, RoleName
from tests.unit.operator.world import ENGINE, backup_spec, resource, restore_spec


def run(spec: dict[str, Any], engine: EngineSettings = ENGINE, kafka: KafkaAccess | None = None) -> RunToStart:
    typed = parse_backup(spec)
    kafka = kafka or KafkaAccess(typed.cluster)
    return RunToStart(resource("KafkaBackup", spec), "0123456789", typed, typed.place, spec["storage"], engine, kafka)


def restore(storage: dict[str, Any]) -> RunToStart:
    """A restore from a KafkaBackup with this storage."""
    spec = restore_spec(source={"backupRef": {"name": "nightly"}})
    typed, place = parse_restore(spec), ArchiveSpec.model_validate(storage)
    kafka = KafkaAccess(typed.cluster)
    return RunToStart(resource("KafkaRestore", spec), "0123456789", typed, place, storage, ENGINE, kafka)


def request_of(made: RunToStart) -> RunRequest:
    return RunRequest.from_json(request_config_map(made)["data"][contract.KEY_REQUEST])


def template_of(made: RunToStart) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(request_config_map(made)["data"][contract.KEY_EXECUTOR_TEMPLATE])
    return loaded


def pods_of(made: RunToStart) -> list[dict[str, Any]]:
    return [job(made)["spec"]["template"]["spec"], template_of(made)["spec"]]


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in pod["containers"][0]["env"]}


SECURE = backup_spec(
    cluster={
        "bootstrapServers": ["kafka:9093"],
        "security": {
            "protocol": "SASL_SSL",
            "tls": {"caSecretRef": {"name": "ca"}, "clientCertSecretRef": {"name": "client"}},
            "sasl": {"mechanism": "SCRAM-SHA-512", "secretRef": {"name": "user"}},
        },
    }
)


def test_driver_and_executors_get_credentials_by_reference_only() -> None:
    for pod in pods_of(run(SECURE)):
        found = environment(pod)
        assert found["LOGKEEP_KAFKA_USERNAME_FILE"] == "/etc/logkeep/kafka-login/username"
        assert found["LOGKEEP_KAFKA_PASSWORD_FILE"] == "/etc/logkeep/kafka-login/password"
        assert found["AWS_ACCESS_KEY_ID"] == {"secretKeyRef": {"name": "s3", "key": "accessKeyId"}}
        assert found["AWS_SECRET_ACCESS_KEY"] == {"secretKeyRef": {"name": "s3", "key": "secretAccessKey"}}
        assert found["AWS_SESSION_TOKEN"] == {"secretKeyRef": {"name": "s3", "key": "sessionToken", "optional": True}}
        assert found["LOGKEEP_KAFKA_CA_FILE"] == "/etc/logkeep/kafka-ca/ca.crt"
        assert found["LOGKEEP_KAFKA_CERT_FILE"] == "/etc/logkeep/kafka-client/tls.crt"
        assert found["LOGKEEP_KAFKA_KEY_FILE"] == "/etc/logkeep/kafka-client/tls.key"
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert (
            mounts.items() >= {"kafka-ca": "/etc/logkeep/kafka-ca", "kafka-client": "/etc/logkeep/kafka-client"}.items()
        )
        secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
        assert secrets == {"kafka-login": "user", "kafka-ca": "ca", "kafka-client": "client"}


def sasl_pods(sasl: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    security = {"protocol": "SASL_SSL", "sasl": sasl}
    return tuple(pods_of(run(backup_spec(cluster={"bootstrapServers": ["kafka:9093"], "security": security}))))


def test_a_login_is_in_files_which_the_kubelet_replaces() -> None:
    secret = {"name": "client", "usernameKey": "id", "passwordKey": "pw"}
    for pod in sasl_pods({"mechanism": "PLAIN", "secretRef": secret}):
        (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "kafka-login")
        items = [{"key": "id", "path": "username"}, {"key": "pw", "path": "password"}]
        assert volume["secret"] == {"secretName": "client", "items": items, "defaultMode": 0o444}
        mount = {"name": "kafka-login", "mountPath": "/etc/logkeep/kafka-login", "readOnly": True}
        assert mount in pod["containers"][0]["volumeMounts"]  # without subPath: such a file is never replaced


def test_a_client_of_a_provider_has_its_secret_and_whom_to_trust() -> None:
    oauth = {"tokenEndpoint": "https://sso/token", "tls": {"caConfigMapRef": {"name": "corporate"}}}
    for pod in sasl_pods(
        {"mechanism": "OAUTHBEARER", "username": "backup", "secretRef": {"name": "client"}, "oauth": oauth}
    ):
        found = environment(pod)
        assert "LOGKEEP_KAFKA_USERNAME_FILE" not in found
        assert found["LOGKEEP_KAFKA_PASSWORD_FILE"] == "/etc/logkeep/kafka-login/password"
        assert found["LOGKEEP_KAFKA_TOKEN_CA_FILE"] == "/etc/logkeep/kafka-token-ca/ca.crt"
        assert {v["name"]: v["configMap"]["name"] for v in pod["volumes"] if v["name"] == "kafka-token-ca"} == {
            "kafka-token-ca": "corporate"
        }


def test_driver_and_executors_get_a_token_of_their_account_for_the_audience() -> None:
    oauth = {"serviceAccountToken": {"audience": "kafka"}}
    for pod in sasl_pods({"mechanism": "OAUTHBEARER", "oauth": oauth}):
        assert environment(pod)["LOGKEEP_KAFKA_TOKEN_FILE"] == "/etc/logkeep/kafka-token/token"
        (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "kafka-token")
        token = {"serviceAccountToken": {"audience": "kafka", "path": "token"}}
        assert volume["projected"] == {"sources": [token], "defaultMode": 0o444}


def test_no_variable_of_aws_says_who_gives_a_role_for_msk() -> None:
    storage = {"uri": "file:///archive/kafka", "volume": {"claimName": "backups"}}
    security = {"protocol": "SASL_SSL", "sasl": {"mechanism": "AWS_MSK_IAM", "aws": {"region": "eu-north-1"}}}
    cluster = {"bootstrapServers": ["kafka:9098"], "security": security}
    for pod in pods_of(run(backup_spec(cluster=cluster, storage=storage))):
        assert [item["name"] for item in pod["containers"][0]["env"]].count("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") == 1
        assert not any(volume["name"].startswith("kafka-") for volume in pod["volumes"])


def test_workload_identity_leaves_the_environment_alone() -> None:
    storage = {"uri": "s3://bucket", "credentials": {"workloadIdentity": {}}}
    for pod in pods_of(run(backup_spec(storage=storage))):
        assert [name for name in environment(pod) if name.startswith("AWS_")] == [contract.ENV_S3_IGNORE_ENDPOINTS]


def test_no_variable_and_no_file_of_aws_names_another_endpoint_than_the_resource() -> None:
    for pod in pods_of(run(backup_spec(storage={"uri": "s3://bucket"}))):
        assert environment(pod)["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] == "true"
    variable = {"name": "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "value": "false"}
    template = {"spec": {"containers": [{"name": "driver", "env": [variable]}]}}
    with pytest.raises(SpecInvalid, match="AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is set by Logkeep"):
        check_spec(parse_backup(backup_spec(spark={"driver": {"podTemplate": template}})))


def test_pods_fit_the_restricted_pod_security_standard() -> None:
    for pod in pods_of(run(backup_spec())):
        security = pod["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"], security["seccompProfile"]["type"]) == (
            True, 185, "RuntimeDefault",
        )  # fmt: skip
        container = pod["containers"][0]["securityContext"]
        assert container == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"name": "tmp", "mountPath": "/tmp"} in pod["containers"][0]["volumeMounts"]


def test_only_the_driver_has_a_token() -> None:
    driver, executor = pods_of(run(backup_spec()))
    assert (driver["automountServiceAccountToken"], driver["serviceAccountName"]) == (True, "logkeep-engine")
    assert executor["automountServiceAccountToken"] is False
    conf = request_of(run(backup_spec())).spark_conf
    assert conf["spark.kubernetes.authenticate.executor.serviceAccountName"] == "logkeep-executor"
    own = request_of(run(backup_spec(spark={"serviceAccountName": "own"}))).spark_conf
    assert own["spark.kubernetes.authenticate.executor.serviceAccountName"] == "own"


def test_a_file_archive_is_mounted_at_the_path_of_its_uri() -> None:
    storage = {"uri": "file:///archive/kafka", "volume": {"claimName": "backups"}}
    for pod in pods_of(run(backup_spec(storage=storage))):
        assert {"name": "archive", "mountPath": "/archive/kafka"} in pod["containers"][0]["volumeMounts"]
        assert {"name": "archive", "persistentVolumeClaim": {"claimName": "backups"}} in pod["volumes"]


def test_keys_to_be_erased_are_mounted_into_the_driver_alone_and_may_be_gone() -> None:
    erasure = {"name": "ticket-1", "topic": "customers", "keysSecretRef": {"name": "customers", "key": "list"}}
    driver, executor = pods_of(run(backup_spec(erasures=[erasure])))
    items = [{"key": "list", "path": "keys"}]
    secret = {"secretName": "customers", "items": items, "optional": True}
    assert {"name": "erasure-0", "secret": secret} in driver["volumes"]
    mount = {"name": "erasure-0", "mountPath": "/etc/logkeep/erasures/ticket-1", "readOnly": True}
    assert mount in driver["containers"][0]["volumeMounts"]
    assert "erasure" not in str(executor)


def test_the_keys_that_sign_an_archive_are_mounted_into_the_driver_and_into_executors_of_restores() -> None:
    storage = {"uri": "s3://bucket/prefix", "signing": {"secretRef": {"name": "archive-keys"}}}
    driver, executor = pods_of(run(backup_spec(storage=storage)))
    assert "signing" not in str(executor)  # they store nothing that is signed
    for pod in (driver, *pods_of(restore(storage))):
        assert {"name": "signing", "secret": {"secretName": "archive-keys", "defaultMode": 0o444}} in pod["volumes"]
        mount = {"name": "signing", "mountPath": "/etc/logkeep/signing", "readOnly": True}
        assert mount in pod["containers"][0]["volumeMounts"]
        assert {"name": "LOGKEEP_SIGNING_DIR", "value": "/etc/logkeep/signing"} in pod["containers"][0]["env"]
    for unsigned in (*pods_of(run(backup_spec())), *pods_of(restore({"uri": "s3://bucket/prefix"}))):
        assert "signing" not in str(unsigned)


def test_the_job_never_has_two_drivers_and_never_repeats_what_cannot_help() -> None:
    spec = job(run(backup_spec(runPolicy={"backoffLimit": 5, "activeDeadlineSeconds": 60})))["spec"]
    assert (spec["podReplacementPolicy"], spec["parallelism"], spec["completions"]) == ("Failed", 1, 1)
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (5, 60, 86400)
    assert [
        (rule["action"], rule.get("onExitCodes", {}).get("values")) for rule in spec["podFailurePolicy"]["rules"]
    ] == [
        ("Ignore", None),
        ("FailJob", [2, 3, 4, 5]),
        ("Ignore", [130]),
    ]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_a_job_is_kept_long_enough_for_an_operator_that_restarts() -> None:
    with pytest.raises(SpecInvalid, match=r"spec\.runPolicy\.ttlSecondsAfterFinished: .*300"):
        run(backup_spec(runPolicy={"ttlSecondsAfterFinished": 299}))
    assert job(run(backup_spec(runPolicy={"ttlSecondsAfterFinished": 300})))["spec"]["ttlSecondsAfterFinished"] == 300


def test_children_have_own_labels_and_their_owner() -> None:
    made = run(backup_spec())
    for child in (job(made), request_config_map(made)):
        assert set(child["metadata"]["labels"]) == {
            "app.kubernetes.io/managed-by", "app.kubernetes.io/part-of",
            "logkeep.dev/kind", "logkeep.dev/name", "logkeep.dev/run",
        }  # fmt: skip
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner == {
            "apiVersion": "logkeep.dev/v1alpha1",
            "kind": "KafkaBackup",
            "name": "nightly",
            "uid": "uid-of-nightly",
            "controller": True,
            "blockOwnerDeletion": True,
        }


def test_executors_are_labelled_as_the_runs_own() -> None:
    made = run(backup_spec())
    labels = template_of(made)["metadata"]["labels"]
    assert (labels["logkeep.dev/role"], labels["logkeep.dev/run"]) == ("executor", "0123456789")
    conf = request_of(made).spark_conf
    assert conf["spark.kubernetes.executor.label.logkeep.dev/role"] == "executor"


def test_the_request_is_the_spec_as_written() -> None:
    request = request_of(run(SECURE))
    assert request.spec == SECURE
    assert (request.kind, request.name, request.namespace, request.run_id) == (
        "KafkaBackup",
        "nightly",
        "team",
        "0123456789",
    )
    assert request.progress_config_map == "nightly-0123456789-progress"


@pytest.mark.parametrize("more", [{}, {"topicIds": {"orders": "4tYB2AxkRhSLhBXfMzPnZw"}}])
def test_a_restores_backup_ref_is_resolved(more: dict[str, Any]) -> None:
    spec = restore_spec(source={"backupRef": {"name": "nightly"}, **more})
    storage = {"uri": "s3://bucket/prefix", "region": "eu-north-1"}
    made = RunToStart(
        resource("KafkaRestore", spec),
        "0123456789",
        parse_restore(spec),
        ArchiveSpec.model_validate(storage),
        storage,
        ENGINE,
        KafkaAccess(parse_restore(spec).cluster),
    )
    request = request_of(made)
    assert request.spec["source"] == {"storage": storage, **more}
    assert parse_restore(request.spec).source.storage is not None


def test_spark_conf_of_executors() -> None:
    executor = {"instances": 3, "cores": 2, "memory": "2Gi"}
    conf = {"spark.kubernetes.executor.request.cores": "100m", "spark.kubernetes.container.image.pullPolicy": "Always"}
    made = request_of(run(backup_spec(spark={"executor": executor, "conf": conf, "image": "own:2"}))).spark_conf
    assert (made["spark.executor.instances"], made["spark.executor.cores"]) == ("3", "2")
    assert (made["spark.executor.memory"], made["spark.executor.memoryOverhead"]) == ("819m", "1229m")
    assert made["spark.kubernetes.container.image"] == "own:2"
    assert made.items() >= conf.items()
    assert made["spark.kubernetes.executor.podTemplateFile"] == "/etc/logkeep/run/executor-pod.yaml"


def test_spark_and_the_operator_know_the_executors_container_by_the_name_in_the_template() -> None:
    made = run(backup_spec())
    named = request_of(made).spark_conf["spark.kubernetes.executor.podTemplateContainerName"]
    assert [c["name"] for c in template_of(made)["spec"]["containers"]] == [named] == [contract.ROLE_EXECUTOR]


@pytest.mark.parametrize(("memory", "heap"), [("1Gi", 512), ("768Mi", 512), ("2Gi", 819), ("10Gi", 4096)])
def test_memory_of_a_pod_is_what_the_spec_says(memory: str, heap: int) -> None:
    assert split_memory(memory, 1).heap == heap
    assert split_memory(memory, 1).pod << 20 == bytes_of(memory)


def bytes_of(memory: str) -> int:
    number, unit = memory[:-2], memory[-2:]
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


def test_the_least_executor_has_room_for_its_python_workers() -> None:
    assert split_memory(f"{executor_min_mib(4)}Mi", 4).overhead == 4 * 256


def resources_of_driver(**spark: Any) -> dict[str, Any]:
    pod = job(run(backup_spec(spark=spark)))["spec"]["template"]["spec"]
    found: dict[str, Any] = pod["containers"][0]["resources"]
    return found


def test_a_driver_asks_for_little_by_default() -> None:
    resources = resources_of_driver(driver={"cores": 2})  # cores are tasks, and not what is requested
    assert resources == {"requests": {"cpu": "250m", "memory": "768Mi"}, "limits": {"memory": "768Mi"}}


def test_cpu_of_the_driver_is_what_the_spec_says_and_sparks_own_keys_go_before() -> None:
    driver = {"coreRequest": "500m", "coreLimit": "1", "memory": "1Gi"}
    resources = resources_of_driver(driver=driver)
    assert resources["requests"] == {"cpu": "500m", "memory": "1024Mi"}
    assert resources["limits"] == {"cpu": "1", "memory": "1024Mi"}
    conf = {"spark.kubernetes.driver.request.cores": "100m", "spark.kubernetes.driver.limit.cores": "2"}
    resources = resources_of_driver(driver=driver, conf=conf)
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("100m", "2")


def test_cpu_of_executors_is_what_the_spec_says_and_sparks_own_keys_go_before() -> None:
    executor = {"coreRequest": "500m", "coreLimit": "1500m"}
    request, limit = "spark.kubernetes.executor.request.cores", "spark.kubernetes.executor.limit.cores"
    check_spec(parse_backup(backup_spec(spark={"executor": {"coreLimit": "100m"}, "conf": {request: "100m"}})))
    made = request_of(run(backup_spec(spark={"executor": executor}))).spark_conf
    assert (made[request], made[limit]) == ("500m", "1500m")
    made = request_of(run(backup_spec(spark={"executor": executor, "conf": {request: "100m"}}))).spark_conf
    assert (made[request], made[limit]) == ("100m", "1500m")
    made = request_of(run(backup_spec())).spark_conf
    assert request not in made
    assert limit not in made


def test_a_job_has_the_labels_of_the_resource_and_its_own() -> None:
    labels = {"kueue.x-k8s.io/queue-name": "backups"}
    metadata = job(run(backup_spec(runPolicy={"jobLabels": labels})))["metadata"]
    assert metadata["labels"].items() >= labels.items()
    assert metadata["labels"]["logkeep.dev/kind"] == "KafkaBackup"


def test_labels_of_logkeep_are_refused() -> None:
    wanted = parse_backup(backup_spec(runPolicy={"jobLabels": {"logkeep.dev/run": "mine"}}))
    with pytest.raises(SpecInvalid, match=r"spec.runPolicy.jobLabels\[logkeep.dev/run\]: is set by Logkeep"):
        check_spec(wanted)


WIRED = {
    "spark.kubernetes.driver.request.cores": "250m",
    "spark.kubernetes.driver.limit.cores": "2",
    "spark.kubernetes.driver.label.cost-centre": "42",
    "spark.kubernetes.driver.annotation.sidecar.istio.io/inject": "false",
    "spark.kubernetes.driver.node.selector.disk": "ssd",
    "spark.kubernetes.driver.scheduler.name": "volcano",
    "spark.kubernetes.driverEnv.HTTPS_PROXY": "http://proxy:3128",
    "spark.kubernetes.container.image.pullPolicy": "Always",
    "spark.kubernetes.container.image.pullSecrets": "one, two",
}


def test_sparks_settings_of_the_drivers_pod_are_in_the_job() -> None:
    template = job(run(backup_spec(spark={"conf": WIRED})))["spec"]["template"]
    pod, container = template["spec"], template["spec"]["containers"][0]
    assert container["resources"]["requests"]["cpu"] == "250m"
    assert container["resources"]["limits"]["cpu"] == "2"
    assert template["metadata"]["labels"]["cost-centre"] == "42"
    assert template["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
    assert (pod["nodeSelector"], pod["schedulerName"]) == ({"disk": "ssd"}, "volcano")
    assert environment(pod)["HTTPS_PROXY"] == "http://proxy:3128"
    assert container["imagePullPolicy"] == "Always"
    assert pod["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]


@pytest.mark.parametrize("key", [*WIRED, "spark.kubernetes.node.selector.zone", "spark.kubernetes.scheduler.name"])
def test_a_setting_that_is_in_the_job_has_an_effect_without_spark(key: str) -> None:
    assert not is_for_spark(key)


def test_sparks_settings_of_all_pods_hold_for_the_driver_unless_it_has_its_own() -> None:
    both = {"spark.kubernetes.node.selector.zone": "a", "spark.kubernetes.scheduler.name": "volcano"}
    pod = job(run(backup_spec(spark={"conf": both})))["spec"]["template"]["spec"]
    assert (pod["nodeSelector"], pod["schedulerName"]) == ({"zone": "a"}, "volcano")
    own = both | {
        "spark.kubernetes.driver.node.selector.zone": "b",
        "spark.kubernetes.driver.scheduler.name": "yunikorn",
    }
    pod = job(run(backup_spec(spark={"conf": own})))["spec"]["template"]["spec"]
    assert (pod["nodeSelector"], pod["schedulerName"]) == ({"zone": "b"}, "yunikorn")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        *((f"spark.kubernetes.driver.{rest}", "has no effect") for rest in (
            "container.image", "podTemplateFile", "podTemplateContainerName", "secrets.ca", "secretKeyRef.KEY",
            "volumes.hostPath.a.mount.path", "service.label.a", "service.annotation.a", "service.ipFamilies",
            "pod.featureSteps", "annotateExitException", "master", "resourceNamePrefix", "of.tomorrow",
        )),
        *((f"spark.kubernetes.{rest}", "has no effect") for rest in (
            "file.upload.path", "submission.waitAppCompletion", "kerberos.krb5.path", "submitInDriver",
        )),
        *((f"spark.kubernetes.{role}.{kind}.{name}", "how the operator finds the run's pods")
          for role in ("driver", "executor") for kind in ("label", "annotation") for name in (
            "app.kubernetes.io/managed-by", "app.kubernetes.io/part-of",
            "logkeep.dev/kind", "logkeep.dev/name", "logkeep.dev/run",
            "logkeep.dev/role", "logkeep.dev/resource",
        )),
        ("spark.kubernetes.executor.label.spark-role", "is set by Spark"),
        ("spark.kubernetes.driverEnv.AWS_ACCESS_KEY_ID", "is set by Logkeep"),
        ("spark.kubernetes.driverEnv.LOGKEEP_POD_NAME", "is set by Logkeep"),
        ("spark.kubernetes.driverEnv.LOGKEEP_TASK_MEMORY", "set spec.spark.conf[spark.executorEnv.LOGKEEP_TASK_MEM"),
        ("spark.executorEnv.AWS_SECRET_ACCESS_KEY", "is set by Logkeep"),
        ("spark.kubernetes.allocation.pods.allocator", "is set by Logkeep"),
        ("spark.kubernetes.memoryOverheadFactor", "is set by Logkeep"),
    ],
)  # fmt: skip
def test_a_setting_that_would_do_nothing_or_hide_the_pods_is_refused(key: str, why: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        check_spec(parse_backup(backup_spec(spark={"conf": {key: "x"}})))
    assert [(path, why in what) for path, what in refused.value.problems] == [(f"spec.spark.conf[{key}]", True)]


@pytest.mark.parametrize(
    "key",
    [
        *WIRED,
        "spark.kubernetes.driver.connectionTimeout",
        "spark.kubernetes.executor.label.cost-centre",
        "spark.kubernetes.executor.annotation.a",
        "spark.kubernetes.executor.request.cores",
        "spark.executorEnv.LOGKEEP_TASK_MEMORY",
    ],
)
def test_a_setting_that_somebody_reads_is_taken(key: str) -> None:
    check_spec(parse_backup(backup_spec(spark={"conf": {key: "1"}})))


def test_pull_secrets_and_policy_of_the_installation() -> None:
    engine = EngineSettings("engine:1", "Always", ("registry",))
    made = run(backup_spec(), engine)
    pod = job(made)["spec"]["template"]["spec"]
    assert (pod["imagePullSecrets"], pod["containers"][0]["imagePullPolicy"]) == ([{"name": "registry"}], "Always")
    assert request_of(made).spark_conf["spark.kubernetes.container.image.pullSecrets"] == "registry"


@pytest.mark.parametrize("name", ["a", "nightly", "a.b.c", "x" * 253, "abcdefghijklmnopqrstuvwxyz-.-.-.tail"])
def test_job_names_leave_room_for_executor_names(name: str) -> None:
    made = job_name(name, "0123456789")
    assert len(f"{made}-abcde") <= 46
    assert made.endswith("-0123456789")
    assert all(part and part[0] != "-" and part[-1] != "-" for part in made.split("."))


def test_long_names_of_one_beginning_have_different_labels() -> None:
    one, two = (resource_labels(Key("KafkaBackup", "n", "x" * 80 + end))["logkeep.dev/name"] for end in "ab")
    assert one != two
    assert len(one) <= 63


def test_the_driver_may_do_what_spark_needs_and_the_executor_nothing() -> None:
    made = access_objects("team", RoleName("ClusterRole", "sys-logkeep-driver"))
    assert {(body["kind"], body["metadata"]["name"]) for body in made} == {
        ("ServiceAccount", "logkeep-engine"),
        ("ServiceAccount", "logkeep-executor"),
        ("RoleBinding", "logkeep-driver"),
    }
    binding = made[-1]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("ClusterRole", "sys-logkeep-driver")
    assert [subject["name"] for subject in binding["subjects"]] == ["logkeep-engine"]


def test_the_network_policy_chooses_the_pods_of_runs_and_lets_only_these_in() -> None:
    policy = network_policy("team")
    pods = policy["spec"]["podSelector"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": pods}]}]
    (choice,) = pods["matchExpressions"]
    labels = [
        job(run(SECURE))["spec"]["template"]["metadata"]["labels"],
        template_of(run(SECURE))["metadata"]["labels"],
    ]
    assert sorted(found[choice["key"]] for found in labels) == choice["values"]
    assert all(found.items() >= pods["matchLabels"].items() for found in labels)


def test_spark_deletes_nothing_whatever_the_resource_says() -> None:
    kept = "spark.kubernetes.executor.deleteOnTermination"
    conf = request_of(run(backup_spec(spark={"conf": {kept: "true"}}))).spark_conf
    assert conf[kept] == "false"
    for switch in ("driver.service.deleteOnTermination", "driver.ownPersistentVolumeClaim"):
        assert conf[f"spark.kubernetes.{switch}"] == "false"
    assert conf["spark.kubernetes.executor.disableConfigMap"] == "true"

"""A hint names only what its reader can do: whoever gives a command has no Secret of Kubernetes and no annotation, and
whoever names an archive by a URI has no field of a resource."""

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from logkeep_engine.archive.catalog.signing import unsigned, unsigned_document
from logkeep_engine.cli.options import Server
from logkeep_engine.contract.cluster import ClusterSpec, SaslMechanism
from logkeep_engine.contract.names import ENV_POD_NAMESPACE, OPTION_KEYS, OWN_KEYS, STATE_KEYS, Keys
from logkeep_engine.contract.storage import ArchiveSpec
from logkeep_engine.errors import LogkeepError
from logkeep_engine.kafka.connection import connection_from
from logkeep_engine.kafka.login import Login, LoginDenied
from logkeep_engine.kafka.opening import refusal
from logkeep_engine.spark.conf import kubernetes_conf
from logkeep_engine.storage import open_storage, open_uri
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.s3 import S3Storage
from logkeep_engine.storage.s3.errors import translate

SASL = {"protocol": "SASL_SSL", "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "s"}}}
TLS = {"protocol": "SSL", "tls": {"caSecretRef": {"name": "s"}}}


def raised(call: Callable[[], object]) -> LogkeepError:
    with pytest.raises(LogkeepError) as error:
        call()
    return error.value


def cluster(security: Mapping[str, object], **environ: str) -> LogkeepError:
    spec = ClusterSpec.model_validate({"bootstrapServers": ["k:1"], "security": security})
    return raised(lambda: connection_from(spec, environ))


def archive(**fields: object) -> LogkeepError:
    spec = ArchiveSpec.model_validate({"uri": "s3://bucket/a", **fields})
    return raised(lambda: open_storage(spec, {}))


def of_store(error: Exception, keys: Keys = OWN_KEYS) -> LogkeepError:
    return translate(error, BucketPlace("s3://bucket/a", "http://127.0.0.1:1", None, keys, False), "catalog/x")


def answer(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "GetObject")


def untrusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError("no")
    error.verify_message = "unable to get local issuer certificate"
    return error


def login(error: BaseException) -> LogkeepError:
    found = refusal("b:1", Login(SaslMechanism.PLAIN, "u", "p"), error)
    assert found is not None
    return found


ABOUT_SECRETS: list[tuple[Callable[[], LogkeepError], str, str]] = [
    (lambda: cluster(SASL), "from the Secret", "A command does not read Secrets: set one of the variables."),
    (lambda: cluster(TLS, LOGKEEP_KAFKA_CA_FILE="/none"), "Check that the Secret", "Name a PEM file."),
    (lambda: login(LoginDenied("no")), "the Secret of spec.cluster", "LOGKEEP_KAFKA_PASSWORD"),
    (lambda: login(untrusted()), "spec.cluster.security.tls", "LOGKEEP_KAFKA_CA_FILE"),
    (
        lambda: archive(credentials={"secretRef": {"name": "s"}}),
        "The Secret must",
        "does not read Secrets: set the var",
    ),
    (lambda: archive(credentials={"workloadIdentity": {}}), "Bind both ServiceAccounts", "Leave credentials out"),
    (lambda: archive(tls={"caSecretRef": {"name": "s"}}), "from the Secret or the ConfigMap", "Set the variable to a"),
    (lambda: archive(signing={"secretRef": {"name": "s"}}), "from the Secret", "Give --signing-dir"),
    (lambda: of_store(NoCredentialsError()), "Name a Secret in storage.cred", "Set AWS_ACCESS_KEY_ID and AWS_SECRET"),
    (lambda: of_store(answer("SignatureDoesNotMatch")), "the Secret of storage.c", "Check AWS_ACCESS_KEY_ID, AWS_"),
    (lambda: raised(lambda: open_uri("s3://a:b@bucket")), "from the Secret of", "come from the environment (AWS_"),
    (lambda: unsigned("x"), "of storage.signing.secretRef", "of the folder of --signing-dir"),
    (lambda: unsigned_document("x", ""), "of storage.signing.secretRef", "of the folder of --signing-dir"),
]


@pytest.mark.parametrize(("error", "pod", "command"), ABOUT_SECRETS)
def test_only_a_pod_is_told_of_secrets(
    error: Callable[[], LogkeepError], pod: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_POD_NAMESPACE, "team")
    assert pod in error().hint
    monkeypatch.delenv(ENV_POD_NAMESPACE)
    reported = error().hint
    assert command in reported
    for word in ("secretRef", "Check that the Secret", "the operator", "ServiceAccount", "annotation"):
        assert word not in reported


def test_executors_know_that_they_are_pods() -> None:
    environ = {"LOGKEEP_POD_NAME": "nightly-0123456789-abcde", "LOGKEEP_POD_IP": "10.0.0.1", ENV_POD_NAMESPACE: "team"}
    api = {"KUBERNETES_SERVICE_HOST": "10.0.0.2", "KUBERNETES_SERVICE_PORT": "443"}
    assert kubernetes_conf({}, {**environ, **api})[f"spark.executorEnv.{ENV_POD_NAMESPACE}"] == "team"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (EndpointConnectionError(endpoint_url="http://127.0.0.1:1"), "Check that {endpoint} is right and reachable."),
        (answer("NoSuchBucket"), "Create it, or correct {uri}."),
        (answer("PermanentRedirect"), "Check {endpoint} and {region}."),
        (ValueError("no"), "Check {uri}, {endpoint} and {region}."),
    ],
)
def test_a_store_is_named_as_the_user_has_named_it(error: Exception, hint: str) -> None:
    options = {"endpoint": "--endpoint", "region": "--region", "uri": "the URI"}
    assert of_store(error, OPTION_KEYS).hint == hint.format(**options)
    for keys, field in ((OWN_KEYS, "storage"), (STATE_KEYS, "state")):
        assert of_store(error, keys).hint == hint.format(**{name: f"{field}.{name}" for name in options})


def test_a_store_without_an_endpoint_may_have_been_meant_to_have_one() -> None:
    place = BucketPlace("s3://bucket/a", None, None, OPTION_KEYS, False)
    error = EndpointConnectionError(endpoint_url="https://bucket.s3.amazonaws.com")
    assert translate(error, place, "catalog/x").hint.endswith("If the store is not Amazon's, name it in --endpoint.")


def test_commands_name_stores_by_options(tmp_path: Path) -> None:
    opened = Server(endpoint="http://127.0.0.1:1").storage("s3://bucket/a")
    assert isinstance(opened, S3Storage)
    assert opened._place.keys is OPTION_KEYS

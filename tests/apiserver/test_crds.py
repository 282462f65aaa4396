"""A real API server accepts, fills in and refuses resources, with the words that a user sees."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.restored_topics import RestoreTopics
from logkeep_engine.contract.spec import API_VERSION, parse_backup
from tests.apiserver.operator import Namespace, wait_for
from tests.cluster.logkeep import EXAMPLES
from tests.data.wrong_logins import WRONG_ENDPOINTS, WRONG_LOGINS
from tests.unit.operator.pod_templates import ROLES, whole
from tests.unit.operator.world import backup_spec, restore_spec

SASL: dict[str, Any] = {"mechanism": "PLAIN", "secretRef": {"name": "user"}}
STRIMZI = {"name": "prod", "listener": "tls"}
EMIT: dict[str, Any] = {"emit": "KafkaTopics", "emitOptions": {"strimziCluster": "prod"}}
S3 = "s3://bucket/prefix"
ERASURE: dict[str, Any] = {"name": "ticket-1", "topic": "customers", "keysSecretRef": {"name": "keys"}}
RESOURCES = [
    pytest.param(document, id=f"{file.stem}-{document['kind']}")
    for file in sorted(EXAMPLES.glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
    if document["apiVersion"] == API_VERSION
]


# A change of each field of spec.topics but holdFor.
TOPICS: list[dict[str, Any]] = [
    {"include": ["a"]},
    {"exclude": ["a"]},
    {"rename": [{"from": "a", "to": "b"}]},
    {"replicationFactor": 3},
    {"configs": {"ignore": ["a"]}},
    {"retention": "Apply"},
    {"partitionCount": 3},
    {"partitionCount": 3, "partitioner": "crc32"},
    {"partitions": [{"topic": "a", "partition": 0}]},
]


def security(**fields: Any) -> dict[str, Any]:
    return {"cluster": {"bootstrapServers": ["kafka:9092"], "security": fields}}


def storage(**fields: Any) -> dict[str, Any]:
    return {"storage": fields}


REFUSED = [
    (security(protocol="SASL_SSL"), "sasl must be set exactly when protocol is SASL_PLAINTEXT or SASL_SSL"),
    (security(protocol="SSL", sasl=SASL), "sasl must be set exactly when protocol is SASL_PLAINTEXT or SASL_SSL"),
    (security(tls={"caSecretRef": {"name": "ca"}}), "tls may be set only when protocol is SSL or SASL_SSL"),
    ({"cluster": {"security": {"protocol": "PLAINTEXT"}}}, "exactly one of bootstrapServers and strimzi must be set"),
    (
        {"cluster": {"bootstrapServers": ["kafka:9092"], "strimzi": STRIMZI}},
        "exactly one of bootstrapServers and strimzi must be set",
    ),
    ({"cluster": {"strimzi": STRIMZI, "security": {"protocol": "SSL"}}}, "security must be left out with strimzi"),
    ({"cluster": {"strimzi": {"name": "prod", "listener": "TLS"}}}, "spec.cluster.strimzi.listener"),
    ({"cluster": {"strimzi": STRIMZI | {"name": "../prod"}}}, "spec.cluster.strimzi.name"),
    (
        {"cluster": {"bootstrapServers": ["kafka:9092"], "kafkaUserRef": {"name": "logkeep"}}},
        "kafkaUserRef may be set only with strimzi, or with another protocol than PLAINTEXT",
    ),
    (
        {
            "cluster": {
                "bootstrapServers": ["kafka:9092"],
                "kafkaUserRef": {"name": "logkeep"},
                "security": {"protocol": "SASL_SSL", "sasl": SASL},
            }
        },
        "security.sasl and security.tls.clientCertSecretRef must be left out with kafkaUserRef",
    ),
    (
        security(protocol="SASL_SSL", sasl=SASL | {"username": "ann", "secretRef": {"name": "u", "usernameKey": "n"}}),
        "secretRef.usernameKey has no effect with username",
    ),
    *((security(protocol="SASL_SSL", sasl=sasl), message) for sasl, message in WRONG_LOGINS),
    *(
        (
            security(
                protocol="SASL_SSL",
                sasl={"mechanism": "OAUTHBEARER", "secretRef": {"name": "s"}, "oauth": {"tokenEndpoint": url}},
            ),
            "spec.cluster.security.sasl.oauth.tokenEndpoint",
        )
        for url in WRONG_ENDPOINTS
    ),
    (security(protocol="TLS"), 'Unsupported value: "TLS"'),
    (storage(uri="file:///archive"), "volume must be set with a file:// uri"),
    (storage(uri=S3, volume={"claimName": "c"}), "volume may be set only with a file:// uri"),
    (
        storage(uri="file:///archive", volume={"claimName": "c"}, region="eu"),
        "region may be set only with an s3:// uri",
    ),
    (storage(uri=S3, credentials={}), "exactly one of secretRef and workloadIdentity must be set"),
    (
        storage(uri=S3, credentials={"secretRef": {"name": "a"}, "workloadIdentity": {}}),
        "exactly one of secretRef and workloadIdentity must be set",
    ),
    (storage(uri=S3, tls={}), "exactly one of caSecretRef and caConfigMapRef must be set"),
    (
        storage(uri="file:///archive", volume={"claimName": "c"}, tls={"caSecretRef": {"name": "ca"}}),
        "endpoint, credentials and tls may not be set with a file:// uri",
    ),
    (
        storage(uri=S3, endpoint="http://store:9000", tls={"caSecretRef": {"name": "ca"}}),
        "tls has no effect with an endpoint of http://",
    ),
    (
        security(protocol="SSL", tls={"caSecretRef": {"name": "a"}, "caConfigMapRef": {"name": "b"}}),
        "caSecretRef and caConfigMapRef may not both be set",
    ),
    (storage(uri="b2://bucket"), "spec.storage.uri"),
    (storage(uri="gs://bucket", region="eu"), "region may be set only with an s3:// uri"),
    (storage(uri="gs://bucket", s3={"requesterPays": True}), "s3 may be set only with an s3:// uri"),
    (
        storage(uri="s3://bucket", s3={"serverSideEncryption": "AES256", "kmsKeyId": "a"}),
        "kmsKeyId may be set only with serverSideEncryption aws:kms",
    ),
    (storage(uri="s3://bucket", s3={"bucketKey": False}), "bucketKey may be set only with serverSideEncryption"),
    (storage(uri="s3://bucket", s3={"storageClass": "GLACIER"}), "storageClass may not be GLACIER or DEEP_ARCHIVE"),
    (storage(uri="az://backups/kafka"), "endpoint must be set with an az:// uri"),
    (
        storage(uri="gs://bucket", credentials={"secretRef": {"name": "s", "accountKeyKey": "k"}}),
        "credentials.secretRef.accountKeyKey may be set only with az://",
    ),
    (storage(uri="s3://bucket/a\nb"), "spec.storage.uri"),
    (storage(uri="file:///a\x1b[2J", volume={"claimName": "c"}), "spec.storage.uri"),
    (storage(uri=S3, endpoint="http://user:password@store:9000"), "spec.storage.endpoint"),
    (storage(uri=S3, endpoint="http://store:9000?x=y"), "spec.storage.endpoint"),
    (storage(uri=S3, endpoint="http://store:9000#x"), "spec.storage.endpoint"),
    (storage(uri=S3, endpoint="https://store:9000\n"), "spec.storage.endpoint"),
    (storage(uri=S3, region="evil.example/"), "spec.storage.region"),
    ({"cluster": {"bootstrapServers": ["kafka"]}}, "spec.cluster.bootstrapServers[0]"),
    ({"cluster": {"bootstrapServers": []}}, "should have at least 1 items"),
    ({"topics": {"include": []}}, "should have at least 1 items"),
    ({"topics": {"include": ["a"], "excluded": ["b"]}}, ".spec.topics.excluded: field not declared in schema"),
    ({"onDataLoss": "Ignore"}, 'Unsupported value: "Ignore"'),
    ({"onDivergence": "Ignore"}, 'Unsupported value: "Ignore"'),
    ({"format": "Avro", "onDivergence": "Branch"}, "onDivergence may be Branch only with format Kafka"),
    ({"segment": {"maxBytes": "1.5Gi"}}, "spec.segment.maxBytes"),
    ({"segment": {"compression": "Gzip"}}, 'Unsupported value: "Gzip"'),
    ({"segment": {"mergeCount": 1}}, "mergeCount must not be 1"),
    ({"segment": {"mergeCount": 1001}}, "spec.segment.mergeCount"),
    ({"segment": {"livePercent": 101}}, "spec.segment.livePercent"),
    ({"format": "Avro", "segment": {"livePercent": 0}}, "livePercent may be set only with format Kafka"),
    ({"segment": {"packBelow": "9Mi"}}, "packBelow must be at most 8Mi"),
    ({"segment": {"packBelow": "1.5Mi"}}, "spec.segment.packBelow"),
    ({"format": "Records", "segment": {"packBelow": "0"}}, "packBelow may be set only with format Kafka"),
    ({"format": "Parquet"}, 'Unsupported value: "Parquet"'),
    ({"format": "Records", "segment": {"compression": "Zstd"}}, "compression may be Zstd only with format Kafka"),
    ({"formatOptions": {"allowLoss": True}}, "allowLoss may be true only with compatibility strict"),
    (
        {"format": "Records", "formatOptions": {"allowLoss": True}},
        "allowLoss may be true only with compatibility strict",
    ),
    (
        {"format": "Records", "formatOptions": {"compatibility": "strict"}},
        "formatOptions.compatibility may be set only with format Avro",
    ),
    ({"formatOptions": {"codec": "none"}}, "formatOptions.codec may be set only with format Avro"),
    ({"format": "Avro", "formatOptions": {"codec": "lz4"}}, 'Unsupported value: "lz4"'),
    ({"format": "Avro", "formatOptions": {"compatibility": "loose"}}, 'Unsupported value: "loose"'),
    ({"erasures": [ERASURE, ERASURE]}, "duplicate entries for key"),
    ({"erasures": [{**ERASURE, "encoding": "hex"}]}, 'Unsupported value: "hex"'),
    ({"compactedTopics": "Compact"}, 'Unsupported value: "Compact"'),
    ({"format": "Avro", "compactedTopics": "Snapshot"}, "compactedTopics may be Snapshot only with format Kafka"),
    ({"format": "Records", "snapshots": {}}, "snapshots may be set only where compactedTopics is Snapshot"),
    ({"compactedTopics": "Log", "snapshots": {}}, "snapshots may be set only where compactedTopics is Snapshot"),
    (
        {"snapshots": {"maxRecordBytesBetweenSnapshots": "0Mi"}},
        "maxRecordBytesBetweenSnapshots must be at least 1",
    ),
    ({"snapshots": {"maxRecordBytesBetweenSnapshots": "1.5Mi"}}, "spec.snapshots.maxRecordBytesBetweenSnapshots"),
    ({"generations": {}}, "generations may be set only where compactedTopics is Generations"),
    ({"compactedTopics": "Generations", "generations": {"cycle": "0d"}}, "spec.generations.cycle"),
    ({"snapshots": {"minCleanableRatio": 1.5}}, "should be less than or equal to 1"),
    ({"snapshots": {"minCleanableRatio": -0.1}}, "should be greater than or equal to 0"),
    ({"reconcile": {}}, "spec.reconcile.cron: Required value"),
    ({"reconcile": {"cron": "never"}}, "cron must have five fields"),
    ({"retention": {"maxAge": "30"}}, "spec.retention.maxAge"),
    ({"retention": {"maxAge": "0d"}}, "spec.retention.maxAge"),
    ({"retention": {"maxBytes": "1023Ki"}}, "maxBytes must be at least 1Mi"),
    ({"retention": {"maxBytes": "much"}}, "spec.retention.maxBytes"),
    ({"retention": {"grace": "0"}}, "spec.retention.grace"),
    ({"retention": {"grace": "0d"}}, "spec.retention.grace"),
    ({"retention": {"keepRuns": 0}}, "spec.retention.keepRuns"),
    ({"retention": {"keepFor": {"daily": 0}}}, "spec.retention.keepFor.daily"),
    ({"retention": {"hold": {"runs": ["../x"]}}}, "spec.retention.hold.runs"),
    ({"retention": {"hold": {"topics": [""]}}}, "spec.retention.hold.topics"),
    ({"limits": {"bytesPerSecond": "63Ki"}}, "bytesPerSecond must be at least 64Ki"),
    ({"limits": {"bytesPerSecond": "fast"}}, "spec.limits.bytesPerSecond"),
    ({"limits": {"readersPerBroker": 0}}, "should be greater than or equal to 1"),
    ({"limits": {"readersPerBroker": 1001}}, "should be less than or equal to 1000"),
    ({"schedule": {"cron": "0 0 2 * * *"}}, "cron must have five fields, such as 0 2 * * *"),
    ({"schedule": {"cron": "TZ=Europe/Berlin 0 2 * * *"}}, "the time zone goes into timeZone"),
    ({"spark": {"executor": {"instances": 0}}}, "should be greater than or equal to 1"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_a_backup_is_refused_with_a_reason(namespace: Namespace, change: dict[str, Any], message: str) -> None:
    answer = namespace.apply("KafkaBackup", "b", backup_spec(**change))
    assert answer.returncode != 0
    assert message in answer.stderr


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (storage(uri="s3:/bucket"), "spec.storage.uri: %: must be s3://bucket/prefix, gs://bucket/prefix, "),
        (storage(uri=S3, endpoint="minio:9000"), "spec.storage.endpoint: %: must be https://host:port or http://"),
        (storage(uri=S3, region="eu north"), "spec.storage.region: %: must be the name of a region: letters"),
        (
            storage(uri=S3, credentials={"secretRef": {"name": "Archive_S3"}}),
            "spec.storage.credentials.secretRef.name: %: must be a name in Kubernetes: lower-case letters",
        ),
        ({"cluster": {"bootstrapServers": ["kafka"]}}, "spec.cluster.bootstrapServers[0]: %: must be host:port"),
        ({"retention": {"maxAge": "30 days"}}, "spec.retention.maxAge: %: must be a duration such as 12h or 30d"),
        ({"retention": {"grace": "1"}}, "spec.retention.grace: %: must be 0s, or a duration such as 12h or 30d"),
        ({"retention": {"maxBytes": "1TB"}}, "spec.retention.maxBytes: %: must be a whole quantity of bytes such as"),
        ({"limits": {"bytesPerSecond": "50MB"}}, "spec.limits.bytesPerSecond: %: must be a whole quantity of bytes"),
        (
            {"spark": {"driver": {"coreRequest": "two"}}},
            "spec.spark.driver.coreRequest: %: must be a number of cores such as 2",
        ),
        ({"schedule": {"cron": "daily"}}, "spec.schedule.cron: %: cron must have five fields, such as 0 2 * * *"),
    ],
)
def test_a_wrong_text_is_refused_with_one_sentence(namespace: Namespace, change: dict[str, Any], sentence: str) -> None:
    answer = namespace.apply("KafkaBackup", "b", backup_spec(**change))
    assert answer.returncode != 0
    path, _, words = sentence.partition(": %: ")
    assert f"{path}: Invalid value: " in answer.stderr
    assert words in answer.stderr
    assert answer.stderr.count("Invalid value") == 1, "and no other rule has failed for it"
    assert "should match" not in answer.stderr


@pytest.mark.parametrize("document", RESOURCES)
def test_an_example_is_accepted(namespace: Namespace, document: dict[str, Any]) -> None:
    answer = namespace.apply(document["kind"], document["metadata"]["name"], document["spec"])
    assert answer.returncode == 0, answer.stderr


def test_keys_that_sign_an_archive_are_a_secret_with_a_name(namespace: Namespace) -> None:
    signed = {"uri": S3, "signing": {"secretRef": {"name": "archive-keys"}}}
    assert namespace.apply("KafkaBackup", "signed", backup_spec(storage=signed)).returncode == 0
    assert namespace.get("kbak", "signed")["spec"]["storage"]["signing"] == signed["signing"]
    assert namespace.apply("KafkaRestore", "signed", restore_spec(source={"storage": signed})).returncode == 0
    refused: list[dict[str, Any]] = [{}, {"secretRef": {}}, {"secretRef": {"name": "../keys"}}]
    for wrong in refused:
        answer = namespace.apply("KafkaBackup", "wrong", backup_spec(storage={"uri": S3, "signing": wrong}))
        assert answer.returncode != 0
        assert "spec.storage.signing" in answer.stderr


def test_defaults_are_those_of_the_contract(namespace: Namespace) -> None:
    assert namespace.apply("KafkaBackup", "b", backup_spec()).returncode == 0
    assert namespace.apply("KafkaRestore", "r", restore_spec()).returncode == 0
    backup, restore = namespace.get("kbak", "b")["spec"], namespace.get("krst", "r")["spec"]
    assert backup["segment"] == {
        "maxBytes": "512Mi",
        "compression": "Passthrough",
        "digest": "Blake3",
        "recordDigests": False,
        "packBelow": "8Mi",
        "mergeCount": 16,
        "livePercent": 25,
    }
    assert (restore["offsets"], restore["verify"], restore["everything"]) == ("Any", "Counts", False)
    assert (restore["emit"], restore["emitOptions"]) == ("None", {})
    assert (backup["limits"], backup["clusterState"]) == ({"readersPerBroker": 16}, "Archive")
    assert (backup["format"], backup["formatOptions"]) == ("Kafka", {"allowLoss": False})
    assert backup["retention"] == {"grace": "1d", "keepFor": {}, "hold": {"topics": [], "runs": []}, "topics": "Chosen"}
    assert restore["consumerGroups"] == {"restore": "None", "include": [".*"], "exclude": [], "rename": []}
    assert namespace.apply("KafkaBackup", "e", backup_spec(erasures=[ERASURE])).returncode == 0
    assert namespace.get("kbak", "e")["spec"]["erasures"] == [
        {**ERASURE, "encoding": "text", "keysSecretRef": {"name": "keys", "key": "keys"}}
    ]
    assert "compactedTopics" not in backup
    assert "snapshots" not in backup
    assert "reconcile" not in backup
    assert namespace.apply("KafkaBackup", "r", backup_spec(reconcile={"cron": "@weekly"})).returncode == 0
    assert namespace.get("kbak", "r")["spec"]["reconcile"] == {
        "cron": "@weekly",
        "timeZone": "UTC",
        "heal": False,
    }
    assert namespace.apply("KafkaBackup", "s", backup_spec(snapshots={})).returncode == 0
    assert namespace.get("kbak", "s")["spec"]["snapshots"] == {
        "maxRecordBytesBetweenSnapshots": "20Mi",
        "minCleanableRatio": 0.5,
    }
    assert parse_backup(backup) == parse_backup(backup_spec())
    assert parse_restore(restore) == parse_restore(restore_spec())
    # Defaults that an installation may have others for are not written into resources.
    spark: dict[str, Any] = {"conf": {}, "driver": {}, "executor": {}}
    assert (backup.pop("spark"), restore.pop("spark")) == (spark, spark)
    for typed, stored in ((parse_backup(backup), backup), (parse_restore(restore), restore)):
        assert typed.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"spark"}) == stored


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_template_stays_as_it_was_written(namespace: Namespace, role: str) -> None:
    spec = backup_spec(spark={role: {"podTemplate": whole(role)}})
    answer = namespace.apply("KafkaBackup", "b", spec)
    assert answer.returncode == 0, answer.stderr
    stored = namespace.get("kbak", "b")["spec"]
    assert stored["spark"][role]["podTemplate"] == whole(role)
    assert parse_backup(stored) == parse_backup(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"hostNetwork": True}, "podTemplate.spec.hostNetwork: field not declared in schema"),
        ({"volumes": [{"name": "a", "hostPath": {}}]}, "podTemplate.spec.volumes[0].hostPath: field not declared"),
        ({"securityContext": {"runAsUser": 0}}, "should be greater than or equal to 1"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, 'Unsupported value: "Unconfined"'),
        ({"containers": [{"name": "driver"}, {"name": "more"}]}, "Too many: 2: must have at most 1 item"),
    ],
)
def test_a_pod_template_cannot_weaken_a_pod(namespace: Namespace, spec: dict[str, Any], message: str) -> None:
    answer = namespace.apply("KafkaBackup", "b", backup_spec(spark={"driver": {"podTemplate": {"spec": spec}}}))
    assert answer.returncode != 0
    assert message in answer.stderr


MANY = [f"{number:03d}" * 60 for number in range(500)]


@pytest.mark.parametrize(
    "groups",
    [
        {},
        {"restore": "None", "include": [".*"], "exclude": []},
        {"restore": "Translate", "include": ["billing"], "exclude": ["billing-old"]},
        {"restore": "Translate", "include": [], "exclude": []},
        {"restore": "Translate", "include": MANY, "exclude": MANY},
    ],
    ids=["none", "defaults", "chosen", "empty", "longest"],
)
def test_groups_may_be_chosen_where_they_are_moved(namespace: Namespace, groups: dict[str, Any]) -> None:
    answer = namespace.apply("KafkaRestore", "r", restore_spec(consumerGroups=groups))
    assert answer.returncode == 0, answer.stderr
    assert parse_restore(namespace.get("krst", "r")["spec"]) == parse_restore(restore_spec(consumerGroups=groups))


def test_the_place_of_an_archive_cannot_be_changed(namespace: Namespace) -> None:
    namespace.apply("KafkaBackup", "b", backup_spec())
    answer = namespace.apply("KafkaBackup", "b", backup_spec(**storage(uri="s3://other/prefix")))
    assert "storage.uri cannot be changed" in answer.stderr
    assert namespace.apply("KafkaBackup", "b", backup_spec(**storage(uri=S3, region="eu-north-1"))).returncode == 0


def test_the_format_of_an_archive_cannot_be_changed_but_how_it_is_written_and_kept_can(namespace: Namespace) -> None:
    assert namespace.apply("KafkaBackup", "b", backup_spec(format="Avro")).returncode == 0
    for other in ({"format": "Records"}, {"format": "Kafka"}, {}):
        answer = namespace.apply("KafkaBackup", "b", backup_spec(**other))
        assert "format cannot be changed: an archive has one format" in answer.stderr
    changed: dict[str, Any] = {
        "format": "Avro",
        "formatOptions": {"compatibility": "strict", "codec": "zstandard", "allowLoss": True},
        "retention": {
            "maxAge": "52w",
            "maxBytes": "1Mi",
            "grace": "0s",
            "keepRuns": 3,
            "keepFor": {"daily": 7, "weekly": 4, "monthly": 12},
            "hold": {"topics": ["orders.*"], "runs": ["nightly-1"]},
        },
    }
    assert namespace.apply("KafkaBackup", "b", backup_spec(**changed)).returncode == 0
    assert parse_backup(namespace.get("kbak", "b")["spec"]) == parse_backup(backup_spec(**changed))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"consumerGroups": {"restore": "Copy"}}, 'Unsupported value: "Copy"'),
        (
            {"consumerGroups": {"include": ["billing"]}},
            "include has no effect with restore None, which moves no group; set restore to Translate, or leave",
        ),
        ({"consumerGroups": {"include": [".*", "a"]}}, "include has no effect with restore None"),
        ({"consumerGroups": {"include": []}}, "include has no effect with restore None"),
        ({"consumerGroups": {"rename": [{"from": "a", "to": "b"}]}}, "rename has no effect with restore None"),
        (
            {"consumerGroups": {"restore": "None", "exclude": ["billing"]}},
            "exclude has no effect with restore None, which moves no group; set restore to Translate, or leave",
        ),
        ({"recordBatches": {"maxRecords": 0}}, "should be greater than or equal to 1"),
        ({"recordBatches": {"maxRecords": 1_000_001}}, "should be less than or equal to 1000000"),
        ({"recordBatches": {"compression": "lz4"}}, 'Unsupported value: "lz4"'),
        ({"state": {"uri": "file:///state"}}, "volume must be set with a file:// uri"),
        ({"state": {"uri": S3, "volume": {"claimName": "c"}}}, "volume may be set only with a file:// uri"),
        (
            {"offsets": "Same", "ifTopicExists": "Append"},
            "offsets may be Same only in new topics: ifTopicExists may not be Append with it",
        ),
        ({"drill": {"prefix": "a/b"}}, "spec.drill.prefix"),
        ({"drill": {"share": "5"}}, "spec.drill.share"),
        ({"drill": {"share": "0.00%"}}, "share must be above 0% and at most 100%"),
        ({"drill": {"share": "100.1%"}}, "share must be above 0% and at most 100%"),
        ({"drill": {"schedule": {}}}, "spec.drill.schedule.cron"),
        ({"drill": {}, "ifTopicExists": "Append"}, "ifTopicExists may only be Fail with drill"),
        (
            {"drill": {}, "consumerGroups": {"restore": "Translate"}},
            "consumerGroups.restore may only be None with drill",
        ),
        ({"drill": {}, "topics": {"rename": [{"from": "a", "to": "b"}]}}, "topics.rename has no effect with drill"),
        ({"emit": "KafkaTopics"}, "emitOptions.strimziCluster must be set with emit, unless cluster.strimzi names"),
        ({"emit": "Topics"}, 'Unsupported value: "Topics"'),
        ({"emitOptions": {"strimziCluster": "prod"}}, "emitOptions has no effect with emit None"),
        ({"emitOptions": {"strimziApi": "v1"}}, "emitOptions has no effect with emit None"),
        ({"emit": "KafkaTopics", "emitOptions": {"strimziApi": "v2"}}, 'Unsupported value: "v2"'),
        ({**EMIT, "drill": {}}, "emit may only be None with drill"),
        ({"offsets": "Exact"}, 'Unsupported value: "Exact"'),
        ({"schemaTopic": "registry"}, "schemaTopic may be set only with everything"),
        (
            {"everything": True, "topics": {"include": ["orders"]}},
            "topics.include, topics.exclude, topics.rename and topics.partitions must be left out with everything",
        ),
        (
            {"everything": True, "topics": {"rename": [{"from": "a", "to": "b"}]}},
            "topics.include, topics.exclude, topics.rename and topics.partitions must be left out with everything",
        ),
        (
            {"everything": True, "consumerGroups": {"restore": "Translate", "exclude": ["a"]}},
            "consumerGroups.include, consumerGroups.exclude and consumerGroups.rename must be left out with everything",
        ),
        (
            {"everything": True, "consumerGroups": {"restore": "Translate", "rename": [{"from": "a", "to": "b"}]}},
            "consumerGroups.include, consumerGroups.exclude and consumerGroups.rename must be left out with everything",
        ),
        (
            {"everything": True, "topics": {"partitions": [{"topic": "a", "partition": 0}]}},
            "topics.include, topics.exclude, topics.rename and topics.partitions must be left out with everything",
        ),
        (
            {"everything": True, "topics": {"configs": {"policy": "Ignore"}}},
            "topics.configs.policy may only be Restore with everything",
        ),
        (
            {"everything": True, "topics": {"partitionCount": 3}},
            "topics.partitionCount may not be given with everything",
        ),
        ({"everything": True, "drill": {}}, "drill may not be set with everything"),
        ({"everything": True, "ifTopicExists": "Append"}, "ifTopicExists may only be Fail or Resume with everything"),
        (
            {"everything": True, "ifTopicExists": "Replace", "confirm": ["a"]},
            "ifTopicExists may only be Fail or Resume with everything",
        ),
        (
            {"everything": True, "point": {"window": {"from": "2026-11-17T14:05:00Z"}}},
            "point must be that of a run, or have asOf or timestamp, with everything",
        ),
        ({"ifTopicExists": "Replace"}, "confirm must name those that may be deleted"),
        ({"confirm": ["a"]}, "confirm has an effect only with ifTopicExists: Replace or Resume; leave it out"),
        (
            {"everything": True, "ifTopicExists": "Resume", "confirm": ["a"]},
            "confirm has no effect with everything, which replaces no topic; leave it out",
        ),
        ({"acls": {"cluster": True}}, "acls may be set only with everything"),
        ({"topics": {"configs": {"policy": "Ignore", "ignore": ["a"]}}}, "ignore has no effect with policy Ignore"),
        (
            {"topics": {"configs": {"override": {"a": "1"}, "ignore": ["a"]}}},
            "a key may be in override or in ignore, not in both",
        ),
        ({"topics": {"partitions": [{"topic": "a", "partition": 0}] * 2}}, "duplicate entries"),
        ({"topics": {"partitions": [{"topic": "a", "partition": -1}]}}, "greater than or equal to 0"),
        ({"topics": {"partitionCount": 0}}, "greater than or equal to 1"),
        ({"topics": {"partitionCount": 10_001}}, "less than or equal to 10000"),
        (
            {"topics": {"partitionCount": 3, "partitions": [{"topic": "a", "partition": 0}]}},
            "partitions may not be given with it",
        ),
        (
            {"source": {"storage": {"uri": "file:///a", "volume": {"claimName": "c"}}, "retrieval": {}}},
            "retrieval has no effect with a file:// or gs:// uri",
        ),
        (
            {"drill": {}, "source": {"storage": {"uri": S3}, "retrieval": {}}},
            "source.retrieval has no effect with drill",
        ),
        ({"source": {"storage": {"uri": S3}, "retrieval": {"tier": "Fast"}}}, 'Unsupported value: "Fast"'),
        ({"source": {"storage": {"uri": S3}, "retrieval": {"days": 0}}}, "greater than or equal to 1"),
        ({"topics": {"holdFor": "7d"}}, "holdFor has no effect without retention Hold"),
        ({"topics": {"retention": "Hold", "holdFor": "7"}}, "spec.topics.holdFor"),
        ({"topics": {"retention": "Hold", "holdFor": "3651d"}}, "holdFor must be at most 3650d"),
        ({"topics": {"retention": "Hold", "holdFor": "999999999w"}}, "holdFor must be at most 3650d"),
        ({**EMIT, "topics": {"retention": "Hold", "holdFor": "7d"}}, "topics.holdFor may not be given with emit"),
        ({"drill": {}, "topics": {"retention": "Hold", "holdFor": "7d"}}, "topics.retention has no effect with drill"),
        ({"topics": {"partitioner": "crc32"}}, "partitioner has no effect without partitionCount"),
        ({"topics": {"partitionCount": 3, "partitioner": "fnv1a"}}, 'Unsupported value: "fnv1a"'),
        ({"topics": {"partitionCount": 3}, "offsets": "Same"}, "offsets may not be Same with it"),
        ({"topics": {"partitionCount": 3}, "verify": "Full"}, "verify may only be Counts"),
        ({"topics": {"partitionCount": 3}, "drill": {}}, "partitionCount may not be given with drill"),
        (
            {"topics": {"partitionCount": 3}, "consumerGroups": {"restore": "Translate"}},
            "consumerGroups.restore may only be None with it",
        ),
        ({"topics": {"configs": {"ignore": ["a", "a"]}}}, "duplicate entries"),
        ({"state": {"uri": S3, "credentials": {}}}, "exactly one of secretRef and workloadIdentity must be set"),
    ],
)
def test_a_restore_is_refused_with_a_reason(namespace: Namespace, change: dict[str, Any], message: str) -> None:
    answer = namespace.apply("KafkaRestore", "r", restore_spec(**change))
    assert answer.returncode != 0
    assert message in answer.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"ifTopicExists": "Append"}),
        ({}, {"drill": {}}),
        ({}, EMIT),
        (EMIT, {**EMIT, "emitOptions": {"strimziCluster": "other"}}),
        ({"drill": {}}, {}),
        *(({}, {"topics": change}) for change in TOPICS),
        *(({"topics": change}, {}) for change in TOPICS),
        ({"topics": {"partitionCount": 3}}, {"topics": {"partitionCount": 4}}),
        ({"topics": {"retention": "Hold", "holdFor": "7d"}}, {"topics": {"retention": "Apply"}}),
        ({}, {"cluster": {"bootstrapServers": ["other:9092"]}}),
        ({}, {"consumerGroups": {"restore": "Translate"}}),
        ({"recordBatches": {"maxRecords": 5}}, {"recordBatches": {"maxRecords": 6}}),
        ({"recordBatches": {"compression": "Zstd"}}, {}),
        ({}, {"source": {"storage": {"uri": S3}}}),
        ({}, {"allowEmpty": True}),
        ({}, {"offsets": "Same"}),
        ({}, {"point": {"run": "a"}}),
        ({"ifTopicExists": "Replace", "confirm": ["a"]}, {"ifTopicExists": "Replace", "confirm": ["a", "b"]}),
        ({"everything": True}, {"everything": True, "acls": {"cluster": True}}),
        ({"everything": True, "acls": {"cluster": True}}, {"everything": True, "acls": {"anyPrincipal": True}}),
        ({"point": {"asOf": "2026-11-17T14:05:00Z"}}, {"point": {"timestamp": "2026-11-17T14:05:00Z"}}),
        ({}, {"state": {"uri": S3}}),
        ({"state": {"uri": S3}}, {"state": {"uri": f"{S3}/other"}}),
        ({"state": {"uri": S3}}, {}),
    ],
)
def test_a_restore_cannot_be_changed(namespace: Namespace, before: dict[str, Any], after: dict[str, Any]) -> None:
    namespace.apply("KafkaRestore", "r", restore_spec(**before))
    answer = namespace.apply("KafkaRestore", "r", restore_spec(**after))
    assert (
        "the spec of a KafkaRestore cannot be changed, except suspend, limits, spark, runPolicy and topics.holdFor"
        in answer.stderr
    )


def test_how_a_restore_runs_can_be_changed(namespace: Namespace) -> None:
    changes: list[dict[str, Any]] = [
        {"runPolicy": {"activeDeadlineSeconds": 60}},
        {"runPolicy": {}, "spark": {"driver": {"memory": "4Gi"}, "conf": {"spark.a": "b"}}},
        {"spark": {"executor": {"instances": 9}}},
        {},
    ]
    for change in changes:
        answer = namespace.apply("KafkaRestore", "r", restore_spec(**change))
        assert answer.returncode == 0, answer.stderr
        assert parse_restore(namespace.get("krst", "r")["spec"]) == parse_restore(restore_spec(**change))


def test_each_field_of_the_topics_that_must_not_change_is_tried() -> None:
    tried = {field for change in TOPICS for field in change}
    assert tried == {field.alias for field in RestoreTopics.model_fields.values()} - {"holdFor"}


def test_the_time_for_which_topics_are_held_can_be_changed(namespace: Namespace) -> None:
    for change in ({}, {"holdFor": "7d"}, {"holdFor": "521w"}, {"holdFor": "315360000s"}, {"holdFor": "3650d"}, {}):
        answer = namespace.apply("KafkaRestore", "r", restore_spec(topics={"retention": "Hold", **change}))
        assert answer.returncode == 0, answer.stderr
        assert namespace.get("krst", "r")["spec"]["topics"].get("holdFor") == change.get("holdFor")


def test_the_limits_of_a_restore_can_be_changed(namespace: Namespace) -> None:
    for rate in ("50Mi", "64Ki", "1G"):
        answer = namespace.apply("KafkaRestore", "r", restore_spec(limits={"bytesPerSecond": rate}))
        assert answer.returncode == 0, answer.stderr
    assert namespace.apply("KafkaRestore", "r", restore_spec()).returncode == 0
    answer = namespace.apply("KafkaRestore", "r", restore_spec(limits={"bytesPerSecond": "1k"}))
    assert "bytesPerSecond must be at least 64Ki" in answer.stderr


def test_a_restore_can_be_suspended_and_resumed(namespace: Namespace) -> None:
    for suspend in (False, True, False):
        assert namespace.apply("KafkaRestore", "r", restore_spec(suspend=suspend)).returncode == 0
        assert namespace.get("krst", "r")["spec"]["suspend"] is suspend


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({}, "exactly one of run, asOf, timestamp, offsets and window must be set"),
        ({"run": "a", "asOf": "2026-11-17T14:05:00Z"}, "exactly one of run, asOf"),
        ({"window": {}}, "from or to must be set"),
        (
            {"asOf": "yesterday"},
            'asOf: Invalid value: "string": must be a time with its zone such as 2026-11-17T14:05:00Z',
        ),
        ({"offsets": [{"topic": "a", "partition": 0, "offset": at} for at in (1, 2)]}, "duplicate"),
    ],
)
def test_a_restore_has_one_point(namespace: Namespace, point: dict[str, Any], words: str) -> None:
    answer = namespace.apply("KafkaRestore", "r", restore_spec(point=point))
    assert words in answer.stderr


@pytest.mark.parametrize("change", [EMIT, {"emit": "KafkaTopics", "cluster": {"strimzi": STRIMZI}}])
def test_a_restore_may_emit_its_topics(namespace: Namespace, change: dict[str, Any]) -> None:
    answer = namespace.apply("KafkaRestore", "r", restore_spec(**change))
    assert answer.returncode == 0, answer.stderr
    assert parse_restore(namespace.get("krst", "r")["spec"]) == parse_restore(restore_spec(**change))


@pytest.mark.parametrize("source", [{}, {"backupRef": {"name": "b"}, "storage": {"uri": S3}}])
def test_a_restore_has_one_source(namespace: Namespace, source: dict[str, Any]) -> None:
    answer = namespace.apply("KafkaRestore", "r", restore_spec(source=source))
    assert "exactly one of backupRef, archiveRef and storage must be set" in answer.stderr


@pytest.mark.parametrize(
    ("field", "words"),
    [("storage.uri", "file:///path on a volume"), ("limits.bytesPerSecond", "all executors together")],
)
def test_kubectl_explains_the_fields(namespace: Namespace, field: str, words: str) -> None:
    def explained() -> bool:
        return words in namespace.kubectl("explain", f"kafkabackup.spec.{field}", check=False).stdout

    wait_for("the words", explained)  # the API server takes a moment to publish a new schema

"""The typed specs: what is accepted, what is refused, and that a refusal names the field."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import yaml

from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.contract.values import parse_duration, parse_quantity


def backup(**changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "cluster": {"bootstrapServers": ["kafka:9092"]},
        "topics": {"include": ["orders.*"]},
        "storage": {"uri": "s3://bucket/prefix"},
    }
    return spec | changes


SOURCE = {"storage": {"uri": "s3://bucket/prefix"}}


def restore(**changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "source": SOURCE,
        "cluster": {"bootstrapServers": ["kafka:9092"]},
    }
    return spec | changes


def test_the_smallest_backup_has_the_documented_defaults() -> None:
    spec = parse_backup(backup())
    assert (spec.segment.max_bytes_int, spec.segment.compression) == (512 * 2**20, "Passthrough")
    assert spec.segment.digest == "Blake3"
    assert spec.cluster.security.protocol == "PLAINTEXT"
    assert spec.consumer_groups.include == (".*",)
    assert spec.on_divergence == "Fail"
    assert (spec.on_data_loss, spec.suspend, spec.run_policy.backoff_limit) == ("Fail", False, 3)


@pytest.mark.parametrize(
    ("changes", "path", "why"),
    [
        (
            {"storage": {"uri": "s3://bucket/p", "tls": {}}},
            "spec.storage.tls",
            "exactly one of caSecretRef and caConfigMapRef",
        ),
        (
            {
                "storage": {
                    "uri": "s3://bucket/p",
                    "tls": {"caSecretRef": {"name": "a"}, "caConfigMapRef": {"name": "b"}},
                }
            },
            "spec.storage.tls",
            "exactly one of caSecretRef and caConfigMapRef",
        ),
        (
            {"storage": {"uri": "file:///a", "volume": {"claimName": "c"}, "tls": {"caSecretRef": {"name": "a"}}}},
            "spec.storage",
            "tls may not be set with a file:// uri",
        ),
        (
            {
                "storage": {
                    "uri": "s3://bucket/p",
                    "endpoint": "http://store:9000",
                    "tls": {"caSecretRef": {"name": "a"}},
                }
            },
            "spec.storage",
            "tls has no effect with an endpoint of http://",
        ),
        (
            {"storage": {"uri": "s3://bucket/p", "tls": {"caSecretRef": {"name": "a", "certificateKey": "a/b"}}}},
            "spec.storage.tls.caSecretRef.certificateKey",
            "is not a key",
        ),
        (
            {
                "cluster": {
                    "bootstrapServers": ["kafka:9093"],
                    "security": {
                        "protocol": "SSL",
                        "tls": {"caSecretRef": {"name": "a"}, "caConfigMapRef": {"name": "b"}},
                    },
                }
            },
            "spec.cluster.security.tls",
            "caSecretRef and caConfigMapRef may not both be set",
        ),
    ],
)
def test_certificate_authorities_come_from_one_place(changes: dict[str, Any], path: str, why: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        parse_backup(backup(**changes))
    ((found, what),) = refused.value.problems
    assert found == path
    assert why in what


def test_without_a_word_the_rate_has_no_limit_and_a_broker_sixteen_readers() -> None:
    assert (parse_backup(backup()).limits.bytes_per_second_int, parse_backup(backup()).limits.readers_per_broker) == (
        None,
        16,
    )
    assert parse_restore(restore()).limits.bytes_per_second_int is None
    assert parse_restore(restore(limits={"bytesPerSecond": "50Mi"})).limits.bytes_per_second_int == 50 * 2**20


def test_without_a_word_the_format_is_kafka_s_and_nothing_is_removed() -> None:
    spec = parse_backup(backup())
    assert (spec.format, spec.format_options.allow_loss) == ("Kafka", False)
    assert (spec.format_options.compatibility, spec.format_options.codec) == (None, None)
    assert (spec.retention.max_age_seconds, spec.retention.max_bytes_int) == (None, None)


def test_a_schedule_is_in_utc_has_a_jitter_of_a_minute_and_no_deadline() -> None:
    assert parse_backup(backup()).schedule is None
    schedule = parse_backup(backup(schedule={"cron": "0 2 * * *"})).schedule
    assert schedule is not None
    assert (schedule.cron, schedule.time_zone) == ("0 2 * * *", "UTC")
    assert (schedule.starting_deadline_seconds, schedule.jitter_seconds) == (None, 60)


@pytest.mark.parametrize("cron", ["@daily", "*/5 1-3,7 ? jan-MAR Mon-Fri/2", "0  0 1 1 *", "? * * * 7"])
def test_a_cron_expression_is_one_of_a_cron_job(cron: str) -> None:
    spec = parse_backup(backup(schedule={"cron": cron}))
    assert spec.schedule is not None
    assert spec.schedule.cron == cron


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "0 2 * *",
        "0 0 2 * * *",
        "@every 1h",
        "@reboot",
        "0 0 L * *",
        "0 0 * * 5L",
        "0 0 * * 1#2",
        "TZ=UTC * * * * *",
    ],
)
def test_what_a_cron_job_refuses_is_refused(cron: str) -> None:
    with pytest.raises(SpecInvalid, match=r"spec\.schedule\.cron: .* is not a cron expression as in a CronJob"):
        parse_backup(backup(schedule={"cron": cron}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("startingDeadlineSeconds", 9),
        ("startingDeadlineSeconds", 366 * 86400 + 1),
        ("jitterSeconds", -1),
        ("jitterSeconds", 3601),
    ],
)
def test_seconds_of_a_schedule_have_bounds(field: str, value: int) -> None:
    with pytest.raises(SpecInvalid, match=rf"spec\.schedule\.{field}"):
        parse_backup(backup(schedule={"cron": "@daily", field: value}))


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({}, "Snapshot"),
        ({"format": "Records"}, "Log"),
        ({"format": "Avro"}, "Log"),
        ({"format": "Avro", "compactedTopics": "Generations"}, "Generations"),
        ({"compactedTopics": "Log"}, "Log"),
    ],
)
def test_how_compacted_topics_are_kept_depends_on_the_format(changes: dict[str, Any], how: str) -> None:
    assert parse_backup(backup(**changes)).how_compacted == how


def test_snapshots_have_the_limits_of_kip_630() -> None:
    limits = parse_backup(backup(snapshots={})).snapshots
    assert limits is not None
    assert (limits.max_record_bytes_int, limits.min_cleanable_ratio) == (20 << 20, 0.5)


@pytest.mark.parametrize("name", ["Kafka", "Records", "Avro"])
def test_generations_have_a_cycle_of_a_week_by_default(name: str) -> None:
    assert parse_backup(backup(format=name)).generation_cycle_ms is None
    assert parse_backup(backup(format=name, compactedTopics="Generations")).generation_cycle_ms == 7 * 86_400_000
    some = parse_backup(backup(format=name, compactedTopics="Generations", generations={"cycle": "12h"}))
    assert some.generation_cycle_ms == 12 * 3_600_000


def test_a_retention_is_seconds_and_bytes() -> None:
    retention = parse_backup(backup(retention={"maxAge": "30d", "maxBytes": "1Gi"})).retention
    assert (retention.max_age_seconds, retention.max_bytes_int) == (30 * 86400, 1 << 30)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "Records", "formatOptions": {"allowLoss": False}},
        {"format": "Avro", "formatOptions": {"compatibility": "strict", "codec": "snappy", "allowLoss": True}},
        {"format": "Kafka", "segment": {"compression": "Zstd"}, "formatOptions": {"allowLoss": False}},
    ],
)
def test_options_that_fit_the_format_are_taken(changes: dict[str, Any]) -> None:
    assert parse_backup(backup(**changes)).format == changes["format"]


def test_a_restore_leaves_groups_alone_and_batches_to_the_engine() -> None:
    spec = parse_restore(restore())
    assert (spec.consumer_groups.restore, spec.consumer_groups.include) == ("None", (".*",))
    assert (spec.record_batches.max_records, spec.record_batches.compression) == (None, None)


@pytest.mark.parametrize(
    "beside",
    [
        {"schemaTopic": "registry"},
        {"ifTopicExists": "Resume"},
        {"acls": {"cluster": True, "anyResource": True, "anyPrincipal": True, "principals": ["User:app-.*"]}},
        {"offsets": "Same", "verify": "Full"},
        {"dryRun": True},
        {"onDamagedArchive": "Skip", "allowEmpty": True},
        {"consumerGroups": {"restore": "Translate"}},
        {"topics": {"replicationFactor": 1, "configs": {"override": {"retention.ms": "1"}, "ignore": ["segment.ms"]}}},
        {"point": {"run": "nightly-1"}},
        {"point": {"asOf": "2026-11-17T14:05:00Z"}},
        {"point": {"timestamp": "2026-11-17T14:05:00Z"}},
    ],
)
def test_a_restore_of_everything_may_say_how_but_not_what(beside: dict[str, Any]) -> None:
    assert parse_restore(restore(everything=True, **beside)).everything


def test_the_smallest_restore_restores_everything_and_refuses_existing_topics() -> None:
    spec = parse_restore(restore())
    assert spec.topics.include == (".*",)
    assert (spec.if_topic_exists, spec.on_damaged_archive) == ("Fail", "Refuse")


def on(**cluster: Any) -> dict[str, Any]:
    """A backup of a cluster that is said so. None leaves a field out."""
    said = {"bootstrapServers": ["k:1"]} | cluster
    return backup(cluster={name: value for name, value in said.items() if value is not None})


STRIMZI = {"name": "prod", "listener": "tls"}
USER = {"name": "logkeep"}
ERASURE = {"name": "ticket-1", "topic": "customers", "keysSecretRef": {"name": "keys"}}
SASL = {"mechanism": "PLAIN", "secretRef": {"name": "login"}}
NAMED = {"name": "login", "usernameKey": "user"}
BAD_BACKUPS = [
    (backup(topic={"include": ["a"]}), "spec.topic", "unknown field; did you mean topics?"),
    (backup(cluster={"bootstrapServer": ["k:1"]}), "spec.cluster.bootstrapServer", "did you mean bootstrapServers?"),
    (backup(topics={"include": ["("]}), "spec.topics.include[0]", "not a regular expression"),
    (backup(topics={"include": []}), "spec.topics.include", "at least 1 item"),
    (backup(topics={"include": ["a"], "excluded": []}), "spec.topics.excluded", "unknown field; did you mean exclude?"),
    ({"topics": {"include": ["a"]}, "storage": {"uri": "s3://bucket"}}, "spec.cluster", "required"),
    (backup(cluster={"bootstrapServers": ["kafka"]}), "spec.cluster.bootstrapServers[0]", "'kafka' is not host:port"),
    (backup(storage={"uri": "b2://bucket/x"}), "spec.storage.uri", "must be s3://bucket/prefix"),
    (backup(storage={"uri": "file:///x", "region": "r"}), "spec.storage", "region may be set only with an s3:// uri"),
    (backup(storage={"uri": "s3://bucket", "volume": {"claimName": "c"}}), "spec.storage", "only with a file:// uri"),
    (backup(storage={"uri": "gs://bucket", "region": "r"}), "spec.storage", "region may be set only with an s3:// uri"),
    (backup(storage={"uri": "gs://bucket", "s3": {}}), "spec.storage", "s3 may be set only with an s3:// uri"),
    (
        backup(storage={"uri": "s3://bucket", "s3": {"kmsKeyId": "a"}}),
        "spec.storage.s3",
        "kmsKeyId may be set only with serverSideEncryption aws:kms",
    ),
    (
        backup(storage={"uri": "s3://bucket", "s3": {"serverSideEncryption": "AES256", "bucketKey": False}}),
        "spec.storage.s3",
        "bucketKey may be set only with serverSideEncryption aws:kms",
    ),
    (
        backup(storage={"uri": "s3://bucket", "s3": {"storageClass": "DEEP_ARCHIVE"}}),
        "spec.storage.s3",
        "storageClass may not be GLACIER or DEEP_ARCHIVE",
    ),
    (
        backup(storage={"uri": "s3://bucket", "s3": {"storageClass": "A B"}}),
        "spec.storage.s3.storageClass",
        "'A B' is not a storage class such as STANDARD_IA",
    ),
    (
        backup(storage={"uri": "s3://bucket", "s3": {"serverSideEncryption": "aws:fsx"}}),
        "spec.storage.s3.serverSideEncryption",
        "'aws:fsx' is not 'AES256' or 'aws:kms'",
    ),
    (backup(storage={"uri": "az://backups/x"}), "spec.storage", "endpoint must be set with an az:// uri"),
    (
        backup(storage={"uri": "gs://bucket", "credentials": {"secretRef": {"name": "s", "accountKeyKey": "k"}}}),
        "spec.storage",
        "credentials.secretRef.accountKeyKey may be set only with az://",
    ),
    (
        backup(
            storage={"uri": "s3://bucket", "credentials": {"secretRef": {"name": "s", "serviceAccountKeyKey": "k"}}}
        ),
        "spec.storage",
        "credentials.secretRef.serviceAccountKeyKey may be set only with gs://",
    ),
    (backup(storage={"uri": "s3://bucket", "credentials": {}}), "spec.storage.credentials", "exactly one of"),
    (backup(segment={"maxBytes": "1.5Gi"}), "spec.segment.maxBytes", "not a whole quantity"),
    (backup(segment={"maxBytes": "2Gi"}), "spec.segment.maxBytes", "between 1Mi and 2147483647"),
    (backup(segment={"mergeCount": 1}), "spec.segment.mergeCount", "must not be 1: one segment alone is not merged"),
    (backup(segment={"mergeCount": 1001}), "spec.segment.mergeCount", "1000"),
    (backup(segment={"livePercent": 101}), "spec.segment.livePercent", "100"),
    (backup(format="Avro", segment={"mergeCount": 0}), "spec", "segment.mergeCount may be set only with format Kafka"),
    (
        backup(format="Avro", segment={"livePercent": 0}),
        "spec",
        "segment.livePercent may be set only with format Kafka",
    ),
    (backup(segment={"packBelow": "9Mi"}), "spec.segment.packBelow", "must be at most 8Mi; 0 gives each segment"),
    (backup(segment={"packBelow": "some"}), "spec.segment.packBelow", "not a whole quantity"),
    (
        backup(format="Records", segment={"packBelow": "0"}),
        "spec",
        "segment.packBelow may be set only with format Kafka",
    ),
    (backup(segment={"compression": "zstd"}), "spec.segment.compression", "'Passthrough' or 'Zstd'"),
    (backup(segment={"digest": "MD5"}), "spec.segment.digest", "'Sha256' or 'Blake3'"),
    (backup(limits={"bytesPerSecond": "fast"}), "spec.limits.bytesPerSecond", "not a whole quantity"),
    (backup(limits={"bytesPerSecond": "63Ki"}), "spec.limits.bytesPerSecond", "must be at least 64Ki"),
    (backup(limits={"readersPerBroker": 0}), "spec.limits.readersPerBroker", "greater than or equal to 1"),
    (backup(limits={"readersPerBroker": 1001}), "spec.limits.readersPerBroker", "less than or equal to 1000"),
    (backup(format="Parquet"), "spec.format", "'Kafka', 'Records' or 'Avro'"),
    (backup(formatOptions={"compatibility": "loose"}), "spec.formatOptions.compatibility", "'lossless' or 'strict'"),
    (backup(format="Avro", formatOptions={"codec": "lz4"}), "spec.formatOptions.codec", "'none', 'deflate', 'snappy'"),
    (backup(formatOptions={"allowLoss": True}), "spec", "formatOptions.allowLoss may be true only with"),
    (
        backup(format="Avro", formatOptions={"allowLoss": True}),
        "spec",
        "formatOptions.allowLoss may be true only with compatibility strict",
    ),
    (
        backup(format="Records", formatOptions={"compatibility": "strict"}),
        "spec",
        "formatOptions.compatibility may be set only with format Avro",
    ),
    (
        backup(format="Records", formatOptions={"codec": "none"}),
        "spec",
        "formatOptions.codec may be set only with format Avro",
    ),
    (
        backup(format="Avro", segment={"compression": "Zstd"}),
        "spec",
        "segment.compression may be Zstd only with format Kafka",
    ),
    (backup(erasures=[ERASURE, ERASURE]), "spec", "each of erasures must have its own name"),
    (backup(erasures=[{**ERASURE, "name": "A"}]), "spec.erasures[0].name", "'A' is not a name in Kubernetes"),
    (backup(compactedTopics="Compact"), "spec.compactedTopics", "'Snapshot', 'Generations' or 'Log'"),
    *(
        (backup(format=name, compactedTopics="Snapshot"), "spec", "compactedTopics may be Snapshot only with format")
        for name in ("Records", "Avro")
    ),
    *(
        (backup(snapshots={}, **changes), "spec", "snapshots may be set only where compactedTopics is Snapshot")
        for changes in ({"format": "Avro"}, {"compactedTopics": "Log"}, {"compactedTopics": "Generations"})
    ),
    *(
        (
            backup(snapshots={"maxRecordBytesBetweenSnapshots": text}),
            "spec.snapshots.maxRecordBytesBetweenSnapshots",
            why,
        )
        for text, why in (("0", "must be at least 1"), ("1.5Mi", "not a whole quantity"))
    ),
    *(
        (backup(snapshots={"minCleanableRatio": ratio}), "spec.snapshots.minCleanableRatio", why)
        for ratio, why in ((-0.1, "greater than or equal to 0"), (1.1, "less than or equal to 1"), (float("nan"), ""))
    ),
    *(
        (backup(generations={}, **changes), "spec", "generations may be set only where compactedTopics is Generations")
        for changes in ({}, {"format": "Avro"}, {"compactedTopics": "Log"})
    ),
    (backup(compactedTopics="Generations", generations={"cycle": "0d"}), "spec.generations.cycle", "not a duration"),
    (backup(retention={"maxAge": "30"}), "spec.retention.maxAge", "not a duration such as 12h or 30d"),
    (backup(retention={"maxAge": "0d"}), "spec.retention.maxAge", "not a duration"),
    (backup(retention={"maxBytes": "1023Ki"}), "spec.retention.maxBytes", "must be at least 1Mi"),
    (backup(retention={"maxBytes": "much"}), "spec.retention.maxBytes", "not a whole quantity"),
    (backup(retention={"keepDays": 3}), "spec.retention.keepDays", "unknown field"),
    (backup(onDataLoss="Ignore"), "spec.onDataLoss", "'Fail' or 'Record'"),
    (backup(onDivergence="Ignore"), "spec.onDivergence", "'Fail' or 'Branch'"),
    *(
        (backup(format=name, onDivergence="Branch"), "spec", "onDivergence may be Branch only with format Kafka")
        for name in ("Records", "Avro")
    ),
    (backup(spark={"executor": {"instances": 0}}), "spec.spark.executor.instances", "greater than or equal to 1"),
    (
        backup(cluster={"bootstrapServers": ["k:1"], "security": {"protocol": "SASL_SSL"}}),
        "spec.cluster",
        "security.sasl must be set exactly when",
    ),
    (on(bootstrapServers=None), "spec.cluster", "exactly one of bootstrapServers and strimzi must be set"),
    (on(strimzi=STRIMZI), "spec.cluster", "exactly one of bootstrapServers and strimzi must be set"),
    (on(bootstrapServers=None, strimzi=STRIMZI, security={"protocol": "SSL"}), "spec.cluster", "security must be left"),
    (on(bootstrapServers=None, strimzi={"name": "prod"}), "spec.cluster.strimzi.listener", "required"),
    (
        on(bootstrapServers=None, strimzi=STRIMZI | {"name": "../x"}),
        "spec.cluster.strimzi.name",
        "is not a name",
    ),
    (
        on(bootstrapServers=None, strimzi=STRIMZI | {"namespace": "a/b"}),
        "spec.cluster.strimzi.namespace",
        "is not a",
    ),
    (on(kafkaUserRef=USER), "spec.cluster", "kafkaUserRef may be set only with strimzi"),
    (
        on(kafkaUserRef=USER, security={"protocol": "SASL_SSL", "sasl": SASL}),
        "spec.cluster",
        "security.sasl and security.tls.clientCertSecretRef must be left out with kafkaUserRef",
    ),
    (
        on(kafkaUserRef=USER, security={"protocol": "SSL", "tls": {"clientCertSecretRef": {"name": "c"}}}),
        "spec.cluster",
        "security.sasl and security.tls.clientCertSecretRef must be left out with kafkaUserRef",
    ),
    (
        on(security={"protocol": "SASL_SSL", "sasl": SASL | {"username": "ann", "secretRef": NAMED}}),
        "spec.cluster.security.sasl",
        "secretRef.usernameKey has no effect with username",
    ),
    (
        on(security={"protocol": "SSL", "tls": {"caSecretRef": {"name": "ca", "certificateKey": "a/b"}}}),
        "spec.cluster.security.tls.caSecretRef.certificateKey",
        "is not a key of a Secret",
    ),
    (
        backup(cluster={"bootstrapServers": ["k:1"], "security": {"tls": {}}}),
        "spec.cluster.security",
        "tls may be set only",
    ),
]


@pytest.mark.parametrize(("spec", "field", "what"), BAD_BACKUPS, ids=lambda value: str(value)[:40])
def test_a_wrong_backup_is_refused_by_field(spec: dict[str, Any], field: str, what: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        parse_backup(spec)
    assert [path for path, message in refused.value.problems if what in message] == [field]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (backup(topics={"include": ["("]}), "spec.topics.include[0]: '(' is not a regular expression: missing ): ("),
        (
            backup(topics={"include": ["ok", "*"]}),
            "spec.topics.include[1]: '*' is not a regular expression",
        ),
        (backup(topics={"include": []}), "spec.topics.include: must have at least 1 item"),
        (backup(topics=5), "spec.topics: must be an object"),
        (backup(cluster={"bootstrapServers": ["kafka"]}), "spec.cluster.bootstrapServers[0]: 'kafka' is not host:port"),
        (backup(segment={"digest": "SHA-256"}), "spec.segment.digest: 'SHA-256' is not 'Sha256' or 'Blake3'"),
        (backup(segment={"digest": None}), "spec.segment.digest: null is not 'Sha256' or 'Blake3'"),
        (backup(segment={"maxBytes": ["1Mi"]}), "spec.segment.maxBytes: must be a string"),
        (backup(segment={"maxBytes": 2097152}), "spec.segment.maxBytes: 2097152 is not a string: write it in quotes"),
    ],
    ids=["only", "second", "none", "object", "server", "choice", "null", "list", "number"],
)
def test_one_mistake_is_one_problem_in_the_words_of_yaml(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        parse_backup(wrong)
    assert len(refused.value.problems) == 1
    assert str(refused.value).startswith(said)
    assert "Tuple" not in str(refused.value)


BAD_RESTORES = [
    (restore(source={}), "spec.source", "exactly one of backupRef, archiveRef and storage"),
    (restore(source={"backupRef": {"name": "a"}, "storage": {"uri": "s3://bucket"}}), "spec.source", "exactly one of"),
    (restore(topics={"rename": [{"from": "(a)", "to": "\\2"}]}), "spec.topics.rename[0].to", "does not fit the groups"),
    (restore(topics={"rename": [{"from": "(", "to": "x"}]}), "spec.topics.rename[0].from", "not a regular expression"),
    (restore(limits={"bytesPerSecond": "0"}), "spec.limits.bytesPerSecond", "must be at least 64Ki"),
    (restore(schemaTopic="registry"), "spec", "schemaTopic may be set only with everything"),
    (restore(everything=True, schemaTopic="a b"), "spec.schemaTopic", "'a b' is not the name of a topic: letters"),
    *(
        (restore(everything=True, topics={name: value}), "spec", "topics.rename and topics.partitions must be left out")
        for name, value in (
            ("include", ["a"]),
            ("exclude", ["a"]),
            ("rename", [{"from": "a", "to": "b"}]),
            ("partitions", [{"topic": "a", "partition": 0}]),
        )
    ),
    (
        restore(everything=True, topics={"configs": {"policy": "Ignore"}}),
        "spec",
        "topics.configs.policy may only be Restore with everything",
    ),
    *(
        (
            restore(everything=True, consumerGroups={"restore": "Translate", name: value}),
            "spec",
            "consumerGroups.exclude and consumerGroups.rename must be left out with everything",
        )
        for name, value in (("include", ["a"]), ("exclude", ["a"]), ("rename", [{"from": "a", "to": "b"}]))
    ),
    (
        restore(everything=True, topics={"partitionCount": 3}),
        "spec",
        "topics.partitionCount may not be given with everything",
    ),
    (restore(everything=True, drill={}), "spec", "drill may not be set with everything"),
    *(
        (restore(everything=True, point=point), "spec", "point must be that of a run, or have asOf or timestamp, with")
        for point in (
            {"window": {"to": "2026-11-17T14:05:00Z"}},
            {"offsets": [{"topic": "a", "partition": 0, "offset": 3}]},
        )
    ),
    (restore(everything=True, ifTopicExists="Append"), "spec", "ifTopicExists may only be Fail or Resume with"),
    (
        restore(everything=True, ifTopicExists="Replace", confirm=["a"]),
        "spec",
        "ifTopicExists may only be Fail or Resume with everything",
    ),
    (restore(limits={"readersPerBroker": 2}), "spec.limits.readersPerBroker", "unknown field"),
    (restore(consumerGroups={"restore": "Copy"}), "spec.consumerGroups.restore", "'None' or 'Translate'"),
    (restore(consumerGroups={"include": ["("]}), "spec.consumerGroups.include[0]", "not a regular expression"),
    (
        restore(consumerGroups={"include": ["billing"]}),
        "spec.consumerGroups",
        "include has no effect with restore None, which moves no group; set restore to Translate, or leave include out",
    ),
    (restore(consumerGroups={"include": []}), "spec.consumerGroups", "include has no effect with restore None"),
    (
        restore(consumerGroups={"restore": "None", "exclude": ["billing"]}),
        "spec.consumerGroups",
        "exclude has no effect with restore None, which moves no group; set restore to Translate, or leave exclude out",
    ),
    (
        restore(consumerGroups={"rename": [{"from": "a", "to": "b"}]}),
        "spec.consumerGroups",
        "rename has no effect with restore None, which moves no group; set restore to Translate, or leave rename out",
    ),
    (
        restore(consumerGroups={"restore": "Translate", "rename": [{"from": "a", "to": r"\1"}]}),
        "spec.consumerGroups.rename[0].to",
        "does not fit the groups of 'a'",
    ),
    (restore(recordBatches={"maxRecords": 0}), "spec.recordBatches.maxRecords", "greater than or equal to 1"),
    (restore(recordBatches={"compression": "lz4"}), "spec.recordBatches.compression", "'None', 'Gzip', 'Snappy'"),
    (restore(topics={"replicationFactor": 0}), "spec.topics.replicationFactor", "greater than or equal to 1"),
    (restore(topics={"configs": {"policy": "Override"}}), "spec.topics.configs.policy", "'Restore' or 'Ignore'"),
    (restore(topics={"configs": {"override": {"a": 1}}}), "spec.topics.configs.override.a", "string"),
    (
        restore(topics={"configs": {"policy": "Ignore", "ignore": ["a"]}}),
        "spec.topics.configs",
        "ignore has no effect with policy Ignore, which restores no key; leave it out",
    ),
    (
        restore(topics={"configs": {"override": {"a": "1"}, "ignore": ["b", "a"]}}),
        "spec.topics.configs",
        "a key may be in override or in ignore, not in both",
    ),
    (
        restore(topics={"partitions": [{"topic": "a", "partition": 1}] * 2}),
        "spec.topics",
        "partitions: topic a partition 1 appears twice",
    ),
    (
        restore(topics={"partitions": [{"topic": "a", "partition": 1}, {"topic": "a", "partition": 0, "target": 1}]}),
        "spec.topics",
        "partitions: 2 partitions of topic a would go to partition 1",
    ),
    (restore(topics={"partitions": [{"topic": "a"}]}), "spec.topics.partitions[0].partition", "required"),
    (
        restore(topics={"partitions": [{"topic": "a", "partition": 2**31 - 1}]}),
        "spec.topics.partitions[0].partition",
        "less than or equal to 2147483646",
    ),
    (restore(topics={"retention": "Keep"}), "spec.topics.retention", "Refuse"),
    (restore(drill={}, topics={"retention": "Hold"}), "spec", "topics.retention has no effect with drill"),
    (restore(topics={"holdFor": "7d"}), "spec.topics", "holdFor has no effect without retention Hold"),
    (restore(topics={"retention": "Hold", "holdFor": "522w"}), "spec.topics", "holdFor must be at most 3650d"),
    (restore(topics={"retention": "Hold", "holdFor": "7"}), "spec.topics.holdFor", "is not a duration"),
    (
        restore(
            topics={"retention": "Hold", "holdFor": "7d"},
            emit="KafkaTopics",
            emitOptions={"strimziCluster": "prod"},
        ),
        "spec",
        "topics.holdFor may not be given with emit: the KafkaTopics hold the topics, too",
    ),
    (
        restore(source={"storage": {"uri": "file:///a"}, "retrieval": {}}),
        "spec.source",
        "retrieval has no effect with a file:// or gs:// uri",
    ),
    (restore(source={**SOURCE, "retrieval": {"tier": "Fast"}}), "spec.source.retrieval.tier", "'Standard', 'Bulk'"),
    (restore(source={**SOURCE, "retrieval": {"days": 0}}), "spec.source.retrieval.days", "greater than or equal to 1"),
    (restore(source={**SOURCE, "retrieval": {"days": 366}}), "spec.source.retrieval.days", "less than or equal to 365"),
    (restore(source={**SOURCE, "retrieval": {"maxWait": "1"}}), "spec.source.retrieval.maxWait", "is not a duration"),
    (
        restore(source={**SOURCE, "retrieval": {}}, drill={}),
        "spec",
        "source.retrieval has no effect with drill, which leaves cold objects out",
    ),
    (restore(topics={"partitionCount": 0}), "spec.topics.partitionCount", "greater than or equal to 1"),
    (restore(topics={"partitionCount": 10_001}), "spec.topics.partitionCount", "less than or equal to 10000"),
    (
        restore(topics={"partitionCount": 3, "partitions": [{"topic": "a", "partition": 1}]}),
        "spec.topics",
        "partitions may not be given with it",
    ),
    (restore(topics={"partitioner": "crc32"}), "spec.topics", "partitioner has no effect without partitionCount"),
    (
        restore(topics={"partitionCount": 3, "partitioner": "fnv1a"}),
        "spec.topics.partitioner",
        "'murmur2' or 'crc32'",
    ),
    (restore(topics={"partitionCount": 3}, offsets="Same"), "spec", "offsets may not be Same with it"),
    (restore(topics={"partitionCount": 3}, verify="Full"), "spec", "verify may only be Counts"),
    (restore(topics={"partitionCount": 3}, drill={}), "spec", "may not be given with drill"),
    (
        restore(topics={"partitionCount": 3}, consumerGroups={"restore": "Translate"}),
        "spec",
        "consumerGroups.restore may only be None with it",
    ),
    (restore(topics={"configs": {"ignore": ["a", "a"]}}), "spec.topics.configs", "ignore names a key twice"),
    (
        restore(state={"uri": "s3://state", "s3": {"storageClass": "STANDARD_IA"}}),
        "spec.state.s3.storageClass",
        "unknown field",
    ),
    (restore(source={"storage": {"uri": "file:///a"}, "topicIds": {"a": ""}}), "spec.source.topicIds.a", "at least 1"),
    (restore(ifTopicExists="Merge"), "spec.ifTopicExists", "'Fail', 'Append'"),
    (restore(ifTopicExists="Replace"), "spec", "confirm must name those that may be deleted"),
    (restore(confirm=["a"]), "spec", "confirm has an effect only with ifTopicExists: Replace or Resume; leave it out"),
    (restore(everything=True, ifTopicExists="Resume", confirm=["a"]), "spec", "confirm has no effect with everything"),
    (restore(acls={"cluster": True}), "spec", "acls may be set only with everything"),
    (restore(everything=True, acls={"principals": ["("]}), "spec.acls.principals[0]", "not a regular expression"),
    (restore(everything=True, acls={"everything": True}), "spec.acls.everything", "unknown field"),
    (restore(ifTopicExists="Replace", confirm=["a", "a"]), "spec", "confirm names a topic twice"),
    (restore(ifTopicExists="Replace", confirm=[""]), "spec.confirm[0]", "at least 1"),
    (restore(drill={}, ifTopicExists="Resume"), "spec", "ifTopicExists may only be Fail with drill"),
    (restore(drill={"prefix": ""}), "spec.drill.prefix", "is not 1 to "),
    (restore(drill={"prefix": "a/b"}), "spec.drill.prefix", "is not 1 to "),
    (restore(drill={"share": "5"}), "spec.drill.share", "'5' is not a percentage such as 5%"),
    (restore(drill={"share": "0%"}), "spec.drill.share", "must be above 0% and at most 100%"),
    (restore(drill={"share": "100.1%"}), "spec.drill.share", "must be above 0% and at most 100%"),
    (restore(drill={"schedule": {"cron": "every night"}}), "spec.drill.schedule.cron", "is not a cron expression"),
    (restore(drill={}, ifTopicExists="Append"), "spec", "ifTopicExists may only be Fail with drill"),
    (restore(drill={}, consumerGroups={"restore": "Translate"}), "spec", "may only be None with drill"),
    (restore(drill={}, topics={"rename": [{"from": "a", "to": "b"}]}), "spec", "no effect with drill"),
    (restore(point={"latest": {}}), "spec.point.latest", "unknown field"),
    (restore(point={}), "spec.point", "exactly one of run, asOf, timestamp, offsets and window must be set"),
    (restore(point={"run": "a", "asOf": "2026-11-17T14:05:00Z"}), "spec.point", "exactly one of"),
    (restore(point={"asOf": "2026-11-17T14:05:00"}), "spec.point.asOf", "is not a time with its zone"),
    (restore(point={"asOf": "2026-11-31T14:05:00Z"}), "spec.point.asOf", "is not a time with its zone"),
    (restore(point={"asOf": "2026-11-17T14:05:00+05:99"}), "spec.point.asOf", "is not a time with its zone"),
    (restore(point={"timestamp": "2026-11-17T14:05:00.0001Z"}), "spec.point.timestamp", "to the millisecond"),
    (restore(point={"timestamp": "1969-11-17T14:05:00Z"}), "spec.point.timestamp", "is not a time"),
    (restore(point={"window": {}}), "spec.point.window", "from or to must be set"),
    (
        restore(point={"window": {"from": "2026-11-17T14:05:00Z", "to": "2026-11-17T15:05:00+01:00"}}),
        "spec.point.window",
        "from must be before to",
    ),
    (restore(point={"offsets": []}), "spec.point.offsets", "at least 1"),
    (
        restore(point={"offsets": [{"topic": "a", "partition": 0, "offset": 1}] * 2}),
        "spec.point",
        "offsets: topic a partition 0 appears twice",
    ),
    (restore(point={"offsets": [{"topic": "a", "partition": 0}]}), "spec.point.offsets[0].offset", "required"),
    (restore(emit="KafkaTopics"), "spec", "emitOptions.strimziCluster must be set with emit"),
    (restore(emit="Topics"), "spec.emit", "'Topics' is not 'None' or 'KafkaTopics'"),
    (restore(emitOptions={"strimziCluster": "prod"}), "spec", "emitOptions has no effect with emit None"),
    (restore(emitOptions={"strimziApi": "v1"}), "spec", "emitOptions has no effect with emit None"),
    (
        restore(emit="KafkaTopics", emitOptions={"strimziCluster": "a/b"}),
        "spec.emitOptions.strimziCluster",
        "is not a name in Kubernetes",
    ),
    (
        restore(emit="KafkaTopics", emitOptions={"strimziCluster": "prod"}, drill={}),
        "spec",
        "emit may only be None with drill, which deletes its topics",
    ),
    (restore(state={"uri": "bucket"}), "spec.state.uri", "must be s3://bucket/prefix"),
    (restore(state={"uri": "file:///a", "region": "r"}), "spec.state", "region may be set only with an s3:// uri"),
]


@pytest.mark.parametrize(("spec", "field", "what"), BAD_RESTORES, ids=lambda value: str(value)[:40])
def test_a_wrong_restore_is_refused_by_field(spec: dict[str, Any], field: str, what: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        parse_restore(spec)
    assert [path for path, message in refused.value.problems if what in message] == [field]


def test_times_of_a_point_are_ms_and_may_be_unquoted_in_yaml() -> None:
    times = ("2026-11-17T14:05:00Z", "2026-11-17T15:05:00.5+00:30")
    for start, end in (times, [f'"{time}"' for time in times]):
        text = f"point: {{window: {{from: {start}, to: {end}}}}}"
        point = parse_restore(restore(**yaml.safe_load(text))).point
        assert point is not None
        assert (point.since, point.before, point.time) == (1794924300000, 1794926100500, 1794926100500)


def test_whose_topics_are_emitted_may_be_said_by_strimzis_cluster() -> None:
    options = {"strimziCluster": "prod", "strimziApi": "v1beta2"}
    said = parse_restore(restore(emit="KafkaTopics", emitOptions=options))
    assert (said.emit, said.emit_options.strimzi_cluster) == ("KafkaTopics", "prod")
    found = parse_restore(restore(emit="KafkaTopics", cluster={"strimzi": STRIMZI}))
    assert found.emit_options.strimzi_cluster is None
    assert parse_restore(restore(emit="None", emitOptions={})) == parse_restore(restore())


def test_groups_may_be_chosen_where_they_are_moved_and_defaults_written_out() -> None:
    chosen = {"restore": "Translate", "include": ["billing"], "exclude": ["billing-old"]}
    assert parse_restore(restore(consumerGroups=chosen)).consumer_groups.include == ("billing",)
    written = {"restore": "None", "include": [".*"], "exclude": [], "rename": []}
    assert parse_restore(restore(consumerGroups=written)) == parse_restore(restore())


@pytest.mark.parametrize("uri", ["s3://AKIAKEY:hunter2@bucket/p", "s3://bucket/p?password=hunter2"])
def test_a_uri_with_a_secret_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        parse_backup(backup(storage={"uri": uri}))
    assert [path for path, _ in refused.value.problems] == ["spec.storage.uri"]
    text = "".join(traceback.format_exception(refused.value))
    assert "hunter2" not in text
    assert "AKIAKEY" not in text


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("128Mi", 134217728), ("1G", 10**9), ("3k", 3000)])
def test_quantities_are_bytes(text: str, size: int) -> None:
    assert parse_quantity(text) == size


@pytest.mark.parametrize("text", ["", "1.5Gi", "-1", "1 Gi", "1KB", "Mi", "1Gi\n"])
def test_other_texts_are_no_quantities(text: str) -> None:
    with pytest.raises(ValueError, match="whole quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("5m", 300), ("12h", 43200), ("30d", 2592000), ("2w", 1209600)]
)
def test_durations_are_seconds(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "0d", "1.5h", "-1d", "1y", "1 d", "1000000000d", "1d\n"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)

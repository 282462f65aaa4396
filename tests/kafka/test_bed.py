"""The broker and the S3 server of the test bed do what the other tests rely on."""

from pathlib import Path

import pytest
import s3fs
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.cluster.kafka import STEADY, KafkaBroker, has_cache, living
from tests.cluster.kafka_tools import dump_log_segments
from tests.cluster.process import wait_until
from tests.cluster.s3 import S3Server
from tests.cluster.system import CommandFailed


def test_broker_keeps_address_and_topics_over_a_crash(second_kafka: KafkaBroker, unique: str) -> None:
    broker = second_kafka
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(unique, 1)])[unique].result(30)
    broker.kill()
    broker.start()
    assert unique in admin.list_topics(timeout=30).topics
    dumped = dump_log_segments("--files", next(broker.data_dir.glob(f"{unique}-0/*.log")))
    assert "Log starting offset: 0" in dumped.stdout


def test_a_tool_that_fails_is_reported_and_the_next_one_runs(kafka: KafkaBroker) -> None:
    with pytest.raises(CommandFailed, match=r"(?s)DumpLogSegments\nexit 1\n.*--files <String"):
        dump_log_segments()
    log = next(kafka.data_dir.glob("__cluster_metadata-0/*.log"))
    assert f"Dumping {log}" in dump_log_segments("--files", log, "--cluster-metadata-decoder").stdout


def test_broker_that_learns_late_knows_itself_when_it_has_started() -> None:
    with KafkaBroker(overrides=STEADY, late_ms=3000) as broker:
        assert living(broker.bootstrap) == {1}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        made: list[str] = []

        def behind() -> bool:
            """Whether the controller has made a topic that the broker does not know yet."""
            made.append(f"topic-{len(made)}")
            admin.create_topics([NewTopic(made[-1], 1)])[made[-1]].result(30)
            return made[-1] not in admin.list_topics(timeout=30).topics

        wait_until(behind, 60, "a topic that the broker does not know yet")
        wait_until(lambda: made[-1] in admin.list_topics(timeout=30).topics, 60, f"the topic {made[-1]}")


def test_broker_maps_the_class_cache_and_tools_do_not_speak_of_it(kafka: KafkaBroker) -> None:
    maps = Path(f"/proc/{kafka.process.pid}/maps").read_text()
    assert ("kafka.aot" in maps) == has_cache(kafka.version)
    tool = kafka.tool("kafka.tools.StorageTool", "random-uuid")
    assert len(tool.stdout.splitlines()) == 1
    assert tool.stderr == ""


def test_secure_broker_takes_each_protocol(secure_kafka: KafkaBroker) -> None:
    sasl = {"sasl.username": secure_kafka.username, "sasl.password": secure_kafka.password}
    trust = {"ssl.ca.location": str(secure_kafka.ca_pem)}
    client = {
        "ssl.certificate.location": str(secure_kafka.client_certificate.cert),
        "ssl.key.location": str(secure_kafka.client_certificate.key),
    }
    ways: list[dict[str, str | int | float | bool]] = [
        {"bootstrap.servers": secure_kafka.ssl_bootstrap, "security.protocol": "SSL", **trust, **client},
    ]
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        login = {"sasl.mechanism": mechanism, **sasl}
        ways.append({"bootstrap.servers": secure_kafka.sasl_bootstrap, "security.protocol": "SASL_PLAINTEXT", **login})
        tls = {"bootstrap.servers": secure_kafka.sasl_ssl_bootstrap, "security.protocol": "SASL_SSL"}
        ways.append({**tls, **login, **trust})
    for way in ways:
        admin = AdminClient(way)
        assert admin.describe_cluster().result(30).cluster_id == secure_kafka.cluster_id


def test_s3_creates_an_object_once(s3: S3Server, bucket: str) -> None:
    storage = s3fs.S3FileSystem(**s3.storage_options)
    storage.pipe_file(f"{bucket}/object", b"first", mode="create")
    with pytest.raises(FileExistsError):
        storage.pipe_file(f"{bucket}/object", b"second", mode="create")
    assert storage.cat_file(f"{bucket}/object") == b"first"

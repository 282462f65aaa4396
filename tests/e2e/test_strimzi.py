"""Runs against a broker with TLS, which they find through a `Kafka` of Strimzi, as the users whose Secrets have the
layout of its User Operator."""

import json
from typing import Any

import pytest
import yaml

from tests.apiserver import strimzi
from tests.cluster.logkeep import restore
from tests.e2e.home import Home

pytestmark = pytest.mark.timeout(900)


def kafka(home: Home) -> dict[str, Any]:
    """A `Kafka` with a listener for certificates and one for passwords, which are those of the test's broker."""
    addresses = {"tls": home.broker.ssl_bootstrap, "scram": home.broker.sasl_ssl_bootstrap}
    authority = home.broker.ca_pem.read_text()
    logins = {"tls": "tls", "scram": "scram-sha-512"}
    listeners = [
        {"name": name, "port": 9093 + number, "type": "internal", "tls": True, "authentication": {"type": login}}
        for number, (name, login) in enumerate(logins.items())
    ]
    shown = [
        {"name": name, "bootstrapServers": address, "certificates": [authority]} for name, address in addresses.items()
    ]
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "Kafka",
        "metadata": {"name": "prod"},
        "spec": {"kafka": {"listeners": listeners}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "listeners": shown},
    }


def show(home: Home, namespace: str) -> None:
    body = kafka(home)
    strimzi.create(home.logkeep.node, namespace, body)
    strimzi.write_status(home.logkeep.node, namespace, body)


def test_a_certificate_and_a_password_of_kafka_users_reach_a_broker_with_tls(home: Home) -> None:
    logkeep, broker = home.logkeep, home.broker
    strimzi.install(logkeep.node)
    brokers = logkeep.create_namespace(f"{home.namespace}-brokers")
    show(home, home.namespace)
    show(home, brokers)
    client = broker.client_certificate
    others = "the authority of clients, which no broker's certificate is signed by"
    certificate = {"ca.crt": others, "user.crt": client.cert.read_text(), "user.key": client.key.read_text()}
    logkeep.create_secret(home.namespace, "prod-cluster-ca-cert", {"ca.crt": broker.ca_pem.read_text()})
    logkeep.create_secret(home.namespace, "certified", certificate)
    jaas = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{broker.username}";'
    password = {"password": broker.password, "sasl.jaas.config": jaas}
    logkeep.create_secret(home.namespace, "of-the-scram-user", password)
    records = home.fill("strimzi", 2, 2)

    # Beside the brokers: pods mount the Secret with the authority.
    beside = {"strimzi": {"name": "prod", "listener": "tls"}, "kafkaUserRef": {"name": "certified"}}
    saved = home.backup("strimzi", spark={}, cluster=beside)
    assert saved.wait("Succeeded")["progress"]["records"] == records

    # From another namespace: they trust what the resource shows.
    user = {"name": broker.username, "secretName": "of-the-scram-user"}
    away = {"strimzi": {"name": "prod", "namespace": brokers, "listener": "scram"}, "kafkaUserRef": user}
    again = home.apply(restore("again", broker.bootstrap, "saved", spark={}, cluster=away, emit="KafkaTopics"))
    emitted = again.wait("Succeeded")["emitted"]
    home.check_restored("strimzi", records)

    # The topics as resources, which the driver has written to a ConfigMap.
    get = ("-n", home.namespace, "get", "configmap", emitted["configMap"], "-o", "json")
    text = json.loads(logkeep.node.kubectl(*get).stdout)["data"][emitted["key"]]
    assert "s3" not in text
    logkeep.node.kubectl("create", "--validate=strict", "-n", home.namespace, "-f", "-", stdin=text)
    (topic,) = yaml.safe_load_all(text)
    assert topic["metadata"] == {"name": "restored.strimzi", "labels": {"strimzi.io/cluster": "prod"}}
    assert topic["apiVersion"] == strimzi.version(strimzi.NEWEST)
    assert topic["spec"]["partitions"] == 2

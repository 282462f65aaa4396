"""The files in `examples/` are what users start from: they must be valid, and refer to Secrets that are among them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from logkeep_engine.contract.archive_spec import parse_archive
from logkeep_engine.contract.prices import Prices
from logkeep_engine.contract.references import LoginSecretRef
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.spec import API_VERSION, parse_backup

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCUMENTS = [
    pytest.param(document, id=f"{file.name}-{document['metadata']['name']}")
    for file in sorted(EXAMPLES.glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
]
SECRETS = {
    document["metadata"]["name"]: document["stringData"]
    for document in yaml.safe_load_all((EXAMPLES / "secrets.yaml").read_text())
}

CLUSTERS = [
    document.get("spec", {}).get("cluster", {})
    for file in EXAMPLES.glob("*.yaml")
    for document in yaml.safe_load_all(file.read_text())
]
KAFKA_USERS = {cluster["kafkaUserRef"]["name"] for cluster in CLUSTERS if "kafkaUserRef" in cluster}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_an_example_is_valid(document: dict[str, Any]) -> None:
    if document["kind"] == "Secret":
        assert set(document["stringData"].values()) == {"REPLACE"}
        return
    if document["kind"] == "KafkaUser":
        assert document["apiVersion"] == "kafka.strimzi.io/v1"
        assert document["metadata"]["name"] in KAFKA_USERS
        return
    assert document["apiVersion"] == API_VERSION
    parse = {"KafkaArchive": parse_archive, "KafkaBackup": parse_backup, "KafkaRestore": parse_restore}[
        document["kind"]
    ]
    parse(document["spec"])


@pytest.mark.parametrize("document", DOCUMENTS)
def test_an_example_refers_to_secrets_of_the_examples(document: dict[str, Any]) -> None:
    assert set(_secret_names(document.get("spec", {}))) <= set(SECRETS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_an_example_names_the_keys_that_its_secret_has(document: dict[str, Any]) -> None:
    login = document.get("spec", {}).get("cluster", {}).get("security", {}).get("sasl", {})
    if "secretRef" not in login:
        return
    reference = LoginSecretRef.model_validate(login["secretRef"])
    keys = {reference.password_key} if "username" in login else {reference.username_key, reference.password_key}
    assert keys == set(SECRETS[reference.name])


def _secret_names(value: Any) -> list[str]:
    if not isinstance(value, dict):
        return []
    found = [value["secretRef"]["name"]] if "secretRef" in value else []
    return found + [name for item in value.values() for name in _secret_names(item)]


def test_the_prices_in_the_docs_are_those_of_the_example() -> None:
    (file,) = (EXAMPLES / "prices").glob("*.yaml")
    prices = yaml.safe_load(file.read_text())
    assert Prices.model_validate(prices).currency == "USD"
    shown = (EXAMPLES.parent / "docs/cli.md").read_text().partition("\n```yaml\ncurrency:")[2].partition("```")[0]
    assert yaml.safe_load(f"currency:{shown}") == prices

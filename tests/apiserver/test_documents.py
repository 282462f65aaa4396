"""The resources that the documents show are taken as they stand there, by a real API server.

A block of YAML is a whole resource or a part of a spec, which is laid over a valid one. In docs/cli.md it is a file of
the command line.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from logkeep_engine.contract.prices import Prices
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.spec import parse_backup
from tests.apiserver.operator import Namespace
from tests.cluster.chart import CHART
from tests.cluster.logkeep import ROOT
from tests.unit.operator.world import backup_spec, restore_spec

BLOCK = re.compile(r"^```yaml\n(.*?)^```|<<'YAML'\n(.*?)^YAML$", re.MULTILINE | re.DOTALL)
WHOLE = {
    "KafkaBackup": backup_spec(),
    "KafkaRestore": restore_spec(source={"storage": {"uri": "s3://bucket/prefix"}}),
    "KafkaBackupRun": {},
}


def shown() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each document of YAML in the documents, with the place where it stands."""
    folders = (ROOT / "docs", ROOT / "docs/guides", ROOT / "docs/reference")
    for path in (ROOT / "README.md", *(page for folder in folders for page in sorted(folder.glob("*.md")))):
        text = path.read_text()
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            for document in yaml.safe_load_all(block[1] or block[2]):
                yield f"{path.relative_to(ROOT)}:{line}", document


def with_spec(*, of_the_command_line: bool) -> list[Any]:
    chosen = [
        pytest.param(document, id=f"{place}-{kind_of(document)}")
        for place, document in shown()
        if "spec" in document and place.startswith("docs/cli.md") is of_the_command_line
    ]
    assert chosen
    return chosen


def kind_of(document: dict[str, Any]) -> str:
    part = "KafkaRestore" if "source" in document.get("spec", {}) else "KafkaBackup"
    return str(document.get("kind", part))


def laid_over(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """The fields of both; those of `part` win, one level deep."""
    merged = {key: {**whole.get(key, {}), **value} if isinstance(value, dict) else value for key, value in part.items()}
    return {**whole, **merged}


def as_helm_does(defaults: Any, given: Any) -> Any:
    """The fields of both; those that are given win, at every level."""
    if not (isinstance(defaults, dict) and isinstance(given, dict)):
        return given
    return {**defaults, **{key: as_helm_does(defaults.get(key), value) for key, value in given.items()}}


@pytest.mark.parametrize("document", with_spec(of_the_command_line=False))
def test_a_resource_in_a_document_is_accepted(namespace: Namespace, document: dict[str, Any]) -> None:
    kind, spec = kind_of(document), document["spec"]
    whole = spec if "apiVersion" in document else laid_over(WHOLE[kind], spec)
    answer = namespace.apply(kind, "shown", whole)
    assert answer.returncode == 0, answer.stderr
    if kind == "KafkaBackup":
        parse_backup(namespace.get("kbak", "shown")["spec"])
    elif kind == "KafkaRestore":
        parse_restore(namespace.get("krst", "shown")["spec"])


@pytest.mark.parametrize("document", with_spec(of_the_command_line=True))
def test_a_file_of_the_command_line_is_valid(document: dict[str, Any]) -> None:
    (parse_backup if document["kind"] == "KafkaBackup" else parse_restore)(document["spec"])


def test_values_in_a_document_are_those_of_the_chart() -> None:
    schema = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    values = [document for _, document in shown() if "spec" not in document and "currency" not in document]
    assert values
    for part in values:
        schema.validate(as_helm_does(defaults, part))


def test_prices_in_a_document_are_those_of_the_example() -> None:
    prices = [document for _, document in shown() if "currency" in document]
    assert prices == [yaml.safe_load((ROOT / "examples/prices/aws-us-east-1.yaml").read_text())]
    assert Prices.model_validate(prices[0])

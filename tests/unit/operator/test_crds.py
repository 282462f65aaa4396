"""The CRDs, their copy in the chart and their reference are those of the models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.names import BACKUP_RUN
from logkeep_engine.contract.spec import API_VERSION
from logkeep_operator.api import KINDS, Phase, StatusOutcome
from logkeep_operator.api.backup_run import BACKUP_RUNS
from logkeep_operator.api.fields import known_fields, served_fields
from tests.crds.files import written
from tests.crds.schema import of_object

ROOT = Path(__file__).parents[3]
PLURALS = {**KINDS, BACKUP_RUN: BACKUP_RUNS}


@cache
def crd(kind: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "crds" / f"{PLURALS[kind]}.yaml").read_text())
    return loaded


def schema(kind: str, part: str) -> dict[str, Any]:
    found: dict[str, Any] = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]
    return found


def test_the_crds_their_copy_and_their_reference_are_those_of_the_models() -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in written().items() if path.read_text() != text]
    assert stale == [], "make crds writes them"


@pytest.mark.parametrize("kind", PLURALS)
def test_no_text_is_refused_with_a_regular_expression(kind: str) -> None:
    """The API server shows a `pattern` as it is; `meant` says what is meant by it."""

    def patterns(part: Any) -> list[str]:
        if isinstance(part, dict):
            here = [part["pattern"]] if isinstance(part.get("pattern"), str) else []
            return here + [found for inner in part.values() for found in patterns(inner)]
        return [found for inner in part for found in patterns(inner)] if isinstance(part, list) else []

    assert patterns(crd(kind)) == []


@pytest.mark.parametrize("kind", PLURALS)
def test_every_field_of_the_models_is_in_the_crd(kind: str) -> None:
    assert served_fields({"components": {"schemas": {kind: _published(kind)}}})[kind] == known_fields(kind)


def _published(kind: str) -> dict[str, Any]:
    """The schema of a CRD as the API server publishes it."""
    group, _, version = API_VERSION.partition("/")
    names = [{"group": group, "version": version, "kind": kind}]
    return {"properties": {p: schema(kind, p) for p in ("spec", "status")}, "x-kubernetes-group-version-kind": names}


def test_a_field_without_a_sentence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Undescribed\.name needs a sentence below it"):
        of_object(Undescribed, "KafkaBackup", in_status=False)


class Undescribed(Model):
    """A model that lacks a sentence."""

    name: str


@pytest.mark.parametrize("kind", PLURALS)
def test_every_field_is_described_in_one_sentence(kind: str) -> None:
    missing = []

    def look(path: str, part: dict[str, Any]) -> None:
        if not path.endswith("[]") or part["type"] == "object":
            text = part.get("description", "")
            if not text.endswith(".") or len(text) < 6:
                missing.append(path)
        for name, item in part.get("properties", {}).items():
            look(f"{path}.{name}", item)
        if "items" in part:
            look(f"{path}[]", part["items"])

    look("spec", schema(kind, "spec"))
    look("status", schema(kind, "status"))
    assert missing == []


@pytest.mark.parametrize("kind", PLURALS)
def test_group_names_and_columns(kind: str) -> None:
    spec = crd(kind)["spec"]
    names, version = spec["names"], spec["versions"][0]
    assert f"{spec['group']}/{version['name']}" == API_VERSION
    assert (names["kind"], names["plural"], names["categories"]) == (kind, PLURALS[kind], ["logkeep"])
    assert names["shortNames"] == [{"KafkaBackup": "kbak", "KafkaBackupRun": "kbrun", "KafkaRestore": "krst"}[kind]]
    assert version["subresources"] == {"status": {}}
    shown = [column["name"] for column in version["additionalPrinterColumns"] if not column.get("priority")]
    assert (
        shown
        == {
            "KafkaBackup": [
                "Phase",
                "Ready",
                "Reason",
                "Percent",
                "Recoverable",
                "Size",
                "At Risk",
                "Last Success",
                "Age",
            ],
            "KafkaBackupRun": ["Backup", "Phase", "Run", "Records", "Age"],
            "KafkaRestore": ["Phase", "Ready", "Reason", "Percent", "Records", "Age"],
        }[kind]
    )


def test_phases_and_outcomes_are_strings_of_the_crd() -> None:
    run = schema("KafkaBackup", "status")["properties"]["run"]["properties"]["outcome"]
    assert run["enum"] == list(StatusOutcome)
    assert schema("KafkaBackup", "status")["properties"]["phase"]["enum"] == list(Phase)


def test_the_api_server_leaves_nothing_out_of_the_crds_and_no_gitops_tool_deletes_them() -> None:
    """Argo CD shows a CRD as OutOfSync for ever if it has an empty `properties`, which the API server drops."""

    def walk(part: Any, path: str) -> list[str]:
        found = [path] if part == {} and path.endswith(".properties") else []
        below = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        return found + [where for key, value in below for where in walk(value, f"{path}.{key}")]

    for kind in PLURALS:
        assert walk(crd(kind), kind) == []
        annotations = crd(kind)["metadata"]["annotations"]
        assert annotations["argocd.argoproj.io/sync-options"] == "Prune=false"
        assert annotations["kustomize.toolkit.fluxcd.io/prune"] == "disabled"

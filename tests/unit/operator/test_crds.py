"""The CRDs, the contract's models and the operator's status types say the same."""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from logkeep_engine.contract.asking import KafkaBackupRunSpec
from logkeep_engine.contract.spec import API_VERSION, KafkaBackupSpec, KafkaRestoreSpec
from logkeep_operator.api import KINDS, Phase, Status, StatusOutcome
from logkeep_operator.api.asked import ASKED_KIND, ASKED_PLURAL, AskedPhase, AskedStatus
from logkeep_operator.api.fields import OTHERS
from logkeep_operator.api.part import camel

ROOT = Path(__file__).parents[3]
MODELS: dict[str, type[BaseModel]] = {
    "KafkaBackup": KafkaBackupSpec,
    "KafkaBackupRun": KafkaBackupRunSpec,
    "KafkaRestore": KafkaRestoreSpec,
}
PLURALS = {**KINDS, ASKED_KIND: ASKED_PLURAL}
LIMITS = ("enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern")


@cache
def crd(kind: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "crds" / f"{PLURALS[kind]}.yaml").read_text())
    return loaded


def schema(kind: str, part: str) -> dict[str, Any]:
    found: dict[str, Any] = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]
    return found


def resolved(part: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A model's schema without references and without "or null"; what stands beside a reference (the default) is
    kept."""
    beside = {key: value for key, value in part.items() if key not in ("$ref", "anyOf")}
    if "anyOf" in part:
        (part,) = (option for option in part["anyOf"] if option.get("type") != "null")
    if "$ref" in part:
        part = definitions[part["$ref"].rpartition("/")[2]]
    return {**part, **beside}


def filled(part: dict[str, Any], value: Any) -> Any:
    """The value as the API server stores it: with the defaults of its schema."""
    if isinstance(value, dict) and "properties" in part:
        value = {name: part["properties"][name]["default"] for name in defaults(part)} | value
        return {name: filled(part["properties"][name], item) for name, item in value.items()}
    return value


def defaults(part: dict[str, Any]) -> list[str]:
    return [name for name, item in part["properties"].items() if "default" in item]


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return value


def differences(path: str, ours: dict[str, Any], model: dict[str, Any], definitions: dict[str, Any]) -> list[str]:
    found = []
    if ours["type"] != model["type"]:
        return [f"{path}: type {ours['type']} and {model['type']}"]
    for limit in LIMITS:
        if limit in model and ours.get(limit) != model[limit]:
            found.append(f"{path}: {limit} {ours.get(limit)!r} and {model[limit]!r}")
    if "enum" in ours and "enum" not in model:
        found.append(f"{path}: enum in the CRD only")
    if model["type"] == "array":
        found += differences(f"{path}[]", ours["items"], resolved(model["items"], definitions), definitions)
    if model["type"] != "object" or ("properties" not in model and not ours.get("properties")):
        return found
    names, required = set(model.get("properties", {})), set(model.get("required", ()))
    if set(ours["properties"]) != names:
        found.append(f"{path}: fields {set(ours['properties']) ^ names} on one side only")
    if set(ours.get("required", ())) != required:
        found.append(f"{path}: required {set(ours.get('required', ())) ^ required} on one side only")
    for name in names & set(ours["properties"]):
        mine, theirs = ours["properties"][name], resolved(model["properties"][name], definitions)
        default = filled(mine, mine["default"]) if "default" in mine else None
        if default != without_none(theirs.get("default")):
            found.append(f"{path}.{name}: default {default!r} and {theirs.get('default')!r}")
        found += differences(f"{path}.{name}", mine, theirs, definitions)
    return found


@pytest.mark.parametrize("kind", PLURALS)
def test_spec_is_that_of_the_contract(kind: str) -> None:
    model = MODELS[kind].model_json_schema(by_alias=True)
    assert differences("spec", schema(kind, "spec"), model, model["$defs"]) == []


def test_the_comparison_sees_a_difference() -> None:
    model = KafkaBackupSpec.model_json_schema(by_alias=True)
    changed = schema("KafkaBackup", "spec")
    changed["properties"]["segment"]["properties"]["maxBytes"]["default"] = "64Mi"
    del changed["properties"]["suspend"]
    changed["properties"]["onDataLoss"]["enum"] = ["Fail"]
    found = "\n".join(differences("spec", changed, model, model["$defs"]))
    assert "spec: fields {'suspend'} on one side only" in found
    assert "spec.segment: default" in found
    assert "spec.onDataLoss: enum" in found


def status_differences(path: str, ours: dict[str, Any], kind: Any, only: set[str]) -> list[str]:
    """`only`: fields that the type has for the other kind of resource, such as `coverage` or `archive.size`."""
    if typing.get_origin(kind) is types.UnionType:
        kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        if ours["type"] != "array":
            return [f"{path}: {ours['type']} in the CRD, a list in the type"]
        return status_differences(f"{path}[]", ours["items"], typing.get_args(kind)[0], set())
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        by_name = {camel(f.name): hints[f.name] for f in fields(kind) if camel(f.name) not in only}
        if set(by_name) != set(ours.get("properties", ())):
            return [f"{path}: {set(by_name) ^ set(ours.get('properties', ()))} on one side only"]
        return [
            problem
            for name, hint in by_name.items()
            for problem in status_differences(f"{path}.{name}", ours["properties"][name], hint, below(only, name))
        ]
    expected = "integer" if kind is int else "string"
    if issubclass(kind, StrEnum) and ours.get("enum") != list(kind):
        return [f"{path}: enum {ours.get('enum')}"]
    return [] if ours["type"] == expected else [f"{path}: {ours['type']} in the CRD, {kind} in the type"]


def below(only: set[str], name: str) -> set[str]:
    return {other.removeprefix(f"{name}.") for other in only if other.startswith(f"{name}.")}


@pytest.mark.parametrize("kind", KINDS)
def test_status_is_that_of_the_operator(kind: str) -> None:
    assert status_differences("status", schema(kind, "status"), Status, set(OTHERS[kind])) == []


def test_status_of_a_run_that_was_asked_for_is_that_of_the_operator() -> None:
    found = schema("KafkaBackupRun", "status")
    assert status_differences("status", found, AskedStatus, set()) == []
    assert found["properties"]["phase"]["enum"] == list(AskedPhase)


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
                "Partitions",
                "Percent",
                "Recoverable",
                "Size",
                "At Risk",
                "Last Success",
                "Next Schedule",
                "Age",
            ],
            "KafkaBackupRun": ["Backup", "Phase", "Run", "Records", "Age"],
            "KafkaRestore": ["Phase", "Ready", "Percent", "Records", "Age"],
        }[kind]
    )


@pytest.mark.parametrize("kind", PLURALS)
def test_the_chart_has_the_same_crd(kind: str) -> None:
    name = f"{PLURALS[kind]}.yaml"
    assert (ROOT / "charts/logkeep/crds" / name).read_bytes() == (ROOT / "crds" / name).read_bytes()


def test_phases_and_outcomes_are_strings_of_the_crd() -> None:
    run = schema("KafkaBackup", "status")["properties"]["run"]["properties"]["outcome"]
    assert run["enum"] == list(StatusOutcome)
    assert schema("KafkaBackup", "status")["properties"]["phase"]["enum"] == list(Phase)

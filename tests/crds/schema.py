"""The CRD of a kind, from its models. A CRD's schema is structural: it has no references, and every field a type."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from logkeep_engine.contract.model import MEANT, OF_INSTALLATION, RULES
from logkeep_engine.contract.names import LABEL_PART_OF
from logkeep_engine.contract.spec import GROUP, VERSION
from logkeep_operator.api.fields import fields_of, model_in
from logkeep_operator.api.kinds import RESOURCES, Column

_KEPT = (
    "type", "format", "enum", "default", "minimum", "maximum", "minLength", "maxLength", "pattern", "minItems",
    "maxItems", "maxProperties", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", RULES,
)  # fmt: skip
# The operator has checked a status: another version, whose bounds are others, must be able to read and write it.
_NEVER_PRUNED = {
    "argocd.argoproj.io/sync-options": "Prune=false",
    "kustomize.toolkit.fluxcd.io/prune": "disabled",
}
"""Argo CD and Flux leave a CRD when Git has it no longer, as Helm does: all resources would go with it."""
_NOT_IN_STATUS = ("default", "minimum", "maximum", "minLength", "maxLength", "pattern", "minItems")


def crd_of(kind: str) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    about = RESOURCES[kind]
    plural = f"{kind.lower()}s"
    parts: dict[str, Any] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    parts["spec"] = {"type": "object", "description": _description(about.spec)} | of_object(
        about.spec, kind, in_status=False
    )
    parts["status"] = {
        "type": "object",
        "description": _description(about.status),
        "default": {"observedGeneration": -1},
    } | of_object(about.status, kind, in_status=True)
    whole = {"type": "object", "required": ["spec"], "description": about.description, "properties": parts}
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column, parts) for column in about.columns],
        "schema": {"openAPIV3Schema": whole},
    }
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "labels": {LABEL_PART_OF: "logkeep"},
            "annotations": dict(_NEVER_PRUNED),
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": names | {"shortNames": [about.short], "categories": ["logkeep"]},
            "versions": [version],
        },
    }


def _column(column: Column, parts: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"name": column.name, "type": column.type or _type_at(column.path, parts), "jsonPath": column.path}
    return shown | ({"priority": 1} if column.wide else {})


def _type_at(path: str, parts: Mapping[str, Any]) -> str:
    """The type of a column whose path is one of fields."""
    part: Any = {"properties": parts}
    for name in path.removeprefix(".").split("."):
        part = part["properties"][name]
    return "date" if part.get("format") == "date-time" else str(part["type"])


def of_object(model: type[BaseModel], kind: str, *, in_status: bool) -> dict[str, Any]:
    """Return the schema of an object: its fields, and rules about several of them."""
    schema = model.model_json_schema(by_alias=True)
    reported = _docstrings(model)
    extra = model.model_config.get("json_schema_extra")
    found: dict[str, Any] = dict(extra) if isinstance(extra, dict) else {}
    required = [] if in_status else list(schema.get("required", ()))
    if required:
        found["required"] = required
    parts: dict[str, Any] = {}
    names = {field.alias or name: name for name, field in model.model_fields.items()}
    for name, field in fields_of(model, kind).items():
        part = _value(schema["properties"][name], schema.get("$defs", {}), model_in(field.annotation), kind, in_status)
        if names[name] not in reported:
            raise ValueError(f"{model.__name__}.{names[name]} needs a sentence below it, for the CRD")
        parts[name] = {"type": part["type"], "description": reported[names[name]], **part}
    # The API server drops an empty object here, and Argo CD would show the CRD as OutOfSync for ever.
    return found | ({"properties": parts} if parts else {})


def _value(
    part: dict[str, Any], defined: Mapping[str, Any], model: type[BaseModel] | None, kind: str, in_status: bool
) -> dict[str, Any]:
    """Return the schema of a value."""
    part = _resolved(part, defined)
    kept = {key: part[key] for key in _KEPT if key in part and not (in_status and key in _NOT_IN_STATUS)}
    if part["type"] == "integer":
        kept.setdefault("format", "int64")
    if part["type"] == "array":
        kept["items"] = _value(part["items"], defined, model, kind, in_status)
        if model is not None:
            kept["items"]["description"] = _description(model)
    elif part["type"] == "object":
        if model is not None:
            kept |= {key: value for key, value in of_object(model, kind, in_status=in_status).items() if key != RULES}
            if rules := [*_rules(model), *part.get(RULES, ())]:
                kept[RULES] = rules
        elif isinstance(below := _of_any_key(part), dict):
            kept["additionalProperties"] = _value(below, defined, None, kind, in_status)
        else:
            kept["x-kubernetes-preserve-unknown-fields"] = True
    if kept.get("pattern") in MEANT:
        kept[RULES] = _in_words(kept.pop("pattern"), kept)
    if kept.get("default", ...) is None or OF_INSTALLATION in part:
        kept.pop("default", None)
    if "default" in kept:
        kept["default"] = _without_usual(kept["default"], kept)
    return kept


def _in_words(pattern: str, part: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rules of a text in place of its pattern, which the API server would show as it is. Other rules may
    not be followed for what the first one refuses: they would fail, and say so, too."""
    if "maxLength" not in part:
        raise ValueError(f"{pattern}: without maxLength the API server takes the rule for too expensive")
    fits = f"self.matches({json.dumps(pattern)})"
    guarded = [{**other, "rule": f"!{fits} || ({other['rule']})"} for other in part.get(RULES, ())]
    return [{"rule": fits, "message": f"must be {MEANT[pattern]}"}, *guarded]


def _of_any_key(part: Mapping[str, Any]) -> Any:
    """The values of a map. The API server does not look at its keys."""
    return next(iter(part.get("patternProperties", {}).values()), part.get("additionalProperties"))


def _rules(model: type[BaseModel]) -> list[Any]:
    extra = model.model_config.get("json_schema_extra")
    return list(extra.get(RULES, ())) if isinstance(extra, dict) else []  # type: ignore[arg-type]


def _resolved(part: dict[str, Any], defined: Mapping[str, Any]) -> dict[str, Any]:
    """A part without references and without "or null"."""
    beside = {key: value for key, value in part.items() if key not in ("$ref", "anyOf")}
    if "anyOf" in part:
        (part,) = (option for option in part["anyOf"] if option.get("type") != "null")
        return {**_resolved(part, defined), **beside}
    if "$ref" in part:
        # The rules of a model are added where its fields are.
        part = {key: value for key, value in defined[part["$ref"].rpartition("/")[2]].items() if key != RULES}
    return {**part, **beside}


def _without_usual(default: Any, part: Mapping[str, Any]) -> Any:
    """A default without what the defaults of the fields below say."""
    if not isinstance(default, dict) or "properties" not in part:
        return default
    below = part["properties"]
    said = {name: _without_usual(value, below[name]) for name, value in default.items() if value is not None}
    return {name: value for name, value in said.items() if value != below[name].get("default")}


@cache
def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The sentences below the fields of a model, and of those that it extends."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base.__module__.startswith("pydantic"):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                found[field.target.id] = " ".join(ast.literal_eval(below.value).split())
    return found


def _description(model: type[BaseModel]) -> str:
    """The docstring of a model, with the names of fields as users write them."""
    if not model.__doc__:
        raise ValueError(f"{model.__name__} needs a docstring, for the CRD")
    text = " ".join(model.__doc__.split())
    return re.sub(r"`([a-z_]+)`", lambda match: f"`{to_camel(match[1])}`", text)

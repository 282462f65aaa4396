"""The files that are made from the models: the CRDs, their copy in the chart, and their part of the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml

from logkeep_engine.contract.model import RULES
from logkeep_operator.api.kinds import RESOURCES
from tests.crds.schema import crd_of

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference/crds.md"
_HEAD = "# `make crds` writes this file from the models of the resources.\n"
_AFTER = "## When a run starts\n"
_WIDTH = 120


def written() -> dict[Path, str]:
    """Return the text of each file that is made from the models."""
    crds = {kind: crd_of(kind) for kind in RESOURCES}
    files: dict[Path, str] = {}
    for crd in crds.values():
        text = _HEAD + yaml.safe_dump(crd, sort_keys=False, width=_WIDTH, allow_unicode=True)
        name = f"{crd['spec']['names']['plural']}.yaml"
        files |= {folder / name: text for folder in (ROOT / "crds", ROOT / "charts/logkeep/crds")}
    page = REFERENCE.read_text()
    sections = "".join(section(kind, crd) for kind, crd in crds.items())
    before, after = page.index(f"## {next(iter(crds))} ("), page.index(_AFTER)
    return files | {REFERENCE: page[:before] + sections + page[after:]}


def section(kind: str, crd: Mapping[str, Any]) -> str:
    """Return the part of the reference about a kind."""
    names, schema = crd["spec"]["names"], crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    refusals = [f"- `spec{path and '.' + path}`: {message}" for path, message in _refusals(spec, "")]
    lines = [
        *(f"## {kind} (`{names['shortNames'][0]}`)", "", *wrap(schema["description"], _WIDTH), "", "### spec", ""),
        *_listed(_fields(spec, "")),
        *("", "Refused by the API server:", "", *_listed(refusals), "", "### status", ""),
        *_listed(_fields(status, "")),
    ]
    return "\n".join(lines) + "\n\n"


def _listed(items: Iterator[str] | list[str]) -> Iterator[str]:
    for item in items:
        yield from wrap(item, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _fields(part: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, field in part.get("properties", {}).items():
        shown = f"**{path}{name}**" if name in part.get("required", ()) else f"{path}{name}"
        yield f"- {shown} ({_type(field)}): {_marked(field['description'])}"
        below = field.get("items", field)
        yield from _fields(below, f"{path}{name}{'[]' if 'items' in field else ''}.")


def _type(field: Mapping[str, Any]) -> str:
    words = f"`{' | '.join(field.get('enum', ()))}`"
    kind = words if "enum" in field else {"array": "list"}.get(field["type"], field["type"])
    least, most = field.get("minimum"), field.get("maximum")
    bounds = "" if least is None else f", at least {least}" if most is None else f", from {least} to {most}"
    default = field.get("default", {})
    if default == {}:
        return kind + bounds
    if isinstance(default, bool):
        default = str(default).lower()
    elif isinstance(default, list):
        default = f"[{', '.join(default)}]"
    return f"{kind}, default `{default}`{bounds}"


def _marked(text: str) -> str:
    """Return the text with what Markdown needs: the names of topics as code, and links to other pages."""
    text = re.sub(r"(?<![`\w])_+[a-z_]+", r"`\g<0>`", text)
    text = re.sub(r"\\[\w<>]+", r"`\g<0>`", text)
    return re.sub(r"\bdocs/([\w/-]+\.md)", r"[docs/\1](../\1)", text)


def _refusals(part: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for rule in part.get(RULES, ()):
        yield path, rule["message"]
    for name, field in part.get("properties", {}).items():
        yield from _refusals(field, f"{path}.{name}".lstrip("."))
        yield from _refusals(field.get("items", {}), f"{path}.{name}[]".lstrip("."))

"""This module reads the resources that commands of `logkeep` are given as YAML, as Kubernetes takes and shows them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from logkeep_engine.archive.catalog.claim import ArchiveClaim, Owner
from logkeep_engine.contract.archive_spec import parse_archive
from logkeep_engine.contract.names import BACKUP, KAFKA_ARCHIVE, RESTORE
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.spec import API_VERSION, parse_backup
from logkeep_engine.contract.storage import ArchiveSpec
from logkeep_engine.errors import SpecError


class _StrictLoader(yaml.SafeLoader):
    """A YAML loader that refuses a key that stands twice in a mapping, and does not silently take one of them."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, str) and key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} appears twice", key_node.start_mark)
        if isinstance(key, str):
            seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def name_of(file: str) -> str:
    """Return the name of the file in messages."""
    return "standard input" if file == "-" else file


def load_documents(file: str, kind: str) -> list[dict[str, Any]]:
    """Return all documents of a YAML file (`-`: standard input), which must hold a resource of `kind`. Raises
    SpecError."""
    name = name_of(file)
    documents = read_yaml(file, "--file")
    if not documents:
        raise SpecError(f"{name}: holds no document", hint=f"It must hold a resource of kind {kind}.")
    for document in documents:
        if not isinstance(document, dict):
            raise SpecError(f"{name}: a document is a {type(document).__name__}, not a resource")
    return documents


def read_yaml(file: str, option: str) -> list[Any]:
    """Return all documents of the YAML file that `option` names (`-`: standard input), none that are empty. Raises
    SpecError."""
    name = name_of(file)
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SpecError(f"{name}: {reason}", hint=f"Name a YAML file with {option}.") from error
    try:
        return [item for item in yaml.load_all(text, Loader=_StrictLoader) if item is not None]
    except yaml.YAMLError as error:
        raise SpecError(f"{name}: not YAML: {_described(error)}") from error


def _described(error: yaml.YAMLError) -> str:
    """Return what is wrong and in which line. PyYAML names the file of what it was given as text "<unicode string>"."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return where + " ".join(text for text in (error.context, error.problem) if text)


def read_document(file: str, kind: str) -> dict[str, Any]:
    """Return the one document of `kind` in a YAML file (`-`: standard input). Raises SpecError for a wrong file,
    apiVersion, kind or top-level field.
    """
    name = name_of(file)
    documents = load_documents(file, kind)
    found = [document for document in documents if document.get("kind") == kind]
    if not found:
        kinds = ", ".join(sorted({repr(document.get("kind")) for document in documents}))
        raise SpecError(f"{name}: kind: must be {kind}, not {kinds}", hint=_other_command(documents))
    if len(found) > 1:
        raise SpecError(
            f"{name}: {len(found)} documents of kind {kind}", hint="A run is for one resource: split the file."
        )
    return check_envelope(found[0], name)


def read_place(file: str) -> ArchiveSpec:
    """Return the place of the one archive that the resources in a YAML file (`-`: standard input) name. A resource may
    name it by a reference to another one in the file. Raises SpecError, SpecInvalid."""
    name, kinds = name_of(file), (KAFKA_ARCHIVE, BACKUP, RESTORE)
    said = "KafkaArchive, KafkaBackup or KafkaRestore"
    found = [check_envelope(item, name) for item in load_documents(file, said) if item.get("kind") in kinds]
    if not found:
        raise SpecError(f"{name}: holds no {said}")
    own = [item for item in found if _named_by(item) is None]
    for item in found if own else ():
        _require_named(item, found, name)
    places = [_place(item) for item in own or found]
    if any(place != places[0] for place in places):
        raise SpecError(f"{name}: its resources name several places", hint="One is tried at a time: split the file.")
    return places[0]


def _place(document: Mapping[str, Any]) -> ArchiveSpec:
    spec = document["spec"]
    if document["kind"] == KAFKA_ARCHIVE:
        return parse_archive(spec).storage
    if document["kind"] == BACKUP:
        return parse_backup(spec).place
    from logkeep_engine.restore.model.state import archive_place

    return archive_place(parse_restore(spec))


def _named_by(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the kind and the name of the resource that has the storage in place of this one; None if it has its
    own."""
    spec = document["spec"]
    holder = spec.get("source") if document["kind"] == RESTORE else spec
    for field, kind in (("archiveRef", KAFKA_ARCHIVE), ("backupRef", BACKUP)):
        if isinstance(holder, Mapping) and field in holder:
            named = holder[field]
            return kind, str(named.get("name")) if isinstance(named, Mapping) else ""
    return None


def _require_named(document: Mapping[str, Any], found: Sequence[Mapping[str, Any]], file: str) -> None:
    """Raises SpecError if a resource names another one that is not in the file: its place is not known here."""
    named = _named_by(document)
    if named is not None and named not in [(item["kind"], _name(item)) for item in found]:
        raise SpecError(
            f"{file}: {document['kind']} {_name(document)} names {named[0]} {named[1]}, which the file does not hold",
            hint="Add it, or leave out what names it.",
        )


def _name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, Mapping) else ""


def claim_of_file(document: Mapping[str, Any], acts_for: str | None) -> ArchiveClaim:
    """Return the claim of who runs the KafkaBackup in a file. `acts_for`: the owner of the archive for whom this is
    done."""
    return ArchiveClaim(owner=owner_in(document), acts_for=acts_for)


def owner_in(document: Mapping[str, Any]) -> Owner:
    """Return the writer that a document names: the resource itself, as `kubectl get -o yaml` shows it with its uid;
    else a name of the command line, which need not be there."""
    metadata = document.get("metadata") or {}
    name, namespace, uid = (str(metadata.get(key) or "") for key in ("name", "namespace", "uid"))
    return Owner(namespace, name, uid) if namespace and uid and name else Owner("", name or "cli", "")


def _other_command(documents: Sequence[Mapping[str, Any]]) -> str:
    kinds = {document.get("kind") for document in documents}
    for kind, command in ((BACKUP, "logkeep backup"), (RESTORE, "logkeep restore")):
        if kind in kinds:
            return f"A {kind} is run by `{command}`."
    return ""


def check_envelope(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Check the document and return it. Raises SpecError for a wrong apiVersion or top-level field."""
    if document.get("apiVersion") != API_VERSION:
        raise SpecError(f"{name}: apiVersion: must be {API_VERSION!r}, not {document.get('apiVersion')!r}")
    unknown = sorted(set(map(str, document)) - {"apiVersion", "kind", "metadata", "spec", "status"})
    if unknown:
        raise SpecError(f"{name}: {unknown[0]}: unknown field")
    if not isinstance(document.get("spec"), dict):
        raise SpecError(f"{name}: spec: required")
    if not isinstance(document.get("metadata") or {}, dict):
        raise SpecError(f"{name}: metadata: must be a mapping")
    return document

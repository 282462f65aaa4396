"""The command `kubectl logkeep inspect`: what the archive of a resource holds, read with the Secret that it names.

The user's own right to read that Secret decides. Its values go to the client of the object store and nowhere else, and
`endpoints` says to which stores.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from logkeep_engine.cli.costing import CostOptions
from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.inspect import At, Partitions, ShowsClusterState, Wide, show
from logkeep_engine.cli.kubectl import lines
from logkeep_engine.cli.kubectl.endpoints import Endpoints
from logkeep_engine.cli.kubectl.options import ResourceOrArchive, Where
from logkeep_engine.cli.kubectl.status import resource_named
from logkeep_engine.cli.options import Debug, Output, OutputFormat, spread
from logkeep_engine.cli.output import say
from logkeep_engine.contract import names
from logkeep_engine.contract.names import BACKUP, KAFKA_ARCHIVE, RESTORE
from logkeep_engine.contract.parsing import parse_model
from logkeep_engine.contract.prices import Prices
from logkeep_engine.contract.references import ServerTls
from logkeep_engine.contract.retention import Retention
from logkeep_engine.contract.storage import ArchiveSpec, StorageSpec, secret_variables
from logkeep_engine.errors import ArchiveDamaged, ArchiveRolledBack, CredentialsMissing, SpecError, StorageRefused

if TYPE_CHECKING:
    from logkeep_engine.archive.catalog.archive import Archive
    from logkeep_engine.cli.kubectl.calls import Kubernetes
    from logkeep_engine.storage import Storage


@spread
def inspect(
    name: ResourceOrArchive,
    partitions: Partitions = False,
    wide: Wide = False,
    cluster_state: ShowsClusterState = False,
    at: At = None,
    *,
    endpoints: Endpoints,
    costs: CostOptions,
    where: Where,
    output: OutputFormat = Output.TEXT,
    debug: Debug = False,
) -> None:
    """Show what the archive of a resource holds, what a restore to a time would give, or what it costs, as `logkeep
    inspect` does. Your own rights must allow its Secret."""
    with errors(debug):
        from logkeep_engine.archive.catalog.archive import Archive

        cluster = where.connect()
        body = resource_named(cluster, name, with_archives=True)
        spec = allowed_storage(cluster, body, endpoints)
        with ExitStack() as files:
            storage = open_named(cluster, spec, files)
            storage.check()
            archive = Archive.open(storage)
            _compare_with_status(archive, _holder(cluster, body), spec.uri)
            show(
                archive,
                output,
                costs,
                partitions=partitions,
                wide=wide,
                at=at,
                cluster_state=cluster_state,
                retention=_retention(body),
                prices=_prices(cluster, body) if costs.cost and costs.prices is None else None,
            )


def _compare_with_status(archive: Archive, known: Mapping[str, Any], uri: str) -> None:
    """Warn if the archive lacks the commit that the status of a resource knows of it. It is shown all the same: people
    look at it to find out what has happened."""
    from logkeep_engine.archive.catalog.anchor import AnchorCheck
    from logkeep_engine.archive.catalog.claim import ArchiveClaim, anchor_of

    anchor, at = lines.part(known, "status", "archive", "anchor"), lines.part(known, "status", "archive", "uri")
    if not isinstance(anchor, str) or str(at).rstrip("/") != uri.rstrip("/"):
        return
    state, check = archive.load(), AnchorCheck(ArchiveClaim(anchor_of(anchor, "status.archive.anchor")))
    check.note(state)
    try:
        check.check(archive.storage.uri, state, "", partial(archive.hash_under, state))
    except (ArchiveDamaged, ArchiveRolledBack) as error:
        say(f"warning: {error}")


def allowed_storage(cluster: Kubernetes, body: Mapping[str, Any], endpoints: Endpoints) -> ArchiveSpec:
    """Return the storage that a resource names, with the endpoint that an option gives. Raises EndpointNotAllowed."""
    raw, given = _place(cluster, body), endpoints.endpoint
    spec = parse_model(ArchiveSpec, {**raw, "endpoint": given} if given else raw)
    endpoints.check(cluster, spec)
    return spec


def _place(cluster: Kubernetes, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the storage that a resource names, as written: itself, or by a KafkaBackup or a KafkaArchive."""
    storage = _storage(body)
    if storage is None:
        storage = _storage(_named(cluster, body))
    if not isinstance(storage, Mapping):
        raise SpecError(f"{lines.short_name(body)} names no storage")
    return storage


def _storage(body: Mapping[str, Any]) -> Any:
    path = ("spec", "source", "storage") if body["kind"] == RESTORE else ("spec", "storage")
    return lines.part(body, *path)


def _holder(cluster: Kubernetes, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the resource whose status knows the archive: the KafkaBackup or KafkaArchive of a restore, or itself."""
    backup, archive = (lines.part(body, "spec", "source", ref, "name") for ref in ("backupRef", "archiveRef"))
    if backup is not None:
        return cluster.get(BACKUP, str(backup))
    return body if archive is None else cluster.get(KAFKA_ARCHIVE, str(archive))


def _named(cluster: Kubernetes, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the resource that has the storage which a resource names in place of one of its own."""
    holder = _holder(cluster, body)
    named = lines.part(holder, "spec", "archiveRef", "name")
    return holder if named is None else cluster.get(KAFKA_ARCHIVE, str(named))


def _prices(cluster: Kubernetes, body: Mapping[str, Any]) -> Prices | None:
    """Return the prices that the KafkaArchive says which a resource is, or names."""
    said = lines.part(body if _storage(body) is not None else _named(cluster, body), "spec", "prices")
    return parse_model(Prices, said) if isinstance(said, Mapping) else None


def _retention(body: Mapping[str, Any]) -> Retention | None:
    """Return the retention that a KafkaBackup says. A KafkaRestore says none."""
    said = lines.part(body, "spec", "retention")
    return parse_model(Retention, said) if isinstance(said, Mapping) else None


def open_named(cluster: Kubernetes, spec: ArchiveSpec, files: ExitStack, command: str = "logkeep inspect") -> Storage:
    """Return the storage, opened with what the resource names. `files` keeps what the client reads later. `command`
    does the same in a pod."""
    from logkeep_engine.storage import open_storage

    if spec.uri.startswith("file:"):
        claim = f"the claim {spec.volume.claim_name}" if spec.volume is not None else "a volume"
        raise StorageRefused(
            f"The archive {spec.uri} is on {claim}, which only pods can read.",
            hint=f"Run `{command} {spec.uri}` in a pod of the engine's image that mounts it there.",
        )
    spec = spec.model_copy(update={"signing": None})  # whose keys are the driver's; LOGKEEP_SIGNING_DIR has one's own
    environ = dict(os.environ)
    if spec.tls is not None:
        environ[names.OWN_KEYS.ca_file] = ca_file(cluster, spec.tls, files)
    if spec.credentials is None or spec.credentials.secret_ref is None:
        if spec.credentials is not None:
            say("The pods use their own identity (workloadIdentity). Here your own credentials are used.")
        return open_storage(spec.model_copy(update={"credentials": None}), environ)
    for variable in secret_variables(spec, names.OWN_KEYS):
        environ.pop(variable.name, None)  # a token of the user's own does not belong to the keys of a Secret
    return open_storage(spec, {**environ, **secret_keys(cluster, spec)})


def ca_file(cluster: Kubernetes, tls: ServerTls, files: ExitStack) -> str:
    """Return a file with the authorities that the resource trusts as the object store."""
    kind = "Secret" if tls.ca_secret_ref is not None else "ConfigMap"
    reference = tls.ca_secret_ref or tls.ca_config_map_ref
    assert reference is not None, "the contract requires one of them"
    data = cluster.get(kind, reference.name).get("data") or {}
    if reference.certificate_key not in data:
        raise CredentialsMissing(
            f"{kind} {reference.name!r} in namespace {cluster.namespace} has no key {reference.certificate_key}.",
            hint=f"It has the keys {', '.join(sorted(data)) or 'none'}.",
        )
    text = data[reference.certificate_key]
    if kind == "Secret":
        text = _decoded(reference.name, reference.certificate_key, text)
    file = files.enter_context(NamedTemporaryFile("w", suffix=".pem", encoding="utf-8"))  # noqa: SIM115
    file.write(text)
    file.flush()
    return file.name


def secret_keys(cluster: Kubernetes, spec: StorageSpec) -> dict[str, str]:
    """Return the keys of the object store, under the names that the engine reads them by."""
    assert spec.credentials is not None
    assert spec.credentials.secret_ref is not None
    secret = spec.credentials.secret_ref.name
    data = cluster.get("Secret", secret).get("data") or {}
    wanted = secret_variables(spec, names.OWN_KEYS)
    missing = [item.key for item in wanted if item.key not in data and not item.optional]
    if missing:
        raise CredentialsMissing(
            f"Secret {secret!r} in namespace {cluster.namespace} has no key {' and no key '.join(missing)}.",
            hint=f"It has the keys {', '.join(sorted(data)) or 'none'}.",
        )
    return {item.name: _decoded(secret, item.key, data[item.key]) for item in wanted if item.key in data}


def _decoded(secret: str, key: str, value: str) -> str:
    try:
        return base64.b64decode(value).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise CredentialsMissing(f"Secret {secret!r}, key {key}: the value is not text.") from None

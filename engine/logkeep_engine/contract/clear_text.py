"""Warnings for secrets that a resource sends across the network unencrypted. They are about its spec, and the same in
every run: the status lists them, and messages do not repeat them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from logkeep_engine.contract.cluster import Protocol, SaslMechanism
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.contract.storage import StorageSpec

if TYPE_CHECKING:
    from logkeep_engine.contract.restore_spec import KafkaRestoreSpec

IN_THE_CLEAR = "in the clear"
# Of what a Secret has for an object store. A key of S3, and one of an account of Azure, signs and is not sent itself.
_SENT = {
    "s3": "the id of the Secret's key, its session token",
    "gs": "the tokens that the Secret's key gets",
    "az": "the Secret's shared access signature, if it has one,",
}


def of_the_run(warnings: Iterable[str]) -> tuple[str, ...]:
    """Return the warnings that are about what happened in a run."""
    return tuple(text for text in warnings if not (text.startswith("spec.") and IN_THE_CLEAR in text))


def clear_text_warnings(spec: KafkaBackupSpec | KafkaRestoreSpec) -> tuple[str, ...]:
    """Return the warnings for secrets that cross the network unencrypted because the resource says so."""
    return tuple(_warnings(spec))


def _warnings(spec: KafkaBackupSpec | KafkaRestoreSpec) -> Iterator[str]:
    security = spec.cluster.security_with_user
    sasl = security.sasl
    if sasl is not None and security.protocol is Protocol.SASL_PLAINTEXT:
        sent = "the token" if sasl.mechanism.has_token else "the password"
        if sasl.mechanism.has_token or sasl.mechanism is SaslMechanism.PLAIN:
            yield (
                f"spec.cluster.security: {sasl.mechanism.value} over SASL_PLAINTEXT sends {sent} across the network "
                f"{IN_THE_CLEAR}. Use SASL_SSL."
            )
    endpoint = sasl.oauth.token_endpoint if sasl is not None and sasl.oauth is not None else None
    if endpoint is not None and endpoint.startswith("http:"):
        yield (
            "spec.cluster.security.sasl.oauth.tokenEndpoint is http://: the client's secret and its tokens cross the "
            f"network {IN_THE_CLEAR}. Use https://."
        )
    if isinstance(spec, KafkaBackupSpec):
        yield from _of_storage("spec.storage", spec.storage)
    else:
        yield from _of_storage("spec.source.storage", spec.source.storage)
        yield from _of_storage("spec.state", spec.state)


def _of_storage(path: str, storage: StorageSpec | None) -> Iterator[str]:
    if storage is None or storage.endpoint is None or not storage.endpoint.startswith("http:"):
        return
    if storage.credentials is not None and storage.credentials.secret_ref is not None:
        sent = _SENT[storage.uri.partition(":")[0]]
        yield f"{path}.endpoint is http://: {sent} and all records cross the network {IN_THE_CLEAR}. Use https://."

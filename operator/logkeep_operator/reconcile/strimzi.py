"""This module reads from Strimzi's `Kafka` resource how to reach a listener, as a cluster whose spec names servers
itself. Pure.

The resource is asked each time a run starts, so moved addresses and renewed authorities hold from the next run on. No
Secret is read: the pods mount them, and what the resource shows of a certificate authority is public.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logkeep_engine.contract.cluster import ClusterSpec, Protocol, SecuritySpec, Tls
from logkeep_engine.contract.emitting import StrimziVersion
from logkeep_engine.contract.references import CaRef, KafkaUserRef, StrimziRef
from logkeep_engine.contract.values import HOST_PORT
from logkeep_operator.reconcile.observed import FoundKafka
from logkeep_operator.reconcile.waiting import Waiting
from logkeep_operator.resources.credentials import KafkaAccess

RECHECK_SECONDS = 15.0
_PEM = "-----BEGIN CERTIFICATE-----"
_PROTOCOLS = {
    (False, None): Protocol.PLAINTEXT,
    (True, None): Protocol.SSL,
    (True, "tls"): Protocol.SSL,
    (False, "scram-sha-512"): Protocol.SASL_PLAINTEXT,
    (True, "scram-sha-512"): Protocol.SASL_SSL,
}


@dataclass(frozen=True)
class _Listener:
    """A listener as the resource's spec says it. `authentication` None: it knows no users. `own_certificate`: it shows
    another certificate than one of the cluster's authority."""

    tls: bool
    authentication: str | None
    own_certificate: bool


def kafka_access(cluster: ClusterSpec, namespace: str, found: FoundKafka | None) -> KafkaAccess:
    """Return how a run in this namespace reaches the cluster. Raises Waiting when Strimzi's resource does not say
    it."""
    reference = cluster.strimzi
    if reference is None:
        return KafkaAccess(cluster)
    place = reference.namespace or namespace
    body = _body(reference, place, found or FoundKafka())
    listener = _listener(reference, place, body)
    protocol = _protocol(reference, listener, cluster.kafka_user_ref)
    servers, certificates = _addresses(reference, place, body)
    secret, shown = None, None
    if listener.tls:
        secret, shown = _trust(reference, listener, certificates, here=place == namespace)
    tls = Tls(ca_secret_ref=secret) if secret is not None else None
    security = SecuritySpec(protocol=protocol, tls=tls)
    reached = ClusterSpec(bootstrap_servers=servers, security=security, kafka_user_ref=cluster.kafka_user_ref)
    return KafkaAccess(reached, shown, _version(body))


def _version(body: Mapping[str, Any]) -> str | None:
    """Return the version of the resource, None for one that is not known."""
    version = str(body.get("apiVersion", "")).rpartition("/")[2]
    return version if version in list(StrimziVersion) else None


def _body(reference: StrimziRef, place: str, found: FoundKafka) -> Mapping[str, Any]:
    if found.refused:
        raise _waiting(
            "KafkaNotReadable",
            f"the operator may not read Kafka {reference.name!r} in namespace {place}: {found.refused}. The chart's "
            "value strimzi.namespaces gives it the right.",
        )
    if found.body is None:
        message = f"there is no Kafka {reference.name!r} of kafka.strimzi.io in namespace {place}."
        raise _waiting("KafkaNotFound", message)
    return found.body


def _listener(reference: StrimziRef, place: str, body: Mapping[str, Any]) -> _Listener:
    listeners = _named(_part(body, "spec", "kafka"), "listeners")
    chosen = listeners.get(reference.listener)
    if chosen is None:
        names = ", ".join(sorted(listeners)) or "none"
        kafka = f"Kafka {reference.name!r} in namespace {place}"
        raise _unfit(f"{kafka} has no listener {reference.listener!r}; it has: {names}.")
    authentication = _part(chosen, "authentication").get("type")
    own = bool(_part(chosen, "configuration", "brokerCertChainAndKey"))
    return _Listener(bool(chosen.get("tls")), None if authentication is None else str(authentication), own)


def _protocol(reference: StrimziRef, listener: _Listener, user: KafkaUserRef | None) -> Protocol:
    name, kind = f"listener {reference.listener!r} of Kafka {reference.name!r}", listener.authentication
    protocol = _PROTOCOLS.get((listener.tls, kind))
    if protocol is None:
        raise _unfit(
            f"{name} has authentication {kind!r}{'' if listener.tls else ' without TLS'}, and Logkeep knows tls and "
            "scram-sha-512. Choose another listener, or set bootstrapServers and security."
        )
    if reference.ca_secret_ref is not None and not listener.tls:
        raise _unfit(f"{name} has no TLS, so caSecretRef has no effect. Leave it out, or choose another listener.")
    if kind is None and user is not None:
        raise _unfit(
            f"{name} has no authentication, so kafkaUserRef has no effect. Leave it out, or choose another listener."
        )
    if kind is not None and user is None:
        raise _unfit(f"{name} has authentication {kind!r}: set spec.cluster.kafkaUserRef to a KafkaUser.")
    return protocol


def _addresses(reference: StrimziRef, place: str, body: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the servers, and the certificates that the resource shows."""
    shown = _named(_part(body, "status"), "listeners").get(reference.listener, {})
    listed = str(shown.get("bootstrapServers") or "").split(",")
    servers = tuple(server.strip() for server in listed if server.strip())
    if not servers:
        raise _waiting("KafkaNotReady", _not_ready(reference, place, body), warn=False)
    wrong = [server for server in servers if re.fullmatch(HOST_PORT, server) is None]
    if wrong:
        raise _unfit(f"the status of Kafka {reference.name!r} has an address that is not host:port: {wrong[0]!r}.")
    certificates = shown.get("certificates")
    return servers, tuple(map(str, certificates)) if isinstance(certificates, list) else ()


def _not_ready(reference: StrimziRef, place: str, body: Mapping[str, Any]) -> str:
    said = (
        f"Kafka {reference.name!r} in namespace {place} shows no addresses of listener {reference.listener!r} yet; the "
        "run begins when it does."
    )
    conditions = _part(body, "status").get("conditions")
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, Mapping) and condition.get("status") == "True" and condition.get("message"):
            return f"{said} Strimzi says: {condition.get('type')}: {condition['message']}"
    return said


def _trust(
    reference: StrimziRef, listener: _Listener, certificates: tuple[str, ...], *, here: bool
) -> tuple[CaRef | None, str | None]:
    """Return the Secret with the authorities to trust, or they themselves where pods cannot mount the Secret. Neither:
    those of the image, which know who signs certificates for listeners that have their own."""
    if reference.ca_secret_ref is not None:
        return reference.ca_secret_ref, None
    if listener.own_certificate:
        return None, None
    if here:
        return CaRef(name=f"{reference.name}-cluster-ca-cert"), None
    known = [certificate.strip() for certificate in certificates if _PEM in certificate]
    if not known:
        message = f"Kafka {reference.name!r} shows no certificate of listener {reference.listener!r} yet."
        raise _waiting("KafkaNotReady", message, warn=False)
    return None, "\n".join(known) + "\n"


def _named(part: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    """Return the items of a list by their names. The resource is another's: what is not of the form counts as
    absent."""
    items = part.get(key)
    found = [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []
    return {str(item["name"]): item for item in found if item.get("name")}


def _part(body: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for key in path:
        value = body.get(key)
        body = value if isinstance(value, Mapping) else {}
    return body


def _unfit(message: str) -> Waiting:
    return _waiting("KafkaListenerUnfit", message)


def _waiting(reason: str, message: str, *, warn: bool = True) -> Waiting:
    return Waiting(reason, f"spec.cluster.strimzi: {message}", warn, RECHECK_SECONDS)

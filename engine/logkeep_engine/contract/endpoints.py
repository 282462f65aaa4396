"""Addresses that resources name: of object stores, of token endpoints, and of brokers. Which of them no resource may
name at all, and which endpoints an installation, or a caller of the plugin, has allowed.

    allow_endpoint("https://minio.storage:9000", ["https://*.storage:9000"])  # True

A user who may write a resource decides where pods connect to, and where keys of a Secret go to. So an endpoint is an
origin and nothing more, and it is never a metadata service: those give a node's credentials to any client.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from logkeep_engine.contract.model import MEANT, meant, schema
from logkeep_engine.contract.values import HOST_PORT
from logkeep_engine.contract.wildcards import matches_any

ENDPOINT = meant(
    r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?$",
    "https://host:port or http://host:port, without a user, a password, a path, a query or a fragment",
)
NOT_AN_ORIGIN = f"must be {MEANT[ENDPOINT]}"
URL = meant(
    r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~%!$&'()*+,;=:@/-]*)?$",
    "https://host:port/path or http://host:port/path, without a user, a password, a query or a fragment",
)
NOT_A_URL = f"must be {MEANT[URL]}"
REGION = meant(r"^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$", "the name of a region: letters, digits and '-'")

ANY_ENDPOINT = "*"
_ENTRY = re.compile(r"https?://[A-Za-z0-9._*:\[\]-]+/?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}

# The metadata services of Amazon (also of ECS and EKS), Google, Azure, Alibaba and Oracle.
_METADATA_NAMES = (
    "metadata",
    "metadata.goog",
    "metadata.google.internal",
    "instance-data",
    "instance-data.ec2.internal",
)
_METADATA_V4 = tuple(map(IPv4Network, ("169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32")))
_METADATA_V6 = tuple(map(IPv6Network, ("fe80::/10", "fd00:ec2::/32", "fd20:ce::254/128")))
# Addresses of IPv6 with an address of IPv4 at their end: compatible, mapped, translated (NAT64).
_WITH_V4 = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")))


def is_metadata_host(host: str) -> bool:
    """Return whether a host, without brackets, is a metadata service or a link-local address, in any spelling that
    resolvers take: 2852039166, 0xa9fea9fe, 0251.0376.0251.0376 and ::ffff:169.254.169.254 are all 169.254.169.254."""
    name = host.rstrip(".").lower()
    if name in _METADATA_NAMES:
        return True
    if ":" in name:
        try:
            address = IPv6Address(name.partition("%")[0])
        except ValueError:
            return False
        return any(address in network for network in _METADATA_V6) or any(map(_is_metadata_v4, _embedded(address)))
    try:
        return _is_metadata_v4(IPv4Address(socket.inet_aton(name)))
    except OSError:
        return False


def _embedded(address: IPv6Address) -> list[IPv4Address]:
    # networks that translate to IPv4 carry the address in their last 32 bits; 6to4 has it right after its prefix
    found = [IPv4Address(int(address) & 0xFFFFFFFF)] if any(address in network for network in _WITH_V4) else []
    return [*found, *([address.sixtofour] if address.sixtofour is not None else [])]


def _is_metadata_v4(address: IPv4Address) -> bool:
    return any(address in network for network in _METADATA_V4)


def _refuse_metadata(host: str) -> None:
    if is_metadata_host(host):
        raise ValueError(f"{host} is a metadata service or a link-local address, which no resource may name")


def _endpoint(text: str) -> str:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        if ":" in host:
            IPv6Address(host)
    except ValueError:
        raise ValueError(NOT_AN_ORIGIN) from None
    if port == 0:
        raise ValueError(NOT_AN_ORIGIN)
    _refuse_metadata(host)
    return text


def _token_endpoint(text: str) -> str:
    _endpoint(origin_of_url(text))
    return text


def _broker(text: str) -> str:
    _refuse_metadata(text.rpartition(":")[0].strip("[]"))
    return text


Endpoint = Annotated[str, Field(pattern=ENDPOINT), schema(maxLength=1024), AfterValidator(_endpoint)]
TokenEndpoint = Annotated[str, Field(pattern=URL), schema(maxLength=1024), AfterValidator(_token_endpoint)]
Region = Annotated[str, Field(pattern=REGION), schema(maxLength=64)]
Broker = Annotated[str, Field(pattern=HOST_PORT), schema(maxLength=300), AfterValidator(_broker)]


def check_allowed_endpoint(entry: str) -> None:
    """Raises ValueError if this is not an entry of a list of allowed endpoints: `*`, or an origin, in whose host and
    port `*` stands for any characters."""
    if entry != ANY_ENDPOINT and not _ENTRY.fullmatch(entry):
        raise ValueError(f"{entry!r} must be https://host:port, http://host:port or {ANY_ENDPOINT}")


def allow_endpoint(endpoint: str, entries: Iterable[str]) -> bool:
    """Return whether a list of allowed endpoints has the origin of this one. `http://` must be written out: `*` alone
    allows what is encrypted. What is not an entry allows nothing."""
    wanted = origin(endpoint)
    patterns = [
        "https://*" if entry == ANY_ENDPOINT else entry.lower().rstrip("/")
        for entry in entries
        if entry == ANY_ENDPOINT or _ENTRY.fullmatch(entry)
    ]
    port = _DEFAULT_PORTS[wanted.partition(":")[0]]
    return matches_any(wanted, patterns) or (urlsplit(wanted).port is None and matches_any(f"{wanted}{port}", patterns))


def origin_of_url(url: str) -> str:
    """Return the part of a URL before its path."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def origin(endpoint: str) -> str:
    """Return the endpoint as lists are compared with it: in lower case, without the port that its scheme has anyway."""
    plain = endpoint.lower().rstrip("/")
    return plain.removesuffix(_DEFAULT_PORTS[plain.partition(":")[0]])

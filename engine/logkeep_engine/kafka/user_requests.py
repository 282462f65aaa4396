"""Requests about the users of a cluster: ACLs, client quotas, names of SCRAM users.

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1. The versions are the lowest
that brokers of today take, so that one of 2.8 understands them. Any broker answers: it passes on what the controller
must do.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from logkeep_engine.kafka.encoding import NO_TAGS, Call, Reader, pack_array, pack_string

T = TypeVar("T")

_RESOURCES = {2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID", 6: "DELEGATION_TOKEN", 7: "USER"}
_PATTERNS = {3: "LITERAL", 4: "PREFIXED"}
OPERATIONS = dict(
    enumerate(
        (
            "ALL",
            "READ",
            "WRITE",
            "CREATE",
            "DELETE",
            "ALTER",
            "DESCRIBE",
            "CLUSTER_ACTION",
            "DESCRIBE_CONFIGS",
            "ALTER_CONFIGS",
            "IDEMPOTENT_WRITE",
            "CREATE_TOKENS",
            "DESCRIBE_TOKENS",
            "TWO_PHASE_COMMIT",
        ),
        start=2,  # 0 is unknown, and 1 any
    )
)
_PERMISSIONS = {2: "DENY", 3: "ALLOW"}
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_ANY = 1  # in a filter: no matter which
_VALUE = struct.Struct(">d")
_QUOTA = struct.Struct(">d?")


class Acl(NamedTuple):
    """An ACL, in the words of Kafka's own tools. A word that this version does not know is its number."""

    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str

    def __str__(self) -> str:
        of = "" if self.pattern == "LITERAL" else f"{self.pattern} "
        return (
            f"{self.permission} {self.principal} from {self.host}: {self.operation} on {of}{self.resource} {self.name}"
        )


Entity = tuple[tuple[str, str | None], ...]
"""Types and names of what a quota is for, the last type first: (("user", "alice"), ("client-id", None)); None is the
default."""


class Quota(NamedTuple):
    """One value of a client quota; None takes it away."""

    entity: Entity
    key: str
    value: float | None

    def __str__(self) -> str:
        value = "none" if self.value is None else plain_number(self.value)
        return f"{self.key}={value} of {entity_name(self.entity)}"


def plain_number(value: float) -> str:
    """For messages and tables: the whole number, without a fraction of 0 and without an exponent."""
    return str(int(value)) if value.is_integer() else repr(value)


def entity_name(entity: Entity) -> str:
    """For messages: `user alice, client-id <default>`."""
    return ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in entity)


class ScramUser(NamedTuple):
    """A user who logs in with SCRAM. Kafka gives no password, and nothing from which one could be made."""

    name: str
    mechanism: str
    iterations: int


@dataclass(frozen=True, slots=True)
class Described(Generic[T]):
    """The answer to a question: what there is, or the code and the reason why it is not reported."""

    throttle_ms: int
    code: int
    reason: str
    items: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """The outcome of each item of an order: its code and reason, in the order of the items."""

    throttle_ms: int
    items: tuple[tuple[int, str], ...]


def describe_acls() -> Call[Described[Acl]]:
    """Return all ACLs. Needs the ACL DESCRIBE on the cluster."""
    body = struct.pack(">b", _ANY) + pack_string(None) + struct.pack(">b", _ANY)
    body += pack_string(None) + pack_string(None) + struct.pack(">bb", _ANY, _ANY)

    def resource(read: Reader) -> list[Acl]:
        kind, name, pattern = read.int8(), read.string(), read.int8()
        where = _word(_RESOURCES, kind), name, _word(_PATTERNS, pattern)
        return read.array(
            lambda: Acl(
                *where, read.string(), read.string(), _word(OPERATIONS, read.int8()), _word(_PERMISSIONS, read.int8())
            )
        )

    def answer(read: Reader) -> Described[Acl]:
        throttle, code, reason = read.int32(), read.int16(), read.string()
        found = read.array(lambda: resource(read))
        return Described(throttle, code, reason, tuple(acl for some in found for acl in some))

    return Call(29, 1, (body,), answer)


def create_acls(acls: Sequence[Acl]) -> Call[Results]:
    """Add ACLs; one that is there already stays. Needs the ACL ALTER on the cluster."""
    body = pack_array(
        struct.pack(">b", _number(_RESOURCES, acl.resource))
        + pack_string(acl.name)
        + struct.pack(">b", _number(_PATTERNS, acl.pattern))
        + pack_string(acl.principal)
        + pack_string(acl.host)
        + struct.pack(">bb", _number(OPERATIONS, acl.operation), _number(_PERMISSIONS, acl.permission))
        for acl in acls
    )

    def answer(read: Reader) -> Results:
        return Results(read.int32(), tuple(read.array(lambda: (read.int16(), read.string()))))

    return Call(30, 1, (body,), answer)


def describe_quotas() -> Call[Described[Quota]]:
    """Return all client quotas. Needs the ACL DESCRIBE_CONFIGS on the cluster."""

    def entry(read: Reader) -> list[Quota]:
        entity = _entity(read)
        return read.array(lambda: Quota(entity, read.string(), *read.unpack(_VALUE)))

    def answer(read: Reader) -> Described[Quota]:
        throttle, code, reason = read.int32(), read.int16(), read.string()
        found = read.array(lambda: entry(read))
        return Described(throttle, code, reason, tuple(quota for some in found for quota in some))

    return Call(48, 0, (pack_array([]) + b"\x00",), answer)  # of any entity, and not strict: more parts are fine


def alter_quotas(quotas: Sequence[tuple[Entity, Sequence[Quota]]], *, only_check: bool) -> Call[Results]:
    """Set these values of these entities; other values stay. Needs the ACL ALTER_CONFIGS on the cluster. `only_check`:
    nothing is changed, and the answer is the same."""
    body = pack_array(
        pack_array(pack_string(kind) + pack_string(name) for kind, name in entity)
        + pack_array(pack_string(item.key) + _QUOTA.pack(item.value or 0.0, item.value is None) for item in items)
        for entity, items in quotas
    ) + struct.pack(">b", int(only_check))

    def one(read: Reader) -> tuple[Entity, tuple[int, str]]:
        result = read.int16(), read.string()
        return _entity(read), result

    def answer(read: Reader) -> Results:
        throttle, found = read.int32(), dict(read.array(lambda: one(read)))
        # A broker answers in an order of its own.
        return Results(throttle, tuple(found[entity] for entity, _ in quotas if entity in found))

    return Call(49, 0, (body,), answer)


def describe_scram_users() -> Call[Described[ScramUser]]:
    """Return the names of all SCRAM users, with mechanisms and iterations. Needs the ACL DESCRIBE on the cluster."""

    def credential(read: Reader) -> tuple[str, int]:
        found = _word(_MECHANISMS, read.int8()), read.int32()
        read.tags()
        return found

    def user(read: Reader) -> list[ScramUser]:
        name = read.compact_string()
        read.int16()
        read.compact_string()
        users = [ScramUser(name, *item) for item in read.compact_array(lambda: credential(read))]
        read.tags()
        return users

    def answer(read: Reader) -> Described[ScramUser]:
        throttle, code, reason = read.int32(), read.int16(), read.compact_string()
        users = [item for some in read.compact_array(lambda: user(read)) for item in some]
        return Described(throttle, code, reason, tuple(users))

    # No name stands for all, and so does null: but for that a broker fails to tell a user that he may not ask.
    nobody = b"\x01"
    return Call(50, 0, (nobody + NO_TAGS,), answer, flexible=True)


def _entity(read: Reader) -> Entity:
    return tuple(sorted(read.array(lambda: (read.string(), read.nullable_string())), reverse=True))


def is_sendable(acl: Acl) -> bool:
    """Return whether each word of an ACL is one of Kafka's, or the number of one."""
    words = (
        (_RESOURCES, acl.resource),
        (_PATTERNS, acl.pattern),
        (OPERATIONS, acl.operation),
        (_PERMISSIONS, acl.permission),
    )
    numbers = re.compile("[0-9]{1,2}")
    return all(word in known.values() or numbers.fullmatch(word) for known, word in words)


def _word(words: dict[int, str], number: int) -> str:
    return words.get(number, str(number))


def _number(words: dict[int, str], word: str) -> int:
    return next((number for number, known in words.items() if known == word), 0) or int(word)

"""Users of a cluster: their ACLs, quotas and SCRAM names, asked for and set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

from logkeep_engine.errors import BrokerRefused, BrokerUnavailable
from logkeep_engine.kafka.admin import Admin
from logkeep_engine.kafka.codes import PASSING, RETRIABLE, Code
from logkeep_engine.kafka.encoding import Call
from logkeep_engine.kafka.queries import NOT_REPORTED, ClusterView, describe_operations
from logkeep_engine.kafka.retry import RetriableError
from logkeep_engine.kafka.survey import Survey, in_parts
from logkeep_engine.kafka.user_requests import (
    OPERATIONS,
    Acl,
    Described,
    Quota,
    Results,
    ScramUser,
    alter_quotas,
    create_acls,
    describe_acls,
    describe_quotas,
    describe_scram_users,
    is_sendable,
)

T = TypeVar("T")

REQUEST_UNKNOWN = "the brokers do not know the request"
_A_REQUEST = 500
MOST_ACLS = 10_000
"""Controllers add no more ACLs in one request (MAX_RECORDS_PER_USER_OP)."""

_SECONDS = 30.0  # a broker may have a hundred thousand ACLs to list


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """Everything of a kind that the cluster has; or None, and the reason why it does not report it to this user.
    `switched_off`: the cluster cannot have any, since it has no authorizer."""

    items: tuple[T, ...] | None
    reason: str = ""
    switched_off: bool = False


@dataclass(frozen=True, slots=True)
class SetRefused(Generic[T]):
    """An item that the cluster did not take, and why."""

    item: T
    reason: str


class UserAdmin(Admin):
    """Questions and orders about users."""

    def acls(self) -> Known[Acl]:
        """Return all ACLs."""
        return self._described(describe_acls(), "list ACLs")

    def quotas(self) -> Known[Quota]:
        """Return all client quotas."""
        return self._described(describe_quotas(), "list client quotas")

    def scram_users(self) -> Known[ScramUser]:
        """Return the names of all SCRAM users."""
        return self._described(describe_scram_users(), "list SCRAM users")

    def cluster_operations(self) -> frozenset[str]:
        """Return the operations on the cluster that this user may do, such as ALTER: all, if nothing checks them."""

        async def ask(survey: Survey) -> ClusterView:
            return await survey.pool.ask(survey.pool.any_node(), describe_operations())

        reported = self._ask(ask, "ask for the operations on the cluster").operations
        return frozenset(
            name for number, name in OPERATIONS.items() if reported != NOT_REPORTED and reported >> number & 1
        )

    def create_acls(self, acls: Sequence[Acl], at_once: int | None = None) -> list[SetRefused[Acl]]:
        """Add ACLs, `at_once` in a request; returns those that the cluster does not take. Safe to repeat. Raises
        BrokerRefused for a user who may not."""
        refused = [SetRefused(acl, "it has a word that Kafka does not know") for acl in acls if not is_sendable(acl)]
        for part in in_parts([acl for acl in acls if is_sendable(acl)], at_once or _A_REQUEST):
            refused += _refused(part, self._ordered(create_acls(part), "add ACLs"), "add ACLs", "ALTER")
            self.note_change()
        return refused

    def set_quotas(self, quotas: Sequence[Quota], *, only_check: bool = False) -> list[SetRefused[Quota]]:
        """Set these values; returns those that the cluster does not take. Safe to repeat. `only_check`: nothing is
        set. Raises BrokerRefused for a user who may not."""
        refused: list[SetRefused[Quota]] = []
        by_entity = [
            (entity, list(found)) for entity, found in groupby(sorted(quotas, key=repr), key=lambda item: item.entity)
        ]
        for part in in_parts(by_entity, _A_REQUEST):
            results = self._ordered(
                alter_quotas(part, only_check=only_check), "set client quotas", only_check=only_check
            )
            found = _refused(part, results, "set client quotas", "ALTER_CONFIGS")
            if not only_check and len(found) < len(part):
                self.note_change()
            for refusal in found:
                items = refusal.item[1]
                if len(items) == 1:
                    refused.append(SetRefused(items[0], refusal.reason))
                else:  # the cluster takes all values of an entity or none
                    for quota in items:
                        refused += self.set_quotas([quota], only_check=only_check)
        return refused

    def _described(self, call: Call[Described[T]], what: str) -> Known[T]:
        async def ask(survey: Survey) -> Known[T]:
            node = survey.pool.any_node()
            if not await survey.pool.speaks(node, call):
                return Known(None, REQUEST_UNKNOWN)
            answer = await survey.pool.ask(node, call, _SECONDS)
            if answer.code == Code.NONE:
                return Known(answer.items)
            if answer.code == Code.SECURITY_DISABLED:
                return Known((), _describe_refusal(answer.code, answer.reason), switched_off=True)
            if answer.code in RETRIABLE:
                raise RetriableError(f"{survey.pool.name(node)} says {_describe_refusal(answer.code, answer.reason)}")
            return Known(None, _describe_refusal(answer.code, answer.reason))

        return self._ask(ask, what)

    def _ordered(self, call: Call[Results], what: str, *, only_check: bool = False) -> Results:
        """Return the outcomes of orders. Raises BrokerUnavailable where an answer was lost, and the user is refused
        after that: the orders may have taken the very right to repeat them."""
        lost: list[RetriableError] = []
        results = self._order(
            call,
            what,
            lambda found: found.items,
            passing=PASSING,
            attempts=1,
            only_check=only_check,
            lost=lost.append,
        )
        if lost and _not_allowed(results):
            raise BrokerUnavailable(
                f"It is unknown whether the cluster has carried out the request to {what}: the answer was lost, and "
                f"the user now lacks the right: {Code.CLUSTER_AUTHORIZATION_FAILED.name}.",
                hint="Start the same run again.",
            )
        return results


def _not_allowed(results: Results) -> bool:
    return any(code == Code.CLUSTER_AUTHORIZATION_FAILED for code, _ in results.items)


def _refused(items: Sequence[T], results: Results, what: str, operation: str) -> list[SetRefused[T]]:
    if _not_allowed(results):
        raise BrokerRefused(
            f"The user may not {what}: {Code.CLUSTER_AUTHORIZATION_FAILED.name}.",
            hint=f"Give the user the ACL {operation} on the cluster, and try again.",
        )
    if len(items) != len(results.items):
        raise BrokerRefused(
            f"The cluster answered {len(results.items)} of {len(items)} requests.", hint="See the broker's log."
        )
    return [
        SetRefused(item, _describe_refusal(code, reason))
        for item, (code, reason) in zip(items, results.items, strict=True)
        if code != Code.NONE
    ]


def _describe_refusal(code: int, reason: str) -> str:
    # The broker's reason for this code says which of its own objects it has looked at.
    return Code.describe(code, "" if code == Code.CLUSTER_AUTHORIZATION_FAILED else reason)

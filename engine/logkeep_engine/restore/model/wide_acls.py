"""Archived ACLs that come back only with a word in the spec (`spec.acls`): those that reach further than others.

A writer of the archive can put an ACL there. One that names a topic, a group or a transactional id, and a
principal whom the target knows, gives a known user the rights on one thing. The others could give a stranger the whole
cluster, so the spec must name them. ACLs that deny something to a principal whom the target does not know come back:
they take rights only.

A principal is known if the target has an ACL that allows it something, or a SCRAM user of its name. Quotas do not
count: the restore itself has just brought those of the archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from logkeep_engine.contract.cluster_state import RestoredAcls
from logkeep_engine.contract.patterns import NamePatterns
from logkeep_engine.contract.values import so_many
from logkeep_engine.kafka.user_requests import Acl, ScramUser

_ANY = "*"
_NAMED = ("TOPIC", "GROUP", "TRANSACTIONAL_ID")
_ALLOW, _DENY = "ALLOW", "DENY"
_SHOWN = 5


def known_principals(acls: Iterable[Acl], users: Iterable[ScramUser]) -> set[str]:
    """Return the principals whom a cluster with these ACLs and users knows."""
    return {acl.principal for acl in acls if acl.permission == _ALLOW} | {f"User:{user.name}" for user in users}


def held_back(acls: Iterable[Acl], known: set[str], consent: RestoredAcls) -> dict[Acl, str]:
    """Return the ACLs of these that need a word which the spec does not have, with the reason. Pure."""
    wanted = NamePatterns(consent.principals)
    found = {}
    for acl in acls:
        reasons = list(_reasons(acl, known, consent, wanted))
        if reasons:
            found[acl] = " and ".join(reasons)
    return found


def _reasons(acl: Acl, known: set[str], consent: RestoredAcls, wanted: NamePatterns) -> Iterator[str]:
    if acl.resource not in _NAMED and not consent.cluster:
        yield "it is on the cluster, a user or a token, and spec.acls.cluster is not set"
    if acl.name == _ANY and not consent.any_resource:
        yield "it is on any resource, and spec.acls.anyResource is not set"
    if acl.principal.endswith(f":{_ANY}"):
        if not consent.any_principal:
            yield "it is for everyone, and spec.acls.anyPrincipal is not set"
    # Kafka's numbers stand for its words, too: whatever does not deny allows.
    elif acl.permission != _DENY and acl.principal not in known and not wanted.chooses(acl.principal):
        yield "the cluster does not know its principal, and spec.acls.principals does not name it"


def describe_held_back(held: Mapping[Acl, str], where: str = "", *, would: bool = False) -> Iterator[str]:
    """Yield the warning about ACLs that were held back; or that `would` be, in a dry run."""
    if not held:
        return
    listed = "; ".join(f"{acl} ({reason})" for acl, reason in list(held.items())[:_SHOWN])
    more = f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
    denying = sum(acl.permission == _DENY for acl in held)
    deny, were = "denies" if denying == 1 else "deny", "was" if len(held) == 1 else "were"
    wider = f"; {denying} of them {deny}, so other users may do more than before" if denying else ""
    does, what = ("would be", "name them there") if would else (were, "set those that you need by hand")
    text = f"{so_many(len(held), 'ACL')} {does} held back, since spec.acls does not name {_them(len(held))}"
    yield f"{text}: {listed}{more}{wider}: {what}{where}"


def _them(count: int) -> str:
    return "it" if count == 1 else "them"

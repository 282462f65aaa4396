"""ACLs that reach further than one thing and one known principal come back only with a word in the spec."""

from __future__ import annotations

import pytest

from logkeep_engine.contract.cluster_state import RestoredAcls
from logkeep_engine.kafka.user_requests import Acl, ScramUser
from logkeep_engine.restore.model.wide_acls import describe_held_back, held_back, known_principals

PLAIN = Acl("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW")
KNOWN = {"User:alice"}
NOTHING = RestoredAcls()


def reasons(acl: Acl, **consent: object) -> str:
    return held_back([acl], KNOWN, RestoredAcls.model_validate(consent)).get(acl, "")


@pytest.mark.parametrize(
    "acl",
    [
        PLAIN,
        PLAIN._replace(resource="GROUP", name="team-", pattern="PREFIXED"),
        PLAIN._replace(resource="TRANSACTIONAL_ID"),
        PLAIN._replace(permission="DENY"),
        PLAIN._replace(permission="DENY", principal="User:mallory"),
    ],
)
def test_what_names_one_thing_and_one_known_principal_comes_back(acl: Acl) -> None:
    assert reasons(acl) == ""


@pytest.mark.parametrize(
    ("changes", "consent", "expected"),
    [
        ({"resource": "CLUSTER", "name": "kafka-cluster", "operation": "ALTER"}, {"cluster": True}, "on the cluster"),
        ({"resource": "USER", "name": "admin", "operation": "CREATE_TOKENS"}, {"cluster": True}, "a user or a token"),
        ({"resource": "DELEGATION_TOKEN", "name": "x"}, {"cluster": True}, "a user or a token"),
        ({"resource": "17", "name": "x"}, {"cluster": True}, "on the cluster"),
        ({"name": "*", "operation": "ALL"}, {"anyResource": True}, "on any resource"),
        ({"name": "*", "permission": "DENY"}, {"anyResource": True}, "on any resource"),
        ({"principal": "User:*"}, {"anyPrincipal": True}, "for everyone"),
        ({"principal": "User:*", "permission": "DENY"}, {"anyPrincipal": True}, "for everyone"),
        ({"principal": "Group:*"}, {"anyPrincipal": True}, "for everyone"),
        ({"principal": "User:mallory"}, {"principals": ["User:m.*"]}, "does not know its principal"),
        ({"principal": "User:mallory", "permission": "3"}, {"principals": ["User:m.*"]}, "does not know its principal"),
        ({"resource": "2", "name": "x"}, {"cluster": True}, "on the cluster"),
        ({"principal": "User:alic"}, {"principals": ["User:alic"]}, "does not know its principal"),
        ({"principal": "User:alice2"}, {"principals": [".*2"]}, "does not know its principal"),
    ],
)
def test_what_reaches_further_needs_its_own_word(
    changes: dict[str, str], consent: dict[str, object], expected: str
) -> None:
    acl = PLAIN._replace(**changes)
    assert expected in reasons(acl)
    assert reasons(acl, **consent) == ""
    others = {"cluster": True, "anyResource": True, "anyPrincipal": True, "principals": [".*"]}
    assert expected in reasons(acl, **{key: value for key, value in others.items() if key not in consent})


def test_an_acl_that_reaches_far_in_several_ways_needs_all_words() -> None:
    acl = Acl("TOPIC", "*", "LITERAL", "User:mallory", "*", "ALL", "ALLOW")
    assert " and " in reasons(acl)
    assert "principal" in reasons(acl, anyResource=True)
    assert "any resource" in reasons(acl, principals=["User:mallory"])
    assert reasons(acl, anyResource=True, principals=["User:mallory"]) == ""


def test_the_wildcard_is_not_a_principal_that_a_pattern_names() -> None:
    assert "for everyone" in reasons(PLAIN._replace(principal="User:*"), principals=[".*"])


def test_a_pattern_must_match_the_whole_principal() -> None:
    assert reasons(PLAIN._replace(principal="User:mallory"), principals=["User:m"]) != ""


def test_the_cluster_knows_its_users_and_whom_its_acls_allow_something() -> None:
    denied = PLAIN._replace(principal="User:denied", permission="DENY")
    known = known_principals([PLAIN, denied], [ScramUser("bob", "SCRAM-SHA-256", 4096)])
    assert known == {"User:alice", "User:bob"}


def test_the_warning_names_the_first_and_says_whether_some_deny() -> None:
    acls = [PLAIN._replace(principal=f"User:m{number}") for number in range(6)]
    acls.append(PLAIN._replace(principal="User:*", permission="DENY"))
    (text,) = describe_held_back(held_back(acls, KNOWN, NOTHING), " (report)")
    assert text.startswith(
        "7 ACLs were held back, since spec.acls does not name them: ALLOW User:m0 from *: READ on TOPIC orders (the "
    )
    assert " and 2 more; 1 of them denies, so other users may do more than before: set those that you need" in text
    assert text.endswith("(report)")
    (would,) = describe_held_back(held_back(acls[:1], KNOWN, NOTHING), would=True)
    assert would.startswith("1 ACL would be held back")
    assert would.endswith(": name them there")
    assert list(describe_held_back({})) == []

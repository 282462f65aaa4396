"""Archived users beside those of the target: above all ACLs whose host is a range of addresses."""

import pytest

from logkeep_engine.archive.catalog.cluster_state import ClusterState
from logkeep_engine.kafka.user_requests import Acl, ScramUser
from logkeep_engine.kafka.users import Known, SetRefused
from logkeep_engine.restore.model.compared_items import ComparedItems, compared_acls, describe_refused

ALICE = Acl("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW")
RANGE = ALICE._replace(host="10.0.0.0/8")
DENY = ALICE._replace(host="2001:db8::/32", permission="DENY")
ADDRESS = ALICE._replace(host="10.0.0.1")
USERS = Known((ScramUser("alice", "SCRAM-SHA-512", 4096),))


def compared(features: dict[str, int], *there: Acl) -> ComparedItems[Acl]:
    state = ClusterState("run-1", 1, acls=(ALICE, RANGE, DENY, ADDRESS))
    return compared_acls(state, Known(there), USERS, None, features)


@pytest.mark.parametrize(
    ("features", "has"),
    [
        ({"metadata.version": 31}, "has 31"),
        ({"metadata.version": 25, "share.version": 1}, "has 25"),
        ({}, "reports none"),
    ],
)
def test_a_range_of_addresses_is_not_sent_to_a_cluster_that_takes_it_for_a_name(
    features: dict[str, int], has: str
) -> None:
    found = compared(features)
    assert set(found.missing) == {ALICE, ADDRESS}
    assert {item.item for item in found.strange} == {RANGE, DENY}
    assert {item.reason for item in found.strange} == {
        "the host is a range of addresses, which needs metadata.version 32 (Kafka 4.4), and the cluster " + has
    }
    (text,) = describe_refused("ACL", found.strange, " (the document)")
    assert text.startswith("2 ACLs could not be set: ALLOW User:alice from 10.0.0.0/8: READ on TOPIC orders (the host")
    assert "; 1 of them denies, so other users may do more than before: set them by hand (the document)" in text


def test_a_cluster_that_knows_ranges_gets_them() -> None:
    found = compared({"metadata.version": 32})
    assert (set(found.missing), found.strange) == ({ALICE, RANGE, DENY, ADDRESS}, ())


def test_what_is_there_already_is_left_as_it_is() -> None:
    assert compared({"metadata.version": 20}, RANGE, DENY).strange == ()


def test_a_dry_run_says_what_would_not_be_set() -> None:
    (text,) = describe_refused("ACL", [SetRefused(RANGE, "no")], would=True)
    assert (
        text == "1 ACL would not be set: ALLOW User:alice from 10.0.0.0/8: READ on TOPIC orders (no): set them by hand"
    )
    assert list(describe_refused("ACL", [])) == []

"""Who is bound to one of the chart's roles may do this, and nothing else."""

from __future__ import annotations

import pytest

from tests.apiserver.conftest import chart
from tests.apiserver.operator import Namespace
from tests.apiserver.rights import may
from tests.cluster.apiserver import ApiServer

READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete", "deletecollection")
KINDS = ("kafkabackups.logkeep.dev", "kafkabackupruns.logkeep.dev", "kafkarestores.logkeep.dev")
ARCHIVES = "kafkaarchives.logkeep.dev"
# Verbs that each role has, by resource. What is not here is refused.
MAY: dict[str, dict[str, tuple[str, ...]]] = {
    "logkeep-view": dict.fromkeys((*KINDS, ARCHIVES), READ),
    # Who may write a backup may not write an archive, which names Secrets.
    "logkeep-edit": {**dict.fromkeys(KINDS, READ + WRITE), ARCHIVES: READ},
    "logkeep-admin": {
        **dict.fromkeys((*KINDS, ARCHIVES), READ + WRITE),
        **dict.fromkeys((f"{kind}/status" for kind in (*KINDS, ARCHIVES)), ("get", "update", "patch")),
    },
    "logkeep-run": {"kafkabackupruns.logkeep.dev": (*READ, "create", "delete")},
}
# Making a KafkaBackup makes pods by the operator's hand; the roles themselves give nothing of this.
OURS = (*KINDS, ARCHIVES)
ASKED = (*OURS, *(f"{kind}/status" for kind in OURS), "secrets", "pods", "pods/exec", "jobs.batch", "configmaps")


@pytest.fixture(scope="module", autouse=True)
def roles(api: ApiServer) -> None:
    api.kubectl("apply", "-f", "-", stdin=chart("--show-only", "templates/user-roles.yaml"))


@pytest.mark.parametrize("role", MAY)
def test_a_role_gives_what_the_table_says(namespace: Namespace, role: str) -> None:
    user = f"{role}-of-{namespace.name}"
    namespace.kubectl("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}")
    given, expected = set(), set()
    for resource in ASKED:
        expected |= {(resource, verb) for verb in MAY[role].get(resource, ())}
        given |= {(resource, verb) for verb in READ + WRITE if may(namespace.api, user, verb, resource, namespace.name)}
    assert given == expected

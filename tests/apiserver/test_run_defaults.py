"""Defaults of an installation for the pods of runs and for their accounts, with the rights that its chart gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import chart
from tests.apiserver.operator import Namespace, Operator, wait_for
from tests.apiserver.test_operator import start
from tests.cluster.apiserver import ApiServer

pytestmark = pytest.mark.timeout(300)

ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/logkeep"}
DEFAULTS = {"driver": {"memory": "1Gi", "podTemplate": {"spec": {"nodeSelector": {"pool": "batch"}}}}}


@pytest.fixture
def annotating(api: ApiServer, namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path) -> Iterator[Operator]:
    """The operator of a chart with defaults, and the rights of that chart."""
    given = ["--set-json", f"engine.defaults.serviceAccountAnnotations={json.dumps(ROLE)}"]
    api.kubectl("apply", "-f", "-", stdin=chart("--show-only", "templates/rbac.yaml", *given))
    operator = Operator(
        *(operator_kubeconfig, namespace.name, tmp_path / "operator.log"),
        LOGKEEP_RUN_DEFAULTS=json.dumps(DEFAULTS),
        LOGKEEP_ACCOUNT_ANNOTATIONS=json.dumps(ROLE),
    )
    try:
        with operator:
            yield operator
    finally:
        api.kubectl("apply", "-f", "-", stdin=chart("--show-only", "templates/rbac.yaml"))


def annotations_of(namespace: Namespace, name: str) -> Any:
    return namespace.get("serviceaccounts", name)["metadata"].get("annotations")


def test_runs_and_their_accounts_have_what_the_installation_says(namespace: Namespace, annotating: Operator) -> None:
    own = {"eks.amazonaws.com/role-arn": "arn:own", "note": "kept"}
    namespace.kubectl("create", "serviceaccount", "logkeep-executor")
    namespace.kubectl("create", "serviceaccount", "logkeep-engine")
    namespace.kubectl("annotate", "serviceaccount", "logkeep-executor", *(f"{key}={own[key]}" for key in own))
    start(namespace)
    (job,) = wait_for("the Job", lambda: namespace.items("jobs"))
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "batch"}
    assert pod["containers"][0]["resources"]["limits"]["memory"] == "1Gi"
    assert annotations_of(namespace, "logkeep-engine") == ROLE  # the account was there, without it
    assert annotations_of(namespace, "logkeep-executor") == own
    spec = namespace.get("kafkabackups", "nightly")["spec"]
    assert spec["spark"]["driver"] == {}  # nothing is written into the resource, where GitOps would see it


def test_all_that_is_made_for_runs_is_found_by_one_label(namespace: Namespace, annotating: Operator) -> None:
    """The page about uninstalling (docs/guides/uninstall.md) lists it by this label."""
    start(namespace)
    wait_for("the Job", lambda: namespace.items("jobs"))
    kinds = "serviceaccount,rolebinding,networkpolicy,configmap,job"
    found = namespace.kubectl("get", kinds, "-l", "app.kubernetes.io/part-of=logkeep", "-o", "name").stdout.split()
    names = sorted(name for name in found if not name.startswith(("configmap/", "job")))
    assert names == [
        "networkpolicy.networking.k8s.io/logkeep-runs", "rolebinding.rbac.authorization.k8s.io/logkeep-driver",
        "serviceaccount/logkeep-engine", "serviceaccount/logkeep-executor",
    ]  # fmt: skip
    assert len([name for name in found if name.startswith(("configmap/", "job"))]) == 3
    crds = namespace.kubectl("get", "crd", "-l", "app.kubernetes.io/part-of=logkeep", "-o", "name").stdout.split()
    ours = {f"{kind}.logkeep.dev" for kind in ("kafkaarchives", "kafkabackupruns", "kafkabackups", "kafkarestores")}
    assert {crd.rpartition("/")[2] for crd in crds} == ours


def test_an_operator_with_defaults_that_are_wrong_ends_and_names_them(
    namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    wrong = json.dumps({"driver": {"memory": "16Mi"}})
    operator = Operator(operator_kubeconfig, namespace.name, tmp_path / "operator.log", LOGKEEP_RUN_DEFAULTS=wrong)
    with operator:
        assert operator.wait_end() == 2
    assert "engine.defaults.driver.memory: 16Mi is too little" in (tmp_path / "operator.log").read_text()

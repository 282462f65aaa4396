"""Argo CD and Flux sync resources of Logkeep, by the libraries of their controllers: the API server collects garbage,
the operator runs, and a test plays the rest of the cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from logkeep_engine.contract.names import PLURALS
from tests.apiserver.conftest import SYSTEM, chart
from tests.apiserver.gitops import COMPARISONS, Argo, Body, Flux
from tests.apiserver.operator import ROOT, Namespace, Operator, result, run_id_of, wait_for
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.test_dry_run import REPORT
from tests.unit.operator.world import backup_of_its_own, restore_spec

pytestmark = pytest.mark.timeout(300)

CONTROLLERS = ("garbage-collector-controller", "namespace-controller")
Tool = Argo | Flux
TOOLS: dict[str, Callable[[Namespace], Tool]] = {
    "Argo CD, client-side apply": lambda place: Argo(place, options={"serverSideApply": False}),
    "Argo CD, server-side apply": Argo,
    "Flux": Flux,
}
each_tool = pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
SOURCE = {"source": {"storage": {"uri": "s3://bucket/prefix"}}}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WAVE = "argocd.argoproj.io/sync-wave"


@pytest.fixture
def running(place: Namespace, account: Path, tmp_path: Path) -> Iterator[Operator]:
    """The operator, serving this test's namespace."""
    with Operator(account, place.name, tmp_path / "operator.log") as operator:
        yield operator


def in_git(place: Namespace, kind: str, name: str, spec: dict[str, Any], **annotations: str) -> Body:
    """Return a resource as it lies in Git."""
    metadata = {"name": name, "namespace": place.name, **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": "logkeep.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def backup(place: Namespace, name: str = "nightly", **spec: Any) -> Body:
    return in_git(place, "KafkaBackup", name, backup_of_its_own(name, **spec))


def restore(place: Namespace, name: str = "again", **spec: Any) -> Body:
    return in_git(place, "KafkaRestore", name, restore_spec(**SOURCE) | spec)


def examples(place: Namespace) -> list[Body]:
    """Return all resources of the examples, a KafkaBackup with defaults within a list, and a KafkaBackupRun."""
    found: dict[tuple[str, str], Body] = {}
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document and str(document.get("apiVersion", "")).startswith("logkeep.dev/"):
                name = f"{path.stem}-{document['metadata']['name']}"
                found[document["kind"], name] = in_git(place, document["kind"], name, document["spec"])
    erasures = [{"name": "one", "topic": "orders", "keysSecretRef": {"name": "keys"}, "askedBy": "ticket 1"}]
    own = [backup(place, erasures=erasures), in_git(place, "KafkaBackupRun", "now", {"backupRef": {"name": "nightly"}})]
    assert {kind for kind, _ in found} >= {"KafkaArchive", "KafkaBackup", "KafkaRestore"}
    return [*found.values(), *own]


def seen_by_the_operator(place: Namespace, bodies: list[Body]) -> None:
    """Wait until each resource has a status that is about its spec of now."""

    def look() -> bool:
        found = [place.get(body["kind"].lower(), body["metadata"]["name"]) for body in bodies]
        return all(one.get("status", {}).get("observedGeneration") == one["metadata"]["generation"] for one in found)

    wait_for("the status of all", look)


def job_of(place: Namespace, name: str, *known: str) -> Body:
    """Wait for the Job of a resource that is none of the known runs."""

    def look() -> Body | None:
        for job in place.items("jobs"):
            if job["metadata"]["annotations"]["logkeep.dev/resource"] == name and run_id_of(job) not in known:
                return job
        return None

    return wait_for(f"the Job of {name}", look)


def ends(place: Namespace, job: Body, **facts: Any) -> None:
    place.write(job, result=result(run_id_of(job), kind="KafkaRestore", **facts))
    place.job_ends(job, "Failed" if facts.get("outcome") == "Failed" else "Complete")


FAILED: dict[str, Any] = {"outcome": "Failed", "exit_code": 2, "error_code": "TopicExists", "message": "It is there."}


# ---- drift


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_argo_cd_sees_no_drift_when_the_operator_and_a_person_have_written(
    place: Namespace, running: Operator, comparison: str
) -> None:
    app, git = Argo(place, options=COMPARISONS[comparison]), examples(place)
    ended = app.sync(*git)
    assert ended.succeeded, ended
    seen_by_the_operator(place, git)
    place.kubectl("annotate", "kbak", "nightly", "logkeep.dev/run=now")
    place.kubectl("annotate", "krst", "--all", "logkeep.dev/retry=now")
    assert app.differences(*git) == {}


def test_flux_sees_no_drift_when_the_operator_has_written(place: Namespace, running: Operator) -> None:
    app, git = Flux(place), examples(place)
    ended = app.sync(*git)
    assert ended.succeeded, ended
    assert set(ended.done.values()) == {"created"}
    seen_by_the_operator(place, git)
    ended = app.sync(*git)
    assert ended.succeeded, ended
    assert set(ended.done.values()) == {"unchanged"}


@each_tool
def test_a_field_that_git_no_longer_has_gets_its_default(place: Namespace, tool: Callable[[Namespace], Tool]) -> None:
    app = tool(place)
    assert app.sync(backup(place, suspend=True, runPolicy={"backoffLimit": 2})).succeeded
    assert app.sync(backup(place)).succeeded
    spec = place.get("kbak", "nightly")["spec"]
    assert (spec["suspend"], spec["runPolicy"]["backoffLimit"]) == (False, 3)


def test_argo_cd_leaves_what_a_person_has_added_and_two_tools_change_no_field_of_each_other(place: Namespace) -> None:
    argo, flux = Argo(place), Flux(place)
    assert argo.sync(backup(place)).succeeded
    place.kubectl("patch", "kbak", "nightly", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    place.kubectl("annotate", "kbak", "nightly", "logkeep.dev/run=1")
    before = place.get("kbak", "nightly")
    assert argo.sync(backup(place)).succeeded
    assert argo.differences(backup(place)) == {}
    assert place.get("kbak", "nightly") == before
    assert list(argo.differences(backup(place, suspend=False))) == ["KafkaBackup/nightly"], "what Git says is Git's"

    assert flux.sync(backup(place)).succeeded
    assert flux.sync(backup(place)).done == {"KafkaBackup/nightly": "unchanged"}
    assert argo.differences(backup(place)) == {}


def test_flux_takes_away_what_kubectl_has_written_unless_it_has_another_name_or_git_says_merge(
    place: Namespace,
) -> None:
    app = Flux(place)
    suspend = ("patch", "kbak", "nightly", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    annotate = ("annotate", "kbak", "nightly", "--overwrite", "logkeep.dev/run=1")

    def left(*more: str, **annotations: str) -> dict[str, Any]:
        """Let kubectl write, and Flux reconcile. Return what is left of it."""
        git = in_git(place, "KafkaBackup", "nightly", backup_of_its_own("nightly"), **annotations)
        assert app.sync(git).succeeded
        for command in (suspend, annotate):
            place.kubectl(*command, *more)
        assert app.sync(git).succeeded
        found = place.get("kbak", "nightly")
        return {
            "suspend": found["spec"]["suspend"],
            "run": found["metadata"].get("annotations", {}).get("logkeep.dev/run"),
        }

    assert left() == {"suspend": False, "run": None}
    assert left("--field-manager=logkeep") == {"suspend": True, "run": "1"}
    place.kubectl("delete", "kbak", "nightly")
    assert left(**{"kustomize.toolkit.fluxcd.io/ssa": "Merge"}) == {"suspend": True, "run": "1"}


def test_a_run_that_kubectl_has_asked_for_is_done_once_though_flux_takes_the_annotation_away(
    place: Namespace, running: Operator
) -> None:
    app = Flux(place)
    assert app.sync(backup(place)).succeeded
    first = job_of(place, "nightly")
    place.write(first, result=result(run_id_of(first)))
    place.job_ends(first, "Complete")
    place.phase("kbak", "nightly", "Succeeded")
    place.kubectl("annotate", "kbak", "nightly", "logkeep.dev/run=1")
    second = job_of(place, "nightly", run_id_of(first))
    assert app.sync(backup(place)).done == {"KafkaBackup/nightly": "configured"}
    place.write(second, result=result(run_id_of(second)))
    place.job_ends(second, "Complete")
    status = place.phase("kbak", "nightly", "Succeeded")
    assert (status["run"]["id"], status["lastHandledRun"]) == (run_id_of(second), "1")
    assert len(place.items("jobs")) == 2


# ---- prune


@pytest.mark.parametrize("tool", [Argo, lambda place: Argo(place, options={"byLabel": True}), Flux])
def test_what_git_removes_is_deleted_with_its_run_and_nothing_else_is(
    place: Namespace, running: Operator, tool: Callable[[Namespace], Tool]
) -> None:
    app = tool(place)
    lake = in_git(place, "KafkaArchive", "lake", {"storage": {"uri": "s3://bucket/lake"}})
    assert app.sync(lake, backup(place), restore(place)).succeeded
    removed, kept = job_of(place, "nightly"), job_of(place, "again")
    place.pod(removed, "driver", phase="Running")
    place.phase("kbak", "nightly", "Running")
    asked = in_git(place, "KafkaBackupRun", "by-hand", {"backupRef": {"name": "nightly"}})
    place.kubectl("create", "-f", "-", stdin=json.dumps(asked))
    wait_for("its owner", lambda: "ownerReferences" in place.get("kbrun", "by-hand")["metadata"])
    if isinstance(app, Argo):
        assert app.differences(lake, backup(place), restore(place)) == {}, (
            "nothing that the operator makes belongs to it"
        )
        assert app.differences(lake, restore(place)) == {"KafkaBackup/nightly": "to be pruned"}

    ended = app.sync(lake, restore(place))
    assert ended.succeeded, ended
    assert ended.pruned == ("KafkaBackup/nightly",)
    of_run = ("-l", f"logkeep.dev/run={run_id_of(removed)}")
    wait_for(
        "the end of the run's objects", lambda: place.kubectl("get", "jobs,pods,cm", "-o", "name", *of_run).stdout == ""
    )
    wait_for("the end of what was asked for", lambda: place.items("kafkabackupruns") == [])
    assert place.items("kafkabackups") == []
    assert [run_id_of(job) for job in place.items("jobs")] == [run_id_of(kept)]
    assert {one["metadata"]["name"] for one in place.items("serviceaccounts")} >= {"logkeep-engine", "logkeep-executor"}
    assert place.items("rolebindings")
    again = app.sync(lake, restore(place))
    assert (again.succeeded, again.pruned) == (True, ())


# ---- what is refused


def refusals(place: Namespace) -> dict[str, tuple[Body, Body, str]]:
    """Return what Git has, what it has then, and the sentence of the refusal."""
    daily, hourly = ({"share": "5%", "schedule": {"cron": cron}} for cron in ("@daily", "@hourly"))
    elsewhere = {"uri": "s3://bucket/elsewhere"}
    return {
        "drill": (
            restore(place, "drill", drill=daily),
            restore(place, "drill", drill=hourly),
            "the spec of a KafkaRestore cannot be changed",
        ),
        "dry run": (
            restore(place),
            restore(place, dryRun=True),
            "dryRun cannot be set to true again: the restore has begun",
        ),
        "archive": (
            backup(place),
            backup(place, storage=elsewhere),
            "storage.uri cannot be changed: an archive belongs to one",
        ),
    }


@each_tool
def test_changes_that_are_refused_fail_the_sync_with_their_reason(
    place: Namespace, tool: Callable[[Namespace], Tool]
) -> None:
    for name, (git, changed, why) in refusals(place).items():
        app = tool(place)
        app.name = name.replace(" ", "-")
        assert app.sync(git).succeeded
        before = place.get(git["kind"].lower(), git["metadata"]["name"])
        ended = app.sync(changed)
        assert not ended.succeeded
        assert why in ended.message
        assert place.get(git["kind"].lower(), git["metadata"]["name"]) == before


def test_with_force_flux_deletes_what_it_may_not_change_and_the_run_with_it(
    place: Namespace, running: Operator
) -> None:
    app = Flux(place, options={"force": True})
    assert app.sync(backup(place)).succeeded
    first = job_of(place, "nightly")
    other = backup(place, storage={"uri": "s3://bucket/elsewhere"})
    assert app.sync(other).succeeded
    second = job_of(place, "nightly", run_id_of(first))
    wait_for("the end of the run", lambda: [run_id_of(job) for job in place.items("jobs")] == [run_id_of(second)])

    wrong = backup(place, storage={"uri": "s3://bucket/elsewhere"}, retention={"maxAge": "a week"})
    ended = app.sync(wrong)
    assert not ended.succeeded
    assert "maxAge" in ended.message
    assert place.items("kafkabackups") == [], "deleted before it is known that it cannot be created"


def test_with_replace_and_force_argo_cd_makes_each_resource_anew_in_each_sync(
    place: Namespace, running: Operator
) -> None:
    app = Argo(place, options={"serverSideApply": False, "replace": True, "force": True})
    assert app.sync(backup(place)).succeeded
    first = job_of(place, "nightly")
    assert app.differences(backup(place)) == {}
    assert app.sync(backup(place)).succeeded
    second = job_of(place, "nightly", run_id_of(first))
    wait_for("the end of the run", lambda: [run_id_of(job) for job in place.items("jobs")] == [run_id_of(second)])


def test_a_backup_run_in_git_is_made_again_when_its_time_is_over(place: Namespace, running: Operator) -> None:
    app, spec = Flux(place), {"backupRef": {"name": "nightly"}, "ttlSecondsAfterFinished": 60}
    git = (backup(place), in_git(place, "KafkaBackupRun", "now", spec))
    known: list[str] = []

    def run_succeeds() -> None:
        job = job_of(place, "nightly", *known)
        known.append(run_id_of(job))
        place.write(job, result=result(run_id_of(job)))
        place.job_ends(job, "Complete")

    # The first run of a new backup is its own: a KafkaBackupRun that comes later than it begins asks for another one.
    assert app.sync(git[0]).succeeded
    run_succeeds()
    place.phase("kbak", "nightly", "Succeeded")
    for _ in range(2):
        assert app.sync(*git).succeeded
        run_succeeds()
        place.phase("kbrun", "now", "Succeeded")
        place.patch("kbrun", "now", {"status": {"endTime": "2026-01-01T00:00:00Z"}}, "status")
        wait_for("the end of its time", lambda: place.items("kafkabackupruns") == [])


# ---- order and waiting


def later(place: Namespace, wave: str) -> Body:
    """Return an object that is to come after the restore."""
    metadata = {"name": "after", "namespace": place.name, "annotations": {WAVE: wave}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"is": "here"}}


def test_argo_cd_makes_the_next_wave_when_the_restore_has_succeeded(place: Namespace, running: Operator) -> None:
    git = (in_git(place, "KafkaRestore", "again", restore_spec(**SOURCE), **{WAVE: "-1"}), later(place, "0"))
    sync = Argo(place).begin(*git)
    job = job_of(place, "again")
    place.pod(job, "driver", phase="Running")
    place.phase("krst", "again", "Running")
    assert place.find("configmap", "after") is None
    assert sync.continues
    ends(place, job)
    ended = sync.end()
    assert ended.succeeded, ended
    assert place.find("configmap", "after") is not None


def test_argo_cd_makes_no_next_wave_when_the_restore_has_failed(place: Namespace, running: Operator) -> None:
    git = (in_git(place, "KafkaRestore", "again", restore_spec(**SOURCE), **{WAVE: "-1"}), later(place, "0"))
    sync = Argo(place).begin(*git)
    ends(place, job_of(place, "again"), **FAILED)
    ended = sync.end()
    assert ended.outcome == "Failed"
    assert "TopicExists: It is there." in ended.message
    assert place.find("configmap", "after") is None


@pytest.mark.parametrize(("wave", "outcome"), [("1", "Succeeded"), ("-1", "Running")])
def test_argo_cd_waits_for_a_dry_run_unless_it_is_in_the_last_wave(
    place: Namespace, running: Operator, wave: str, outcome: str
) -> None:
    spec = restore_spec(**SOURCE) | {"dryRun": True}
    git = (in_git(place, "KafkaRestore", "again", spec, **{WAVE: wave}), later(place, "0"))
    sync = Argo(place).begin(*git, timeout=4)
    dry: dict[str, Any] = {"outcome": "DryRun", "records": 0, "bytes": 0, "commit": -1}
    ends(place, job_of(place, "again"), dry_run=REPORT, message=REPORT.describe("restore"), **dry)
    place.reason("krst", "again", "DryRunDone")
    ended = sync.end()
    assert ended.outcome == outcome, ended
    assert Argo(place).health(*git)["KafkaRestore/again"] == "Suspended"


def test_argo_cd_syncs_when_a_backup_run_before_it_has_succeeded(place: Namespace, running: Operator) -> None:
    spec = {"backupRef": {"name": "nightly"}}
    hook = {"argocd.argoproj.io/hook": "PreSync", "argocd.argoproj.io/hook-delete-policy": "BeforeHookCreation"}
    git = (backup(place), in_git(place, "KafkaBackupRun", "before-sync", spec, **hook))
    assert Argo(place).sync(backup(place)).succeeded
    first = job_of(place, "nightly")
    place.write(first, result=result(run_id_of(first)))
    place.job_ends(first, "Complete")
    place.phase("kbak", "nightly", "Succeeded")
    known = [run_id_of(first)]
    for facts in ({}, {}, FAILED):
        sync = Argo(place).begin(*git, later(place, "0"))
        job = job_of(place, "nightly", *known)
        known.append(run_id_of(job))
        place.write(job, result=result(run_id_of(job), **facts))
        place.job_ends(job, "Failed" if facts else "Complete")
        ended = sync.end()
        assert ended.succeeded is not bool(facts), ended
        assert Argo(place).differences(backup(place), later(place, "0")) == {}, (
            "the hook is not a part of the application"
        )


def test_flux_waits_for_a_restore_and_says_why_it_does_not_become_ready(place: Namespace, running: Operator) -> None:
    app = Flux(place, options={"wait": True})
    reconciling = app.begin(restore(place))
    job = job_of(place, "again")
    place.pod(job, "driver", phase="Running")
    place.phase("krst", "again", "Running")
    assert reconciling.continues
    ends(place, job)
    ended = reconciling.end()
    assert ended.succeeded, ended

    reconciling = app.begin(restore(place, "other"))
    ends(place, job_of(place, "other"), **FAILED)
    ended = reconciling.end()
    assert ended.outcome == "HealthCheckFailed"
    assert "KafkaRestore" in ended.message
    assert "Failed" in ended.message


# ---- the chart


@pytest.fixture(scope="module")
def bare() -> Iterator[Namespace]:
    """The namespace of the release, on an API server that has nothing of Logkeep."""
    with ApiServer(CONTROLLERS) as server:
        yield Namespace(server, SYSTEM)


@pytest.mark.parametrize("tool", [Argo, Flux])
def test_the_chart_has_no_drift_and_its_crds_stay_with_all_resources_when_git_removes_it(
    bare: Namespace, tool: Callable[[Namespace], Tool]
) -> None:
    app, own = tool(bare), Flux(bare, "team")
    rendered = [body for body in yaml.safe_load_all(chart("--include-crds")) if body]
    git = [body for body in rendered if "helm.sh/hook" not in body["metadata"].get("annotations", {})]
    crds = {f"CustomResourceDefinition/{plural}.logkeep.dev" for plural in PLURALS.values()}
    ended = app.sync(*git)
    assert ended.succeeded, ended
    assert set(ended.done) >= crds
    if isinstance(app, Argo):
        assert app.differences(*git) == {}
    else:
        assert set(app.sync(*git).done.values()) == {"unchanged"}
    assert own.sync(backup(bare)).succeeded
    ended = app.sync()
    assert ended.succeeded, ended
    assert "Deployment/logkeep" in ended.pruned
    assert not crds & set(ended.pruned)
    found = {one["metadata"]["name"]: one["metadata"] for one in bare.api.connection.items(CRDS)}
    assert [name for name, one in found.items() if "deletionTimestamp" in one] == []
    assert {f"CustomResourceDefinition/{name}" for name in found} >= crds
    assert [one["metadata"]["name"] for one in bare.items("kafkabackups")] == ["nightly"]

"""KafkaArchives with a real API server: what names one runs as if its storage stood in the spec, and its status says
what runs have reported."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from logkeep_engine.contract.run import RunRequest
from tests.apiserver.conftest import chart
from tests.apiserver.operator import ROOT, Namespace, Operator, result, run_id_of, wait_for
from tests.apiserver.test_archive_status import report
from tests.apiserver.test_operator import start
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.world import backup_spec, restore_spec

pytestmark = pytest.mark.timeout(300)

SEVEN = f"7:{'7' * 64}"
STORAGE: dict[str, Any] = backup_spec()["storage"]
BY_NAME: dict[str, Any] = {name: value for name, value in backup_spec().items() if name != "storage"} | {
    "archiveRef": {"name": "lake"}
}
RESTORE: dict[str, Any] = restore_spec(source={"archiveRef": {"name": "lake"}})


def archive(namespace: Namespace, name: str = "lake", **storage: Any) -> None:
    answer = namespace.apply("KafkaArchive", name, {"storage": STORAGE | storage})
    assert answer.returncode == 0, answer.stderr


def applied(namespace: Namespace, spec: dict[str, Any], kind: str = "KafkaBackup", name: str = "nightly") -> None:
    answer = namespace.apply(kind, name, spec)
    assert answer.returncode == 0, answer.stderr


def succeed(namespace: Namespace, job: dict[str, Any], **changes: Any) -> str:
    """End the run of a Job well; its id."""
    known: dict[str, Any] = {"anchor": SEVEN, "commit": 7, "archive": report(time.time() - 60, time.time() + 86400)}
    namespace.write(job, result=result(run_id_of(job), **(known | changes)))
    namespace.job_ends(job, "Complete")
    return run_id_of(job)


def request_of(namespace: Namespace, job: dict[str, Any]) -> RunRequest:
    body = namespace.get("configmap", f"{job['metadata']['name']}-request")
    return RunRequest.from_json(body["data"]["request.json"])


def place_of(storage: dict[str, Any]) -> tuple[str, str]:
    """The URI of a storage, and the Secret that it names."""
    return storage["uri"], storage["credentials"]["secretRef"]["name"]


def next_job(namespace: Namespace, *known: str) -> dict[str, Any]:
    """Wait for the Job of a run that is none of these; it."""

    def look() -> dict[str, Any] | None:
        return next((job for job in namespace.items("jobs") if run_id_of(job) not in known), None)

    return wait_for("another Job", look)


def observed(namespace: Namespace, kind: str = "kbak", name: str = "nightly") -> dict[str, Any]:
    """Wait until the operator has seen the spec; the status."""

    def look() -> dict[str, Any] | None:
        body = namespace.get(kind, name)
        fresh = body["status"].get("observedGeneration") == body["metadata"]["generation"]
        return body["status"] if fresh else None

    found: dict[str, Any] = wait_for(f"{kind} {name} to be looked at", look)
    return found


def told(namespace: Namespace, key: str, value: Any, name: str = "lake") -> dict[str, Any]:
    """Wait until the status of the KafkaArchive has this value; the status."""

    def look() -> dict[str, Any] | None:
        status = namespace.status("karc", name)
        return status if status.get(key) == value else None

    return wait_for(f"KafkaArchive {name} to say {key} {value}", look)


def test_a_backup_changes_from_inline_to_a_reference_and_back_without_another_run(
    namespace: Namespace, operator: Operator
) -> None:
    archive(namespace)
    first = succeed(namespace, start(namespace))
    namespace.phase("kbak", "nightly", "Succeeded")

    applied(namespace, BY_NAME)
    assert "storage" not in namespace.get("kbak", "nightly")["spec"]
    status = namespace.phase("kbak", "nightly", "Succeeded")
    assert (status["run"]["id"], status["archive"]["anchor"]) == (first, SEVEN)
    namespace.kubectl("annotate", "kbak", "nightly", "logkeep.dev/run=2")
    job = next_job(namespace, first)
    request = request_of(namespace, job)
    assert "archiveRef" not in request.spec
    assert (place_of(request.spec["storage"]), request.anchor) == ((STORAGE["uri"], "s3"), SEVEN)
    secrets = [
        variable["valueFrom"]["secretKeyRef"]["name"]
        for variable in job["spec"]["template"]["spec"]["containers"][0]["env"]
        if "secretKeyRef" in variable.get("valueFrom", {})
    ]
    assert secrets == ["s3"] * 3
    second = succeed(namespace, job, commit=8, anchor=f"8:{'8' * 64}")
    namespace.phase("kbak", "nightly", "Succeeded")

    applied(namespace, backup_spec())
    status = namespace.phase("kbak", "nightly", "Succeeded")
    assert (status["run"]["id"], status["archive"]["commit"]) == (second, 8)
    assert len(status["history"]) == 2


PRICES: dict[str, Any] = yaml.safe_load((ROOT / "examples/prices/aws-us-east-1.yaml").read_text())


def test_prices_give_the_cost_and_a_change_of_them_begins_no_run(namespace: Namespace, operator: Operator) -> None:
    archive(namespace)
    applied(namespace, BY_NAME)
    run = succeed(namespace, namespace.job())
    namespace.phase("kbak", "nightly", "Succeeded")
    assert "cost" not in told(namespace, "writer", "nightly")

    def costs(prices: dict[str, Any], display: str) -> dict[str, Any]:
        assert namespace.apply("KafkaArchive", "lake", {"storage": STORAGE, "prices": prices}).returncode == 0

        def look() -> dict[str, Any] | None:
            found: dict[str, Any] = namespace.status("karc", "lake").get("cost", {})
            return found if found.get("display") == display else None

        return wait_for(f"the cost {display}", look)

    before = namespace.get("kbak", "nightly")
    cost = costs(PRICES, "0.023 USD/month")
    assert (cost["currency"], cost["month"]) == ("USD", 0.023)
    assert cost["monthIn30Days"] == pytest.approx(0.023 * 8.5)
    shown = namespace.kubectl("get", "karc", "lake", "-o", "wide").stdout.splitlines()
    assert shown[1][shown[0].index("COST") :].startswith("0.023 USD/month")
    cost = costs(PRICES | {"currency": "EUR", "storagePerGiBMonth": 3}, "3.00 EUR/month")
    assert (cost["currency"], cost["month"], cost["monthIn30Days"]) == ("EUR", 3, 25.5)
    time.sleep(6)  # a resync
    after = namespace.get("kbak", "nightly")
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    changed = {key for key, value in after["status"].items() if before["status"].get(key) != value}
    assert changed <= {"conditions"}, "the risk that Kafka deletes records turns by time"
    assert [run_id_of(job) for job in namespace.items("jobs")] == [run]
    written = namespace.get("karc", "lake")["metadata"]["resourceVersion"]
    time.sleep(6)
    assert namespace.get("karc", "lake")["metadata"]["resourceVersion"] == written, "its status stays as it is"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"egressPerGiB": None}, "spec.prices.egressPerGiB: Required value"),
        ({"storagePerGiBMonth": -1}, "spec.prices.storagePerGiBMonth in body should be greater than or equal to 0"),
        ({"storagePerGiBMonth": "0.02"}, ".spec.prices.storagePerGiBMonth: expected numeric"),
        ({"currency": ""}, "spec.prices.currency in body should be at least 1 chars long"),
        ({"requestsPer1000": {"put": 1, "get": 1, "list": 1}}, "spec.prices.requestsPer1000.delete: Required value"),
    ],
)
def test_prices_that_are_wrong_are_refused(namespace: Namespace, change: dict[str, Any], said: str) -> None:
    prices = {name: value for name, value in (PRICES | change).items() if value is not None}
    answer = namespace.apply("KafkaArchive", "lake", {"storage": STORAGE, "prices": prices})
    assert (answer.returncode, said in answer.stderr) == (1, True), answer.stderr


def test_another_uri_is_refused_at_the_archive_and_at_the_reference(namespace: Namespace, operator: Operator) -> None:
    archive(namespace)
    archive(namespace, "pond", uri="s3://bucket/pond")
    refused = namespace.apply("KafkaArchive", "lake", {"storage": STORAGE | {"uri": "s3://bucket/other"}})
    assert "storage.uri cannot be changed" in refused.stderr
    applied(namespace, BY_NAME)
    first = succeed(namespace, namespace.job())
    namespace.phase("kbak", "nightly", "Succeeded")

    applied(namespace, BY_NAME | {"archiveRef": {"name": "pond"}})
    namespace.phase("kbak", "nightly", "Invalid")
    ready = namespace.condition("kbak", "nightly", "Ready")
    assert ready["reason"] == "InvalidSpec"
    assert ready["message"] == (
        "spec.archiveRef: KafkaArchive 'pond': s3://bucket/pond is another place than s3://bucket/prefix, where the "
        "archive is: an archive belongs to one KafkaBackup; create another KafkaBackup"
    )
    applied(namespace, BY_NAME)
    assert namespace.phase("kbak", "nightly", "Succeeded")["run"]["id"] == first


def test_a_new_login_of_the_archive_starts_the_backups_that_name_it(namespace: Namespace, operator: Operator) -> None:
    archive(namespace)
    applied(namespace, BY_NAME)
    first = succeed(namespace, namespace.job())
    namespace.phase("kbak", "nightly", "Succeeded")
    archive(namespace, credentials={"secretRef": {"name": "rotated"}})
    job = next_job(namespace, first)
    assert place_of(request_of(namespace, job).spec["storage"]) == (STORAGE["uri"], "rotated")


def test_a_backup_waits_for_its_archive_and_begins_when_it_is_there(namespace: Namespace, operator: Operator) -> None:
    applied(namespace, BY_NAME)
    ready = namespace.reason("kbak", "nightly", "ArchiveNotFound")
    where = f"in namespace {namespace.name}."
    assert ready["message"] == f"spec.archiveRef: there is no KafkaArchive 'lake' {where}"
    assert namespace.condition("kbak", "nightly", "Reconciling")["status"] == "True"
    applied(namespace, RESTORE, "KafkaRestore", "again")
    ready = namespace.reason("krst", "again", "ArchiveNotFound")
    assert ready["message"] == f"spec.source.archiveRef: there is no KafkaArchive 'lake' {where}"
    applied(namespace, restore_spec(), "KafkaRestore", "after")
    ready = namespace.reason("krst", "after", "ArchiveNotFound")
    assert ready["message"].startswith("spec.source.backupRef: KafkaBackup 'nightly': spec.archiveRef: there is no ")
    assert namespace.items("jobs") == []
    archive(namespace)
    wait_for("both Jobs", lambda: len(namespace.items("jobs")) == 2, timeout=10)


def test_a_run_goes_on_when_its_archive_is_deleted_and_the_next_one_waits(
    namespace: Namespace, operator: Operator
) -> None:
    archive(namespace)
    applied(namespace, BY_NAME)
    job = namespace.job()
    told(namespace, "backupList", ["nightly"])
    namespace.pod(job, "driver", phase="Running")
    namespace.phase("kbak", "nightly", "Running")
    namespace.kubectl("delete", "karc", "lake")
    namespace.patch("kbak", "nightly", {"spec": {"runPolicy": {"backoffLimit": 9}}})
    assert observed(namespace)["run"]["id"] == run_id_of(job)
    assert namespace.get("job", job["metadata"]["name"])["metadata"].get("deletionTimestamp") is None

    run_id = succeed(namespace, job)
    wait_for("the end", lambda: namespace.status("kbak", "nightly")["run"].get("outcome") == "Succeeded")
    status = namespace.status("kbak", "nightly")
    assert (status["archive"]["uri"], status["archive"]["anchor"]) == (STORAGE["uri"], SEVEN)
    namespace.reason("kbak", "nightly", "ArchiveNotFound")
    archive(namespace)
    status = namespace.phase("kbak", "nightly", "Succeeded")
    assert status["run"]["id"] == run_id
    assert len(namespace.items("jobs")) == 1


def test_the_status_of_an_archive_says_what_its_runs_have_reported(namespace: Namespace, operator: Operator) -> None:
    archive(namespace)
    status = told(namespace, "backups", 0)
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert conditions["Ready"] == ("True", "Usable")
    applied(namespace, BY_NAME)
    succeed(namespace, namespace.job())
    namespace.phase("kbak", "nightly", "Succeeded")

    status = told(namespace, "writer", "nightly")
    backup = namespace.status("kbak", "nightly")
    assert status["recovery"] == backup["recovery"]
    assert status["archive"] == backup["archive"]
    assert (status["archive"]["size"], status["archive"]["growth"]) == ("1.5 KiB", "2.0 KiB/day")
    shown = namespace.kubectl("get", "karc").stdout.splitlines()
    assert shown[0].split() == ["NAME", "READY", "URI", "WRITER", "RECOVERABLE", "SIZE", "LAST", "DRILL", "AGE"]
    assert shown[1].split()[:4] == ["lake", "True", "s3://bucket/prefix", "nightly"]
    assert "Usable" in namespace.events("lake")

    # Who has been deleted leaves what it has reported.
    namespace.kubectl("delete", "kbak", "nightly")
    wait_for("no backup", lambda: namespace.status("karc", "lake").get("backups") == 0)
    left = namespace.status("karc", "lake")
    assert "writer" not in left
    assert (left["archive"], left["recovery"]) == (status["archive"], status["recovery"])


def test_a_restore_by_reference_holds_the_archive_to_the_newest_commit_and_is_shown(
    namespace: Namespace, operator: Operator
) -> None:
    archive(namespace)
    first = succeed(namespace, start(namespace))  # its storage stands in its spec, and is the same
    told(namespace, "writer", "nightly")
    applied(namespace, RESTORE, "KafkaRestore", "again")
    job = next_job(namespace, first)
    request = request_of(namespace, job)
    assert request.spec["source"].keys() == {"storage", "topicIds"}
    assert (place_of(request.spec["source"]["storage"]), request.anchor) == ((STORAGE["uri"], "s3"), SEVEN)
    status = told(namespace, "restoreList", ["again"])
    assert (status["backupList"], status["restores"]) == (["nightly"], 1)

    # The same place, written out: the restore has not become another one.
    applied(namespace, restore_spec(source={"storage": STORAGE}), "KafkaRestore", "again")
    assert observed(namespace, "krst", "again")["run"]["id"] == run_id_of(job)
    archive(namespace, "pond", uri="s3://bucket/pond")
    applied(namespace, restore_spec(source={"archiveRef": {"name": "pond"}}), "KafkaRestore", "again")
    ready = namespace.reason("krst", "again", "InvalidSpec")
    assert "a restore has one source; create another KafkaRestore" in ready["message"]


def test_a_restore_that_has_begun_waits_where_its_archive_is_in_another_store(
    namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    first, second = "https://first:9000", "https://second:9000"
    log = tmp_path / "log"
    with Operator(operator_kubeconfig, namespace.name, log, LOGKEEP_ALLOWED_ENDPOINTS=f"{first},{second}"):
        archive(namespace, endpoint=first)
        applied(namespace, RESTORE, "KafkaRestore", "again")
        job = namespace.job()
        archive(namespace, endpoint=second)
        namespace.kubectl("delete", "job", job["metadata"]["name"])
        ready = namespace.reason("krst", "again", "InvalidSpec")
        assert f"has begun with {STORAGE['uri']} at {first}, and has its state there" in ready["message"]
        assert namespace.items("jobs") == []
        archive(namespace, endpoint=first)
        assert run_id_of(namespace.job()) == run_id_of(job)


def test_of_two_backups_by_reference_the_one_that_has_written_keeps_the_archive(
    namespace: Namespace, operator: Operator
) -> None:
    archive(namespace)
    archive(namespace, "alias")
    applied(namespace, BY_NAME)
    succeed(namespace, namespace.job())
    namespace.phase("kbak", "nightly", "Succeeded")
    applied(namespace, BY_NAME | {"archiveRef": {"name": "alias"}}, name="second")
    ready = namespace.reason("kbak", "second", "ArchiveOwned")
    assert ready["message"].startswith(
        "spec.archiveRef: KafkaBackup nightly writes this archive: no run is started. Name another KafkaArchive."
    )
    for name in ("lake", "alias"):
        assert told(namespace, "backupList", ["nightly", "second"], name)["writer"] == "nightly"


@pytest.mark.parametrize(
    "spec",
    [BY_NAME | {"storage": STORAGE}, {name: value for name, value in BY_NAME.items() if name != "archiveRef"}],
    ids=["both", "neither"],
)
def test_exactly_one_of_archive_and_storage_is_taken(namespace: Namespace, spec: dict[str, Any]) -> None:
    assert "exactly one of archiveRef and storage must be set" in namespace.apply("KafkaBackup", "nightly", spec).stderr


def test_a_restore_changes_between_reference_and_storage_and_nothing_else_of_its_source(namespace: Namespace) -> None:
    applied(namespace, RESTORE, "KafkaRestore", "again")
    applied(namespace, restore_spec(source={"storage": STORAGE}), "KafkaRestore", "again")
    other = restore_spec(source={"storage": STORAGE | {"uri": "s3://bucket/other"}})
    assert "cannot be changed" in namespace.apply("KafkaRestore", "again", other).stderr
    additions: list[dict[str, Any]] = [{"expectCommit": SEVEN}, {"topicIds": {"a": "b"}}, {"retrieval": {}}]
    for more in additions:
        changed = restore_spec(source=RESTORE["source"] | more)
        assert "cannot be changed" in namespace.apply("KafkaRestore", "again", changed).stderr
    assert "cannot be changed" in namespace.apply("KafkaRestore", "again", restore_spec()).stderr
    both = restore_spec(source={"backupRef": {"name": "nightly"}, "archiveRef": {"name": "lake"}})
    refused = namespace.apply("KafkaRestore", "both", both).stderr
    assert "exactly one of backupRef, archiveRef and storage must be set" in refused


def test_an_installation_without_inline_storage_runs_what_names_an_archive_only(
    namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    with Operator(operator_kubeconfig, namespace.name, log, LOGKEEP_ALLOWED_INLINE_STORAGE="false"):
        archive(namespace)
        applied(namespace, backup_spec())
        ready = namespace.reason("kbak", "nightly", "NotAllowed")
        assert ready["message"] == (
            "spec.storage: only a KafkaArchive may have one (the chart's engine.allowed.inlineStorage is false); name "
            "one, or ask the administrator of Logkeep"
        )
        applied(namespace, restore_spec(), "KafkaRestore", "of-nightly")
        assert "spec.storage: only a " in namespace.reason("krst", "of-nightly", "NotAllowed")["message"]
        state = {"uri": "s3://state/x"}
        applied(namespace, RESTORE | {"state": state}, "KafkaRestore", "with-state")
        assert namespace.reason("krst", "with-state", "NotAllowed")["message"].startswith("spec.state: only a ")
        assert namespace.items("jobs") == []
        applied(namespace, BY_NAME)
        assert place_of(request_of(namespace, namespace.job()).spec["storage"]) == (STORAGE["uri"], "s3")


def test_what_is_wrong_with_an_archive_is_said_of_it_and_of_what_names_it(
    namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    log = tmp_path / "operator.log"
    with Operator(operator_kubeconfig, namespace.name, log, LOGKEEP_ALLOWED_ENDPOINTS="https://minio:9000"):
        archive(namespace, endpoint="https://elsewhere:9000")
        applied(namespace, BY_NAME)
        ready = namespace.reason("karc", "lake", "NotAllowed")
        what = "spec.storage.endpoint: the endpoint https://elsewhere:9000 is not in the chart's "
        assert ready["message"].startswith(what)
        message = namespace.reason("kbak", "nightly", "NotAllowed")["message"]
        assert message.startswith(f"spec.archiveRef: KafkaArchive 'lake': {what}")
        archive(namespace, endpoint="https://minio:9000")
        namespace.reason("karc", "lake", "Usable")
        assert request_of(namespace, namespace.job()).spec["storage"]["endpoint"] == "https://minio:9000"


def test_the_api_server_takes_no_storage_but_that_of_an_archive(api: ApiServer, namespace: Namespace) -> None:
    applied(namespace, backup_spec(), name="before")
    values = ("--set", "engine.allowed.inlineStorage=false")
    policy = chart("--show-only", "templates/inline-storage-policy.yaml", *values)
    names = (f"probe-{number}" for number in count())  # what is there already may stay
    api.kubectl("apply", "-f", "-", stdin=policy)
    try:
        refusal = "only a KafkaArchive may have a storage (the chart's engine.allowed.inlineStorage is false); name one"
        wait_for("the policy", lambda: refusal in namespace.apply("KafkaBackup", next(names), backup_spec()).stderr)
        inline = restore_spec(source={"storage": STORAGE})
        assert f"spec.source.storage: {refusal}" in namespace.apply("KafkaRestore", "again", inline).stderr
        with_state = RESTORE | {"state": {"uri": "s3://state/x"}}
        assert f"spec.state: {refusal}" in namespace.apply("KafkaRestore", "again", with_state).stderr
        archive(namespace)
        applied(namespace, BY_NAME)
        applied(namespace, RESTORE, "KafkaRestore", "again")
        applied(namespace, restore_spec(), "KafkaRestore", "of-a-backup")
        applied(namespace, backup_spec(suspend=True), name="before")  # its storage is as it was
        other = STORAGE | {"region": "elsewhere"}
        assert refusal in namespace.apply("KafkaBackup", "before", backup_spec(storage=other)).stderr
        applied(namespace, BY_NAME, name="before")
        assert refusal in namespace.apply("KafkaBackup", "before", backup_spec()).stderr
    finally:
        api.kubectl("delete", "-f", "-", stdin=policy)
    # It holds for a moment after it is gone, in the namespaces of other tests, too.
    wait_for("its end", lambda: namespace.apply("KafkaBackup", next(names), backup_spec()).returncode == 0)

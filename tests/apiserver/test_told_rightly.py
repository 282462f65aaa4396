"""The waits of a user and the doings of a queue, on a real API server."""

from __future__ import annotations

import re
import time

import pytest

from tests.apiserver.operator import ROOT, Namespace, Operator, progress, result, run_id_of, wait_for
from tests.apiserver.test_operator import RUNNING, start

pytestmark = pytest.mark.timeout(300)


def documented_wait(value: str) -> list[str]:
    """The conditions of the commands that docs/guides/status.md gives for a run that was asked for, in their order."""
    text = (ROOT / "docs/guides/status.md").read_text()
    block = text[text.index('\nrun="$(date -Is)"\n') :]
    found = re.findall(r"^kubectl wait kbak/nightly (--for=\S+)", block[: block.index("```")], re.MULTILINE)
    assert len(found) == 2
    return [condition.replace("'", "").replace('"$run"', value) for condition in found]


def waits(namespace: Namespace, condition: str, seconds: int) -> bool:
    """Whether `kubectl wait` returns in time."""
    done = namespace.kubectl("wait", "kbak/nightly", condition, f"--timeout={seconds}s", check=False)
    return done.returncode == 0


def test_the_documented_wait_does_not_return_on_the_old_success(namespace: Namespace, operator: Operator) -> None:
    first = start(namespace)
    namespace.write(first, result=result(run_id_of(first)))
    namespace.job_ends(first, "Complete")
    namespace.phase("kbak", "nightly", "Succeeded")
    operator.kill()  # an operator that is slow
    requested = "2026-11-22T08:00:00+00:00"
    namespace.patch("kbak", "nightly", {"metadata": {"annotations": {"logkeep.dev/run": requested}}})
    answered, ready = documented_wait(requested)
    assert waits(namespace, ready, 60), "Ready alone is about the run before"
    assert not waits(namespace, answered, 2)
    operator.start()
    assert waits(namespace, answered, 60)
    assert not waits(namespace, ready, 2)

    (second,) = [job for job in namespace.items("jobs") if run_id_of(job) != run_id_of(first)]
    namespace.write(second, result=result(run_id_of(second)))
    assert waits(namespace, ready, 60)


def test_a_job_that_a_queue_has_suspended_stays_so(namespace: Namespace, operator: Operator) -> None:
    job = start(namespace)
    name = job["metadata"]["name"]

    def suspend(value: bool) -> None:
        namespace.patch("job", name, {"spec": {"suspend": value}})

    def suspended() -> bool:
        return bool(namespace.get("job", name)["spec"]["suspend"])

    suspend(True)  # as Kueue does
    namespace.reason("kbak", "nightly", "Queued")
    namespace.patch("kbak", "nightly", {"spec": {"suspend": True}})
    namespace.phase("kbak", "nightly", "Suspended")
    namespace.patch("kbak", "nightly", {"spec": {"suspend": False}})
    namespace.reason("kbak", "nightly", "Queued")
    assert suspended(), "only who has suspended it lets it go on"
    suspend(False)
    namespace.pod(job, "driver", **RUNNING)
    namespace.write(job, progress(run_id_of(job), 250))
    namespace.reason("kbak", "nightly", "Running")
    namespace.patch("kbak", "nightly", {"spec": {"suspend": True}})
    wait_for("the operator to suspend it", suspended)
    namespace.patch("kbak", "nightly", {"spec": {"suspend": False}})
    wait_for("the operator to let it go on", lambda: not suspended())


def test_each_write_of_the_driver_is_heard_by_the_clock_of_the_api_server(
    namespace: Namespace, operator: Operator
) -> None:
    job = start(namespace)
    namespace.pod(job, "driver", **RUNNING)

    def heard() -> str:
        return str(namespace.status("kbak", "nightly").get("run", {}).get("heardTime", ""))

    first = wait_for("the driver to be seen", heard)
    for records in (250, 260):
        time.sleep(1.1)  # the API server's times are whole seconds
        namespace.write(job, progress(run_id_of(job), records))
        first = wait_for("a later time", lambda before=first: heard() if heard() > before else "")  # type: ignore[misc]

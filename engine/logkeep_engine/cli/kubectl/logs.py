"""The command `kubectl logkeep logs`: the log of the driver of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.kubectl import lines
from logkeep_engine.cli.kubectl.errors import NoSuchResource
from logkeep_engine.cli.kubectl.options import Resource, Where
from logkeep_engine.cli.kubectl.status import resource_named
from logkeep_engine.cli.options import Debug, spread
from logkeep_engine.cli.output import print_lines, say
from logkeep_engine.contract.names import LABEL_ROLE, LABEL_RUN, ROLE_DRIVER

if TYPE_CHECKING:
    from logkeep_engine.cli.kubectl.calls import Kubernetes

Run = Annotated[str | None, typer.Option("--run", help="Id of the run; by default the current run, or the last one.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue with what is logged from now on.")]
Tail = Annotated[int | None, typer.Option(help="Only this many of the last lines.", min=0)]
Attempt = Annotated[int | None, typer.Option(help="The attempt, from 1; by default the last one.", min=1)]


@spread
def logs(
    name: Resource,
    run: Run = None,
    attempt: Attempt = None,
    follow: Follow = False,
    tail: Tail = None,
    *,
    where: Where,
    debug: Debug = False,
) -> None:
    """Print the log of a run's driver, as long as Kubernetes has its pod."""
    with errors(debug):
        cluster = where.connect()
        run_id = run or _run_of(resource_named(cluster, name))
        pod = _driver(cluster, run_id, attempt)
        say(f"pod {pod}, run {run_id}")
        query = {"container": ROLE_DRIVER, "follow": "true" if follow else "false"}
        if tail is not None:
            query["tailLines"] = str(tail)
        for line in cluster.log_lines(pod, query):
            print_lines(f"{line}\n", flush=follow)


def _run_of(found: dict[str, Any]) -> str:
    run_id = lines.part(found, "status", "run", "id")
    if not run_id:
        raise NoSuchResource(
            f"No run of {lines.short_name(found)} was started yet.",
            hint=f"kubectl logkeep status {lines.short_name(found)} says why.",
        )
    return str(run_id)


def _driver(cluster: Kubernetes, run_id: str, attempt: int | None) -> str:
    """Return the name of the pod of an attempt of a run."""
    pods = cluster.items("Pod", labels={LABEL_RUN: run_id, LABEL_ROLE: ROLE_DRIVER})
    pods.sort(key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), str(pod["metadata"]["name"])))
    if not pods:
        raise NoSuchResource(
            f"Run {run_id} has no driver pod in namespace {cluster.namespace}.",
            hint="It waits to begin, or its Job was deleted runPolicy.ttlSecondsAfterFinished after its end.",
        )
    if attempt is not None and attempt > len(pods):
        raise NoSuchResource(f"Run {run_id} has {len(pods)} driver pods, and none of attempt {attempt}.")
    return str(pods[attempt - 1 if attempt is not None else -1]["metadata"]["name"])

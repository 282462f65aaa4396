"""Argo CD and Flux on the API server: what their controllers do with the objects of Git, by their own libraries."""

from __future__ import annotations

import copy
import json
import subprocess
from dataclasses import dataclass, field
from subprocess import PIPE
from typing import Any

from tests.apiserver.health import scripts
from tests.apiserver.operator import Namespace
from tests.cluster import tools

Body = dict[str, Any]
COMPARISONS: dict[str, dict[str, bool]] = {
    "client-side apply": {"serverSideApply": False},
    "server-side apply": {"serverSideApply": True},
    "server-side diff": {"serverSideDiff": True, "serverSideApply": True},
}
"""The ways in which Argo CD compares Git with the cluster."""


@dataclass(frozen=True)
class Ended:
    """The end of a sync of Argo CD or of a reconciliation of Flux. `done` says what was done with each object."""

    outcome: str
    message: str
    done: dict[str, str]
    pruned: tuple[str, ...] = ()

    @property
    def succeeded(self) -> bool:
        return self.outcome in ("Succeeded", "ReconciliationSucceeded")


class Begun:
    """A sync that continues while the test plays the cluster."""

    def __init__(self, tool: Argo | Flux, process: subprocess.Popen[str]) -> None:
        self._tool = tool
        self._process = process

    @property
    def continues(self) -> bool:
        return self._process.poll() is None

    def end(self) -> Ended:
        """Wait for its end."""
        return self._tool.ended(_answer(self._process))


@dataclass
class Argo:
    """An Application of Argo CD, with the health checks of the chart. `options` are those of `gitops argo`."""

    namespace: Namespace
    name: str = "app"
    options: dict[str, Any] = field(default_factory=dict)

    def differences(self, *objects: Body, **options: Any) -> dict[str, str]:
        """Return what it shows as OutOfSync, by kind and name: missing, to be pruned, or what is live and wanted."""
        return dict(self._look(*objects, **options)["outOfSync"])

    def health(self, *objects: Body) -> dict[str, str]:
        """Return the health of each object that is there."""
        return dict(self._look(*objects)["health"])

    def sync(self, *objects: Body, **options: Any) -> Ended:
        """Sync, as `argocd app sync` does."""
        return self.begin(*objects, **options).end()

    def begin(self, *objects: Body, **options: Any) -> Begun:
        """Begin a sync."""
        return Begun(self, self._start(objects, sync=True, **options))

    def ended(self, answer: dict[str, Any]) -> Ended:
        """Return what the program's answer says."""
        results: dict[str, dict[str, str]] = answer["results"]
        bad = [one for one in results.values() if one["status"] == "SyncFailed" or one["phase"] == "Failed"]
        pruned = tuple(sorted(name for name, one in results.items() if one["status"] == "Pruned"))
        done = {name: one["status"] for name, one in results.items()}
        return Ended(answer["phase"], "\n".join([answer["message"], *(one["message"] for one in bad)]), done, pruned)

    def _look(self, *objects: Body, **options: Any) -> dict[str, Any]:
        return _answer(self._start(objects, sync=False, **options))

    def _start(self, objects: tuple[Body, ...], **options: Any) -> subprocess.Popen[str]:
        known = {"serverSideApply": True, "prune": True, "timeout": 30, **self.options, **options}
        asked = {**_application(self.namespace, self.name, objects), "scripts": scripts(), **known}
        return _start(self.namespace, "argo", asked)


@dataclass
class Flux:
    """A Kustomization of Flux with `prune: true`. `options` are those of `gitops flux`."""

    namespace: Namespace
    name: str = "app"
    options: dict[str, Any] = field(default_factory=dict)
    inventory: list[Body] = field(default_factory=list)

    def sync(self, *objects: Body, **options: Any) -> Ended:
        """Reconcile once."""
        return self.begin(*objects, **options).end()

    def begin(self, *objects: Body, **options: Any) -> Begun:
        """Begin a reconciliation."""
        known = {"prune": True, "timeout": 30, **self.options, **options}
        asked = {**_application(self.namespace, self.name, objects), "inventory": self.inventory, **known}
        return Begun(self, _start(self.namespace, "flux", asked))

    def ended(self, answer: dict[str, Any]) -> Ended:
        """Return what the program's answer says."""
        self.inventory = answer["inventory"] or []
        pruned = tuple(sorted(name for name, action in (answer["pruned"] or {}).items() if action == "deleted"))
        return Ended(answer["reason"], answer["message"], answer["changes"] or {}, pruned)


def _application(namespace: Namespace, name: str, objects: tuple[Body, ...]) -> dict[str, Any]:
    outside = any("namespace" not in body["metadata"] for body in objects)
    found = [copy.deepcopy(body) for body in objects]
    return {"name": name, "namespace": namespace.name, "clusterWide": outside, "objects": found}


def _start(namespace: Namespace, tool: str, asked: dict[str, Any]) -> subprocess.Popen[str]:
    environment = {"KUBECONFIG": str(namespace.api.kubeconfig), "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    process = subprocess.Popen([tools.gitops(), tool], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env=environment)
    assert process.stdin is not None
    process.stdin.write(json.dumps(asked))
    process.stdin.close()
    process.stdin = None
    return process


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    found: dict[str, Any] = json.loads(out)
    return found

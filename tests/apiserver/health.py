"""The judgement of GitOps tools about resources: kstatus by its own library, Argo CD by its interpreter of Lua."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from logkeep_engine.contract.names import BACKUP_RUN, KAFKA_ARCHIVE
from logkeep_operator.api import KINDS
from tests.apiserver.operator import ROOT
from tests.cluster import system, tools

CHECKS = ROOT / "charts/logkeep/files/argocd-cm.yaml"


class Verdict(NamedTuple):
    """One word of each."""

    kstatus: str
    argo: str


def scripts() -> dict[str, str]:
    """Argo CD's health checks of the chart, by kind."""
    data = yaml.safe_load(CHECKS.read_text())["data"]
    kinds = (*KINDS, BACKUP_RUN, KAFKA_ARCHIVE)
    return {kind: data[f"resource.customizations.health.logkeep.dev_{kind}"] for kind in kinds}


def judge(bodies: Sequence[dict[str, Any]]) -> list[Verdict]:
    """The verdict about each resource."""
    requested = json.dumps({"scripts": scripts(), "objects": list(bodies)})
    answers = json.loads(system.run([tools.gitops(), "health"], stdin=requested).stdout)
    return [Verdict(answer["kstatus"]["status"], answer["argo"]["status"]) for answer in answers]

"""Renders the Helm chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.cluster import system, tools

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts/logkeep"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def render(
    *values: str, apis: tuple[str, ...] = (), version: str = "1.34.0", as_json: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """`helm template` makes these objects of the chart with these values."""
    sets = [part for value in values for part in ("--set", value)]
    sets += [part for value in as_json for part in ("--set-json", value)]
    sets += [part for api in apis for part in ("--api-versions", api)]
    command = [str(tools.helm()), "template", "logkeep", str(CHART), "--namespace", "sys", "--kube-version", version]
    rendered = system.run([*command, *sets]).stdout
    return [body for body in yaml.safe_load_all(rendered) if body]


def one(kind: str, *values: str, apis: tuple[str, ...] = (), as_json: tuple[str, ...] = ()) -> dict[str, Any]:
    """The operator's object of this kind. Roles for its Lease and its drivers do not count."""
    others = ("logkeep-lease", "logkeep-driver", "sys-logkeep-driver")
    bodies = render("userRoles=false", *values, apis=apis, as_json=as_json)
    (found,) = (body for body in bodies if body["kind"] == kind and body["metadata"]["name"] not in others)
    return found


def environment(*values: str, apis: tuple[str, ...] = (), as_json: tuple[str, ...] = ()) -> dict[str, str]:
    """The variables that the operator's container has, and their values."""
    container = one("Deployment", *values, apis=apis, as_json=as_json)["spec"]["template"]["spec"]["containers"][0]
    return {item["name"]: item.get("value", "") for item in container["env"]}


def refused(*values: str) -> str:
    """Helm says this about values that the chart does not take."""
    sets = [part for value in values for part in ("--set", value)]
    command = [str(tools.helm()), "template", "logkeep", str(CHART), "--kube-version", "1.34.0", *sets]
    done = system.run(command, check=False)
    assert done.returncode, "the chart takes these values"
    return done.stderr

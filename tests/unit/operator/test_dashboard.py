"""The chart's dashboard for Grafana: Prometheus answers its queries, with the series that an operator exports."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from logkeep_engine.contract.facts.archive import Deadlines, Recoverable, Retained
from logkeep_engine.contract.facts.outcome import ReconcileFacts
from logkeep_operator.api import ArchiveStatus, Condition, DrillStatus, Key, Status, StatusOutcome
from logkeep_operator.metrics import Metrics
from tests.cluster import system, tools
from tests.unit.operator.chart import CHART, render

DASHBOARD: dict[str, Any] = json.loads((CHART / "files/dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
TARGETS = {(panel["title"], target["refId"]): target for panel in PANELS for target in panel["targets"]}
# What Grafana writes into a query for its variables: all namespaces and backups, and the window of a panel whose
# points are five minutes apart.
GIVEN = {"$namespace": ".*", "$backup": ".*", "$__rate_interval": "5m15s"}

Answer = dict[str, float]
"""The series that a query answers with, by their labels."""

NOW = 60
"""The minute at which the queries are asked; each minute has a sample."""
CHANGED = 57
"""The minute at which counters grow; they grow once more in the next one."""
NIGHTLY, NEW = (Key("KafkaBackup", "team", name) for name in ("nightly", "new"))
OF_NIGHTLY, OF_NEW = '{namespace="team", name="nightly"}', '{namespace="team", name="new"}'


def at(minute: int) -> str:
    return f"1970-01-01T{minute // 60:02}:{minute % 60:02}:00Z"


WELL = Status(
    last_success_time=at(50),
    conditions=(
        Condition(
            type="Ready",
            status="True",
            reason="RunSucceeded",
            message="",
            last_transition_time=at(50),
            observed_generation=1,
        ),
    ),
    recovery=Recoverable(last_time=at(45)),
    retention=Deadlines(check_time=at(50), deadline=at(90)),
    archive=ArchiveStatus(stored_bytes=2048, retention=Retained(points=3, waiting_bytes=512)),
    drill=DrillStatus(last_good_time=at(20), recovery_seconds=725),
    reconcile=ReconcileFacts(outcome="StaleKeys", end_time=at(50), stale=12, missing=0),
)
"""The status of a backup that has all that a panel can show."""


def scraped(pod: str, metrics: Metrics) -> dict[str, float]:
    """The series of an operator with the labels that a monitor of the chart gives them."""
    found = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            labels = {"namespace": "sys", "pod": pod, **sample.labels}
            found[sample.name + labelled(labels)] = sample.value
    return found


def labelled(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def series(*scrapes: Mapping[str, float]) -> dict[str, str]:
    """The samples of all minutes as promtool reads them. The first scrape holds until CHANGED, each other one a minute;
    the last one stays."""
    minutes = [scrapes[min(max(minute - CHANGED + 1, 0), len(scrapes) - 1)] for minute in range(NOW + 1)]
    return {name: " ".join(text(scrape.get(name)) for scrape in minutes) for name in scrapes[-1]}


def text(value: float | None) -> str:
    if value is None:
        return "_"
    if math.isnan(value):
        return "NaN"
    return "Inf" if math.isinf(value) else str(value)


def two_replicas() -> dict[str, str]:
    """Two replicas, of which one looks after two backups and a restore with the name of one of them."""
    acts, waits = Metrics(), Metrics()
    acts.leading(True)
    waits.leading(False)
    acts.namespace_served("team", True)
    acts.namespace_served("lost", False)
    acts.seen(NIGHTLY, WELL, datetime(1970, 1, 1, 0, 5, tzinfo=UTC))
    acts.seen(NEW, Status(), datetime(1970, 1, 1, 0, 10, tzinfo=UTC))
    restored = Key("KafkaRestore", "team", "nightly")
    acts.seen(restored, Status(last_success_time=at(59)), datetime(1970, 1, 1, tzinfo=UTC))
    acts.event_failed(NIGHTLY, "RunStarted")
    before = scraped("one", acts)
    acts.run_finished(NIGHTLY, StatusOutcome.FAILED)
    acts.event_failed(NIGHTLY, "RunFailed")  # the first one: there was no series
    between = scraped("one", acts)
    acts.reconcile_failed(NIGHTLY)
    for reason in ("RunFailed", "RunFailed", "RunStarted"):
        acts.event_failed(NIGHTLY, reason)
    acts.reconcile_seconds.observe(0.02)  # in the bucket from 0.01 to 0.025
    acts.queue_depth.set(4)
    return {**series(before, between, scraped("one", acts)), **series(scraped("two", waits))}


KINDS = ("KafkaBackup", "KafkaRestore")
NO_RUN = {labelled({"kind": kind, "outcome": outcome}): 0.0 for kind in KINDS for outcome in StatusOutcome}
NO_ERROR = {labelled({"kind": kind}): 0.0 for kind in (*KINDS, "KafkaArchive")}
ANSWERS: dict[tuple[str, str], Answer] = {
    ("Replicas that act", "A"): {'{namespace="sys"}': 1},
    ("Backups", "A"): {"{}": 2},
    ("Backups not ready", "A"): {"{}": 1},
    ("Oldest last success", "A"): {"{}": 50 * 60},  # since it was created
    ("Nearest deadline", "A"): {"{}": 30 * 60},
    ("Namespaces not served", "A"): {"{}": 1},
    ("Time since the last success", "A"): {OF_NIGHTLY: 10 * 60, OF_NEW: 50 * 60},
    ("Time since the last moment that can be restored", "A"): {OF_NIGHTLY: 15 * 60},
    ("Runs that ended, an hour", "A"): {**NO_RUN, '{kind="KafkaBackup", outcome="Failed"}': 1},
    ("Stored bytes", "A"): {OF_NIGHTLY: 2048, OF_NEW: 0},
    ("Stored bytes", "B"): {OF_NIGHTLY: 512},
    ("Time until records may be deleted that are not archived", "A"): {OF_NIGHTLY: 30 * 60},
    ("Restore points that retention keeps", "A"): {OF_NIGHTLY: 3},
    ("Length of a measured drill", "A"): {OF_NIGHTLY: 725},
    ("Time since the last good drill", "A"): {OF_NIGHTLY: 40 * 60},
    ("Keys that differ from the cluster", "A"): {OF_NIGHTLY: 12},
    ("Keys that differ from the cluster", "B"): {OF_NIGHTLY: 0},
    ("Length of a reconciliation, median and 95 %", "A"): {"{}": 0.01 + 0.015 * 0.5},
    ("Length of a reconciliation, median and 95 %", "B"): {"{}": 0.01 + 0.015 * 0.95},
    ("Resources that wait for a worker", "A"): {"{}": 4},
    ("Errors, an hour", "A"): {**NO_ERROR, '{kind="KafkaBackup"}': 1},
    # From the 59 minutes between its samples Prometheus infers an hour.
    ("Errors, an hour", "B"): {'{reason="RunFailed"}': 3, '{reason="RunStarted"}': 60 / 59},
}


def difference(folder: Path, inputs: Mapping[str, str], answers: Mapping[str, Answer]) -> str:
    """Ask promtool whether these queries have these answers. Returns what it says, empty if so."""
    tests = [
        {
            "expr": query,
            "eval_time": f"{NOW}m",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in answer.items()],
        }
        for query, answer in answers.items()
    ]
    said = [{"series": name, "values": values} for name, values in inputs.items()]
    test = {"interval": "1m", "input_series": said, "promql_expr_test": tests}
    (folder / "test.yaml").write_text(yaml.safe_dump({"rule_files": [], "fuzzy_compare": True, "tests": [test]}))
    done = system.run([tools.promtool(), "test", "rules", folder / "test.yaml"], check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def asked(query: str) -> str:
    """A query as Grafana sends it."""
    for variable, value in GIVEN.items():
        query = query.replace(variable, value)
    assert "$" not in query
    return query


def test_the_dashboard_is_a_config_map_that_grafanas_sidecar_finds() -> None:
    said = ("metrics.dashboard.enabled=true", "metrics.dashboard.annotations.folder=Kafka")
    (found,) = (body for body in render(*said) if body["metadata"]["name"] == "logkeep-dashboard")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"folder": "Kafka"}
    assert json.loads(found["data"]["logkeep.json"]) == DASHBOARD


def test_each_query_answers_with_what_its_panel_says(tmp_path: Path) -> None:
    assert ANSWERS.keys() == TARGETS.keys()
    answers = {asked(TARGETS[name]["expr"]): answer for name, answer in ANSWERS.items()}
    assert len(answers) == len(TARGETS)
    said = difference(tmp_path, two_replicas(), answers)
    assert said == "", said


def test_an_operator_without_backups_has_its_own_panels_only(tmp_path: Path) -> None:
    alone = Metrics()
    alone.leading(True)
    alone.namespace_served(None, True)
    answers: dict[str, Answer] = {asked(target["expr"]): {} for target in TARGETS.values()}
    own: dict[str, Answer] = {
        "Replicas that act": {'{namespace="sys"}': 1},
        "Namespaces not served": {"{}": 0},
        "Resources that wait for a worker": {"{}": 0},
        "Errors, an hour": NO_ERROR,
    }
    answers |= {asked(TARGETS[title, "A"]["expr"]): answer for title, answer in own.items()}
    said = difference(tmp_path, series(scraped("one", alone)), answers)
    assert said == "", said


def test_promtool_tells_an_answer_that_differs(tmp_path: Path) -> None:
    said = difference(tmp_path, two_replicas(), {asked(TARGETS["Backups", "A"]["expr"]): {"{}": 3}})
    assert "exp: {} 3" in said
    assert "got: {} 2" in said


def test_each_variable_lists_what_is_there(tmp_path: Path) -> None:
    answers: dict[str, Answer] = {}
    for variable in DASHBOARD["templating"]["list"][1:]:
        assert variable["definition"] == variable["query"]["query"]
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
        assert found
        values = {"namespace": {"team": 2.0}, "name": {"nightly": 1.0, "new": 1.0}}[found[2]]
        answers[f"count by ({found[2]}) ({asked(found[1])})"] = {
            labelled({found[2]: value}): count for value, count in values.items()
        }
    said = difference(tmp_path, two_replicas(), answers)
    assert said == "", said


def test_legends_tell_the_lines_of_a_panel_apart() -> None:
    for panel in PANELS:
        legends = [
            legend(target["legendFormat"], labels)
            for target in panel["targets"]
            for labels in ANSWERS[panel["title"], target["refId"]]
        ]
        assert len(set(legends)) == len(legends), panel["title"]
        assert not any("{" in text for text in legends), legends


def legend(text: str, labels: str) -> str:
    """The legend of a line as Grafana writes it."""
    for name, value in re.findall(r'(\w+)="([^"]*)"', labels):
        text = text.replace(f"{{{{{name}}}}}", value)
    return text


def test_a_number_has_a_colour_only_where_a_limit_is_said() -> None:
    """Grafana's own limit, where a panel says none, makes the eightieth backup red."""
    for panel in PANELS:
        if panel["type"] == "stat":
            assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"], panel["title"]


def test_panels_of_the_dashboard_do_not_lie_over_each_other() -> None:
    places = set()
    for panel in PANELS:
        where = panel["gridPos"]
        for x in range(where["x"], where["x"] + where["w"]):
            for y in range(where["y"], where["y"] + where["h"]):
                assert x < 24
                assert (x, y) not in places, panel["title"]
                places.add((x, y))
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)

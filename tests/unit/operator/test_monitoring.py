"""The chart's part for Prometheus: how it finds the metrics, and alerts that fire when they should."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from logkeep_operator.api import Key, Status, StatusOutcome
from logkeep_operator.metrics import Metrics
from tests.cluster import system, tools
from tests.unit.operator.chart import CHART, ROOT, one

RULES = "metrics.prometheusRule.enabled=true"
PAGE = ROOT / "docs/guides/alerts.md"
ALERTS: list[dict[str, Any]] = yaml.safe_load((CHART / "files/alerts.yaml").read_text())
NAMES = [alert["alert"] for alert in ALERTS]
_SUFFIXES = ("_bucket", "_count", "_sum", "_created")


def rules(*values: str) -> list[dict[str, Any]]:
    (group,) = one("PrometheusRule", RULES, *values)["spec"]["groups"]
    return list(group["rules"])


def metrics() -> set[str]:
    """The names of the series that an operator can have."""
    found = {family.name for family in Metrics().registry.collect()}
    counters = {f"{family.name}_total" for family in Metrics().registry.collect() if family.type == "counter"}
    return found | counters | {f"{name}{suffix}" for name in found for suffix in _SUFFIXES}


def named(expression: str) -> set[str]:
    return set(re.findall(r"\blogkeep_\w+", expression))


def test_the_first_run_that_ends_is_an_increase() -> None:
    """A counter that begins with 1 has none, so a graph of runs showed none on the first day."""
    watched, key = Metrics(), Key("KafkaBackup", "team", "nightly")
    labels = {"kind": "KafkaBackup", "namespace": "team", "outcome": "Failed"}
    watched.seen(key, Status(), None)
    assert watched.registry.get_sample_value("logkeep_runs_finished_total", labels) == 0
    watched.run_finished(key, StatusOutcome.FAILED)
    assert watched.registry.get_sample_value("logkeep_runs_finished_total", labels) == 1


def test_the_first_reconciliation_that_fails_is_an_increase() -> None:
    watched, labels = Metrics(), {"kind": "KafkaArchive"}
    assert watched.registry.get_sample_value("logkeep_reconcile_errors_total", labels) == 0
    watched.reconcile_failed(Key("KafkaArchive", "team", "all"))
    assert watched.registry.get_sample_value("logkeep_reconcile_errors_total", labels) == 1


# ---- how Prometheus finds the metrics


@pytest.mark.parametrize(
    ("kind", "value", "endpoints"),
    [("ServiceMonitor", "serviceMonitor", "endpoints"), ("PodMonitor", "podMonitor", "podMetricsEndpoints")],
)
def test_a_monitor_finds_the_operator_and_keeps_the_namespaces_of_resources(
    kind: str, value: str, endpoints: str
) -> None:
    said = (f"metrics.{value}.enabled=true", f"metrics.{value}.labels.release=prom", f"metrics.{value}.interval=1m")
    monitor = one(kind, *said)
    assert monitor["metadata"]["labels"]["release"] == "prom"
    spec = monitor["spec"]
    assert spec[endpoints] == [{"port": "metrics", "interval": "1m", "honorLabels": True}]
    assert spec["namespaceSelector"] == {"matchNames": ["sys"]}
    selected = spec["selector"]["matchLabels"]
    assert selected.items() <= one("Service")["metadata"]["labels"].items()
    assert selected.items() <= one("Deployment")["spec"]["template"]["metadata"]["labels"].items()
    ports = one("Deployment")["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert "metrics" in {port["name"] for port in [*ports, *one("Service")["spec"]["ports"]]}


# ---- alerts


def test_each_alert_names_metrics_that_are_there_and_links_to_its_section() -> None:
    sections = re.findall(r"^## (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert sections == NAMES
    for rule in rules():
        assert named(rule["expr"]) <= metrics(), rule["alert"]
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "https://logkeep.dev/docs/guides/alerts.html"
        assert anchor == rule["alert"].lower()
    schema = json.loads((CHART / "values.schema.json").read_text())
    rule_values = schema["properties"]["metrics"]["properties"]["prometheusRule"]["properties"]
    assert rule_values["disabled"]["items"]["enum"] == NAMES


def test_alerts_can_be_left_out_and_have_limits_of_ones_own() -> None:
    said = ("metrics.prometheusRule.drillHours=0", "metrics.prometheusRule.disabled={LogkeepStaleKeys}")
    left = [rule["alert"] for rule in rules(*said)]
    assert left == [name for name in NAMES if name not in ("LogkeepDrillTooOld", "LogkeepStaleKeys")]
    (old,) = (
        rule for rule in rules("metrics.prometheusRule.backupHours=100") if rule["alert"] == "LogkeepBackupTooOld"
    )
    assert "> 100 * 3600" in old["expr"]
    assert "more than 100 hours ago" in old["annotations"]["description"]
    assert "HOURS" not in json.dumps(rules())


SAMPLES = 3000  # one each five minutes
MINUTES = 5
TEAM = "namespace=team,name=nightly"
KEY = '{kind="KafkaBackup", namespace="team", name="nightly", pod="one"}'
NEXT = KEY.replace("one", "two")
FAILED = 'logkeep_runs_finished_total{kind="KafkaBackup", namespace="team", outcome="Failed"}'
CREATED, SUCCESS = (f"logkeep_{what}_timestamp_seconds{KEY}" for what in ("resource_created", "last_success"))


def steady(value: str) -> str:
    """The value in each sample; with +N it grows."""
    return f"{value}x{SAMPLES}" if value[0].isdigit() else " ".join([value] * SAMPLES)  # NaN and Inf have no short form


# The series of an operator that is well: a backup that succeeds all the time, and whose deadline is 100 hours away.
WELL = {
    'logkeep_leader{namespace="sys", pod="one"}': steady("1"),
    'logkeep_leader{namespace="sys", pod="two"}': steady("0"),
    'logkeep_crds_outdated{namespace="sys", pod="one"}': steady("0"),
    'logkeep_namespace_served{namespace="*", pod="one"}': steady("1"),
    'logkeep_reconcile_errors_total{kind="KafkaBackup"}': steady("0"),
    CREATED: steady("1"),
    SUCCESS: steady("1+300"),
    f"logkeep_retention_deadline_timestamp_seconds{KEY}": steady("360000+300"),
    f"logkeep_last_good_drill_timestamp_seconds{KEY}": steady("0"),
    f"logkeep_keys_compared_timestamp_seconds{KEY}": steady("0"),
    f"logkeep_missing_keys{KEY}": steady("NaN"),
    f"logkeep_stale_keys{KEY}": steady("NaN"),
}
LEADER, WAITS = list(WELL)[:2]
UNKNOWN = steady("Inf")


@cache
def rendered() -> str:
    spec = one("PrometheusRule", RULES)["spec"]
    for rule in spec["groups"][0]["rules"]:
        del rule["annotations"]  # promtool would compare them, too
    return yaml.safe_dump(spec)


def expected(labels: str, severity: str) -> dict[str, Any]:
    said = dict(part.split("=") for part in labels.split(",") if part)
    return {"exp_labels": {"severity": severity, **said}}


def difference(folder: Path, series: dict[str, str], alerts: dict[str, str], hours: float) -> str:
    """Ask promtool whether exactly these alerts fire after so many hours, with these labels. Returns what it says,
    empty if so."""
    (folder / "rules.yaml").write_text(rendered())
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in ALERTS}
    at = f"{round(hours * 60)}m"
    tests = [
        {
            "eval_time": at,
            "alertname": name,
            "exp_alerts": [expected(alerts[name], severity[name])] if name in alerts else [],
        }
        for name in NAMES
    ]
    inputs = [{"series": name, "values": values} for name, values in series.items() if values]
    test = {"interval": f"{MINUTES}m", "input_series": inputs, "alert_rule_test": tests}
    said = {"rule_files": ["rules.yaml"], "evaluation_interval": f"{MINUTES}m", "tests": [test]}
    (folder / "test.yaml").write_text(yaml.safe_dump(said))
    done = system.run([tools.promtool(), "test", "rules", folder / "test.yaml"], check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def gone_after(hours: int, value: str = "1") -> str:
    return f"{value}x{hours * 60 // MINUTES}"


def begins_after(hours: int, value: str) -> str:
    return f"_x{hours * 60 // MINUTES} {steady(value)}"


@pytest.mark.parametrize(
    ("changes", "hours", "alerts"),
    [
        ({}, 200, {}),
        (dict.fromkeys(WELL, ""), 1, {"LogkeepAbsent": ""}),
        ({LEADER: gone_after(2), WAITS: gone_after(2)}, 3, {"LogkeepAbsent": ""}),
        ({LEADER: steady("0")}, 1, {"LogkeepNoLeader": "namespace=sys"}),
        ({WAITS: steady("1")}, 1, {"LogkeepNoLeader": "namespace=sys"}),
        (
            {'logkeep_crds_outdated{namespace="sys", pod="one"}': steady("1")},
            1,
            {"LogkeepCrdsOutdated": "namespace=sys"},
        ),
        (
            {'logkeep_namespace_served{namespace="team", pod="one"}': steady("0")},
            1,
            {"LogkeepNamespaceNotServed": "namespace=team"},
        ),
        ({'logkeep_namespace_served{namespace="*", pod="one"}': ""}, 1, {"LogkeepServesNothing": ""}),
        (
            {'logkeep_reconcile_errors_total{kind="KafkaBackup"}': steady("0+1")},
            2,
            {"LogkeepReconcileErrors": "kind=KafkaBackup"},
        ),
        ({SUCCESS: steady("1")}, 48, {}),
        ({SUCCESS: steady("1")}, 49, {"LogkeepBackupTooOld": TEAM}),
        ({SUCCESS: steady("0")}, 49, {"LogkeepBackupTooOld": TEAM}),  # none ever: its age counts
        ({CREATED: gone_after(10), SUCCESS: gone_after(10, "1+300")}, 10.5, {"LogkeepBackupGone": TEAM}),
        ({CREATED: gone_after(10), SUCCESS: gone_after(10, "1+300")}, 12, {}),
        # Another replica took over: the series of the resource have another pod.
        ({CREATED: gone_after(10), CREATED.replace(KEY, NEXT): begins_after(10, "1")}, 10.5, {}),
        (
            {f"logkeep_retention_deadline_timestamp_seconds{KEY}": steady("360000")},
            95,
            {"LogkeepRetentionDeadlineNear": TEAM},
        ),
        ({f"logkeep_retention_deadline_timestamp_seconds{KEY}": steady("360000")}, 93, {}),
        ({f"logkeep_retention_deadline_timestamp_seconds{KEY}": UNKNOWN}, 95, {}),
        # The first failure makes the series, so it has no increase.
        ({FAILED: begins_after(10, "1")}, 10.5, {"LogkeepRunFailed": "kind=KafkaBackup,namespace=team"}),
        ({FAILED: begins_after(10, "1")}, 12, {}),
        (
            {FAILED: f"{gone_after(10, '3')} 4x100"},
            10.5,
            {"LogkeepRunFailed": "kind=KafkaBackup,namespace=team"},
        ),
        (
            {f"logkeep_last_good_drill_timestamp_seconds{KEY}": steady("1")},
            193,
            {"LogkeepDrillTooOld": TEAM},
        ),
        ({f"logkeep_last_good_drill_timestamp_seconds{KEY}": steady("1")}, 191, {}),
        ({f"logkeep_missing_keys{KEY}": steady("3")}, 1, {"LogkeepKeysMissing": TEAM}),
        ({f"logkeep_stale_keys{KEY}": steady("4")}, 1, {"LogkeepStaleKeys": TEAM}),
        (
            {f"logkeep_keys_compared_timestamp_seconds{KEY}": steady("1")},
            193,
            {"LogkeepComparisonTooOld": TEAM},
        ),
    ],
)
def test_these_alerts_fire_and_no_others(
    changes: dict[str, str], hours: float, alerts: dict[str, str], tmp_path: Path
) -> None:
    said = difference(tmp_path, {**WELL, **changes}, alerts, hours)
    assert said == "", said


def test_each_alert_was_seen_to_fire() -> None:
    (mark,) = test_these_alerts_fire_and_no_others.pytestmark  # type: ignore[attr-defined]
    assert {name for _, _, alerts in mark.args[1] for name in alerts} == set(NAMES)


def test_promtool_tells_an_alert_that_does_not_fire(tmp_path: Path) -> None:
    assert "LogkeepKeysMissing" in difference(tmp_path, WELL, {"LogkeepKeysMissing": TEAM}, 1)

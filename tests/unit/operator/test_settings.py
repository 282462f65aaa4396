"""The operator's environment."""

from __future__ import annotations

import pytest

from logkeep_operator.errors import SettingsInvalid
from logkeep_operator.settings import from_environ


def test_the_image_is_all_that_must_be_said() -> None:
    settings = from_environ({"LOGKEEP_ENGINE_IMAGE": "engine:1"})
    assert (settings.engine.image, settings.engine.pull_policy, settings.namespaces) == ("engine:1", "IfNotPresent", ())
    assert (settings.metrics_port, settings.probe_port) == (8081, 8080)


LEASE = {"LOGKEEP_ENGINE_IMAGE": "e", "LOGKEEP_LEASE_NAME": "logkeep", "LOGKEEP_LEASE_NAMESPACE": "sys"}


def test_each_process_has_a_name_of_its_own_in_the_lease() -> None:
    one, other = (from_environ({**LEASE, "LOGKEEP_POD_NAME": "logkeep-1"}).lease for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.identity.startswith("logkeep-1_")
    assert one.identity != other.identity
    assert (one.duration, one.renew_deadline, one.retry_period) == (15, 10, 2)
    assert from_environ({"LOGKEEP_ENGINE_IMAGE": "e"}).lease is None


@pytest.mark.parametrize(("duration", "deadline", "period"), [("10", "10", "2"), ("15", "5", "5"), ("9", "10", "2")])
def test_times_of_the_lease_that_let_two_act_are_refused(duration: str, deadline: str, period: str) -> None:
    times = {"DURATION_SECONDS": duration, "RENEW_DEADLINE_SECONDS": deadline, "RETRY_PERIOD_SECONDS": period}
    with pytest.raises(SettingsInvalid, match="must be greater than LOGKEEP_LEASE_RENEW_DEADLINE_SECONDS"):
        from_environ(LEASE | {f"LOGKEEP_LEASE_{name}": value for name, value in times.items()})


def test_namespaces_are_a_list() -> None:
    assert from_environ({"LOGKEEP_ENGINE_IMAGE": "e", "LOGKEEP_NAMESPACES": "b, a,b,"}).namespaces == ("b", "a")


def test_without_a_word_pods_have_the_images_user_and_nothing_else_is_allowed() -> None:
    engine = from_environ({"LOGKEEP_ENGINE_IMAGE": "e"}).engine
    assert (engine.user, engine.allowed_images, engine.allowed_accounts) == (185, (), ())
    assert engine.allowed_endpoints == ()


def test_the_platform_may_give_the_user_and_patterns_are_lists() -> None:
    said = {
        "LOGKEEP_ENGINE_USER": "Platform",
        "LOGKEEP_ALLOWED_IMAGES": "registry.example/*, b",
        "LOGKEEP_ALLOWED_SERVICE_ACCOUNTS": "team-*",
    }
    engine = from_environ({"LOGKEEP_ENGINE_IMAGE": "e"} | said).engine
    assert (engine.user, engine.allowed_images) == (None, ("registry.example/*", "b"))
    assert engine.allowed_accounts == ("team-*",)


def test_runs_are_limited_also_in_namespaces() -> None:
    default = from_environ({"LOGKEEP_ENGINE_IMAGE": "e"}).concurrency
    assert (default.operator, default.of("any"), default.share, default.kueue) == (5, None, 3, False)
    said = {"": "7", "_NAMESPACE": "2", "_NAMESPACES": "a=1, b=0"}
    limits = from_environ(
        {"LOGKEEP_ENGINE_IMAGE": "e"} | {f"LOGKEEP_MAX_CONCURRENT_RUNS{end}": text for end, text in said.items()}
    ).concurrency
    assert (limits.operator, [limits.of(name) for name in "abc"]) == (7, [1, 0, 2])


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LOGKEEP_MAX_CONCURRENT_RUNS", "-1"),
        ("LOGKEEP_MAX_CONCURRENT_RUNS_NAMESPACE", "many"),
        ("LOGKEEP_MAX_CONCURRENT_RUNS_NAMESPACE", "10001"),
        ("LOGKEEP_KUEUE", "yes"),
        ("LOGKEEP_MAX_CONCURRENT_RUNS_NAMESPACES", "a"),
        ("LOGKEEP_MAX_CONCURRENT_RUNS_NAMESPACES", "a=x"),
        ("LOGKEEP_MAX_CONCURRENT_RUNS_NAMESPACES", "=1"),
        ("LOGKEEP_ENGINE_IMAGE", " "),
        ("LOGKEEP_ALLOWED_ENDPOINTS", "https://minio, minio:9000"),
        ("LOGKEEP_METRICS_PORT", "http"),
        ("LOGKEEP_METRICS_PORT", "70000"),
        ("LOGKEEP_WORKERS", "0"),
        ("LOGKEEP_ENGINE_PULL_POLICY", "Sometimes"),
        ("LOGKEEP_LOG_LEVEL", "LOUD"),
        ("LOGKEEP_DRIVER_ROLE", "logkeep-driver"),
        ("LOGKEEP_DRIVER_ROLE", "Role/"),
        ("LOGKEEP_LEASE_NAME", "logkeep"),
        ("LOGKEEP_ENGINE_USER", "1000"),
        ("LOGKEEP_RUN_DEFAULTS", "memory: 1Gi"),
        ("LOGKEEP_RUN_DEFAULTS", "[]"),
        ("LOGKEEP_RUN_DEFAULTS", '{"conf": {}}'),
        ("LOGKEEP_RUN_DEFAULTS", '{"driver": "1Gi"}'),
        ("LOGKEEP_ACCOUNT_ANNOTATIONS", '{"role": 1}'),
    ],
)
def test_what_is_wrong_is_named(variable: str, value: str) -> None:
    with pytest.raises(SettingsInvalid, match=variable):
        from_environ({"LOGKEEP_ENGINE_IMAGE": "engine:1"} | {variable: value})

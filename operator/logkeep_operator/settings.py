"""The settings of the operator, which are variables of its environment. The Helm chart sets them.

| variable | meaning | default |
|---|---|---|
| LOGKEEP_ENGINE_IMAGE | image of driver and executors, unless a resource names another | must be set |
| LOGKEEP_ENGINE_PULL_POLICY | its pull policy | IfNotPresent |
| LOGKEEP_IMAGE_PULL_SECRETS | names of Secrets for pulling it, separated by commas | none |
| LOGKEEP_DRIVER_ROLE | what drivers may do: `ClusterRole/<name>` or `Role/<name>` | ClusterRole/logkeep-driver |
| LOGKEEP_ENGINE_USER | uid and groups of driver and executors: Fixed (185), or those that the Platform gives | Fixed |
| LOGKEEP_ALLOWED_IMAGES | images that resources may name, with `*`, separated by commas | only the engine's |
| LOGKEEP_ALLOWED_SERVICE_ACCOUNTS | accounts that resources may name, in the same way | only the operator's |
| LOGKEEP_ALLOWED_ENDPOINTS | endpoints of object stores that resources may name, in the same way | none |
| LOGKEEP_ALLOWED_CODE | whether resources may bring code into their pods: true or false | false |
| LOGKEEP_RUN_DEFAULTS | defaults of `spec.spark.driver` and `spec.spark.executor`, as JSON | none |
| LOGKEEP_ACCOUNT_ANNOTATIONS | annotations of the accounts that the operator makes, as JSON | none |
| LOGKEEP_ALLOWED_INLINE_STORAGE | whether resources may name a storage without a KafkaArchive: true or false | true |
| LOGKEEP_NETWORK_POLICIES | whether namespaces with runs get a NetworkPolicy: true or false | true |
| LOGKEEP_NAMESPACES | namespaces to watch, separated by commas | all |
| LOGKEEP_METRICS_PORT | port of /metrics; 0: none | 8081 |
| LOGKEEP_PROBE_PORT | port of /healthz; 0: none | 8080 |
| LOGKEEP_WORKERS | resources reconciled at once | 4 |
| LOGKEEP_MAX_CONCURRENT_RUNS | runs that have a driver at a time; 0: no limit | 5 |
| LOGKEEP_MAX_CONCURRENT_RUNS_NAMESPACE | the same in each namespace; Share: half of them, if there are others | Share |
| LOGKEEP_MAX_CONCURRENT_RUNS_NAMESPACES | the same in single namespaces: `name=number`, separated by commas | none |
| LOGKEEP_KUEUE | whether Kueue is there, which has a queue of its own: true or false | false |
| LOGKEEP_RESYNC_SECONDS | how often every resource is looked at without an event | 60 |
| LOGKEEP_LEASE_NAME | the Lease whose holder is the replica that acts | none: this one acts |
| LOGKEEP_LEASE_NAMESPACE | its namespace | none |
| LOGKEEP_POD_NAME | this replica's name in the Lease | the name of the machine |
| LOGKEEP_LEASE_DURATION_SECONDS | a Lease that has not changed for so long may be taken | 15 |
| LOGKEEP_LEASE_RENEW_DEADLINE_SECONDS | a holder that could not renew for so long stops | 10 |
| LOGKEEP_LEASE_RETRY_PERIOD_SECONDS | how often the Lease is renewed or looked at | 2 |
| LOGKEEP_LOG_LEVEL | DEBUG, INFO, WARNING or ERROR | INFO |
"""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from logkeep_engine.contract.endpoints import check_allowed_endpoint
from logkeep_operator.errors import SettingsInvalid

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
DEFAULT_USER = 185  # Spark's customary user; the image has it in /etc/passwd
FIXED, PLATFORM = "Fixed", "Platform"
DEFAULT_RUNS = 5
MAX_RUNS = 10_000
SHARE = "Share"
RUN_DEFAULTS = "LOGKEEP_RUN_DEFAULTS"
ACCOUNT_ANNOTATIONS = "LOGKEEP_ACCOUNT_ANNOTATIONS"
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True)
class RoleName:
    """A ClusterRole, or a Role that is in each namespace."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings that the builders of pods need. `user`: uid, gid and fsGroup; None: the platform gives them. The
    allowed ones are patterns in which `*` stands for any characters. `driver_role` is what drivers may do. `defaults`
    are what `spec.spark` is under what a resource says, `resources.run_defaults` checks them."""

    image: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    user: int | None = DEFAULT_USER
    allowed_images: tuple[str, ...] = ()
    allowed_accounts: tuple[str, ...] = ()
    allowed_endpoints: tuple[str, ...] = ()
    allowed_code: bool = False
    allowed_inline_storage: bool = True
    network_policies: bool = True
    driver_role: RoleName = RoleName("ClusterRole", "logkeep-driver")
    defaults: Mapping[str, Any] = field(default_factory=dict)
    account_annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """The Lease of the replicas, the name that this one has in it, and Kubernetes' three times, in seconds."""

    namespace: str
    name: str
    identity: str
    duration: int = 15
    renew_deadline: int = 10
    retry_period: int = 2


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The most runs that have a driver at a time: of the operator, of each namespace, and of single namespaces. 0
    stands for no limit. `namespace`: None for the share. `kueue`: Kueue is there, and what it queues does not wait."""

    operator: int = 0
    namespace: int | None = None
    namespaces: Mapping[str, int] = field(default_factory=dict)
    kueue: bool = False

    def of(self, namespace: str) -> int | None:
        """Return the most runs of a namespace, None if it has the share."""
        return self.namespaces.get(namespace, self.namespace)

    @property
    def share(self) -> int:
        """The most runs of a namespace without a number of its own, if others need runs, too. No one may hold all
        places for as long as its runs like."""
        return (self.operator + 1) // 2


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole environment, checked. `namespaces` is empty for the whole cluster."""

    engine: EngineSettings
    namespaces: tuple[str, ...] = ()
    metrics_port: int = 8081
    probe_port: int = 8080
    workers: int = 4
    concurrency: Concurrency = Concurrency(DEFAULT_RUNS)
    resync_seconds: int = 60
    log_level: str = "INFO"
    lease: LeaseSettings | None = None


def from_environ(environ: Mapping[str, str]) -> Settings:
    """Read and check the environment. Raises SettingsInvalid, which names the variable."""
    image = environ.get("LOGKEEP_ENGINE_IMAGE", "").strip()
    if not image:
        raise SettingsInvalid("LOGKEEP_ENGINE_IMAGE must name the engine's image.")
    return Settings(
        engine=EngineSettings(
            image=image,
            pull_policy=_choice(environ, "LOGKEEP_ENGINE_PULL_POLICY", "IfNotPresent", PULL_POLICIES),
            pull_secrets=_names(environ, "LOGKEEP_IMAGE_PULL_SECRETS"),
            driver_role=_role(environ),
            user=_user(environ),
            allowed_images=_names(environ, "LOGKEEP_ALLOWED_IMAGES"),
            allowed_accounts=_names(environ, "LOGKEEP_ALLOWED_SERVICE_ACCOUNTS"),
            allowed_endpoints=_endpoints(environ),
            allowed_code=_switch(environ, "LOGKEEP_ALLOWED_CODE", "false"),
            allowed_inline_storage=_switch(environ, "LOGKEEP_ALLOWED_INLINE_STORAGE", "true"),
            network_policies=_switch(environ, "LOGKEEP_NETWORK_POLICIES", "true"),
            defaults=_run_defaults(environ),
            account_annotations=_account_annotations(environ),
        ),
        namespaces=_names(environ, "LOGKEEP_NAMESPACES"),
        metrics_port=_number(environ, "LOGKEEP_METRICS_PORT", 8081, 0, 65535),
        probe_port=_number(environ, "LOGKEEP_PROBE_PORT", 8080, 0, 65535),
        workers=_number(environ, "LOGKEEP_WORKERS", 4, 1, 64),
        concurrency=Concurrency(
            _number(environ, "LOGKEEP_MAX_CONCURRENT_RUNS", DEFAULT_RUNS, 0, MAX_RUNS),
            _of_each_namespace(environ),
            _numbers(environ, "LOGKEEP_MAX_CONCURRENT_RUNS_NAMESPACES"),
            _choice(environ, "LOGKEEP_KUEUE", "false", ("true", "false")) == "true",
        ),
        resync_seconds=_number(environ, "LOGKEEP_RESYNC_SECONDS", 60, 1, 3600),
        log_level=_choice(environ, "LOGKEEP_LOG_LEVEL", "INFO", LOG_LEVELS),
        lease=_lease(environ),
    )


def _lease(environ: Mapping[str, str]) -> LeaseSettings | None:
    """None without a Lease. The identity has a random part, as two processes of one pod may follow each other."""
    name = environ.get("LOGKEEP_LEASE_NAME", "").strip()
    if not name:
        return None
    namespace = environ.get("LOGKEEP_LEASE_NAMESPACE", "").strip()
    if not namespace:
        raise SettingsInvalid("LOGKEEP_LEASE_NAMESPACE must name the namespace of the Lease LOGKEEP_LEASE_NAME.")
    lease = LeaseSettings(
        namespace=namespace,
        name=name,
        identity=f"{environ.get('LOGKEEP_POD_NAME', '').strip() or socket.gethostname()}_{uuid.uuid4()}",
        duration=_number(environ, "LOGKEEP_LEASE_DURATION_SECONDS", 15, 3, 3600),
        renew_deadline=_number(environ, "LOGKEEP_LEASE_RENEW_DEADLINE_SECONDS", 10, 2, 3600),
        retry_period=_number(environ, "LOGKEEP_LEASE_RETRY_PERIOD_SECONDS", 2, 1, 3600),
    )
    if not lease.duration > lease.renew_deadline > lease.retry_period:
        raise SettingsInvalid(
            "LOGKEEP_LEASE_DURATION_SECONDS must be greater than LOGKEEP_LEASE_RENEW_DEADLINE_SECONDS, and that one "
            f"greater than LOGKEEP_LEASE_RETRY_PERIOD_SECONDS; they are {lease.duration}, {lease.renew_deadline} and "
            f"{lease.retry_period}."
        )
    return lease


def _role(environ: Mapping[str, str]) -> RoleName:
    text = environ.get("LOGKEEP_DRIVER_ROLE", "").strip() or "ClusterRole/logkeep-driver"
    kind, _, name = text.partition("/")
    if kind not in ("ClusterRole", "Role") or not name:
        raise SettingsInvalid(f"LOGKEEP_DRIVER_ROLE is {text!r}; it must be ClusterRole/<name> or Role/<name>.")
    return RoleName(kind, name)


def _user(environ: Mapping[str, str]) -> int | None:
    platform = _choice(environ, "LOGKEEP_ENGINE_USER", FIXED, (FIXED, PLATFORM)) == PLATFORM
    return None if platform else DEFAULT_USER


def _names(environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in environ.get(variable, "").split(",") if name.strip()))


def _endpoints(environ: Mapping[str, str]) -> tuple[str, ...]:
    found = _names(environ, "LOGKEEP_ALLOWED_ENDPOINTS")
    try:
        for entry in found:
            check_allowed_endpoint(entry)
    except ValueError as error:
        raise SettingsInvalid(f"LOGKEEP_ALLOWED_ENDPOINTS: {error}.") from error
    return found


def _run_defaults(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the parts of `spec.spark` that have defaults of the installation. Those that are empty are left out."""
    found = _object(environ, RUN_DEFAULTS)
    for name, value in found.items():
        if name not in ("driver", "executor") or not isinstance(value, dict):
            raise SettingsInvalid(f"{RUN_DEFAULTS}: {name!r} must be driver or executor, each an object.")
    return {name: value for name, value in found.items() if value}


def _account_annotations(environ: Mapping[str, str]) -> dict[str, str]:
    found = _object(environ, ACCOUNT_ANNOTATIONS)
    for name, value in found.items():
        if not isinstance(value, str):
            raise SettingsInvalid(f"{ACCOUNT_ANNOTATIONS}: the value of {name!r} must be a text.")
    return found


def _object(environ: Mapping[str, str], variable: str) -> dict[str, Any]:
    try:
        found = json.loads(environ.get(variable, "").strip() or "{}")
    except ValueError as error:
        raise SettingsInvalid(f"{variable} is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise SettingsInvalid(f"{variable} must be an object in JSON.")
    return found


def _number(environ: Mapping[str, str], variable: str, default: int, low: int, high: int) -> int:
    text = environ.get(variable, "").strip() or str(default)
    if not text.isdecimal() or not low <= int(text) <= high:
        raise SettingsInvalid(f"{variable} is {text!r}; it must be a number from {low} to {high}.")
    return int(text)


def _of_each_namespace(environ: Mapping[str, str]) -> int | None:
    variable = "LOGKEEP_MAX_CONCURRENT_RUNS_NAMESPACE"
    text = environ.get(variable, "").strip() or SHARE
    if text != SHARE and (not text.isdecimal() or int(text) > MAX_RUNS):
        raise SettingsInvalid(f"{variable} is {text!r}; it must be {SHARE} or a number from 0 to {MAX_RUNS}.")
    return None if text == SHARE else int(text)


def _numbers(environ: Mapping[str, str], variable: str) -> dict[str, int]:
    found = {}
    for item in _names(environ, variable):
        name, _, text = item.partition("=")
        if not name or not text.isdecimal() or int(text) > MAX_RUNS:
            raise SettingsInvalid(f"{variable}: {item!r} must be a namespace, = and a number up to {MAX_RUNS}.")
        found[name] = int(text)
    return found


def _switch(environ: Mapping[str, str], variable: str, default: str) -> bool:
    return _choice(environ, variable, default, ("true", "false")) == "true"


def _choice(environ: Mapping[str, str], variable: str, default: str, choices: tuple[str, ...]) -> str:
    text = environ.get(variable, "").strip() or default
    if text not in choices:
        raise SettingsInvalid(f"{variable} is {text!r}; it must be one of {', '.join(choices)}.")
    return text

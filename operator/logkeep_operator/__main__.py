"""Start the operator: `python -m logkeep_operator`. Its settings are environment variables (see `settings`)."""

from __future__ import annotations

import logging
import os
import sys

import kopf

from logkeep_engine.contract.visible import log_with_times, say
from logkeep_operator import handlers
from logkeep_operator.cluster import KubernetesCluster, connect
from logkeep_operator.errors import SettingsInvalid
from logkeep_operator.leader import Fence, LeaderElection
from logkeep_operator.metrics import Metrics
from logkeep_operator.resources import check_defaults
from logkeep_operator.settings import Settings, from_environ

EXIT_LEASE_LOST = 3


def main() -> int:
    """Run until a signal ends it. The exit code is 1 if the CRDs are missing, 2 if the environment is wrong, and 3 if
    the Lease was lost."""
    try:
        settings = from_environ(os.environ)
        check_defaults(settings.engine)
    except SettingsInvalid as error:
        say(f"logkeep-operator: {error}")
        return 2
    log_with_times(settings.log_level)
    for chatty in ("kopf", "aiohttp", "asyncio", "urllib3", "kubernetes"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
    log = logging.getLogger("logkeep_operator")
    log.info("engine image %s, namespaces %s", settings.engine.image, ", ".join(settings.namespaces) or "all")
    operator = _operator(settings)
    kopf.run(
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        stop_flag=operator.stop,
        memo=operator,
    )
    if operator.failure:
        say(f"logkeep-operator: {operator.failure}")
    return 1 if operator.failure else 0


def _operator(settings: Settings) -> handlers.Operator:
    """Return the operator with its connections. The Lease has one of its own, which no other call can hold up."""
    times = settings.lease
    if times is None:
        return handlers.Operator(settings, KubernetesCluster(connect()))
    fence, metrics = Fence(), Metrics()
    # By half, so that after a call that hangs there is time for another one.
    leases = KubernetesCluster(connect(), call_seconds=times.renew_deadline / 2)
    election = LeaderElection(leases, times, fence, metrics, _end_at_once)
    return handlers.Operator(settings, KubernetesCluster(connect(), writing=fence.writing), election, metrics)


def _end_at_once(why: str) -> None:
    """End the process with all that it has begun: another replica may act now."""
    logging.getLogger("logkeep_operator").error("this replica has lost the Lease and ends: %s", why)
    logging.shutdown()
    os._exit(EXIT_LEASE_LOST)


if __name__ == "__main__":
    sys.exit(main())

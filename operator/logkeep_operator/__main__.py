"""Start the operator: `python -m logkeep_operator`. Its settings are environment variables (see `settings`)."""

from __future__ import annotations

import logging
import os
import sys
import time

import kopf

from logkeep_operator import handlers
from logkeep_operator.cluster import KubernetesCluster, connect
from logkeep_operator.errors import SettingsInvalid
from logkeep_operator.settings import from_environ


def main() -> int:
    """Run until a signal ends it. Exit code 2 when the environment is wrong."""
    try:
        settings = from_environ(os.environ)
    except SettingsInvalid as error:
        print(f"logkeep-operator: {error}", file=sys.stderr)
        return 2
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        level=settings.log_level,
        stream=sys.stderr,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    for chatty in ("kopf", "aiohttp", "asyncio", "urllib3", "kubernetes"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
    log = logging.getLogger("logkeep_operator")
    log.info("engine image %s, namespaces %s", settings.engine.image, ", ".join(settings.namespaces) or "all")
    kopf.run(
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        liveness_endpoint=f"http://0.0.0.0:{settings.probe_port}/healthz" if settings.probe_port else None,
        memo=handlers.Operator(settings, KubernetesCluster(connect())),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The command `python -m logkeep_operator.apply_crds FOLDER`, for the chart's hook before an upgrade (`crds.upgrade`).

It applies the CRDs in the folder as `kubectl apply --server-side --force-conflicts` does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from logkeep_engine.contract.visible import print_line, say
from logkeep_operator.cluster import KubernetesCluster, connect
from logkeep_operator.errors import ApiError


def main(arguments: list[str]) -> int:
    """Apply all files. The exit code is 1 if the API server has refused one, and 2 without files."""
    files = [file for folder in arguments for file in sorted(Path(folder).glob("*.json"))]
    if not files:
        say("logkeep: name a folder with CRDs as *.json")
        return 2
    cluster = KubernetesCluster(connect())
    for file in files:
        body = json.loads(file.read_text())
        try:
            cluster.apply(body)
        except ApiError as error:
            say(f"logkeep: {body['metadata']['name']} was not applied: {error}")
            return 1
        print_line(f"logkeep: {body['metadata']['name']} is applied")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

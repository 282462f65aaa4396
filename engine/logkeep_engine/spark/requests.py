"""The request that a run's Job has mounted: read once, and compared with the hash that the Job carries of it.

A user who may create ConfigMaps can put another one under the request's name. The driver holds Secrets and a token, so
it takes no other request than the one that its Job was made for. The template of executors is a part of it: Spark reads
it later, so it gets a copy of what was compared.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import KEY_EXECUTOR_TEMPLATE
from logkeep_engine.contract.request_files import mounted_files, request_hash
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.contract.stored import DocumentRefused
from logkeep_engine.errors import RequestReplaced, SpecError

TEMPLATE_KEY = "spark.kubernetes.executor.podTemplateFile"


def read_request(path: Path, wanted_hash: str | None, stack: contextlib.ExitStack) -> RunRequest:
    """Return the request at this path. With a hash, the files of its folder must have it. What Spark reads of them
    later is there until `stack` is closed. Raises SpecError and RequestReplaced."""
    try:
        if wanted_hash is None:
            return RunRequest.from_json(path.read_bytes())
        files = mounted_files(path.parent)
        found = request_hash(files)
        if found != wanted_hash:
            raise RequestReplaced(
                f"The run request in {path.parent} is not the one that this Job was made for: its SHA-256 is {found}, "
                f"and the Job says {wanted_hash}.",
                hint="Another ConfigMap has taken its place. Find out who created it, and delete the Job: the operator "
                "creates both again.",
            )
        request = RunRequest.from_json(files[path.name])
        return _with_template(request, files, stack)
    except (OSError, KeyError, DocumentRefused) as error:
        raise SpecError(
            f"The run request {path} cannot be read: {error}.", hint="Operator and engine must fit together."
        ) from error


def _with_template(request: RunRequest, files: Mapping[str, bytes], stack: contextlib.ExitStack) -> RunRequest:
    if TEMPLATE_KEY not in request.spark_conf:
        return request
    folder = Path(tempfile.mkdtemp(prefix="logkeep-request-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    copy = folder / KEY_EXECUTOR_TEMPLATE
    copy.write_bytes(files[KEY_EXECUTOR_TEMPLATE])
    return replace(request, spark_conf={**request.spark_conf, TEMPLATE_KEY: str(copy)})

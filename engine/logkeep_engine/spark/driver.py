"""The entry point of a run's Job: `python -m logkeep_engine.spark.driver --request FILE [--master local[N]]`.

It reads the request, runs the backup or the restore, and reports the result three times: in the progress ConfigMap, as
the pod's termination message and as the exit code (`contract.names.ExitCode`). It logs one line an event, and never the
environment or Spark's configuration, which name secrets.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from logkeep_engine import interrupt
from logkeep_engine.collector import paused
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import (
    BACKUP,
    KEY_EXECUTOR_TEMPLATE,
    PATH_TERMINATION_LOG,
    RESTORE,
    TERMINATION_MESSAGE_MAX_BYTES,
    ExitCode,
)
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.request_files import ARGUMENT_HASH, ARGUMENT_RUN, mounted_files, request_hash
from logkeep_engine.contract.run import MAX_LIST, RunRequest, RunResult
from logkeep_engine.contract.spec import KafkaBackupSpec, parse_backup
from logkeep_engine.contract.stored import DocumentRefused
from logkeep_engine.contract.visible import log_with_times
from logkeep_engine.errors import LogkeepError, RequestReplaced, SpecError
from logkeep_engine.frame import with_clear_text_warnings
from logkeep_engine.report import Reporter, failed
from logkeep_engine.spark import daemon
from logkeep_engine.spark.conf import master_conf, planned_for, uses_s3
from logkeep_engine.spark.config_map import ConfigMapSink
from logkeep_engine.spark.job_session import JobSession
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.spark.session import Session

# ---- requests

# The request that a run's Job has mounted: read once, and compared with the hash that the Job carries of it.
#
# A user who may create ConfigMaps can put another one under the request's name. The driver holds Secrets and a token,
# so it takes no other request than the one that its Job was made for. The template of executors is a part of it:
# Spark reads it later, so it gets a copy of what was compared.


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


if TYPE_CHECKING:
    from logkeep_engine.contract.restore_spec import KafkaRestoreSpec

log = logging.getLogger("logkeep")

ENV_TERMINATION_LOG = "LOGKEEP_TERMINATION_LOG"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one request to its end and return the process's exit code."""
    parser = argparse.ArgumentParser(prog="logkeep-driver", description="Run one backup or restore.")
    parser.add_argument("--request", required=True, type=Path, help="the run request, a JSON file")
    parser.add_argument(
        ARGUMENT_HASH, help="SHA-256 of all files of the request's folder: any other request is refused"
    )
    parser.add_argument(ARGUMENT_RUN, default="", help="the run's id, for the result of a request that is refused")
    parser.add_argument(
        "--master", help="local, local[N] or local[*]; by default Kubernetes, from inside the driver's pod"
    )
    arguments = parser.parse_args(argv)
    _set_up_logging()
    interrupt.on(signal.SIGTERM, once=True)  # as Ctrl-C: no `except Exception` on the way swallows it
    started = time.time()
    result = RunResult(
        run_id=arguments.run_id,
        kind="",
        outcome="Failed",
        exit_code=int(ExitCode.FAILED),
        start_time=started,
        end_time=started,
    )
    reporter: Reporter | None = None
    with contextlib.ExitStack() as stack:
        try:
            request = read_request(arguments.request, arguments.request_hash, stack)
            result = replace(result, run_id=request.run_id, kind=request.kind, requested_by=request.requested_by)
            log.info(
                "run %s of %s %s/%s starts, requested by %s",
                *(request.run_id, request.kind, request.namespace, request.name, request.requested_by or "an operator"),
            )
            nursery: Nursery | None = None
            try:
                with paused():
                    spec = _parsed(request)
                    if arguments.master is None:
                        _import_for(spec)
                gc.freeze()  # what is imported stays to the end: the collector need not walk it again and again
                if arguments.master is None:
                    nursery = Nursery()
                    stack.callback(nursery.close)
            finally:
                reporter = _reporter(request)  # it has a thread, and the nursery is forked before there is any
            session = _session(request, spec, reporter, arguments.master, nursery, os.environ, stack)
            result = _run(request, spec, arguments.master, session, reporter)
            result = with_clear_text_warnings(_with_keys_without_effect(result, session), spec)
            if result.dry_run is not None:
                result = replace(result, dry_run=result.dry_run.bounded())
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, Exception) and not isinstance(error, LogkeepError):
                log.exception("unexpected error")
            result = replace(failed(result, error), end_time=time.time())
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _tell(result, reporter, Path(os.environ.get(ENV_TERMINATION_LOG, PATH_TERMINATION_LOG)))
    return result.exit_code


def _reporter(request: RunRequest) -> Reporter:
    if request.progress_config_map is None:
        return Reporter(request.run_id)
    return Reporter(request.run_id, ConfigMapSink(request.progress_config_map, request.namespace))


def _parsed(request: RunRequest) -> KafkaBackupSpec | KafkaRestoreSpec:
    try:
        if request.kind == BACKUP:
            return parse_backup(request.spec)
        if request.kind == RESTORE:
            from logkeep_engine.contract.restore_spec import parse_restore  # a backup does without it

            return parse_restore(request.spec)
    except SpecInvalid as error:
        raise SpecError(f"{error}.", hint="Correct the resource.") from error
    raise SpecError(f"The run request is for a {request.kind!r}; this engine knows KafkaBackup and KafkaRestore.")


def _import_for(spec: KafkaBackupSpec | KafkaRestoreSpec) -> None:
    """Import what the run needs, and its tasks: those that the driver does itself find it imported."""
    if isinstance(spec, KafkaBackupSpec):
        import logkeep_engine.backup.run.backup_run
    else:
        import logkeep_engine.restore.run.entry
        from logkeep_engine.contract.restore_spec import RestoreVerification

        if spec.drill is not None:
            import logkeep_engine.restore.run.drill
        elif spec.verify is RestoreVerification.FULL:
            import logkeep_engine.restore.verification.step  # noqa: F401
    if uses_s3(spec):
        daemon.import_s3()


def _run(
    request: RunRequest,
    spec: KafkaBackupSpec | KafkaRestoreSpec,
    master: str | None,
    session: Session | JobSession,
    reporter: Reporter,
) -> RunResult:
    runner, expect = session.runner, session.expect if isinstance(session, JobSession) else None
    if isinstance(spec, KafkaBackupSpec):
        from logkeep_engine.backup.run.backup_run import run_backup

        return run_backup(request, planned_for(master, spec), runner, reporter, os.environ, expect=expect)
    if request.release:
        from logkeep_engine.restore.run.releasing import run_release

        return run_release(request, spec, reporter, os.environ)
    from logkeep_engine.restore.run.entry import run_of

    return run_of(request, planned_for(master, spec), runner, reporter, os.environ, expect).perform()


def _with_keys_without_effect(result: RunResult, session: Session | JobSession) -> RunResult:
    """Return the result with a warning if the run took no notice of keys of `spark.conf`."""
    keys = session.without_effect() if isinstance(session, JobSession) else []
    if not keys:
        return result
    more = f" and {len(keys) - MAX_LIST} more" if len(keys) > MAX_LIST else ""
    warning = (
        f"spec.spark.conf: {', '.join(keys[:MAX_LIST])}{more} had no effect, since the driver did the work itself, "
        "without Spark"
    )
    log.warning("%s", warning)
    return replace(result, warnings=(*result.warnings[: MAX_LIST - 1], warning))


def _session(
    request: RunRequest,
    spec: KafkaBackupSpec | KafkaRestoreSpec,
    reporter: Reporter,
    master: str | None,
    nursery: Nursery | None,
    environ: MutableMapping[str, str],
    stack: contextlib.ExitStack,
) -> Session | JobSession:
    """Return the session whose runner does the tasks. With `master` Spark starts at once.

    What runs tasks is stopped when `stack` is closed, after the result has been reported.
    """
    s3 = uses_s3(spec)
    if nursery is None:
        conf = master_conf(master, request.spark_conf, environ)
        return stack.enter_context(Session(conf, environ=environ, s3=s3))
    placed = JobSession(spec.spark, request.spark_conf, environ, nursery, s3=s3, placed=reporter.executors)
    return stack.enter_context(placed)


def _tell(result: RunResult, reporter: Reporter | None, termination_log: Path) -> None:
    log.log(
        logging.ERROR if result.outcome == "Failed" else logging.INFO,
        "run %s %s: exit code %d, %d records, %d bytes, %d segments%s",
        result.run_id, result.outcome.lower(), result.exit_code, result.records, result.bytes, result.segments,
        f": {result.error_code}: {result.message}" if result.message else "",
    )  # fmt: skip
    if reporter is not None:
        reporter.finish(result)
    try:
        termination_log.write_text(result.to_termination_message(TERMINATION_MESSAGE_MAX_BYTES), encoding="utf-8")
    except OSError as error:
        log.warning("the termination message could not be written to %s: %s", termination_log, error.strerror)


def _set_up_logging() -> None:
    log_with_times(logging.INFO)
    for chatty in ("py4j", "botocore", "urllib3", "kubernetes"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _leave(code: int) -> NoReturn:
    """End the process at once: taking down all modules one by one takes a tenth of a second."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())

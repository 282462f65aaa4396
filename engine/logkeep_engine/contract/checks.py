"""Checks of a whole spec beyond those of its models, for every caller: the operator, the command line, a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from logkeep_engine.contract import driver_conf
from logkeep_engine.contract.cron import CronInvalid, CronTimes, parse_zone
from logkeep_engine.contract.folders import is_system_folder
from logkeep_engine.contract.names import ROLE_DRIVER, ROLE_EXECUTOR
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.reconcile import ReconcileSpec
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.running import (
    DRIVER_MIN_MIB,
    HEAP_MIN_MIB,
    MIB,
    TASK_MIB,
    DriverSpec,
    ExecutorSpec,
    RunPolicy,
    SparkSpec,
)
from logkeep_engine.contract.schedule import ScheduleSpec
from logkeep_engine.contract.spark_keys import (
    PROTECTING_KEYS,
    PROTECTING_PREFIXES,
    RESERVED_KEYS,
    RESERVED_PREFIXES,
)
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.contract.storage import StorageSpec, mount_path
from logkeep_engine.contract.template_checks import template_problems
from logkeep_engine.contract.values import parse_cores, parse_quantity


def executor_min_mib(cores: int) -> int:
    """Return the least memory of an executor pod."""
    return HEAP_MIN_MIB + TASK_MIB * cores


def check_spec(spec: KafkaBackupSpec | KafkaRestoreSpec, *, in_pods: bool = True) -> None:
    """Check the spec. Raises SpecInvalid, whose problems name the fields. Unless it runs `in_pods`, a folder needs no
    volume."""
    problems = [*spark_problems(spec.spark, _mounted(spec)), *_job_problems(spec.run_policy)]
    problems += _schedules_problems(spec)
    if in_pods:
        problems += _storages_problems(spec)
    if problems:
        raise SpecInvalid(problems)


def _schedules_problems(spec: KafkaBackupSpec | KafkaRestoreSpec) -> list[tuple[str, str]]:
    schedules: dict[str, ScheduleSpec | ReconcileSpec | None]
    if isinstance(spec, KafkaBackupSpec):
        schedules = {"spec.schedule": spec.schedule, "spec.reconcile": spec.reconcile}
    else:
        schedules = {"spec.drill.schedule": None if spec.drill is None else spec.drill.schedule}
    return [
        problem
        for path, schedule in schedules.items()
        if schedule is not None
        for problem in _schedule_problems(path, schedule)
    ]


def _storages_problems(spec: KafkaBackupSpec | KafkaRestoreSpec) -> list[tuple[str, str]]:
    if isinstance(spec, KafkaBackupSpec):
        return [] if spec.storage is None else storage_problems("spec.storage", spec.storage)
    problems = []
    if spec.source.storage is not None:
        problems += storage_problems("spec.source.storage", spec.source.storage)
        problems += state_problems(spec.source.storage, spec.state)
    if spec.state is not None:
        problems += storage_problems("spec.state", spec.state)
    return problems


def _mounted(spec: KafkaBackupSpec | KafkaRestoreSpec) -> list[str]:
    """Return where volumes of the spec's storages are mounted."""
    storages = (spec.storage,) if isinstance(spec, KafkaBackupSpec) else (spec.source.storage, spec.state)
    return [mount_path(storage) for storage in storages if storage is not None and storage.volume is not None]


def storage_problems(path: str, storage: StorageSpec) -> list[tuple[str, str]]:
    """Problems of a storage whose archive is read or written by pods."""
    if not storage.uri.startswith("file:"):
        return []
    problems = []
    if storage.volume is None:
        problems.append((f"{path}.volume", "required with a file:// uri: a pod has no other place for files that last"))
    folder = storage.uri.removeprefix("file://")
    if ".." in PurePosixPath(folder).parts or is_system_folder(folder):
        problems.append(
            (f"{path}.uri", f"the volume is mounted at the uri's path, and {storage.uri!r} is a system folder")
        )
    return problems


def state_problems(archive: StorageSpec, state: StorageSpec | None) -> list[tuple[str, str]]:
    """Problems of a place for the state of a restore from this archive."""
    if state is None or archive.volume is None or state.volume is None:
        return []
    one, other = (PurePosixPath(at.uri.removeprefix("file://")) for at in (archive, state))
    if not (one.is_relative_to(other) or other.is_relative_to(one)):
        return []
    what = f"a volume is mounted there and one at the archive's {archive.uri!r}: neither may be inside the other"
    return [("spec.state.uri", what)]


def _job_problems(policy: RunPolicy) -> list[tuple[str, str]]:
    """Problems of the labels of a Job. The operator finds its Jobs by labels of its own."""
    wrong = [name for name in sorted(policy.job_labels) if driver_conf.is_own(name)]
    return [(f"spec.runPolicy.jobLabels[{name}]", "is set by Logkeep and cannot be changed here") for name in wrong]


def _schedule_problems(path: str, schedule: ScheduleSpec | ReconcileSpec) -> list[tuple[str, str]]:
    problems = []
    try:
        parse_zone(schedule.time_zone)
    except CronInvalid as error:
        problems.append((f"{path}.timeZone", str(error)))
    try:
        CronTimes.parse(schedule.cron, parse_zone("UTC"))
    except CronInvalid as error:
        problems.append((f"{path}.cron", str(error)))
    return problems


def _limit_problems(role: str, spark: SparkSpec, pod: DriverSpec | ExecutorSpec, request: str) -> list[tuple[str, str]]:
    """Problems of the CPU limit of a role's pods. The API server would refuse executors in the middle of a run. Where
    `spark.conf` has the request, only the API server compares."""
    limit = pod.core_limit
    if limit is None or f"spark.kubernetes.{role}.request.cores" in spark.conf:
        return []
    if parse_cores(limit) >= parse_cores(request):
        return []
    what = f"{limit} is less than the {request} that the pod requests; lower spec.spark.{role}.coreRequest, too"
    return [(f"spec.spark.{role}.coreLimit", what)]


def spark_problems(spark: SparkSpec, mounted: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Problems of `spec.spark`. `mounted`: where volumes that runs need are mounted."""
    return [
        *_own_spark_problems(spark),
        *template_problems("spec.spark.driver.podTemplate", ROLE_DRIVER, spark.driver.pod_template, mounted),
        *template_problems("spec.spark.executor.podTemplate", ROLE_EXECUTOR, spark.executor.pod_template, mounted),
    ]


def _own_spark_problems(spark: SparkSpec) -> list[tuple[str, str]]:
    problems = []
    for key in sorted(spark.conf):
        if not key.startswith("spark."):
            problems.append((f"spec.spark.conf[{key}]", "keys begin with 'spark.'"))
        elif key in RESERVED_KEYS or key.startswith(RESERVED_PREFIXES):
            problems.append((f"spec.spark.conf[{key}]", "is set by Logkeep and cannot be changed here"))
        elif key in PROTECTING_KEYS or key.startswith(PROTECTING_PREFIXES):
            problems.append((f"spec.spark.conf[{key}]", "could lower the protection of runs; leave it out"))
        elif (wrong := driver_conf.problem(key)) is not None:
            problems.append((f"spec.spark.conf[{key}]", wrong))
    cores = spark.executor.cores
    problems += _limit_problems("driver", spark, spark.driver, spark.driver.core_request)
    problems += _limit_problems("executor", spark, spark.executor, spark.executor.core_request or str(cores))
    for path, quantity, least, why in (
        ("spec.spark.driver.memory", spark.driver.memory, DRIVER_MIN_MIB, ""),
        ("spec.spark.executor.memory", spark.executor.memory, executor_min_mib(cores), f" with {cores} cores"),
    ):
        if parse_quantity(quantity) < least * MIB:
            problems.append((path, f"{quantity} is too little, at least {least}Mi are needed{why}"))
    return problems

"""The limits that an installation sets to what resources ask for in their pods: images and service accounts.

Whoever may create a KafkaBackup has pods made, and these can do what their account may, with what is in their image.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.spec import KafkaBackupSpec, KafkaRestoreSpec, SparkSpec
from logkeep_operator.resources.access import DRIVER_ACCOUNT, EXECUTOR_ACCOUNT
from logkeep_operator.settings import EngineSettings

_ASK = "ask whoever has installed Logkeep"


class NotAllowed(SpecInvalid):
    """The resource is right, but this installation does not allow what it asks for."""


def check_allowed(spec: KafkaBackupSpec | KafkaRestoreSpec, engine: EngineSettings) -> None:
    """Raises NotAllowed, whose problems name the fields and the chart's values."""
    problems = [*_images(spec.spark, engine), *_accounts(spec.spark, engine)]
    if problems:
        raise NotAllowed(problems)


def _images(spark: SparkSpec, engine: EngineSettings) -> list[tuple[str, str]]:
    if spark.image is None or spark.image == engine.image or _matches(spark.image, engine.allowed_images):
        return []
    what = f"the image {spark.image!r} is not in the chart's engine.allowed.images; leave it out, or {_ASK}"
    return [("spec.spark.image", what)]


def _accounts(spark: SparkSpec, engine: EngineSettings) -> list[tuple[str, str]]:
    return [
        (path, f"the account {name!r} is not in the chart's engine.allowed.serviceAccounts; leave it out, or {_ASK}")
        for path, name in _accounts_of(spark)
        if name not in (DRIVER_ACCOUNT, EXECUTOR_ACCOUNT) and not _matches(name, engine.allowed_accounts)
    ]


def _accounts_of(spark: SparkSpec) -> list[tuple[str, str]]:
    asked = [("spec.spark.serviceAccountName", spark.service_account_name)]
    for role, template in (("driver", spark.driver.pod_template), ("executor", spark.executor.pod_template)):
        if template is not None:
            asked.append((f"spec.spark.{role}.podTemplate.spec.serviceAccountName", template.spec.service_account_name))
    return [(path, name) for path, name in asked if name is not None]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern is the whole name. `*` stands for any characters, also for none."""
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) for pattern in patterns)

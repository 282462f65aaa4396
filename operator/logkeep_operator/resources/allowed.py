"""The limits that an installation sets to what resources ask for in their pods: images, service accounts, endpoints of
object stores and of those who give tokens, and code that is not the image's.

A user who may create a KafkaBackup has pods made, and these can do what their account may, with what is in their image.
They send the keys of a Secret, or the identity of their node, to the endpoint.
"""

from __future__ import annotations

from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.endpoints import allow_endpoint, origin, origin_of_url
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.running import SparkSpec
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.contract.storage import StorageSpec
from logkeep_engine.contract.wildcards import matches_any
from logkeep_operator.api import Resource
from logkeep_operator.resources.access import DRIVER_ACCOUNT, EXECUTOR_ACCOUNT
from logkeep_operator.resources.foreign_code import foreign_code
from logkeep_operator.settings import EngineSettings

_ASK = "ask the administrator of Logkeep"
_NO_INLINE = (
    f"only a KafkaArchive may have one (the chart's engine.allowed.inlineStorage is false); name one, or {_ASK}"
)


class NotAllowed(SpecInvalid):
    """The resource is right, but this installation does not allow what it asks for."""


def check_allowed(spec: KafkaBackupSpec | KafkaRestoreSpec, engine: EngineSettings, *, named: bool = False) -> None:
    """Raises NotAllowed, whose problems name the fields and the chart's values. `named`: the storage of the archive is
    that of a KafkaArchive."""
    problems = spark_not_allowed(spec.spark, engine)
    problems += _token_endpoint(spec.cluster, engine)
    if isinstance(spec, KafkaBackupSpec):
        problems += endpoint_problems("spec.storage", spec.storage, engine)
        problems += _inline("spec.storage", None if named else spec.storage, engine)
    else:
        problems += endpoint_problems("spec.source.storage", spec.source.storage, engine)
        problems += endpoint_problems("spec.state", spec.state, engine)
        problems += _inline("spec.source.storage", None if named else spec.source.storage, engine)
        problems += _inline("spec.state", spec.state, engine)
    if problems:
        raise NotAllowed(problems)


def spark_not_allowed(spark: SparkSpec, engine: EngineSettings) -> list[tuple[str, str]]:
    """Problems of what `spec.spark` asks for in pods."""
    return [*_images(spark, engine), *_accounts(spark, engine), *_code(spark, engine)]


def endpoint_problems(path: str, storage: StorageSpec | None, engine: EngineSettings) -> list[tuple[str, str]]:
    """Problems of the endpoint of a storage that a resource names, itself or by a backupRef."""
    if storage is None or storage.endpoint is None or allow_endpoint(storage.endpoint, engine.allowed_endpoints):
        return []
    what = f"the endpoint {origin(storage.endpoint)} is not in the chart's engine.allowed.endpoints; {_ASK}"
    return [(f"{path}.endpoint", what)]


def _token_endpoint(cluster: ClusterSpec, engine: EngineSettings) -> list[tuple[str, str]]:
    """Problems of who gives tokens for the brokers: a secret is sent there."""
    oauth = cluster.security.sasl.oauth if cluster.security.sasl is not None else None
    if oauth is None or oauth.token_endpoint is None:
        return []
    place = origin(origin_of_url(oauth.token_endpoint))
    if allow_endpoint(place, engine.allowed_endpoints):
        return []
    what = f"the endpoint {place} is not in the chart's engine.allowed.endpoints; {_ASK}"
    return [("spec.cluster.security.sasl.oauth.tokenEndpoint", what)]


def inline_problems(path: str, backup: Resource, engine: EngineSettings) -> list[tuple[str, str]]:
    """Problems of the storage of a KafkaBackup that a restore names by a backupRef."""
    if engine.allowed_inline_storage or backup.archive_ref is not None:
        return []
    return [(path, _NO_INLINE)]


def _inline(path: str, storage: StorageSpec | None, engine: EngineSettings) -> list[tuple[str, str]]:
    """Problems of a storage that stands in a spec itself, though only KafkaArchives may name Secrets."""
    return [] if engine.allowed_inline_storage or storage is None else [(path, _NO_INLINE)]


def _images(spark: SparkSpec, engine: EngineSettings) -> list[tuple[str, str]]:
    if spark.image is None or spark.image == engine.image or matches_any(spark.image, engine.allowed_images):
        return []
    what = f"the image {spark.image!r} is not in the chart's engine.allowed.images; leave it out, or {_ASK}"
    return [("spec.spark.image", what)]


def _accounts(spark: SparkSpec, engine: EngineSettings) -> list[tuple[str, str]]:
    return [
        (path, f"the account {name!r} is not in the chart's engine.allowed.serviceAccounts; leave it out, or {_ASK}")
        for path, name in _accounts_of(spark)
        if name not in (DRIVER_ACCOUNT, EXECUTOR_ACCOUNT) and not matches_any(name, engine.allowed_accounts)
    ]


def _code(spark: SparkSpec, engine: EngineSettings) -> list[tuple[str, str]]:
    if engine.allowed_code:
        return []
    return [
        (path, f"{what} (the chart's engine.allowed.code is false); leave it out, or {_ASK}")
        for path, what in foreign_code(spark)
    ]


def _accounts_of(spark: SparkSpec) -> list[tuple[str, str]]:
    named = [("spec.spark.serviceAccountName", spark.service_account_name)]
    for role, template in (("driver", spark.driver.pod_template), ("executor", spark.executor.pod_template)):
        if template is not None:
            named.append((f"spec.spark.{role}.podTemplate.spec.serviceAccountName", template.spec.service_account_name))
    return [(path, name) for path, name in named if name is not None]

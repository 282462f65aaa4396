"""The typed spec of a `KafkaBackupRun`, with which somebody asks for a run of a KafkaBackup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.parsing import parse_model
from logkeep_engine.contract.spec import BackupRef

KIND = "KafkaBackupRun"
PLURAL = "kafkabackupruns"
# Whoever waits for the end must be able to see it.
MIN_TTL_SECONDS = 60


class KafkaBackupRunSpec(Model):
    backup_ref: BackupRef
    ttl_seconds_after_finished: Annotated[int, Field(ge=MIN_TTL_SECONDS)] = 86400


def parse_backup_run(spec: Mapping[str, Any]) -> KafkaBackupRunSpec:
    """The typed spec. Raises SpecInvalid whose problems name the fields."""
    return parse_model(KafkaBackupRunSpec, spec)

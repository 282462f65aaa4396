"""The typed spec of a `KafkaBackupRun`, with which somebody asks for a run of a KafkaBackup."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.spec import BackupRef

# Whoever waits for the end must be able to see it.
MIN_TTL_SECONDS = 60


class KafkaBackupRunSpec(Model):
    backup_ref: BackupRef
    ttl_seconds_after_finished: Annotated[int, Field(ge=MIN_TTL_SECONDS)] = 86400

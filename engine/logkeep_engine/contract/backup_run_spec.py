"""The typed spec of a `KafkaBackupRun`, with which a user asks for a run of a KafkaBackup."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.model import Model, rules
from logkeep_engine.contract.restore_spec import BackupRef

# A client that waits for the end must be able to see it.
MIN_TTL_SECONDS = 60


class KafkaBackupRunSpec(Model):
    """Which backup is to run. It cannot be changed."""

    model_config = rules(
        (
            "self == oldSelf",
            "spec cannot be changed; create another KafkaBackupRun",
        ),
    )

    backup_ref: BackupRef
    """The KafkaBackup, in the same namespace."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=MIN_TTL_SECONDS)] = 86400
    """How long this object stays after the end of its run."""

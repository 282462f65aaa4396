"""The kinds of resources as the operator sees them: `resource` has identity and spec of those with runs, `status` their
status, and `backup_run` a KafkaBackupRun. The contract has the typed specs."""

from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec, parse_restore
from logkeep_engine.contract.spec import API_VERSION, GROUP, VERSION, KafkaBackupSpec, parse_backup
from logkeep_operator.api.resource import KINDS, Key, Resource
from logkeep_operator.api.status import (
    ArchiveStatus,
    Condition,
    DrillStatus,
    HistoryEntry,
    Lagging,
    Phase,
    ProgressStatus,
    RunStatus,
    Status,
    StatusOutcome,
)

__all__ = [
    "API_VERSION",
    "GROUP",
    "KINDS",
    "VERSION",
    "ArchiveStatus",
    "Condition",
    "DrillStatus",
    "HistoryEntry",
    "KafkaBackupSpec",
    "KafkaRestoreSpec",
    "Key",
    "Lagging",
    "Phase",
    "ProgressStatus",
    "Resource",
    "RunStatus",
    "SpecInvalid",
    "Status",
    "StatusOutcome",
    "parse_backup",
    "parse_restore",
]

"""The two kinds as the operator sees them: identity and spec (`resource`), status (`status`). Typed specs come from
the contract."""

from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.spec import (
    API_VERSION,
    GROUP,
    VERSION,
    KafkaBackupSpec,
    KafkaRestoreSpec,
    parse_backup,
    parse_restore,
)
from logkeep_operator.api.resource import KINDS, Key, Resource
from logkeep_operator.api.status import (
    ArchiveStatus,
    Condition,
    CoverageStatus,
    HistoryEntry,
    Lagging,
    LossEntry,
    Phase,
    ProgressStatus,
    RunOutcome,
    RunStatus,
    Status,
)

__all__ = [
    "API_VERSION",
    "GROUP",
    "KINDS",
    "VERSION",
    "ArchiveStatus",
    "Condition",
    "CoverageStatus",
    "HistoryEntry",
    "KafkaBackupSpec",
    "KafkaRestoreSpec",
    "Key",
    "Lagging",
    "LossEntry",
    "Phase",
    "ProgressStatus",
    "Resource",
    "RunOutcome",
    "RunStatus",
    "SpecInvalid",
    "Status",
    "parse_backup",
    "parse_restore",
]

"""Every error a user of the engine can reach.

Each error says what happened, to which topic, partition, offset, object or field, and what to do. The class decides
the exit code of the process, and with it whether the Kubernetes Job tries again (see `contract.names.ExitCode`).
"""

from __future__ import annotations

import os

from logkeep_engine.contract.names import ENV_POD_NAMESPACE, ExitCode


class LogkeepError(Exception):
    """Base of all errors that are reported to the user without a traceback.

    `message` says what happened and to what; `hint` says what to do about it. `code` is a stable CamelCase word used
    as the reason in conditions and events.
    """

    code = "RunFailed"
    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        stop = "" if not self.hint or not self.message or self.message[-1] in ".!?:;" else "."
        return f"{self.message}{stop} {self.hint}".strip()

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel from executors to the driver by pickle; the keyword argument must survive.
        return (_rebuild, (type(self), self.message, self.hint))


def by_place(pod: str, command: str) -> str:
    """Return the text for the reader of an error: `pod` of a run that the operator has started, `command` of any other,
    which has no Secrets of Kubernetes."""
    return pod if ENV_POD_NAMESPACE in os.environ else command


def _rebuild(kind: type[LogkeepError], message: str, hint: str) -> LogkeepError:
    error = kind.__new__(kind)
    LogkeepError.__init__(error, message, hint=hint)
    return error


class Refused(LogkeepError):
    """Something the user wrote, or the state it points at, must change first. Never retried."""

    code = "Refused"
    exit_code = ExitCode.REFUSED


class RequestReplaced(Refused):
    """A run's Job has mounted another request than the one that it was made for."""

    code = "RequestReplaced"


class SpecError(Refused):
    """A field of the resource is wrong; the message starts with the field's path."""

    code = "InvalidSpec"


class NoTopicMatches(Refused):
    code = "NoTopicMatches"


class PatternsUnmatched(Refused):
    """A pattern that must choose a topic chooses none. Everything else was archived."""

    code = "PatternsUnmatched"


class BackupUnfinished(Refused):
    """No backup of the archive has ended: what it holds is an arbitrary part."""

    code = "BackupUnfinished"


class NothingToRestore(Refused):
    """The archive holds no record of the topics that are to be restored, and the resource does not allow that."""

    code = "NothingToRestore"


class CredentialsMissing(Refused):
    code = "CredentialsMissing"


class TopicExists(Refused):
    code = "TopicExists"


class FormatLoss(Refused):
    """The format cannot hold something that the records carry, and the resource does not allow to lose it. The message
    says what, of which topic and partition, and how often.
    """

    code = "FormatLoss"


class CorruptSegment(LogkeepError):
    """An object of the Records or the Avro format whose bytes cannot be right, or of a version that is not known.

    Internal to `formats/`, which does not know the object's name: the reader of an object says which it is.
    """

    code = "CorruptSegment"


class FolderRefused(Refused):
    """A folder cannot be imported: its content is of no known format, or its names do not fit."""

    code = "FolderRefused"


class TargetUnsuitable(Refused):
    """An existing target topic cannot take the records (too few partitions, say)."""

    code = "TargetUnsuitable"


# ---- the run itself


class Interrupted(LogkeepError):
    """The run was asked to stop (SIGTERM, Ctrl-C). What was committed stays; the same run continues from there."""

    code = "Interrupted"
    exit_code = ExitCode.INTERRUPTED


class SparkFailed(LogkeepError):
    """Spark could not start, or lost a task in a way that the task itself could not report (out of memory, lost
    node).
    """

    code = "SparkFailed"


class TaskFailed(LogkeepError):
    """A task ended with an exception that is none of these; the message holds its class and text."""

    code = "TaskFailed"


class TargetChanged(Refused):
    """Another client wrote to, or removed something from, a target topic while it was being restored. Or the topics of
    a restore that was done before are not there any more."""

    code = "TargetChanged"


class RecordsDiffer(Refused):
    """A verification has found records in the target that are not those of the archive, or lack there."""

    code = "RecordsDiffer"
    exit_code = ExitCode.INCOMPLETE


class RestoreBusy(Refused):
    """Another run does this restore right now."""

    code = "RestoreBusy"


class TopicsNotEmitted(LogkeepError):
    """A restore has done all else, and could not write its KafkaTopics to the ConfigMap."""

    code = "TopicsNotEmitted"


class PositionsDiffer(Refused):
    """Positions of consumer groups were set, and the cluster has others. The message names the first."""

    code = "PositionsDiffer"
    exit_code = ExitCode.INCOMPLETE

    @classmethod
    def of(cls, where: tuple[str, str, int], reason: str, more: int, document: str) -> PositionsDiffer:
        """Return the error for the position of a group in a topic and partition, of which `reason` says what was
        expected and what was found; `more` positions differ besides."""
        group, topic, partition = where
        others = f" ({more} more positions differ)" if more else ""
        return cls(
            f"consumer group {group!r}, topic {topic} partition {partition}: {reason}{others}; {document}",
            hint="The group has committed other positions in the meantime. Stop its consumers, look at its positions "
            "with `logkeep groups plan`, and set them with `logkeep groups reset`.",
        )


class GroupsHaveMembers(Refused):
    """Positions of consumer groups were to be changed, and they have members. No position was changed."""

    code = "GroupsHaveMembers"


class RecordsNotVerified(Refused):
    """A drill, or `logkeep diff`, has found no difference, and could not compare everything."""

    code = "RecordsNotVerified"
    exit_code = ExitCode.INCOMPLETE


class RestoreUnfinished(Refused):
    """Another run of the same restore has begun to append and has not succeeded."""

    code = "RestoreUnfinished"


# ---- Kafka


class BrokerUnavailable(LogkeepError):
    """No broker could be reached, or none answered in time. May pass."""

    code = "BrokerUnavailable"


class KafkaLoginUnavailable(BrokerUnavailable):
    """An endpoint that gives the tokens of a login does not answer. May pass."""


class RecordsWithheld(BrokerUnavailable):
    """A broker answers, but gives no records where its log has some, for longer than the limits allow. What lies before
    them has been read.
    """


class LossNotProved(BrokerUnavailable):
    """Offsets could not be read, and the cluster does not prove that their records are gone: no gap was recorded. May
    pass.
    """

    code = "LossNotProved"


class BrokerRefused(Refused):
    """The broker answered and said no: authorization, unsupported version."""

    code = "BrokerRefused"


class KafkaLoginRefused(BrokerRefused):
    """A broker does not take the login of this user, or nobody gives a token for it."""

    code = "KafkaLoginRefused"


class ClockDoubtful(LogkeepError):
    """The driver's clock says another time than the store or the catalog. Only retention by age depends on it."""

    code = "ClockDoubtful"


class OffsetOutOfRange(LogkeepError):
    """The offset lies below the log start (retention overtook the reader) or above the end.

    `log_start` and `log_end` are the partition's bounds [log_start, log_end) when it was found, -1 if unknown.
    """

    code = "OffsetOutOfRange"

    def __init__(self, message: str, *, hint: str = "", log_start: int = -1, log_end: int = -1) -> None:
        super().__init__(message, hint=hint)
        self.log_start = log_start
        self.log_end = log_end

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"log_start": self.log_start, "log_end": self.log_end})


class TopicGone(LogkeepError):
    """The topic or partition is unknown to the cluster, or another incarnation has its name."""

    code = "TopicGone"


class ProduceRefused(LogkeepError):
    """A broker refused a batch for good (too large, invalid record, out of order sequence)."""

    code = "ProduceRefused"


# ---- the log format


class CorruptBatch(LogkeepError):
    """A record batch whose bytes cannot be right: CRC, length, magic or offsets."""

    code = "CorruptBatch"


class BatchTooLarge(Refused):
    """A batch, a block or a record that must be unpacked and would take more memory than a task has. It is not damaged:
    with more memory it can be unpacked, and what moves batches as they are needs none.
    """

    code = "BatchTooLarge"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint or _TOO_LARGE_HINT)

    def within(self, where: str) -> BatchTooLarge:
        """Return the same error with the place in front, which the code that raised it did not know."""
        return BatchTooLarge(f"{where}: {self.message}", hint=self.hint)


_TOO_LARGE_HINT = (
    "Give tasks more memory with LOGKEEP_TASK_MEMORY (256Mi unless it is set; one batch may unpack to a twelfth of it) "
    "or leave the topic out. Format Kafka archives and restores batches without unpacking them."
)


class CorruptIndex(LogkeepError):
    """An index of a segment that is cut short or of an unknown version. It can be rebuilt from the log."""

    code = "CorruptIndex"


class UndecodableRecord(LogkeepError):
    """A record of a topic of Kafka's coordinators that cannot be read: cut short, or written by a newer Kafka."""

    code = "UndecodableRecord"


class CorruptFrame(LogkeepError):
    """A part of a compressed segment whose bytes cannot be right. Internal: readers say which object, and what is
    lost.
    """

    code = "CorruptFrame"


# ---- storage


class StorageUnavailable(LogkeepError):
    """The object store did not answer, or answered with an error that may pass."""

    code = "StorageUnavailable"


class StorageRefused(Refused):
    """Wrong credentials, no permission."""

    code = "StorageRefused"


class StorageDenied(StorageRefused):
    """The credentials lack a right."""


class ObjectTooLarge(StorageRefused):
    """An object that is read whole, and that is larger than any of its kind. Nothing of it was read."""


class ListUnreliable(StorageRefused):
    """The object store's lists cannot be believed: they do not end, or do not have what was asked for."""


class ObjectCold(Refused):
    """An object lies in a storage class from which it cannot be read before the store has retrieved it."""

    code = "ObjectCold"


class StateRefused(Refused):
    """A restore may not write where it keeps its state. Nothing was written anywhere."""

    code = "StateRefused"


class StateAltered(Refused):
    """The state of a restore says something that contradicts its spec or the cluster: anyone who may write to the place
    of the state could have put it there. Nothing is done by its word."""

    code = "StateAltered"


class BucketMissing(Refused):
    code = "BucketMissing"


class ObjectMissing(LogkeepError):
    """An object that should be there is not."""

    code = "ObjectMissing"
    exit_code = ExitCode.REFUSED


class ObjectExists(LogkeepError):
    """A conditional create found the name taken. Internal: callers turn it into what it means to them."""

    code = "ObjectExists"


# ---- the archive


class ArchiveMissing(Refused):
    """There is no archive.json at the URI."""

    code = "ArchiveMissing"


class ArchiveMismatch(Refused):
    """The archive belongs to another Kafka cluster, or its format is newer than this engine."""

    code = "ArchiveMismatch"


class ArchiveDamaged(Refused):
    """Objects of the archive are missing, cut short or altered. The message names the first, `faults` holds all as
    text.
    """

    code = "ArchiveDamaged"

    def __init__(self, message: str, *, hint: str = "", faults: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.faults = faults or (message,)

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"faults": self.faults})


class ArchiveRolledBack(Refused):
    """The archive lacks a commit that was known, or its history up to that commit is another one. Nothing was
    written."""

    code = "ArchiveRolledBack"


class ArchiveUnsigned(Refused):
    """No trusted key has signed what the archive says, or its writer has no key to sign with. Nothing was written."""

    code = "ArchiveUnsigned"


class ArchiveOwned(Refused):
    """Another KafkaBackup, or another name on the command line, writes the archive. Nothing was written."""

    code = "ArchiveOwned"


class SegmentsRemoved(Refused):
    """Segments that a run has planned to read were removed since, and their objects are deleted."""

    code = "SegmentsRemoved"


class ArchiveBusy(LogkeepError):
    """Another run is writing this archive right now."""

    code = "ArchiveBusy"
    exit_code = ExitCode.FENCED


class ArchiveFenced(LogkeepError):
    """Another run took the archive over; this one has stopped without harm."""

    code = "ArchiveFenced"
    exit_code = ExitCode.FENCED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint or "What this run committed before is kept. Let the other run finish.")


class ReceiptRefused(LogkeepError):
    """A task's receipt contradicts what the archive holds; nothing of it was committed. That is a bug,
    and never the user's doing.
    """

    code = "ReceiptRefused"


class DataLoss(LogkeepError):
    """Records that should be archived are gone from the cluster and `onDataLoss` is Fail."""

    code = "DataLoss"
    exit_code = ExitCode.DATA_LOSS


class ErasureFailed(LogkeepError):
    """An erasure that a backup asks for has failed. The backup itself has succeeded."""

    code = "ErasureFailed"

    def that_ends_with(self, exit_code: int) -> ErasureFailed:
        """Return the same error with the exit code of the erasure."""
        self.exit_code = ExitCode(exit_code)
        return self


class KeysMissing(LogkeepError):
    """The archive lacks the last record of a key of a compacted topic, though it accounts for its offset."""

    code = "KeysMissing"
    exit_code = ExitCode.DATA_LOSS


class NotReconciled(LogkeepError):
    """Not all partitions of compacted topics could be compared with the archive."""

    code = "NotReconciled"


class LogDiverged(LogkeepError):
    """A partition's log is not the one that was archived any more. An unclean leader election or a lost disk has cut it
    off below what the archive holds; it may have grown again since.
    """

    code = "LogDiverged"
    exit_code = ExitCode.DATA_LOSS

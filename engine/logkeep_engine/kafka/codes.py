"""Error codes of Kafka's protocol, and what they have in common."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Error codes of the protocol that are told apart (`org.apache.kafka.common.protocol.Errors`)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    ILLEGAL_GENERATION = 22
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    STALE_MEMBER_EPOCH = 113

    @classmethod
    def name_of(cls, code: int) -> str:
        """The protocol's name, or the number for a code this module does not tell apart."""
        return cls(code).name if code in cls._value2member_map_ else f"error {code}"

    @classmethod
    def describe(cls, code: int, reason: str) -> str:
        """Return the name, with the broker's reason if it gives one."""
        return f"{cls.name_of(code)}: {reason}" if reason else cls.name_of(code)


RETRIABLE = frozenset(
    {
        # Any exception in a broker that has no code of its own: a disk or a store that fails, for instance.
        Code.UNKNOWN_SERVER_ERROR,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.CONCURRENT_TRANSACTIONS,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.THROTTLING_QUOTA_EXCEEDED,
    }
)
GONE = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, Code.INCONSISTENT_TOPIC_ID})
PASSING = RETRIABLE | {Code.NOT_CONTROLLER}
"""An order that gets one of these is given again, unless it must not be given twice."""
UNREACHABLE = PASSING - {Code.UNKNOWN_SERVER_ERROR}
"""An order or a question that gets one of these may be given again: it was not done, or does no harm twice."""

"""The topics that Kafka's own parts write."""

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"

INTERNAL_TOPICS = frozenset(
    {
        CONSUMER_OFFSETS,
        TRANSACTION_STATE,
        "__share_group_state",
        "__cluster_metadata",
        "__remote_log_metadata",  # tiered storage writes it; brokers do not call it internal
    }
)
"""Backups take them only if `topics.internal` says so, and restores never write into one by accident: what they hold
belongs to the brokers of one cluster.
"""

"""Compaction of archived partitions: of each key the last record, in a snapshot."""

"""Logkeep's segment engine: moves Kafka record batches between brokers and an archive in object storage."""

__version__ = "0.1.0"

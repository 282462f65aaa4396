"""A storage in a bucket of Google Cloud Storage."""

from logkeep_engine.storage.gcs.storage import GcsStorage

__all__ = ["GcsStorage"]

"""Objects in an S3 bucket.

`place` says where they lie, `connection` holds the clients and threads of one process, `requests` sends until the store
has answered, `errors` gives its answers our names, `writer` uploads in parts, `unseen` finds what no list of objects
shows, `storage` is the interface.
"""

from logkeep_engine.storage.s3.storage import S3Storage

__all__ = ["S3Storage"]

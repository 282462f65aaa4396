"""Where an archive lies: an S3 bucket or a folder, after one small interface.

    storage = open_storage(spec.storage)
    storage.create("catalog/00000000000000000000.json", data)   # fails with ObjectExists if the name is taken

Everything the archive relies on is here and nowhere else: an object is visible whole or not at all, `create` succeeds
for one caller only (`If-None-Match: *` on S3, a hard link on files), and what a call returned from is durable.

A crash leaves, on files, hidden files `.logkeep-*` that nothing reads or lists; on S3, an unfinished multipart upload
that no listing shows (a lifecycle rule `AbortIncompleteMultipartUpload` removes it). `unseen` finds both, and older
versions of objects: an erasure deletes them.

Storages pickle without credentials: a worker process takes its own from its environment. They may cross a fork: the
connections to S3 are made again in the child.

`base` is the interface, `local`, `s3`, `gcs` and `azure` keep it, `upload` and `parts` are how all but the first send
an object, `opening` chooses between them by the URI, `credentials` looks for the keys, `retry` sends a failed request
again.
"""

from logkeep_engine.storage.base import (
    ANYTHING,
    DEFAULT_BLOCK,
    NOTE_BYTES,
    PART_BYTES,
    WHOLE_BYTES,
    Buffer,
    ColdObject,
    LockedObject,
    ObjectInfo,
    ObjectWriter,
    Storage,
    StorageAround,
    UnseenObject,
)
from logkeep_engine.storage.local import LocalStorage
from logkeep_engine.storage.opening import open_storage, open_uri

__all__ = [
    "ANYTHING",
    "DEFAULT_BLOCK",
    "NOTE_BYTES",
    "PART_BYTES",
    "WHOLE_BYTES",
    "Buffer",
    "ColdObject",
    "LocalStorage",
    "LockedObject",
    "ObjectInfo",
    "ObjectWriter",
    "Storage",
    "StorageAround",
    "UnseenObject",
    "open_storage",
    "open_uri",
]

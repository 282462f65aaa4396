"""SHA-256 of objects that lie in a storage."""

from __future__ import annotations

import hashlib

from logkeep_engine.storage import Storage


def digest_of(storage: Storage, path: str) -> tuple[str, int]:
    """The SHA-256 of an object in hex, and its size. Raises ObjectMissing."""
    digest, size = hashlib.sha256(), 0
    with storage.reader(path) as reader:
        while data := reader.read_block():
            digest.update(data)
            size += len(data)
    return digest.hexdigest(), size

"""Digests of objects that lie in a storage."""

from __future__ import annotations

from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.digest import Digest, Hasher
from logkeep_engine.storage import Storage


def digest_of(storage: Storage, path: str, algorithm: DigestAlgorithm) -> tuple[Digest, int]:
    """Return the digest of an object, and its size. Raises ObjectMissing."""
    hasher, size = Hasher(algorithm), 0
    with storage.reader(path) as reader:
        while data := reader.read_block():
            hasher.update(data)
            size += len(data)
    return hasher.digest(), size

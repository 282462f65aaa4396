"""Digests of objects: a digest identifies every byte of the object.

    hasher = Hasher(DigestAlgorithm.BLAKE3)
    hasher.update(data)
    digest = hasher.digest()

SHA-256 is OpenSSL's, BLAKE3 the kernel's. Both let go of the interpreter's lock while they work on a large buffer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, Self

from logkeep_kernel import Blake3

from logkeep_engine.contract.archive_format import DEFAULT_DIGEST, DigestAlgorithm

Buffer = bytes | bytearray | memoryview


class _Hash(Protocol):
    def update(self, data: Buffer, /) -> None: ...

    def hexdigest(self) -> str: ...


_NAMES = {DigestAlgorithm.SHA256: "SHA-256", DigestAlgorithm.BLAKE3: "BLAKE3"}
_MAKERS: Mapping[DigestAlgorithm, Callable[[], _Hash]] = {
    DigestAlgorithm.SHA256: hashlib.sha256,
    DigestAlgorithm.BLAKE3: Blake3,
}


def name_of(algorithm: DigestAlgorithm) -> str:
    """Return the name of the algorithm, as people write it."""
    return _NAMES[algorithm]


class Digest(NamedTuple):
    """The digest of an object in hex, and its algorithm."""

    algorithm: DigestAlgorithm
    hex: str

    @classmethod
    def of(cls, data: Buffer, algorithm: DigestAlgorithm = DEFAULT_DIGEST) -> Self:
        """Return the digest of these bytes."""
        found = _MAKERS[algorithm]()
        found.update(data)
        return cls(algorithm, found.hexdigest())

    @property
    def name(self) -> str:
        """The name of the algorithm."""
        return name_of(self.algorithm)

    @property
    def sha256(self) -> str:
        """The digest if it is a SHA-256, else ""."""
        return self.hex if self.algorithm is DigestAlgorithm.SHA256 else ""

    @property
    def blake3(self) -> str:
        """The digest if it is a BLAKE3, else ""."""
        return self.hex if self.algorithm is DigestAlgorithm.BLAKE3 else ""

    def difference(self, found: Digest) -> str:
        """Say that an object has the digest `found` where the catalog has this one."""
        return f"its {self.name} is {found.hex}, the catalog says {self.hex}"


class Hasher:
    """The digest of bytes that come one after another. One thread at a time."""

    def __init__(self, algorithm: DigestAlgorithm = DEFAULT_DIGEST) -> None:
        self._algorithm = algorithm
        self._hash = _MAKERS[algorithm]()
        self.update = self._hash.update

    def digest(self) -> Digest:
        """Return the digest of the bytes so far."""
        return Digest(self._algorithm, self._hash.hexdigest())

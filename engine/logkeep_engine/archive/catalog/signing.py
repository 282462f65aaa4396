"""Signatures with Ed25519 over commits, checkpoints and documents, and the keys that make and check them.

    keys = signing_keys(os.environ)         # what LOGKEEP_SIGNING_DIR has; the operator mounts a Secret there
    signed = keys.sign(of_commit(42, sha256))
    keys.check(keys.signer, of_commit(42, sha256), signed, "commit 42")     # True: a trusted key has signed it

A signature is over a line of text that names what is signed by its hash, so that it fits one thing only. It stands
after what it signs, outside of its hash: signing again with another key breaks no chain and no anchor. The signer names
its key in what is signed: a commit that lost its signature says so.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from logkeep_engine.contract.names import ENV_SIGNING_DIR, FILE_PRIVATE_KEY, FILE_PUBLIC_KEYS
from logkeep_engine.errors import ArchiveUnsigned, CredentialsMissing, by_place

if TYPE_CHECKING:
    # It takes 8 MiB and 30 ms: only who has keys imports it.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

UNSIGNED = ""
"""The signer and the signature of what is not signed."""

_Key = TypeVar("_Key")
_RAW_BYTES = 32  # of a private and of a public key
_MOST_BYTES = 1 << 20
_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)
_HOW = (
    f"The folder of --signing-dir or {ENV_SIGNING_DIR}, in Kubernetes the Secret of storage.signing.secretRef, has a "
    f"private key in {FILE_PRIVATE_KEY!r} to sign with, and the trusted keys in {FILE_PUBLIC_KEYS!r}: Ed25519, "
    "in PEM or base64."
)


def of_commit(number: int, sha256: str) -> bytes:
    """Return the text that signs a commit, and through its hash all commits before it."""
    return f"logkeep commit {number}:{sha256}".encode()


def of_checkpoint(archive_id: str, commit: int, epoch: int, sha256: str) -> bytes:
    """Return the text that signs a checkpoint whose frames have this hash."""
    return f"logkeep checkpoint {archive_id} {commit} {epoch} {sha256}".encode()


def of_document(archive_id: str, path: str, sha256: str) -> bytes:
    """Return the text that signs a document whose content has this hash, at this place of this archive."""
    return f"logkeep document {archive_id} {path} {sha256}".encode()


@dataclass(frozen=True)
class SigningKeys:
    """The keys of who opens an archive: the names of trusted public keys with the keys, and his own to sign with.
    Without any, nothing is signed and no signature checked."""

    trusted: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)
    own: Ed25519PrivateKey | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        return bool(self.trusted)

    @property
    def signer(self) -> str:
        """The name of the key that signs, UNSIGNED if there is none."""
        return UNSIGNED if self.own is None else name_of(self.own.public_key())

    def sign(self, text: bytes) -> str:
        """Return the signature of a text; UNSIGNED without a key."""
        return UNSIGNED if self.own is None else base64.b64encode(self.own.sign(text)).decode()

    def check(self, signer: str, text: bytes, signature: str, name: str) -> bool:
        """Tell whether a trusted key has signed the text; False for a signer that is not trusted. Raises
        ArchiveUnsigned, which names the object as `name`, if a trusted one should have and has not."""
        key = self.trusted.get(signer)
        if key is None:
            return False
        from cryptography.exceptions import InvalidSignature

        try:
            key.verify(base64.b64decode(signature, validate=True), text)
        except (InvalidSignature, ValueError):
            raise unsigned(f"{name}: key {signer} did not make this signature") from None
        return True


NO_KEYS = SigningKeys()


def _where_keys_are() -> str:
    return by_place("storage.signing.secretRef", "the folder of --signing-dir")


def unsigned(what: str) -> ArchiveUnsigned:
    """Return the error for what no trusted key has signed."""
    return ArchiveUnsigned(
        f"{what}.",
        hint="Find out who writes to the bucket, and restore what was altered from a copy. If it was signed by another "
        f"key that you trust, add that key to {FILE_PUBLIC_KEYS!r} of {_where_keys_are()}. The next backup signs an "
        "archive without signatures if it knows the newest commit: from "
        + by_place("status.archive.anchor or the annotation logkeep.dev/take-over.", "--expect-commit or --take-over."),
    )


def unsigned_document(name: str, signer: str) -> ArchiveUnsigned:
    """Return the error for a document that no trusted key has signed."""
    by = f"key {signer}, which is not trusted, is named as its signer" if signer else "it has no signature"
    return ArchiveUnsigned(
        f"{name}: {by}.",
        hint="Find out who writes there, and restore the object from a copy. If it was written before signing began, "
        "or by a run without a key, delete it, or start the run under another id. If it was signed by another "
        f"key that you trust, add that key to {FILE_PUBLIC_KEYS!r} of {_where_keys_are()}.",
    )


def name_of(key: Ed25519PublicKey) -> str:
    """Return the name of a public key in commits: 16 hex digits of the SHA-256 of its 32 bytes."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def signing_keys(environ: Mapping[str, str]) -> SigningKeys:
    """Return the keys in the folder that the environment names, none if it names none. Raises CredentialsMissing."""
    folder = environ.get(ENV_SIGNING_DIR)
    return _read(folder) if folder else NO_KEYS


@lru_cache(maxsize=4)  # a run has one set of keys from its begin to its end
def _read(folder: str) -> SigningKeys:
    private, public = _text(folder, FILE_PRIVATE_KEY), _text(folder, FILE_PUBLIC_KEYS)
    if not private and not public:
        raise CredentialsMissing(f"{ENV_SIGNING_DIR}: {folder} has no key.", hint=_HOW)
    own = _parsed(folder, FILE_PRIVATE_KEY, private, _private) if private else []
    if len(own) > 1:
        raise _wrong(folder, FILE_PRIVATE_KEY, "it has more than one key")
    keys = [key.public_key() for key in own] + (_parsed(folder, FILE_PUBLIC_KEYS, public, _public) if public else [])
    return SigningKeys({name_of(key): key for key in keys}, own[0] if own else None)


def _text(folder: str, name: str) -> str:
    path = Path(folder) / name
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(folder, name, type(error).__name__) from None


def _parsed(folder: str, name: str, text: str, parse: Callable[[str], _Key]) -> list[_Key]:
    """Return the keys of a file. The error says what is wrong without quoting the content."""
    from cryptography.exceptions import UnsupportedAlgorithm

    blocks = [found.group() for found in _BLOCK.finditer(text)] if "-----BEGIN" in text else text.split()
    try:
        keys = [parse(block) for block in blocks]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        keys = []
    if not keys:
        raise _wrong(folder, name, "it holds something other than Ed25519 keys")
    return keys


def _private(block: str) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not block.startswith("-----BEGIN"):
        return Ed25519PrivateKey.from_private_bytes(_raw(block))
    key = load_pem_private_key(block.encode(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise TypeError("another kind of key")
    return key


def _public(block: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if not block.startswith("-----BEGIN"):
        return Ed25519PublicKey.from_public_bytes(_raw(block))
    key = load_pem_public_key(block.encode())
    if not isinstance(key, Ed25519PublicKey):
        raise TypeError("another kind of key")
    return key


def _raw(text: str) -> bytes:
    data = base64.b64decode(text, validate=True)
    if len(data) != _RAW_BYTES:
        raise ValueError("another length")
    return data


def _wrong(folder: str, name: str, why: str) -> CredentialsMissing:
    return CredentialsMissing(f"{ENV_SIGNING_DIR}: {folder}/{name} cannot be used: {why}.", hint=_HOW)

"""A storage whose documents are signed: what runs store about themselves, and `archive.json`.

    storage = SigningStorage(open_storage(spec.storage), keys, info.archive_id)
    storage.put("runs/nightly-1/plan.json", plan)     # stored with the signer and the signature as its last keys
    plan = storage.read("runs/nightly-1/plan.json")   # as it was put; ArchiveUnsigned if no trusted key has signed it

Whoever stores a document knows nothing of signatures, and cannot bypass them when it reads: an archive gives out no
other storage. A signature is over the archive's id, the path and the content, so a document of another archive, run or
partition does not fit in its place. Without keys documents are stored as they are, and read whether they are signed or
not. Segments, their indexes and the catalog pass through: commits are signed themselves, and have digests of the rest.
"""

from __future__ import annotations

import hashlib
import io
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import environ
from typing import Any

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.signing import UNSIGNED, SigningKeys, of_document, signing_keys, unsigned_document
from logkeep_engine.errors import ObjectExists, ObjectMissing
from logkeep_engine.storage import (
    ANYTHING,
    DEFAULT_BLOCK,
    WHOLE_BYTES,
    Buffer,
    LockedObject,
    ObjectInfo,
    ObjectWriter,
    Storage,
    StorageAround,
)
from logkeep_engine.storage.base import ObjectReader

_END = re.compile(rb',"signer":"([0-9a-f]{16})","signature":"([A-Za-z0-9+/=]{88})"(\}\n?)\Z')
_MOST_OF_END = 160
_SPOOL_BYTES = 4 << 20
_AT_ONCE = 16

NOT_SIGNED = frozenset({"alive.json", "cluster-state.json", "erasure.json"})
"""These files of runs are not signed: a lease, which readers without a key have, too, and which only delays
deletions; and those whose digest is in a commit."""

OF_WRITERS = re.compile(r"runs/[^/]+/((convert-)?plan(-\d+)?|heartbeat|lost-tail-\d+|format-loss)\.json")
"""These documents only who writes the archive stores, so they are signed wherever the catalog is."""


def is_document(path: str) -> bool:
    """Return whether an object is a document that is signed."""
    if not path.startswith(names.RUNS):
        return path in (names.ARCHIVE, names.VERIFIED) or path.startswith(names.DIGESTS)
    folder, _, rest = path.removeprefix(names.RUNS).partition("/")
    # What an import has replaced lies in a folder `original`, under the names of before.
    return (
        bool(folder and rest) and path.endswith(".json") and rest not in NOT_SIGNED and not rest.startswith("original/")
    )


@dataclass(frozen=True, slots=True)
class Signature:
    """Who has signed a document, and how; both are UNSIGNED without a signature."""

    signer: str = UNSIGNED
    value: str = UNSIGNED

    def __bool__(self) -> bool:
        return bool(self.signer)


def split(data: bytes) -> tuple[bytes, Signature]:
    """Return a document, or its end, without its signature, and the signature."""
    found = _END.search(data, max(0, len(data) - _MOST_OF_END))
    if found is None:
        return data, Signature()
    return data[: found.start()] + found.group(3), Signature(found.group(1).decode(), found.group(2).decode())


class SigningStorage(StorageAround):
    """A storage with signed documents on top of one that knows nothing of signatures. Pickled, it comes back with the
    keys of the other process.

    `before_signing`: nothing in the archive is signed yet, but its owner is about to, so documents are read as they
    are."""

    def __init__(self, under: Storage, keys: SigningKeys, archive_id: str) -> None:
        super().__init__(self.beneath(under))
        self.keys = keys
        self.before_signing = False
        self._archive_id = archive_id

    def __repr__(self) -> str:
        return f"SigningStorage({self.under!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_in_another_process, (self.under, self._archive_id))

    @staticmethod
    def beneath(storage: Storage) -> Storage:
        """Return the storage itself, whose objects are as they lie there."""
        return storage.under if isinstance(storage, SigningStorage) else storage

    # ---- documents

    def is_signed(self, path: str, content: bytes, signature: Signature) -> bool:
        """Tell whether a trusted key has signed the document. Raises ArchiveUnsigned if it says so and is not right."""
        return self._is_signed(path, hashlib.sha256(content).hexdigest(), signature)

    def _is_signed(self, path: str, sha256: str, signature: Signature) -> bool:
        text = of_document(self._archive_id, path, sha256)
        return self.keys.check(signature.signer, text, signature.value, f"{self.uri}/{path}")

    def _check(self, path: str, sha256: str, signature: Signature) -> None:
        """Raises ArchiveUnsigned for a document that a trusted key should have signed, and has not."""
        if self._is_signed(path, sha256, signature) or not self.keys or self.before_signing:
            return
        # Who has no key of his own cannot have signed what he has stored himself: it is a claim.
        if self.keys.own is None and path.startswith(names.RUNS) and OF_WRITERS.fullmatch(path) is None:
            return
        raise unsigned_document(f"{self.uri}/{path}", signature.signer)

    def _signing(self, path: str) -> bool:
        return self.keys.own is not None and is_document(path)

    def _signed(self, path: str, data: bytes) -> bytes:
        if not self._signing(path):
            return data
        stored = io.BytesIO()
        ending = _Ending(stored.write, self._signature_of(path))
        ending.write(data)
        ending.finish()
        return stored.getvalue()

    def _signature_of(self, path: str) -> Callable[[str], bytes]:
        """Return a function that makes the last keys of a document at this path, by the SHA-256 of its content."""

        def keys(sha256: str) -> bytes:
            signature = self.keys.sign(of_document(self._archive_id, path, sha256))
            return f',"signer":"{self.keys.signer}","signature":"{signature}"'.encode()

        return keys

    def _checked(self, path: str, data: bytes) -> bytes:
        content, signature = split(data)
        if self.keys:
            self._check(path, hashlib.sha256(content).hexdigest(), signature)
        return content

    def _content(self, path: str) -> Iterator[bytes]:
        """Yield the content of a document, block by block. Raises ArchiveUnsigned after the last one."""
        hashed, held = hashlib.sha256(), b""
        with self.under.reader(path) as reader:
            while block := reader.read_block():
                held += block
                block, held = held[:-_MOST_OF_END], held[-_MOST_OF_END:]
                hashed.update(block)
                yield block
        content, signature = split(held)
        hashed.update(content)
        yield content
        self._check(path, hashed.hexdigest(), signature)

    def opened(self, path: str) -> OpenedDocument:
        """Return a document to be read in parts, whatever its size. With keys it is a copy that was checked, in a file
        if it is large. Raises ObjectMissing."""
        if not self.keys:
            return _opened_unchecked(self.under, path)
        file, lock = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES), threading.Lock()  # noqa: SIM115
        for block in self._content(path):
            file.write(block)

        def read(start: int, end: int) -> bytes:
            with lock:
                file.seek(start)
                return file.read(max(0, end - start))

        return OpenedDocument(file.tell(), read)

    def sign_all(self) -> None:
        """Sign with one's own key what is not signed, if nothing was signed before, and what another trusted key
        has. What is replaced meanwhile stays as it is. Raises ArchiveUnsigned for what a trusted key has not signed
        so."""
        listed = [info for folder in (names.RUNS, names.DIGESTS) for info in self.under.list(folder)]
        listed += [info for path in (names.ARCHIVE, names.VERIFIED) for info in self.under.list(path)]
        wanted = [info for info in listed if is_document(info.path)]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logkeep-sign") as pool:
            for _ in pool.map(self._sign_again, wanted):
                pass

    def _sign_again(self, info: ObjectInfo) -> None:
        try:
            version = self.under.version(info.path)
            end, signature = split(self.under.read_range(info.path, max(0, info.size - _MOST_OF_END), None))
            is_ours = signature.signer in self.keys.trusted or (not signature and self.before_signing)
            if signature.signer == self.keys.signer or not is_ours or not end.endswith((b"}", b"}\n")):
                return
            with self.writer(info.path, replaces=version) as out:
                for block in self._content(info.path):
                    out.write(block)
        except (ObjectExists, ObjectMissing):
            return  # if it was replaced or deleted since, that was on purpose

    # ---- the interface of a storage

    def create(self, path: str, data: bytes) -> None:
        self.under.create(path, self._signed(path, data))

    def put(self, path: str, data: bytes) -> None:
        self.under.put(path, self._signed(path, data))

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        self.under.put_all({path: self._signed(path, data) for path, data in objects.items()})

    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        out = self.under.writer(path, replaces=replaces)
        return _DocumentWriter(out, self._signature_of(path)) if self._signing(path) else out

    def read(self, path: str, *, most: int = WHOLE_BYTES) -> bytes:
        if not is_document(path):
            return self.under.read(path, most=most)
        return self._checked(path, self.under.read(path, most=most + _MOST_OF_END))

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        """Do what any storage does; but the part of a document must be its beginning, or all of it."""
        if not is_document(path):
            return self.under.read_range(path, start, end)
        if not self.keys:
            return split(self.under.read_range(path, start, end))[0]
        found, at = bytearray(), 0
        for block in self._content(path):  # a part alone shows nothing
            stop = len(block) if end is None else max(0, end - at)
            found += block[max(0, start - at) : stop]
            at += len(block)
        return bytes(found)

    def read_into(self, path: str, start: int, target: memoryview) -> int:
        _refuse_parts(path)
        return self.under.read_into(path, start, target)

    def reader(self, path: str, *, block: int = DEFAULT_BLOCK, start: int = 0) -> ObjectReader:
        _refuse_parts(path)
        return self.under.reader(path, block=block, start=start)

    def delete_unlocked(self, paths: Iterable[str]) -> tuple[LockedObject, ...]:
        return self.under.delete_unlocked(paths)


def _refuse_parts(path: str) -> None:
    """Raises ValueError for a document: in parts it is read as `opened`."""
    if is_document(path):
        raise ValueError(f"{path} is a document")


def _in_another_process(under: Storage, archive_id: str) -> SigningStorage:
    return SigningStorage(under, signing_keys(environ), archive_id)


class _Ending:
    """Passes a document on, and its last keys with it. Its last bytes are held back until it ends."""

    def __init__(self, write: Callable[[bytes], object], keys: Callable[[str], bytes]) -> None:
        self._write = write
        self._keys = keys
        self._hashed = hashlib.sha256()
        self._held = b""

    def write(self, data: Buffer) -> None:
        content = self._held + bytes(data)
        content, self._held = content[:-2], content[-2:]
        self._hashed.update(content)
        self._write(content)

    def finish(self) -> None:
        self._hashed.update(self._held)
        body, brace, end = self._held.rpartition(b"}")
        if not brace or end not in (b"", b"\n"):
            raise ValueError(f"a document ends in {self._held!r}, not as a JSON object does")
        self._write(body + self._keys(self._hashed.hexdigest()) + brace + end)


class _DocumentWriter(ObjectWriter):
    """Writes a document as a stream, and its signature after it."""

    def __init__(self, out: ObjectWriter, keys: Callable[[str], bytes]) -> None:
        self._out = out
        self._ending: _Ending | None = _Ending(out.write, keys)

    def write(self, data: Buffer) -> int:
        if self._ending is None:
            raise ValueError("all bytes were written")
        self._ending.write(data)
        return len(data)

    def complete(self) -> None:
        self._finish()
        self._out.complete()

    def commit(self) -> None:
        self._finish()
        self._out.commit()

    def abort(self) -> None:
        self._out.abort()

    def _finish(self) -> None:
        if self._ending is not None:
            self._ending.finish()
            self._ending = None


@dataclass(frozen=True, slots=True)
class OpenedDocument:
    """The content of a document: its size in bytes, and what reads those from one position to another."""

    size: int
    read: Callable[[int, int], bytes]


def opened(storage: Storage, path: str) -> OpenedDocument:
    """Return a document of a storage, as `SigningStorage.opened`."""
    return storage.opened(path) if isinstance(storage, SigningStorage) else _opened_unchecked(storage, path)


def _opened_unchecked(storage: Storage, path: str) -> OpenedDocument:
    """Return a document that is read where it lies. A signature is left out."""
    size = next((info.size for info in storage.list(path) if info.path == path), None)
    if size is None:
        raise ObjectMissing(f"{storage.uri}/{path} does not exist")
    last = storage.read_range(path, max(0, size - _MOST_OF_END), size)
    content, signature = split(last)
    if not signature:
        return OpenedDocument(size, lambda start, end: storage.read_range(path, start, min(end, size)))
    whole = size - len(last) + len(content)
    ending = b"}\n" if content.endswith(b"\n") else b"}"
    same = whole - len(ending)

    def read(start: int, end: int) -> bytes:
        data = storage.read_range(path, start, min(end, same)) if start < same else b""
        return data + ending[max(0, start - same) : max(0, end - same)]

    return OpenedDocument(whole, read)

"""Objects written to Azure Blob Storage, whole or as streams."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from logkeep_engine.errors import ObjectExists, ObjectMissing, StorageUnavailable
from logkeep_engine.storage.base import ANYTHING
from logkeep_engine.storage.object_store import ObjectStore
from logkeep_engine.storage.parts import UploadBody, UploadPart, changed, slabs_of
from logkeep_engine.storage.upload import PartsWriter, UploadGone


def blob_of(storage: ObjectStore[Any], container: Any, path: str) -> Any:
    """Return the library's client for an object. Raises ValueError for a path that names none, and StorageRefused for
    a name that Azure would change."""
    key = storage.place.key(path)
    storage.check_path(path)
    return container.get_blob_client(key)


def put(storage: ObjectStore[Any], path: str, content: bytes | UploadPart, condition: Mapping[str, str]) -> None:
    """Write an object in one request, under a condition on what is there."""
    storage.place.key(path)
    checksum = _md5(storage, path, content)

    def send(container: Any) -> None:
        body = UploadBody(content)
        # What the library offers to the public would copy a body that is not one block.
        blob_of(storage, container, path)._client.block_blob.upload(
            len(body), body, transactional_content_md5=checksum, headers=dict(condition)
        )

    storage.ask(path, send)


def _md5(storage: ObjectStore[Any], path: str, content: bytes | UploadPart) -> bytes:
    """Return the checksum that Azure compares, of the bytes that were handed in."""
    digest = hashlib.md5(usedforsecurity=False)
    for slab in slabs_of(content):
        digest.update(slab)
    if isinstance(content, UploadPart) and not content.whole:
        raise changed(storage.place.name_of(path))
    return digest.digest()


class AzureWriter(PartsWriter[str]):
    """Blocks that are sent side by side, and a list of them at the end, which makes the object.

    What was sent and not listed is invisible, and the service drops it in a week. Two writers of one name share their
    blocks' place: the commit of one drops what the other has sent.
    """

    def __init__(self, storage: ObjectStore[Any], path: str, replaces: str | None) -> None:
        storage.place.key(path)
        storage.check_path(path)
        super().__init__(path, storage.sender)
        self._name = storage.place.name_of(path)
        self._storage = storage
        self._replaces = replaces
        self._id = secrets.token_hex(8)  # blocks of another writer must not be taken for ours

    @property
    def _condition(self) -> dict[str, str]:
        if self._replaces == ANYTHING:
            return {}
        return {"If-None-Match": "*"} if self._replaces is None else {"If-Match": self._replaces}

    def _put(self, part: UploadPart) -> None:
        put(self._storage, self._path, part, self._condition)

    def _begin(self) -> None:
        return  # the first block does

    def _send(self, number: int, at: int, part: UploadPart, last: bool) -> str:
        block = f"{self._id}-{number:06}"
        checksum = _md5(self._storage, self._path, part)

        def send(container: Any) -> None:
            blob_of(self._storage, container, self._path).stage_block(
                block, UploadBody(part), len(part), transactional_content_md5=checksum
            )

        self._storage.ask(self._path, send)
        return block

    def _finish(self, parts: Sequence[str]) -> None:
        from azure.storage.blob import BlobBlock

        def finish(container: Any) -> None:
            blocks = [BlobBlock(block) for block in parts]
            blob_of(self._storage, container, self._path).commit_block_list(blocks, headers=self._condition)

        try:
            self._storage.ask(self._path, finish)
        except (ObjectExists, UploadGone):
            # The answer to a first request may have been lost after the store had done it.
            if self._is_there(parts):
                return
            if self._replaces != ANYTHING:
                raise ObjectExists(f"{self._name} exists already.") from None
            raise StorageUnavailable(
                f"{self._name}: another writer of this name has ended first.", hint="Start the run again."
            ) from None

    def _drop(self) -> None:
        return  # the service drops blocks that no list names

    def _is_there(self, parts: Sequence[str]) -> bool:
        """Return whether the object is of these blocks, whose names no other writer has."""

        def look(container: Any) -> Any:
            return blob_of(self._storage, container, self._path).get_block_list("committed")[0]

        try:
            return [block.id for block in self._storage.ask(self._path, look)] == list(parts)
        except ObjectMissing:
            return False

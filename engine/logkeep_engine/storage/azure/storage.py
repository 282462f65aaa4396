"""The interface of a storage over Azure's client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from logkeep_engine.errors import LogkeepError, ObjectMissing, StorageRefused
from logkeep_engine.storage.azure.errors import translate
from logkeep_engine.storage.azure.writer import AzureWriter, blob_of, put
from logkeep_engine.storage.base import (
    ANYTHING,
    WHOLE_BYTES,
    ColdObject,
    LockedObject,
    ObjectInfo,
    ObjectWriter,
    UnseenObject,
    is_object_path,
)
from logkeep_engine.storage.object_store import CONNECT_TIMEOUT, CONNECTIONS, READ_TIMEOUT, ObjectStore
from logkeep_engine.storage.parts import SLAB_BYTES
from logkeep_engine.storage.place import BucketPlace

_PAGE = 5000  # the most that the service lists at once
_ARCHIVE = "Archive"
_FOLDER = "hdi_isfolder"  # metadata of an entry that stands for a folder where names form a hierarchy
_UNCOMMITTED = "uncommitted"


class AzureStorage(ObjectStore[Any]):
    """A prefix of a container, in the account whose URL is the `endpoint`. An object's version is its ETag."""

    def _connect(self, environ: Mapping[str, str]) -> Any:
        # slow to import, and only this storage needs them
        from azure.core.pipeline.transport import RequestsTransport
        from azure.storage.blob import ContainerClient
        from requests import Session
        from requests.adapters import HTTPAdapter

        place = self._place
        session = Session()
        session.mount("https://", HTTPAdapter(pool_maxsize=CONNECTIONS))
        session.mount("http://", HTTPAdapter(pool_maxsize=CONNECTIONS))
        trusted = {} if place.ca_file is None else {"connection_verify": place.ca_file}
        transport: Any = RequestsTransport
        client: Any = ContainerClient
        return client(
            place.endpoint,
            place.bucket,
            credential=_credential(place, environ),
            transport=transport(
                session=session,
                session_owner=False,
                connection_timeout=CONNECT_TIMEOUT,
                read_timeout=READ_TIMEOUT,
                connection_data_block_size=SLAB_BYTES,  # of what is read; its own is 4 kB
                **trusted,
            ),
            retry_total=0,  # our own patience repeats a request
            max_single_get_size=WHOLE_BYTES + 1,  # what is read is one request; `read` asks for one byte more
            max_chunk_get_size=WHOLE_BYTES,
        )

    def _translate(self, error: Exception, path: str) -> LogkeepError:
        return translate(error, self._place, path)

    def check(self) -> None:
        self.ask("", lambda container: next(iter(self._listed(container, "", results_per_page=1)), None))

    def check_path(self, path: str) -> None:
        if "\\" in path or any(part.endswith(".") for part in path.split("/")):
            raise StorageRefused(
                f"{self.uri}/{path}: {self._place.where} holds no name with a backslash, or with a dot at the end of a "
                "part of it.",
                hint="Exclude the topic, or use another store.",
            )

    def create(self, path: str, data: bytes) -> None:
        put(self, path, data, {"If-None-Match": "*"})

    def put(self, path: str, data: bytes) -> None:
        put(self, path, data, {})

    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        return AzureWriter(self, path, replaces)

    def version(self, path: str) -> str | None:
        self._place.key(path)
        try:
            return str(self.ask(path, lambda container: blob_of(self, container, path).get_blob_properties().etag))
        except ObjectMissing:
            return None

    def _read(self, connection: Any, path: str, start: int, end: int | None) -> bytes:
        length = None if end is None else end - start
        # As it lies there: an object that somebody has uploaded with gzip as its encoding would come unpacked.
        data: bytes = blob_of(self, connection, path).download_blob(start, length, decompress=False).readall()
        return data

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        return sorted(self._list(prefix), key=lambda info: info.path)

    def list_in_pages(self, prefix: str, size: int) -> Sequence[ObjectInfo]:
        return sorted(self._list(prefix, results_per_page=size), key=lambda info: info.path)

    def _list(self, prefix: str, **options: Any) -> Iterable[ObjectInfo]:
        found = self.ask("", lambda container: [*self._listed(container, prefix, include=["metadata"], **options)])
        return [
            ObjectInfo(path, blob.size, blob.last_modified.timestamp(), str(blob.blob_tier or ""))
            for blob in found
            if is_object_path(path := self._path_of(blob.name, prefix)) and not (blob.metadata or {}).get(_FOLDER)
        ]

    def _listed(self, container: Any, prefix: str, **options: Any) -> Iterable[Any]:
        wanted = {"results_per_page": _PAGE, **options}
        found: Iterable[Any] = container.list_blobs(name_starts_with=self._place.prefix + prefix, **wanted)
        return found

    def _delete_one(self, connection: Any, path: str, version: str | None) -> None:
        blob = connection.get_blob_client(self._place.key(path))  # also one whose name we would not write
        if version == _UNCOMMITTED:
            from azure.core import MatchConditions

            # Only a commit ends what was sent: an empty object takes its place, if none has, and is deleted at once.
            made = blob.commit_block_list([], match_condition=MatchConditions.IfMissing)
            blob.delete_blob(etag=made["etag"], match_condition=MatchConditions.IfNotModified)
        elif version is not None:
            blob.delete_blob(version_id=version)
        else:
            blob.delete_blob(delete_snapshots="include")

    def _lock_of(self, connection: Any, path: str, version: str | None) -> LockedObject | None:
        blob = connection.get_blob_client(self._place.key(path))
        found = blob.get_blob_properties(version_id=version)
        until = found.immutability_policy.expiry_time
        if until is None and not found.has_legal_hold:
            return None
        return LockedObject(path, None if until is None else until.timestamp(), bool(found.has_legal_hold))

    def unseen(self, prefix: str) -> tuple[UnseenObject, ...]:
        """Older versions, and what killed writers have sent. Raises StorageRefused if the container holds deleted
        objects (soft delete), which nobody can delete before their time."""
        include = ["versions", "uncommittedblobs", "deleted", "metadata"]
        found = self.ask("", lambda container: [*self._listed(container, prefix, include=include)])
        visible = {info.path for info in self.list(prefix)}  # after the others: what ends in between is an object
        unseen: list[UnseenObject] = []
        for blob in found:
            path = self._path_of(blob.name, prefix)
            if not is_object_path(path) or (blob.metadata or {}).get(_FOLDER):
                continue
            if blob.deleted:
                raise StorageRefused(
                    f"{self.uri}/{path} was deleted, and {self._place.where} keeps it (soft delete).",
                    hint="What is to be erased would stay there: switch soft delete off for the account, and begin "
                    "again when its time has passed.",
                )
            if blob.version_id and not blob.is_current_version:
                unseen.append(UnseenObject(path, str(blob.version_id), is_version=True))
            elif path not in visible:
                unseen.append(UnseenObject(path, _UNCOMMITTED))
        return tuple(unseen)

    def cold(self, listed: Iterable[ObjectInfo]) -> tuple[ColdObject, ...]:
        asked = [info for info in listed if info.storage_class == _ARCHIVE]
        found = (self._look(info) for info in asked)
        return tuple(item for item in found if item is not None)

    def _look(self, info: ObjectInfo) -> ColdObject | None:
        def look(container: Any) -> Any:
            return blob_of(self, container, info.path).get_blob_properties()

        try:
            found = self.ask(info.path, look)
        except ObjectMissing:
            return None  # whoever reads it says so
        if found.blob_tier != _ARCHIVE:
            return None
        return ColdObject(info, retrieving=bool(found.archive_status))

    def retrieve(self, cold: ColdObject, days: int, tier: str) -> None:
        """Rehydrate an object. It stays readable: `days` is for stores that bring back a copy."""
        priority = "High" if tier == "Expedited" else "Standard"

        def wake(container: Any) -> None:
            blob_of(self, container, cold.info.path).set_standard_blob_tier("Hot", rehydrate_priority=priority)

        self.ask(cold.info.path, wake)


def _credential(place: BucketPlace, environ: Mapping[str, str]) -> Any:
    """Return the account's key or a shared access signature, else what Azure's libraries find; with an identity that of
    the pod."""
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    if place.identity:
        from azure.identity import WorkloadIdentityCredential

        return WorkloadIdentityCredential()
    if environ.get(place.keys.azure_key):
        return AzureNamedKeyCredential(account_of(place.endpoint or ""), environ[place.keys.azure_key])
    if environ.get(place.keys.azure_sas):
        return AzureSasCredential(environ[place.keys.azure_sas].lstrip("?"))
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


def account_of(endpoint: str) -> str:
    """Return the account that a URL names: the first part of its host."""
    return (urlsplit(endpoint).hostname or "").partition(".")[0]

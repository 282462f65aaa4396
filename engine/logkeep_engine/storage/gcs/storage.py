"""The interface of a storage over Google's client."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from logkeep_engine.errors import CredentialsMissing, LogkeepError, ObjectMissing, StorageRefused, by_place
from logkeep_engine.storage.base import (
    ANYTHING,
    ColdObject,
    LockedObject,
    ObjectInfo,
    ObjectWriter,
    UnseenObject,
    is_object_path,
)
from logkeep_engine.storage.gcs.errors import translate
from logkeep_engine.storage.gcs.writer import GOOGLE, TIMEOUT, GcsWriter, put
from logkeep_engine.storage.object_store import CONNECTIONS, ObjectStore

# Our own patience repeats a request: the library would multiply the time until a dead endpoint is reported.
_ONCE: dict[str, Any] = {"retry": None, "timeout": TIMEOUT}
_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"
_GENERATION = "ifGenerationMatch"
_ABSENT = {_GENERATION: 0}


class GcsStorage(ObjectStore[Any]):
    """A prefix of a bucket in Google Cloud Storage. An object's version is its generation."""

    forgets_unfinished = True

    def _connect(self, environ: Mapping[str, str]) -> Any:
        from google.cloud.storage import Client  # slow to import, and only this storage needs it
        from requests.adapters import HTTPAdapter

        place = self._place
        # Named in any case: else a variable of the environment could lead elsewhere (STORAGE_EMULATOR_HOST).
        options = {"api_endpoint": place.endpoint or GOOGLE}
        # The project is that of new buckets, and none is created here.
        client = Client(project="-", credentials=_credentials(place, environ), client_options=options)
        client._bucket_metadata_cache = None  # else it asks for the bucket in the background, which needs another right
        session = client._http
        session.mount("https://", HTTPAdapter(pool_maxsize=CONNECTIONS))
        session.mount("http://", HTTPAdapter(pool_maxsize=CONNECTIONS))
        if place.ca_file is not None:
            session.verify = place.ca_file
        return client.bucket(place.bucket)

    def _translate(self, error: Exception, path: str) -> LogkeepError:
        return translate(error, self._place, path)

    def check(self) -> None:
        self.ask("", lambda bucket: next(iter(self._pages(bucket, "", max_results=1)), None))

    def create(self, path: str, data: bytes) -> None:
        put(self, path, data, _ABSENT)

    def put(self, path: str, data: bytes) -> None:
        put(self, path, data, {})

    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        if replaces == ANYTHING:
            return GcsWriter(self, path, {})
        return GcsWriter(self, path, _ABSENT if replaces is None else {_GENERATION: int(replaces)})

    def version(self, path: str) -> str | None:
        key = self._place.key(path)

        def look(bucket: Any) -> str:
            blob = bucket.blob(key)
            blob.reload(**_ONCE)
            return str(blob.generation)

        try:
            return self.ask(path, look)
        except ObjectMissing:
            return None

    def _read(self, connection: Any, path: str, start: int, end: int | None) -> bytes:
        blob = connection.blob(self._place.key(path))
        last = None if end is None else end - 1
        whole = start == 0 and end is None
        # Raw: an object that somebody has uploaded with gzip as its encoding would come unpacked.
        data: bytes = blob.download_as_bytes(
            start=None if whole else start, end=last, raw_download=True, single_shot_download=True, **_ONCE
        )
        return data

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        return sorted(self._list(prefix), key=lambda info: info.path)

    def list_in_pages(self, prefix: str, size: int) -> Sequence[ObjectInfo]:
        return sorted(self._list(prefix, page_size=size), key=lambda info: info.path)

    def _list(self, prefix: str, **options: Any) -> Iterable[ObjectInfo]:
        found = self.ask("", lambda bucket: [*self._pages(bucket, prefix, **options)])
        return [
            ObjectInfo(path, blob.size, blob.updated.timestamp(), blob.storage_class or "")
            for blob in found
            # others are "folders" that some tools make, and keys that no request of ours may name
            if is_object_path(path := self._path_of(blob.name, prefix))
        ]

    def _pages(self, bucket: Any, prefix: str, **options: Any) -> Iterable[Any]:
        found: Iterable[Any] = bucket.client.list_blobs(bucket, prefix=self._place.prefix + prefix, **options, **_ONCE)
        return found

    def _delete_one(self, connection: Any, path: str, version: str | None) -> None:
        generation = None if version is None else int(version)
        connection.blob(self._place.key(path), generation=generation).delete(**_ONCE)

    def _lock_of(self, connection: Any, path: str, version: str | None) -> LockedObject | None:
        blob = connection.blob(self._place.key(path), generation=None if version is None else int(version))
        blob.reload(**_ONCE)
        times = [blob.retention_expiration_time, blob.retention.retain_until_time]
        until = max((moment.timestamp() for moment in times if moment is not None), default=None)
        held = bool(blob.temporary_hold or blob.event_based_hold)
        return LockedObject(path, until, held) if held or until is not None else None

    def unseen(self, prefix: str) -> tuple[UnseenObject, ...]:
        """Older generations. Raises StorageRefused if the bucket keeps what is deleted (soft delete), which nobody
        can delete before its time. What killed writers have sent is no object, and the service drops it in a week."""
        self.ask("", self._require_no_soft_delete)
        found = self.ask("", lambda bucket: [*self._pages(bucket, prefix, versions="true")])
        # asked for after the others: what is replaced in between is an older generation
        live = {(blob.name, blob.generation) for blob in self.ask("", lambda bucket: [*self._pages(bucket, prefix)])}
        return tuple(
            UnseenObject(path, str(blob.generation), is_version=True)
            for blob in found
            if (blob.name, blob.generation) not in live and is_object_path(path := self._path_of(blob.name, prefix))
        )

    def _require_no_soft_delete(self, bucket: Any) -> None:
        bucket.reload(**_ONCE)
        seconds = bucket.soft_delete_policy.retention_duration_seconds or 0
        if seconds:
            raise StorageRefused(
                f"Bucket {self._place.bucket!r} keeps deleted objects for {seconds} s (soft delete).",
                hint="What is to be erased would stay there: switch it off (gcloud storage buckets update "
                "--clear-soft-delete), and begin again when that time has passed.",
            )

    def cold(self, listed: Iterable[ObjectInfo]) -> tuple[ColdObject, ...]:
        return ()  # every class can be read at once, Archive too

    def retrieve(self, cold: ColdObject, days: int, tier: str) -> None:
        raise TypeError(f"{self.uri} has no cold objects")


def _credentials(place: Any, environ: Mapping[str, str]) -> Any:
    """Return the key of a service account, else what Google's libraries find; with an identity that of the pod."""
    import google.auth
    from google.auth import compute_engine
    from google.oauth2 import service_account

    if place.identity:
        if environ.get("GOOGLE_APPLICATION_CREDENTIALS"):  # workload identity federation, outside of GKE
            return google.auth.load_credentials_from_file(environ["GOOGLE_APPLICATION_CREDENTIALS"], scopes=[_SCOPE])[0]
        return compute_engine.Credentials()
    text = environ.get(place.keys.google)
    if not text:
        return google.auth.default(scopes=[_SCOPE])[0]
    try:
        return service_account.Credentials.from_service_account_info(json.loads(text), scopes=[_SCOPE])
    except (ValueError, KeyError, AttributeError):  # its text may repeat the key
        raise CredentialsMissing(
            f"{place.keys.google} is not the key of a service account, in JSON.",
            hint=by_place(
                f"Check the key of the Secret that {place.keys.part('credentials.secretRef')} names.",
                "Set it to the whole text of the file that Google gives for the account.",
            ),
        ) from None

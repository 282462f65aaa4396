"""Objects written to Google Cloud Storage, whole or as streams. Google's library is asked for a session only: it would
copy each body, and compute its checksum once more."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from logkeep_engine.errors import ObjectMissing, StorageRefused, StorageUnavailable
from logkeep_engine.storage.object_store import CONNECT_TIMEOUT, READ_TIMEOUT, ObjectStore, T
from logkeep_engine.storage.parts import UploadPart, base64_of, changed, crc32c_of, slabs_of
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.upload import PartsWriter, UploadGone

GOOGLE = "https://storage.googleapis.com"
TIMEOUT = (CONNECT_TIMEOUT, READ_TIMEOUT)
_BYTES = "application/octet-stream"
_DONE = (200, 201)
_MORE = (*_DONE, 308)
_GIVEN_UP = (*_DONE, 204, 499)
_KEPT = re.compile(r"bytes=0-([0-9]{1,15})")

Pieces = Sequence[bytes | memoryview]


class _Body:
    """Pieces that go to the socket one after the other, without a copy. If a token was too old, the library sends them
    again from the first."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return iter(self._pieces)


def put(storage: ObjectStore[Any], path: str, content: bytes | UploadPart, condition: Mapping[str, int]) -> None:
    """Write an object in one request, under a condition on the generation that is there. Google compares the checksum
    before anybody sees the object."""
    place = storage.place
    described = {"name": place.key(path), "contentType": _BYTES, "crc32c": base64_of(crc32c_of(content))}
    boundary = secrets.token_hex(16)
    head = f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{json.dumps(described)}\r\n"
    head += f"--{boundary}\r\nContent-Type: {_BYTES}\r\n\r\n"
    body: Pieces = [head.encode(), *slabs_of(content), f"\r\n--{boundary}--\r\n".encode()]
    kind = {"Content-Type": f"multipart/related; boundary={boundary}"}
    query = {"uploadType": "multipart", **condition}
    made = _into_bucket(storage, path, lambda bucket: _request(bucket, place, "POST", query, kind, body).json())
    _require_whole(storage, path, made, len(content), crc32c_of(content))


def _require_whole(storage: ObjectStore[Any], path: str, made: Any, size: int, crc: int) -> None:
    """Raises StorageRefused for an object that Google says it has made, if it is not of these bytes. It is deleted: a
    store that does not compare what it was told has made it."""
    place, said = storage.place, made if isinstance(made, dict) else {}
    if str(said.get("size")) == str(size) and said.get("crc32c") == base64_of(crc):
        return
    generation = str(said.get("generation"))
    if not generation.isdecimal():
        raise StorageRefused(
            f"{place.name_of(path)}: {place.where} says that it was written, and not what it is.",
            hint=f"Check {place.keys.part('endpoint')}: a proxy may answer in place of the store.",
        )
    storage.ask(
        path,
        lambda bucket: bucket.blob(place.key(path), generation=int(generation)).delete(retry=None, timeout=TIMEOUT),
    )
    raise changed(place.name_of(path))


def _into_bucket(storage: ObjectStore[Any], path: str, action: Callable[[Any], T]) -> T:
    """Have Google do it. An object that is to be written can lack nothing but its bucket."""
    try:
        return storage.ask(path, action)
    except ObjectMissing:
        raise storage.place.missing() from None


def _request(
    bucket: Any,
    place: BucketPlace,
    method: str,
    query: Mapping[str, Any],
    headers: Mapping[str, str],
    body: Pieces = (),
    expected: Sequence[int] = _DONE,
) -> Any:
    from google.cloud.storage.exceptions import InvalidResponse  # slow to import, and only this storage needs it

    url = f"{(place.endpoint or GOOGLE).rstrip('/')}/upload/storage/v1/b/{quote(place.bucket, safe='')}/o"
    answer = bucket.client._http.request(
        method,
        f"{url}?{urlencode(query)}",
        data=_Body(body) if body else b"",
        headers=dict(headers),
        timeout=TIMEOUT,
        allow_redirects=False,
    )
    if answer.status_code not in expected:
        raise InvalidResponse(answer, "")
    return answer


class GcsWriter(PartsWriter[Any]):
    """A resumable upload. Google takes its bytes in their order, and forgets it after a week.

    Other ways would send parts side by side. A multipart upload of the XML interface has no condition on what it
    replaces, and its parts lie there, billed, until somebody aborts it. Objects that are composed of others are seen
    while they are parts.
    """

    in_order = True

    def __init__(self, storage: ObjectStore[Any], path: str, condition: Mapping[str, int]) -> None:
        self._place = storage.place
        self._key = self._place.key(path)
        super().__init__(path, storage.sender)
        self._storage = storage
        self._name = self._place.name_of(path)
        self._condition = condition
        self._session = ""

    def _put(self, part: UploadPart) -> None:
        put(self._storage, self._path, part, self._condition)

    def _begin(self) -> None:
        query = {"uploadType": "resumable", "name": self._key, **self._condition}
        kind = {"Content-Type": "application/json"}
        body = [json.dumps({"contentType": _BYTES}).encode()]
        answer = _into_bucket(
            self._storage, self._path, lambda bucket: _request(bucket, self._place, "POST", query, kind, body)
        )
        # The rest of the address is a claim: whoever is named there would get our token.
        named = parse_qs(urlsplit(answer.headers.get("Location", "")).query).get("upload_id", ())
        if len(named) != 1:
            raise StorageRefused(
                f"{self._name}: {self._place.where} has begun an upload and does not name it.",
                hint=f"Check {self._place.keys.part('endpoint')}: a proxy may have taken the header Location away.",
            )
        self._session = named[0]

    def _send(self, number: int, at: int, part: UploadPart, last: bool) -> Any:
        end = at + len(part)
        total = end if last else "*"
        checksum = {"x-goog-hash": f"crc32c={base64_of(self._crc)}"} if last else {}
        kept: int | None = at  # bytes of the object that Google has; None: it must be asked

        def send(bucket: Any) -> Any:
            nonlocal kept
            while True:
                start, kept = kept, None
                if start is None or start == end:  # how much is there, and if all is: make it an object
                    sent, body = f"bytes */{total}", list[memoryview]()
                else:
                    sent, body = f"bytes {start}-{end - 1}/{total}", slabs_of(part, start - at)
                answer = self._in_session(bucket, "PUT", {"Content-Range": sent, **checksum}, body, _MORE)
                if answer.status_code in _DONE:
                    return answer.json()
                found = self._kept(answer, at, end)
                if found == end and not last:
                    return None
                if start is not None and found <= start:
                    raise StorageUnavailable(
                        f"{self._name}: {self._place.where} takes no more of its bytes.", hint="Try again."
                    )
                kept = found

        answered = self._storage.ask(self._path, send)
        if not last and answered is not None:
            raise StorageRefused(
                f"{self._name}: {self._place.where} has ended an upload whose bytes are not all there.",
                hint="Start the run again.",
            )
        return answered

    def _in_session(
        self, bucket: Any, method: str, headers: Mapping[str, str], body: Pieces, expected: Sequence[int]
    ) -> Any:
        query = {"uploadType": "resumable", "upload_id": self._session}
        try:
            return _request(bucket, self._place, method, query, headers, body, expected)
        except Exception as error:
            response = getattr(error, "response", None)
            if getattr(response, "status_code", None) in (404, 410):
                raise UploadGone(
                    f"{self._name}: {self._place.where} does not know its upload any more.",
                    hint="Start the run again.",
                ) from error
            raise

    def _kept(self, answer: Any, at: int, end: int) -> int:
        """Return how many bytes of the object Google says that it has."""
        named = answer.headers.get("Range")
        found = _KEPT.fullmatch(named or "")
        count = int(found[1]) + 1 if found else 0
        if (named and not found) or not at <= count <= end:
            raise StorageRefused(
                f"{self._name}: {self._place.where} says that it has {named or 'no bytes'} of an upload of which it "
                f"has confirmed {at} bytes and was sent {end}.",
                hint="Start the run again.",
            )
        return count

    def _finish(self, parts: Sequence[Any]) -> None:
        _require_whole(self._storage, self._path, parts[-1], self._size, self._crc)

    def _drop(self) -> None:
        self._storage.ask(self._path, lambda bucket: self._in_session(bucket, "DELETE", {}, (), _GIVEN_UP))

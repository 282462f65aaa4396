"""Answers of the Kubernetes API: read within bounds, taken apart, and compared with what was asked for.

Whatever is wrong with an answer becomes one of the classes of `errors.ApiError`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import urllib3

from logkeep_engine.contract.nesting import loads, loads_cut
from logkeep_engine.contract.objects import MAX_OBJECT_BYTES, OtherObject, check_item, check_list
from logkeep_operator.errors import (
    AlreadyExists,
    AnswerTooLong,
    AnswerWrong,
    ApiError,
    ApiRefused,
    ApiUnavailable,
    Conflict,
    NotFound,
    NotStored,
)

_PAGE = 500
_SMALL_PAGE = 50  # a ConfigMap with the progress of 2,000 partitions is 300 kB
MAX_PAGE_BYTES = 8 << 20  # several pages are in memory at once, and the chart gives the operator 384 MiB


def read(answer: urllib3.BaseHTTPResponse, deadline: float, most: int) -> bytes | None:
    """Read the whole body, None if it is longer than `most`. It ends within the deadline of the call: a server that
    sends a byte now and then would hold a worker forever."""
    pieces, size = [], 0
    try:
        while piece := answer.read1(1 << 16):
            pieces.append(piece)
            size += len(piece)
            # Closed and not released: a connection with the rest of an answer in it serves no other call.
            if size > most:
                answer.close()
                return None
            if time.monotonic() > deadline:
                raise TimeoutError
    except BaseException:
        answer.close()
        raise
    answer.release_conn()
    return b"".join(pieces)


def parsed(method: str, path: str, data: bytes) -> dict[str, Any]:
    """Return the object in an answer, or in a line of a watch. Raises ApiUnavailable for anything else."""
    try:
        body = loads_cut(data)
    except ValueError as error:
        raise ApiUnavailable(f"{method} {path}: the Kubernetes API's answer is not JSON: {data[:100]!r}") from error
    if not isinstance(body, dict):
        raise ApiUnavailable(f"{method} {path}: the Kubernetes API's answer is not an object: {data[:100]!r}")
    return body


def page_size(kind: str) -> str:
    """Return how many objects of a kind are listed in one answer."""
    return str(_SMALL_PAGE if kind == "ConfigMap" else _PAGE)


def page_bytes(limit: int) -> int:
    """Return how many bytes a page of this many objects may have. A single object may have as many as one can have: one
    that could not be read would hide all others of its kind."""
    return MAX_PAGE_BYTES if limit > 1 else MAX_OBJECT_BYTES


def checked_page(kind: str, namespace: str | None, path: str, page: dict[str, Any]) -> dict[str, Any]:
    """Return the page, if it is a list of what was asked for. Raises AnswerWrong."""
    try:
        check_list(page, kind)
        for item in page.get("items") or ():
            check_item(item, kind, namespace)
    except OtherObject as error:
        raise AnswerWrong(f"GET {path}: {error}") from error
    return page


def check_stored(method: str, path: str, sent: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Raises NotStored if the status in the answer to a write is not the one that was sent. The API server drops fields
    that its CRD does not have, and says nothing."""
    lost = sorted(_differences("status", sent, answer.get("status")))
    if lost:
        raise NotStored(
            f"{method} {path}: the API server has not stored {', '.join(lost[:5])}"
            f"{f' and {len(lost) - 5} more' if len(lost) > 5 else ''} as sent. Apply the CRDs of this version, or find "
            "out what else changes the status."
        )


def _differences(path: str, sent: Any, stored: Any) -> Iterator[str]:
    if isinstance(sent, Mapping) and isinstance(stored, Mapping):
        for name, value in sent.items():
            yield from _differences(f"{path}.{name}", value, stored.get(name))
    elif isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        for value, found in zip(sent, stored, strict=True):
            yield from _differences(f"{path}[]", value, found)
    elif sent != stored:
        yield path


def too_long(method: str, path: str, most: int) -> AnswerTooLong:
    """Return the error of an answer with more than `most` bytes."""
    return AnswerTooLong(f"{method} {path}: the answer has more than {most >> 20} MiB, so it was not read.")


def api_error(method: str, path: str, status: int, data: bytes) -> ApiError:
    """Return the error that an answer with an error status means."""
    try:
        answer = loads(data)
        reason = str(answer.get("reason") or "")
        message = str(answer.get("message") or reason)
    except (ValueError, AttributeError):
        reason, message = "", data[:200].decode(errors="replace")
    text = f"{method} {path}: {status} {message}"
    if status == 404:
        return NotFound(text, status)
    if reason == "AlreadyExists":
        return AlreadyExists(text, status)
    if status == 409:
        return Conflict(text, status)
    if status in (401, 429, 500, 502, 503, 504):  # 401: a token that is renewed, or an API that cannot check it now
        return ApiUnavailable(text, status)
    return ApiRefused(message or text, status)

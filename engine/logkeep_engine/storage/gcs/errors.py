"""Turns failures of Google Cloud Storage into the engine's errors."""

from __future__ import annotations

from logkeep_engine.errors import (
    CredentialsMissing,
    LogkeepError,
    ObjectExists,
    ObjectMissing,
    StorageDenied,
    StorageRefused,
    StorageUnavailable,
    by_place,
)
from logkeep_engine.storage.object_store import LockedError, PastEndError, unanswered
from logkeep_engine.storage.parts import changed
from logkeep_engine.storage.place import BucketPlace

# What the service answers of an object that it keeps: https://cloud.google.com/storage/docs/json_api/v1/status-codes
_LOCKED = ("retentionPolicyNotMet", "objectUnderActiveHold", "Object is under active", "retention policy")
_CHANGED = "doesn't match calculated"  # the checksum that the request has, and that of the bytes that came
_RIGHTS = (
    "To read, the account needs storage.objects.get and storage.objects.list, to write storage.objects.create and "
    "storage.objects.delete as well: the role Storage Object User has all of them."
)


def translate(error: Exception, place: BucketPlace, path: str) -> LogkeepError:
    """Our error for one of Google's library, by the status of the answer. The service's message is left out."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from requests.exceptions import RequestException, SSLError
    from urllib3.exceptions import HTTPError

    name = place.name_of(path)
    if isinstance(error, LogkeepError):
        return error
    if isinstance(error, GoogleAPICallError):
        return _translate_answer(int(error.code or 0), str(error), place, path)
    if isinstance(error, InvalidResponse):
        return _translate_answer(int(error.response.status_code), str(error.response.text), place, path)
    if isinstance(error, DefaultCredentialsError):
        return CredentialsMissing(
            f"{place.uri}: no credentials for {place.where}.",
            hint=by_place(
                f"Name a Secret in {place.keys.part('credentials.secretRef')}, or give the pod a workload identity.",
                f"Set {place.keys.google} to the key of a service account, or what else Google's libraries look for "
                "(GOOGLE_APPLICATION_CREDENTIALS).",
            ),
        )
    if isinstance(error, SSLError):
        return StorageRefused(
            f"{place.where}: TLS failed.",
            hint=f"Check the endpoint's certificate, and {place.keys.part('tls')} with its certificate authorities.",
        )
    if isinstance(error, GoogleAuthError) and not isinstance(error, TransportError):
        if getattr(error, "retryable", False):
            return StorageUnavailable(f"{name}: no token could be had.", hint="This may be temporary; try again.")
        return StorageRefused(
            f"{name}: Google refused the credentials.",
            hint=by_place(
                f"Check the Secret of {place.keys.part('credentials.secretRef')}, if it names one, and the clock.",
                f"Check {place.keys.google}, if it is set, and the clock.",
            ),
        )
    # a body that is cut while it is read is an HTTPError
    may_pass = isinstance(error, (RequestException, HTTPError, TransportError, DataCorruption, OSError))
    return unanswered(error, place, path, may_pass)


def _translate_answer(status: int, text: str, place: BucketPlace, path: str) -> LogkeepError:
    name, where = place.name_of(path), place.where
    if status == 404:
        if not path or "bucket does not exist" in text:
            return place.missing()
        return ObjectMissing(f"{name} does not exist.")
    if status == 412:
        return ObjectExists(f"{name} exists already.")
    if status == 416:
        return PastEndError(name)
    if status == 403 and any(word in text for word in _LOCKED):
        return LockedError(
            f"{name} is locked: {where} does not delete it.", hint="Wait until its retention has ended, or release it."
        )
    if status in (401, 403):
        return StorageDenied(f"{where} denied access to {name}: {status}.", hint=_RIGHTS)
    if status == 400 and _CHANGED in text:
        return changed(name)
    if status in (408, 409, 429) or (status >= 500 and status != 501):
        return StorageUnavailable(f"{name}: {where} answered {status}.", hint="This may be temporary; try again.")
    return StorageRefused(f"{name}: {where} answered {status}.", hint=f"Check {place.keys.part('uri')}.")

"""Turns failures of Azure Blob Storage into the engine's errors."""

from __future__ import annotations

from logkeep_engine.errors import (
    CredentialsMissing,
    LogkeepError,
    ObjectCold,
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
from logkeep_engine.storage.upload import UploadGone

_LOCKED = {
    "BlobImmutableDueToPolicy",
    "BlobImmutableDueToLegalHold",
    "LeaseIdMissing",
}
_CREDENTIALS = {
    "AuthenticationFailed",
    "AuthorizationFailure",
    "InvalidAuthenticationInfo",
    "NoAuthenticationInformation",
}
COLD_HINT = (
    "A restore has the objects of topics/ and packs/ that it reads rehydrated if spec.source.retrieval says so. For "
    "anything else, set their tier to Hot and wait until they can be read. Only objects in topics/ and packs/ may be "
    "moved to the archive tier: correct the rule of lifecycle management."
)


def translate(error: Exception, place: BucketPlace, path: str) -> LogkeepError:
    """Our error for one of Azure's library, by the code of the answer. The service's message is left out: it may quote
    what was signed."""
    from azure.core.exceptions import (
        AzureError,
        ClientAuthenticationError,
        HttpResponseError,
        ServiceRequestError,
    )

    if isinstance(error, LogkeepError):
        return error
    if isinstance(error, HttpResponseError) and error.status_code is not None:
        code = getattr(error, "error_code", None)
        if code is None:  # only some parts of the library look for it
            code = getattr(error.response, "headers", {}).get("x-ms-error-code")
        return _translate_answer(int(error.status_code), str(getattr(code, "value", code) or ""), place, path)
    if isinstance(error, ClientAuthenticationError):
        return CredentialsMissing(
            f"{place.uri}: no credentials for {place.where}.",
            hint=by_place(
                f"Name a Secret in {place.keys.part('credentials.secretRef')}, or give the pod a workload identity.",
                f"Set {place.keys.azure_key} or {place.keys.azure_sas}, or what else Azure's libraries look for.",
            ),
        )
    if isinstance(error, ServiceRequestError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return StorageRefused(
            f"{place.where}: TLS failed.",
            hint=f"Check the endpoint's certificate, and {place.keys.part('tls')} with its certificate authorities.",
        )
    return unanswered(error, place, path, isinstance(error, (AzureError, OSError)))


def _translate_answer(status: int, code: str, place: BucketPlace, path: str) -> LogkeepError:
    name, where = place.name_of(path), place.where
    if code == "ContainerNotFound" or (status == 404 and not path):
        return place.missing()
    if code == "Md5Mismatch":
        return changed(name)
    if code == "InvalidBlockList":
        return UploadGone(f"{name}: {where} does not know its blocks.")
    if code == "BlobArchived":
        return ObjectCold(f"{name} is in the archive tier and cannot be read before it is rehydrated.", hint=COLD_HINT)
    if code in _LOCKED:
        return LockedError(
            f"{name} is locked ({code}): {where} does not delete it.",
            hint="Wait until its retention has ended, or release it.",
        )
    if status == 404:
        return ObjectMissing(f"{name} does not exist.")
    if status == 412 or code in ("BlobAlreadyExists", "UnauthorizedBlobOverwrite"):
        return ObjectExists(f"{name} exists already.")
    if status == 416:
        return PastEndError(name)
    if code in _CREDENTIALS:
        return StorageRefused(
            f"{where} refused the credentials for {name}: {code}.",
            hint=by_place(
                f"Check the Secret of {place.keys.part('credentials.secretRef')}, if it names one, and the clock.",
                f"Check {place.keys.azure_key} or {place.keys.azure_sas}, and the clock.",
            ),
        )
    if status in (401, 403):
        return StorageDenied(
            f"{where} denied access to {name}: {code or status}.",
            hint="To read, the identity needs the role Storage Blob Data Reader, to write that of Storage Blob Data "
            "Contributor.",
        )
    if status in (408, 409, 429) or (status >= 500 and status != 501):
        return StorageUnavailable(
            f"{name}: {where} answered {code or status}.", hint="This may be temporary; try again."
        )
    return StorageRefused(f"{name}: {where} answered {code or status}.", hint=f"Check {place.keys.part('endpoint')}.")

"""Turns failures of an S3 store into the engine's errors."""

from __future__ import annotations

from typing import Any

from logkeep_engine.contract.s3_options import ServerSideEncryption
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
from logkeep_engine.storage.object_store import PastEndError
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.upload import UploadGone

_MISSING_BUCKET = {"NoSuchBucket"}
_MISSING_OBJECT = {"NoSuchKey", "404"}
_EXISTS = {"PreconditionFailed", "412"}
_CONFLICT = {"ConditionalRequestConflict", "OperationAborted", "409"}
_UPLOAD_GONE = {"NoSuchUpload"}
_RETRIEVED = {"RestoreAlreadyInProgress", "ObjectAlreadyInActiveTierError"}
_NOT_KNOWN = {"InvalidArgument", "InvalidRequest"}
_CREDENTIALS = {
    "InvalidAccessKeyId",
    "XAdminUserNotFound",  # versitygw's InvalidAccessKeyId
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "AuthorizationHeaderMalformed",
    "RequestTimeTooSkewed",
}
MAY_PASS = {
    "SlowDown",
    "ServiceUnavailable",
    "InternalError",
    "RequestTimeout",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
}


class NotUnderstood(StorageRefused):
    """The store does not know what it was asked for, or some of it."""


class RetrievedAlready(StorageRefused):
    """The store is retrieving the object, or has done so."""


def translate(error: Exception, place: BucketPlace, path: str) -> LogkeepError:
    """Our error for one of botocore, by the code that the store sent.

    The store's message is left out: it may quote what was signed.
    """
    from botocore.exceptions import (
        ClientError,
        HTTPClientError,
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
        ProfileNotFound,
    )

    name = place.name_of(path)
    if isinstance(error, LogkeepError):
        return error
    if isinstance(error, ClientError):
        return _translate_answer(error, place, name)
    if isinstance(error, (NoCredentialsError, PartialCredentialsError, ProfileNotFound)):
        return CredentialsMissing(
            f"{place.uri}: no credentials for {place.where}.",
            hint=by_place(
                f"Name a Secret in {place.keys.part('credentials.secretRef')}, or give the pod a workload identity.",
                f"Set {place.keys.access} and {place.keys.secret}, or what else the AWS libraries look for.",
            ),
        )
    if isinstance(error, (ParamValidationError, ValueError, TypeError)):
        what = str(error) if place.endpoint is None else str(error).replace(place.endpoint, place.where)
        return StorageRefused(f"{name}: {what}", hint=f"Check {place.keys.part('uri')}, {_endpoint_and_region(place)}.")
    kind = type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in str(error) or (isinstance(error, HTTPClientError) and "SSL" in kind.upper()):
        return StorageRefused(
            f"{place.where}: TLS failed ({kind}).",
            hint=f"Check the endpoint's certificate, and the certificate authorities {_authorities(place)}.",
        )
    return StorageUnavailable(
        f"{name}: no answer from {place.where} ({kind}).",
        hint=f"Check that {place.keys.part('endpoint')} is right and reachable."
        if place.endpoint is not None
        else f"Check the network path to AWS. If the store is not Amazon's, name it in {place.keys.part('endpoint')}.",
    )


def _endpoint_and_region(place: BucketPlace) -> str:
    return f"{place.keys.part('endpoint')} and {place.keys.part('region')}"


def _authorities(place: BucketPlace) -> str:
    """Return where the certificate authorities come from that are trusted as the store."""
    given = place.keys.ca_file if place.ca_file else "AWS_CA_BUNDLE, if it is set"
    return by_place(f"of {place.keys.field}.tls", f"in the file of {given}")


def _translate_answer(error: Any, place: BucketPlace, name: str) -> LogkeepError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    where = place.where
    if code in _MISSING_BUCKET:
        return place.missing()
    if code in _MISSING_OBJECT:
        return ObjectMissing(f"{name} does not exist.")
    if code in _EXISTS or status == 412:
        return ObjectExists(f"{name} exists already.")
    if code == "InvalidRange" or status == 416:
        return PastEndError(name)
    if code in _CREDENTIALS:
        return StorageRefused(
            f"{where} refused the credentials for {name}: {code}.",
            hint=by_place(
                f"Check the Secret of {place.keys.part('credentials.secretRef')}, if it names one, "
                f"{place.keys.part('region')} and the clock.",
                f"Check {place.keys.access}, {place.keys.secret}, {place.keys.part('region')} and the clock.",
            ),
        )
    if code == "InvalidObjectState":
        return _cold(error, name)
    if code in _RETRIEVED:
        return RetrievedAlready(name)
    if code == "GlacierExpeditedRetrievalNotAvailable":
        return StorageRefused(
            f"{name}: {where} has no room for an expedited retrieval ({code}).",
            hint="Take tier Standard in spec.source.retrieval.",
        )
    if status in (401, 403) or code == "AccessDenied":
        return StorageDenied(
            f"{where} denied access to {name}: {code or status}.",
            hint="To read, the credentials need s3:GetObject and s3:ListBucket, to write s3:PutObject and "
            f"s3:AbortMultipartUpload as well.{_of_kms(place)}",
        )
    if code.startswith("KMS."):
        return StorageRefused(
            f"{name}: {where} cannot use the key of KMS: {code}.",
            hint=f"Check {place.keys.part('s3')} (kmsKeyId), and that the key is enabled, in the bucket's region.",
        )
    if code == "InvalidStorageClass":
        return StorageRefused(
            f"{name}: {where} does not know the storage class: {code}.",
            hint=f"Check {place.keys.part('s3')} (storageClass).",
        )
    if code in MAY_PASS or code in _CONFLICT or (status >= 500 and status != 501) or status in (408, 409, 429):
        return StorageUnavailable(
            f"{name}: {where} answered {code or status}.", hint="This may be temporary; try again."
        )
    if code == "KeyTooLongError":
        return StorageRefused(
            f"{name}: {where} answered {code}.",
            hint="Exclude the topic, or use a shorter prefix or another format. A store that keeps objects in "
            "files takes 255 bytes between two slashes.",
        )
    if code == "NotImplemented" or status == 501:
        return NotUnderstood(
            f"{name}: {where} cannot do what was asked ({code or status}).",
            hint="The object store must support conditional writes (If-None-Match) and multipart uploads"
            + (", and what storage.s3 asks for." if place.s3 != type(place.s3)() else "."),
        )
    if code in _UPLOAD_GONE:
        return UploadGone(name)
    kind = NotUnderstood if code in _NOT_KNOWN else StorageRefused
    return kind(f"{name}: {where} answered {code or status}.", hint=f"Check {_endpoint_and_region(place)}.")


def _of_kms(place: BucketPlace) -> str:
    if place.s3.server_side_encryption is not ServerSideEncryption.KMS:
        return ""
    return " With aws:kms the key must let them use kms:GenerateDataKey to write, and kms:Decrypt to read and to write."


def _cold(error: Any, name: str) -> ObjectCold:
    """Return the error about an object that was asked for and is cold: the store may say how."""
    details = {**error.response.get("Error", {}), **error.response}
    found = (str(details.get(key) or "") for key in ("StorageClass", "AccessTier"))
    where = ", ".join(filter(None, found)) or "a cold storage class"
    return ObjectCold(f"{name} is in {where} and cannot be read before it is retrieved.", hint=COLD_HINT)


COLD_HINT = (
    "A restore has the objects of topics/ and packs/ that it reads retrieved if spec.source.retrieval says so. For "
    "anything else, retrieve them with the store's own tools (RestoreObject) and wait until they can be read. Only "
    "objects in topics/ and packs/ may be moved to such a class: correct the life-cycle rule."
)


def is_silence(error: Exception) -> bool:
    """Return whether the connection ended without an answer."""
    from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

    return isinstance(error, (ConnectionClosedError, ReadTimeoutError))

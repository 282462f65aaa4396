"""Adds to requests what `storage.s3` says of all of them.

One place for all requests, whoever sends them: a request that lacked the header would fail in a bucket that demands it,
and an object that is written without it would lie there as nobody has asked for.
"""

from __future__ import annotations

from typing import Any

from logkeep_engine.contract.s3_options import ArchiveS3Options
from logkeep_engine.errors import StorageRefused
from logkeep_engine.storage.place import BucketPlace

RARELY_READ = "topics/"
"""The objects that `storageClass` is for lie below this. Others are read by every run, or replaced soon."""
SMALLEST_IN_CLASS = 128 << 10  # a smaller object is billed as this many bytes


def add_options(client: Any, place: BucketPlace) -> None:
    """Have this client of botocore add the headers to its requests, and compare the answers with them."""
    options = place.s3
    encryption = {
        "ServerSideEncryption": options.server_side_encryption,
        "SSEKMSKeyId": options.kms_key_id,
        "BucketKeyEnabled": options.bucket_key,
    }
    named = {name: value for name, value in encryption.items() if value is not None}
    payer = {"RequestPayer": "requester"} if options.requester_pays else {}

    def add(params: dict[str, Any], model: Any, **_: Any) -> None:
        takes = model.input_shape.members
        if "ServerSideEncryption" in takes:  # those that make an object, or begin to
            params.update(named)
        if "RequestPayer" in takes:
            params.update(payer)

    def compare(parsed: dict[str, Any], model: Any, **_: Any) -> None:
        if "Error" in parsed or "ServerSideEncryption" not in model.input_shape.members:
            return
        found = parsed.get("ServerSideEncryption")
        if found != options.server_side_encryption:
            raise StorageRefused(
                f"{place.uri}: {place.where} was asked to encrypt an object with {options.server_side_encryption} and "
                f"answers that it has done so with {found or 'nothing'}.",
                hint=f"Have the store configured for it, or leave serverSideEncryption out of {place.keys.part('s3')}. "
                "The object lies there as the store says.",
            )

    if named or payer:
        client.meta.events.register("before-parameter-build.s3", add)
    if named:
        client.meta.events.register("after-call.s3", compare)


def class_of(place: BucketPlace, path: str, size: int) -> dict[str, str]:
    """Return the argument of a request that makes an object of this size, or a larger one, for its class."""
    wanted = place.s3.storage_class if isinstance(place.s3, ArchiveS3Options) else None
    if wanted is None or size < SMALLEST_IN_CLASS or not path.startswith(RARELY_READ):
        return {}
    return {"StorageClass": wanted}

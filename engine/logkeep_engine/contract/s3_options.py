"""Options of requests to S3, `storage.s3`: encryption, storage class, who pays, how a bucket is addressed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from logkeep_engine.contract.model import Model, meant, rules, schema

_KMS_ONLY = "may be set only with serverSideEncryption aws:kms"
_KMS = "has(self.serverSideEncryption) && self.serverSideEncryption == 'aws:kms'"
_OF_KMS = (
    (f"{_KMS} || !has(self.kmsKeyId)", f"kmsKeyId {_KMS_ONLY}"),
    (f"{_KMS} || !has(self.bucketKey)", f"bucketKey {_KMS_ONLY}"),
)
_COLD = ("GLACIER", "DEEP_ARCHIVE")
_NOT_COLD = (
    "storageClass may not be GLACIER or DEEP_ARCHIVE, whose objects cannot be read at once, as runs do; have a "
    "life-cycle rule of the bucket move them later"
)
MINIMUM_DAYS = {"STANDARD_IA": 30, "ONEZONE_IA": 30, "GLACIER_IR": 90}
"""The days that Amazon bills of each object of a class, also if it is deleted before."""


class ServerSideEncryption(StrEnum):
    """The words of the header `x-amz-server-side-encryption`."""

    AES256 = "AES256"
    KMS = "aws:kms"


class Addressing(StrEnum):
    """`Path`: the bucket is the first part of the path. `Virtual`: it is the first part of the host's name."""

    PATH = "Path"
    VIRTUAL = "Virtual"


KMS_KEY_ID = meant(
    r"^[A-Za-z0-9][A-Za-z0-9:/_.-]*$",
    "the id, ARN or alias of a key: letters, digits, ':', '/', '_', '.' and '-'",
)
KmsKeyId = Annotated[str, Field(pattern=KMS_KEY_ID), schema(maxLength=2048)]
StorageClass = Annotated[
    str,
    Field(pattern=meant(r"^[A-Za-z0-9][A-Za-z0-9_-]*$", "a storage class such as STANDARD_IA")),
    schema(maxLength=64),
]


class S3Options(Model):
    """Holds for objects that are written from now on, and for all requests: what was written before stays as it is."""

    model_config = rules(*_OF_KMS)

    server_side_encryption: ServerSideEncryption | None = None
    """How the store is to encrypt each object: AES256 with a key of its own (SSE-S3), aws:kms with one of KMS. Without
    it, as the bucket says. A store that does not confirm it is refused."""
    kms_key_id: KmsKeyId | None = None
    """Key of KMS, by its ARN, id or alias. Without it, Amazon's own for S3. Only with aws:kms."""
    bucket_key: bool | None = None
    """Whether the store derives the keys of objects from one of the bucket, which saves most requests to KMS. Without
    it, as the bucket says. Only with aws:kms."""
    requester_pays: bool = False
    """Says in each request that the requester pays for it. A bucket with Requester Pays refuses others."""
    addressing: Addressing | None = None
    """Path: https://endpoint/bucket/key. Virtual: https://bucket.endpoint/key. Without it, Virtual at Amazon and Path
    elsewhere."""

    @model_validator(mode="after")
    def _keys_of_kms(self) -> S3Options:
        if self.server_side_encryption is not ServerSideEncryption.KMS:
            for name, value in (("kmsKeyId", self.kms_key_id), ("bucketKey", self.bucket_key)):
                if value is not None:
                    raise ValueError(f"{name} {_KMS_ONLY}")
        return self


class ArchiveS3Options(S3Options):
    """The same, and the class of an archive's large objects."""

    model_config = rules(
        *_OF_KMS,
        ("!has(self.storageClass) || !(self.storageClass in ['GLACIER', 'DEEP_ARCHIVE'])", _NOT_COLD),
    )

    storage_class: StorageClass | None = None
    """Class of the objects below topics/ of 128 KiB and more, such as STANDARD_IA or GLACIER_IR. All others are read
    often or replaced soon, and get the bucket's own."""

    @model_validator(mode="after")
    def _not_cold(self) -> ArchiveS3Options:
        if self.storage_class in _COLD:
            raise ValueError(_NOT_COLD)
        return self

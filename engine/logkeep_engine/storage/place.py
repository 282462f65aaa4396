"""Where the objects of an object store lie, and whose keys open it."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from logkeep_engine.contract import names
from logkeep_engine.contract.s3_options import S3Options
from logkeep_engine.errors import BucketMissing
from logkeep_engine.storage.base import require_object_path

_NAMES = {"s3": "AWS", "gs": "Google Cloud Storage", "az": "Azure"}


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A prefix of a bucket, or of a container. `uri`, `endpoint` and `region` as in the resource; None: the own ones of
    the store's library. Holds no secrets.

    The `keys` of the environment open it, else the library's own chain; with `identity` the identity of the pod's
    ServiceAccount and nothing else. `ca_file`: the certificate authorities to trust; None: the library's own.
    `s3`: the options of requests to S3.
    """

    uri: str
    endpoint: str | None
    region: str | None
    keys: names.Keys
    identity: bool
    ca_file: str | None = None
    s3: S3Options = field(default_factory=S3Options)
    scheme: str = field(init=False)
    bucket: str = field(init=False)
    prefix: str = field(init=False)  # in front of every key: empty, or with a slash at its end

    def __post_init__(self) -> None:
        parts = urlsplit(self.uri)
        folder = parts.path.strip("/")
        object.__setattr__(self, "uri", self.uri.rstrip("/"))
        object.__setattr__(self, "scheme", parts.scheme)
        object.__setattr__(self, "bucket", parts.netloc)
        object.__setattr__(self, "prefix", f"{folder}/" if folder else "")

    def key(self, path: str) -> str:
        """Return the key of an object. Raises ValueError if `path` names none."""
        require_object_path(path)
        return self.prefix + path

    def name_of(self, path: str) -> str:
        """Return an object, or with an empty path the storage, for messages."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}{path}" if path else self.uri

    def missing(self) -> BucketMissing:
        """Return the error for a bucket, or a container, that is not there."""
        kind = "Container" if self.scheme == "az" else "Bucket"
        return BucketMissing(
            f"{kind} {self.bucket!r} does not exist at {self.where}.",
            hint=f"Create it, or correct {self.keys.part('uri')}.",
        )

    @property
    def where(self) -> str:
        """The endpoint without user info, for messages; also of one that is not a URL."""
        if self.endpoint is None:
            return _NAMES[self.scheme]
        scheme, separator, rest = self.endpoint.rpartition("://")
        return f"{scheme}{separator}{rest.rpartition('@')[2].partition('/')[0]}"

"""The clients with which one process speaks to an S3 store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from logkeep_engine.contract import names
from logkeep_engine.errors import StorageUnavailable
from logkeep_engine.storage.credentials import only_identity, require_keys
from logkeep_engine.storage.parts import PartSender
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.s3.options import add_options

QUICK_TIMEOUT = 5.0  # seconds without a byte of the answer to a request that is small, in its first attempts
BODY_TIMEOUT = 30.0  # the same for others, and in later attempts: a store may be slow instead of gone
QUICK_ATTEMPTS = 2
_QUICK_BYTES = 1 << 20  # more than that, in either direction, is not a small request
_SAYING = ("List", "CreateMultipartUpload", "CompleteMultipartUpload")  # requests whose answer is never empty

CreateClient = Callable[[float, float], Any]
"""Makes a client of botocore, by its limits in seconds: to connect, and without a byte of the answer."""


class S3Connection:
    """The means of one process to speak to a store: clients for small requests and for large ones, and what sends
    parts."""

    def __init__(self, create: CreateClient) -> None:
        """`create` makes a client; its errors are the caller's. The client for large requests waits for the first of
        them."""
        self._quick = create(5, QUICK_TIMEOUT)
        self._create = create
        self._bodies: Any = None
        self._creating = threading.Lock()
        self.sender = PartSender()

    def client(self, attempt: int, size: int) -> Any:
        """For the `attempt`th time (from 0) that a body of `size` bytes is asked for or sent; 0: of unknown size."""
        return self._quick if attempt < QUICK_ATTEMPTS and size <= _QUICK_BYTES else self.bodies

    @property
    def bodies(self) -> Any:
        """The client for requests that may take long."""
        with self._creating:
            if self._bodies is None:
                # The time to connect is also the time to send one slab of a part: urllib3 has no third limit.
                self._bodies = self._create(30, BODY_TIMEOUT)
            return self._bodies

    def drop_idle(self) -> None:
        """Close connections that are not in use. If one was silent, then a firewall on the way may have forgotten
        others too."""
        for client in (self._quick, self._bodies):
            if client is not None:
                client.close()


def connect(place: BucketPlace, environ: Mapping[str, str]) -> S3Connection:
    """Make the connection of this process. Raises CredentialsMissing if another store's keys would be found instead."""
    from botocore.config import Config  # slow to import; a driver that archives to files does without
    from botocore.handlers import add_expect_header
    from botocore.session import get_session

    region = place.region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if region is None and place.endpoint is not None:
        region = "us-east-1"  # any name will do for a store of one's own, but the signature needs one
    if place.keys.access != names.OWN_KEYS.access:  # botocore would look elsewhere, and find those of another store
        require_keys(place.keys, environ)
    of_environment = {} if place.identity else environ
    key = of_environment.get(place.keys.access) or None
    secret = of_environment.get(place.keys.secret) or None
    token = of_environment.get(place.keys.token) or None
    options: dict[str, Any] = {} if region is None else {"region_name": region}
    if place.ca_file is not None:  # without it botocore's own: AWS_CA_BUNDLE, or what is installed
        options["verify"] = place.ca_file
    config = _config(place)
    session = get_session()
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    if place.identity:
        only_identity(session)

    def client(connect_timeout: float, read_timeout: float) -> Any:
        made = session.create_client(
            "s3",
            **options,
            endpoint_url=place.endpoint,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=Config(connect_timeout=connect_timeout, read_timeout=read_timeout, **config),
        )
        made.meta.events.unregister("before-call.s3", add_expect_header)  # a round trip more for each part
        made.meta.events.register("before-parse.s3", _require_whole(place))
        add_options(made, place)
        return made

    return S3Connection(client)


def _require_whole(place: BucketPlace) -> Callable[..., None]:
    """Return what botocore calls before it parses an answer. It takes less than the header promises, and no bytes at
    all for an answer that says nothing: the list of a connection that was cut would be that of an empty archive."""

    def compare(operation_model: Any, response_dict: Mapping[str, Any], **_: Any) -> None:
        body, headers = response_dict["body"], response_dict["headers"]
        if operation_model.http["method"] == "HEAD" or not isinstance(body, bytes):  # a stream counts for itself
            return
        promised = "" if "transfer-encoding" in headers else headers.get("content-length", "")  # chunks have their end
        length = int(promised) if promised.isdecimal() and response_dict["status_code"] != 204 else len(body)
        silent = not body and response_dict["status_code"] < 300 and operation_model.name.startswith(_SAYING)
        if silent or len(body) < length:
            raise StorageUnavailable(
                f"{place.where}: {len(body)} bytes have come of the answer to {operation_model.name}, not all.",
                hint="This may be temporary; try again.",
            )

    return compare


def _config(place: BucketPlace) -> dict[str, Any]:
    """Return the settings of all clients."""
    config: dict[str, Any] = {
        "max_pool_connections": 64,
        # One attempt: `Requests.retry` repeats, and botocore would multiply the time until a dead endpoint is reported.
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        # The checksum of `requests` is thirty times as fast as what botocore would compute on its own.
        "request_checksum_calculation": "when_required",
    }
    if place.s3.addressing is not None:
        config["s3"] = {"addressing_style": place.s3.addressing.lower()}
    if place.endpoint is not None and place.endpoint.startswith("http:"):
        config["proxies"] = {}  # a proxy would read tokens and records; one of a pod is what its resource names
    return config


@cache
def _loader(data_path: str | None) -> Any:
    """Return the reader of botocore's descriptions of S3 and its regions: megabytes of JSON, once in a process."""
    from botocore.loaders import create_loader

    return create_loader(data_path)

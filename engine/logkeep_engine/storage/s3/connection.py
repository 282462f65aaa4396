"""The clients, threads and blocks of memory with which one process speaks to an S3 store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from logkeep_engine.contract import names
from logkeep_engine.storage.base import DEFAULT_BLOCK
from logkeep_engine.storage.credentials import only_identity, require_keys
from logkeep_engine.storage.s3.place import S3Place

QUICK_TIMEOUT = 5.0  # seconds without a byte of the answer to a request that is small, in its first attempts
BODY_TIMEOUT = 30.0  # the same for others, and in later attempts: a store may be slow instead of gone
QUICK_ATTEMPTS = 2
_QUICK_BYTES = 1 << 20  # more than that, in either direction, is no small request
_PARTS_AT_ONCE = 4  # parts under way of all writers of a storage together
_BLOCKS_KEPT = 8

T = TypeVar("T")


class S3Connection:
    """The means of one process to speak to a store: s3fs, clients for bodies and for small ones, threads that send
    parts, and blocks of memory for them.

    Blocks are used again: in fresh memory every part would cost two thousand page faults.
    """

    def __init__(self, process: int, filesystem: Any, bodies: Any, quick: Any) -> None:
        self.process = process
        self.filesystem = filesystem
        self.bodies = bodies
        self._quick = quick
        self._blocks: list[bytearray] = []
        self._free = threading.BoundedSemaphore(_PARTS_AT_ONCE)
        self._sending = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="logkeep-send")

    def send(self, action: Callable[[], T]) -> Future[T]:
        """Begin to send a part; waits while _PARTS_AT_ONCE are under way, so that memory stays bounded."""
        self._free.acquire()
        sending = self._sending.submit(action)
        sending.add_done_callback(lambda _: self._free.release())
        return sending

    def client(self, attempt: int, size: int) -> Any:
        """For the `attempt`th time (from 0) that a body of `size` bytes is asked for or sent; 0: of unknown size."""
        return self._quick if attempt < QUICK_ATTEMPTS and size <= _QUICK_BYTES else self.bodies

    def drop_idle(self) -> None:
        """Close connections that nobody uses now. If one was silent, then a firewall on the way may have forgotten
        others too. The connections of s3fs close by themselves after a few seconds.
        """
        self._quick.close()
        self.bodies.close()

    def take_block(self) -> bytearray:
        try:
            return self._blocks.pop()
        except IndexError:
            return bytearray(DEFAULT_BLOCK)

    def give_back(self, block: bytearray) -> None:
        if len(self._blocks) < _BLOCKS_KEPT:
            self._blocks.append(block)


def connect(place: S3Place, environ: Mapping[str, str]) -> S3Connection:
    """Make the clients of this process. Raises CredentialsMissing if another store's keys would be found instead."""
    import s3fs  # slow to import; a driver that archives to files does without
    from botocore.config import Config
    from botocore.session import get_session

    region = place.region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if region is None and place.endpoint is not None:
        region = "us-east-1"  # any name will do for a store of one's own, but the signature needs one
    if place.keys != names.OWN_KEYS:  # botocore would look elsewhere, and find those of another store
        require_keys(place.keys, environ, "is set")
    of_environment = {} if place.identity else environ
    key = of_environment.get(place.keys.access) or None
    secret = of_environment.get(place.keys.secret) or None
    token = of_environment.get(place.keys.token) or None
    client_options: dict[str, Any] = {} if region is None else {"region_name": region}
    if place.ca_file is not None:  # without it botocore's own: AWS_CA_BUNDLE, or what is installed
        client_options["verify"] = place.ca_file
    # One attempt: `Requests.retry` repeats, and botocore would multiply the time until a dead endpoint is reported.
    config = {
        "max_pool_connections": 64,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        # the checksum of `requests` is thirty times as fast as what botocore would compute by itself.
        "request_checksum_calculation": "when_required",
    }
    session, asynchronous = get_session(), None
    if place.identity:
        asynchronous = s3fs.core.aiobotocore.session.AioSession()
        only_identity(session)
        only_identity(asynchronous)
    filesystem = s3fs.S3FileSystem(
        session=asynchronous,
        key=key,
        secret=secret,
        token=token,
        endpoint_url=place.endpoint,
        client_kwargs=client_options,
        config_kwargs={"connect_timeout": 5, "read_timeout": QUICK_TIMEOUT, **config},
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    filesystem.retries = 1

    def client(connect_timeout: float, read_timeout: float) -> Any:
        return session.create_client(
            "s3",
            **client_options,
            endpoint_url=place.endpoint,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=Config(connect_timeout=connect_timeout, read_timeout=read_timeout, **config),
        )

    # The time to connect is also the time to send one part: urllib3 has no third limit.
    bodies = client(30, BODY_TIMEOUT)
    return S3Connection(os.getpid(), filesystem, bodies, client(5, QUICK_TIMEOUT))

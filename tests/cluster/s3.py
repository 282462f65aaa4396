"""A real S3 server: versitygw over a local folder. Conditional creates (`If-None-Match: *`) work."""

import json
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster import system, tools
from tests.cluster.process import Process
from tests.cluster.state import State


class S3Server:
    """Starts on entering the context, on a free port that stays the same over `stop`, `kill` and `start`.

    Objects are files below `data_dir/<bucket>`. With `netns` it listens inside that network namespace. With `versions`
    buckets can have versions of objects.
    """

    region = "us-east-1"

    def __init__(self, host: str = "127.0.0.1", netns: str | None = None, *, versions: bool = False) -> None:
        self.host = host
        self._versions = versions
        self.netns = netns
        self.access_key = f"logkeep{secrets.token_hex(6)}"
        self.secret_key = secrets.token_urlsafe(24)
        self._running: Process | None = None

    def __enter__(self) -> Self:
        self._state = State.create("s3")
        try:
            self.data_dir.mkdir()
            accounts = self._state.path / "accounts"
            accounts.mkdir()
            older = self._state.path / "versions"
            older.mkdir()
            self.port = system.free_ports(1, self.host, self.netns)[0]
            command: list[str | Path] = [
                tools.versitygw(),
                "--port",
                system.host_port(self.host, self.port),
                "--iam-dir",
                accounts,
                "posix",
                "--disableotmp",  # else a listing shows the temporary name of an object that is being replaced
                *(("--versioning-dir", older) if self._versions else ()),
                self.data_dir,
            ]
            keys = {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}
            self._running = Process(self._state, "s3", command, env=keys, netns=self.netns)
            self.start()
        except BaseException:
            self._state.destroy(grace=0)
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.kill()
        self._state.destroy(grace=0)

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return f"http://{system.host_port(self.host, self.port)}"

    @property
    def data_dir(self) -> Path:
        """The folder whose folders are the buckets."""
        return self._state.path / "buckets"

    @property
    def process(self) -> Process:
        """The server's process, for signals."""
        if self._running is None:
            raise RuntimeError("the S3 server is started by entering its context")
        return self._running

    @property
    def storage_options(self) -> dict[str, Any]:
        """Arguments of `s3fs.S3FileSystem` for this server."""
        return {
            "key": self.access_key,
            "secret": self.secret_key,
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": self.region},
        }

    def create_bucket(self, name: str) -> str:
        """Create a bucket and return its name."""
        self._client.create_bucket(Bucket=name)
        return name

    def create_versioned_bucket(self, name: str) -> str:
        """Create a bucket that keeps all versions of its objects, and return its name. The server must have them."""
        self._client.create_bucket(Bucket=name)
        self._client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return name

    def all_bytes(self, bucket: str) -> dict[tuple[str, str], bytes]:
        """The bytes of all versions of all objects, by key and id of the version."""
        versions = self._client.list_object_versions(Bucket=bucket).get("Versions", ())
        named = [(item["Key"], item["VersionId"]) for item in versions]
        return {
            (key, version): self._client.get_object(Bucket=bucket, Key=key, VersionId=version)["Body"].read()
            for key, version in named
        }

    def begin_upload(self, bucket: str, key: str, part: bytes) -> None:
        """Begin an upload, as a writer does that is killed then."""
        upload = self._client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        self._client.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=part)

    def uploads(self, bucket: str) -> list[str]:
        """The keys of the uploads that have not ended."""
        return [item["Key"] for item in self._client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())]

    def create_locked_bucket(self, name: str) -> str:
        """Create a bucket whose objects may be locked, and return its name. A server without versions does not delete a
        locked object at all."""
        self._client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
        return name

    def retain(self, bucket: str, key: str, until: datetime | None) -> None:
        """Lock an object until a time, or, with the right to do so, no longer."""
        if until is not None:
            self._client.put_object_retention(
                Bucket=bucket, Key=key, Retention={"Mode": "GOVERNANCE", "RetainUntilDate": until}
            )
        else:
            now = datetime.now(UTC) + timedelta(seconds=1)
            self._client.put_object_retention(
                Bucket=bucket,
                Key=key,
                Retention={"Mode": "GOVERNANCE", "RetainUntilDate": now},
                BypassGovernanceRetention=True,
            )
            time.sleep(1.1)  # the lock has to end by the server's own clock

    def hold(self, bucket: str, key: str, *, on: bool, version: str | None = None) -> None:
        """Put a legal hold on an object, or on a version of it, or take it away."""
        which = {} if version is None else {"VersionId": version}
        self._client.put_object_legal_hold(Bucket=bucket, Key=key, LegalHold={"Status": "ON" if on else "OFF"}, **which)

    def create_user(self, bucket: str, *rights: tuple[Sequence[str], str]) -> tuple[str, str]:
        """A user of its own, by access key and secret key, who may do in the bucket what the rights say and nothing
        else: actions such as `s3:GetObject`, and what they are for below the bucket (`/*`, or nothing for the bucket
        itself). The bucket has one such user at a time."""
        statements = [
            {"Effect": "Allow", "Action": list(actions), "Resource": f"arn:aws:s3:::{bucket}{where}"}
            for actions, where in rights
        ]
        return self.create_user_with(bucket, statements)

    def create_user_with(self, bucket: str, statements: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        """The same, with the statements of a policy that name nobody, as one of IAM does."""
        user, secret = f"user{secrets.token_hex(6)}", secrets.token_hex(16)
        root = ["--access", self.access_key, "--secret", self.secret_key, "--endpoint-url", self.endpoint]
        made = ["create-user", "--access", user, "--secret", secret, "--role", "user"]
        subprocess.run([tools.versitygw(), "admin", *root, *made], check=True, capture_output=True)
        named = [{**statement, "Principal": {"AWS": [user]}} for statement in statements]
        policy = {"Version": "2012-10-17", "Statement": named}
        self._client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
        return user, secret

    @cached_property
    def _client(self) -> Any:
        from botocore.session import get_session  # slow to import, and only this needs it

        return get_session().create_client(
            "s3",
            region_name=self.region,
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )

    def start(self) -> None:
        """Start it again on the same port and data; returns when it accepts connections."""
        self.process.start()
        self.process.wait_ready(lambda: system.accepts(self.host, self.port))

    def stop(self) -> None:
        """A clean shutdown."""
        self.process.stop()

    def kill(self) -> None:
        """A crash: SIGKILL."""
        if self._running is not None:
            self._running.kill()

    def collect_logs(self, folder: Path) -> None:
        """Copy what explains a failure."""
        shutil.copy(self.process.log, folder / f"{self._state.path.name}.log")

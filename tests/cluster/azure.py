"""A real server of Azure Blob Storage's interface: Azurite, which checks signatures, over memory."""

import secrets
import shutil
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster import system, tools
from tests.cluster.process import Process
from tests.cluster.state import State


class AzureServer:
    """Starts on entering the context, on a free port. With `netns` it listens inside that network namespace.

    The server takes the first part of a name with a dot as the account, as the service does.
    """

    def __init__(self, host: str = "127.0.0.1", netns: str | None = None) -> None:
        self.host = host
        self._netns = netns
        self._name = system.name_of_address(host)
        self.account = self._name.partition(".")[0]
        self.key = b64encode(secrets.token_bytes(32)).decode()

    def __enter__(self) -> Self:
        self._state = State.create("azure")
        try:
            self.port = system.free_ports(1, self.host, self._netns)[0]
            where = ("--blobHost", self.host, "--blobPort", str(self.port))
            # The libraries are ahead of the versions of the interface that it lists as its own.
            how = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent")
            accounts = {"AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}
            command: list[str | Path] = [tools.node_js(), tools.azurite(), *where, *how]
            self.process = Process(self._state, "azure", command, env=accounts, netns=self._netns)
            self.process.start()
            self.process.wait_ready(lambda: system.accepts(self.host, self.port))
        except BaseException:
            self._state.destroy(grace=0)
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.process.kill()
        self._state.destroy(grace=0)

    @property
    def endpoint(self) -> str:
        """The URL of the account."""
        return f"http://{self._name}:{self.port}"

    def create_container(self, name: str) -> str:
        """Create a container and return its name."""
        self._client.create_container(name)
        return name

    def objects(self, container: str) -> list[str]:
        """The names of all objects, of those that are visible."""
        return [blob.name for blob in self._client.get_container_client(container).list_blobs()]

    def upload_encoded(self, container: str, name: str, data: bytes) -> None:
        """Upload an object whose header says that it is packed with gzip."""
        from azure.storage.blob import ContentSettings

        encoded = ContentSettings(content_encoding="gzip")
        self._client.get_blob_client(container, name).upload_blob(data, content_settings=encoded)

    def archive(self, container: str, name: str) -> None:
        """Move an object into the archive tier."""
        self._client.get_blob_client(container, name).set_standard_blob_tier("Archive")

    def signature(self, container: str, permissions: str) -> str:
        """A shared access signature for the container, with these permissions, by their letters."""
        from azure.storage.blob import generate_container_sas

        until = datetime.now(UTC) + timedelta(hours=1)
        named: str = generate_container_sas(
            self.account, container, account_key=self.key, permission=permissions, expiry=until
        )
        return named

    @cached_property
    def _client(self) -> Any:
        from azure.core.credentials import AzureNamedKeyCredential  # slow to import, and only this needs it
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient(self.endpoint, credential=AzureNamedKeyCredential(self.account, self.key))

    def collect_logs(self, folder: Path) -> None:
        """Copy what explains a failure."""
        shutil.copy(self.process.log, folder / f"{self._state.path.name}.log")

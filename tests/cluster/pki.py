"""A certificate authority for one part's lifetime, made with the `openssl` command. Keys are P-256: fast to make."""

from dataclasses import dataclass
from pathlib import Path

from tests.cluster import system

_DAYS = "30"


@dataclass(frozen=True)
class Certificate:
    """Paths of a PEM certificate and its unencrypted PKCS #8 key."""

    cert: Path
    key: Path


class Authority:
    """Issues certificates for servers and clients into one folder; `cert` is what clients trust."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.cert, self.key = folder / "ca.pem", self._new_key("ca")
        arguments: list[str | Path] = [
            "-subj",
            "/CN=logkeep test authority",
            "-days",
            _DAYS,
            "-addext",
            "keyUsage=critical,keyCertSign",
        ]
        system.run(["openssl", "req", "-x509", "-new", "-key", self.key, *arguments, "-out", self.cert])

    def _new_key(self, name: str) -> Path:
        path = self._folder / f"{name}.key"
        system.run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path])
        return path

    def issue(self, name: str, subject: str, alternative_names: str | None = None) -> Certificate:
        """A certificate for `subject` (`/O=…/CN=…`) and names as openssl writes them (`DNS:localhost,IP:127.0.0.1`)."""
        key, request, cert = self._new_key(name), self._folder / f"{name}.csr", self._folder / f"{name}.pem"
        system.run(["openssl", "req", "-new", "-key", key, "-subj", subject, "-out", request])
        sign: list[str | Path] = [
            "openssl",
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            self.cert,
            "-CAkey",
            self.key,
            "-CAcreateserial",
        ]
        if alternative_names:
            extensions = self._folder / f"{name}.ext"
            extensions.write_text(f"subjectAltName={alternative_names}\n")
            sign += ["-extfile", extensions]
        system.run([*sign, "-days", _DAYS, "-out", cert])
        return Certificate(cert, key)

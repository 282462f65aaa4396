"""Forge commits, as somebody can who may write the bucket: under right hashes of their own."""

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

from logkeep_engine.archive import names
from logkeep_engine.storage import Storage

Document = dict[str, Any]


def sealed(document: Document) -> bytes:
    """The commit under its own hash, unsigned."""
    whole = {key: value for key, value in document.items() if key not in ("sha256", "signature")}
    body = json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return body[:-1] + b',"sha256":"%b"}' % hashlib.sha256(body).hexdigest().encode()


def altered(storage: Storage, number: int, change: Callable[[Document], None]) -> None:
    """Alter one commit, and nothing of the others: they do not stand on it any more."""
    document = json.loads(storage.read(names.commit_path(number)))
    change(document)
    storage.put(names.commit_path(number), sealed(document))


def relinked(storage: Storage, numbers: Iterable[int], change: Callable[[Document], None]) -> None:
    """Alter some commits, the last of them the archive's, and let each stand on the one before."""
    previous: str | None = None
    for number in numbers:
        document = json.loads(storage.read(names.commit_path(number)))
        change(document)
        data = sealed(document if previous is None else document | {"previous": previous})
        storage.put(names.commit_path(number), data)
        previous = json.loads(data)["sha256"]


def rewritten(storage: Storage, number: int, change: Callable[[Document], None]) -> None:
    """Alter one commit, and let all that follow stand on it, as nobody can see who has nothing but the bucket."""
    count = sum(names.parse_commit(info.path) is not None for info in storage.list(names.CATALOG))
    relinked(storage, range(number, count), lambda found: change(found) if found["commit"] == number else None)


def later(document: Document) -> None:
    """Let a commit be a millisecond younger."""
    document["time"] += 1

"""Paths in a pod, as the container runtime resolves them: which one hides another, and which folders are the image's
own."""

from __future__ import annotations

from pathlib import PurePosixPath

# Mounting a volume there would hide what the image or the kubelet put there.
_SYSTEM = frozenset(
    [
        "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "opt", "proc", "root", "run", "sbin", "sys",
        "tmp", "usr",
    ]
)  # fmt: skip
# Symbolic links of the images. The runtime follows them: a mount at /lib is one at /usr/lib.
_LINKS = (
    *((PurePosixPath("/", name), PurePosixPath("/usr", name)) for name in ("bin", "lib", "lib32", "lib64", "sbin")),
    (PurePosixPath("/libx32"), PurePosixPath("/usr/libx32")),
    (PurePosixPath("/var/run"), PurePosixPath("/run")),
    (PurePosixPath("/var/lock"), PurePosixPath("/run/lock")),
)
# Kubernetes mounts tokens there, and so do clouds. The one of Kubernetes itself is among what no mount may hide.
_TOKENS = PurePosixPath("/run/secrets")


def resolved(path: str) -> PurePosixPath:
    """Return the absolute path without doubled slashes, dots and the links of the image. `..` stays: refuse it."""
    plain = PurePosixPath("/", path.strip("/"))
    for link, target in _LINKS:
        if plain.is_relative_to(link):
            return target / plain.relative_to(link)
    return plain


def is_system_folder(path: str) -> bool:
    """Return whether a path lies in a folder of the image, or is the root folder."""
    parts = resolved(path).parts[1:]
    return not parts or parts[0] in _SYSTEM


def may_hold_code(path: str) -> bool:
    """Return whether programs look there for code by themselves: in a folder of the image, but for that with tokens."""
    return is_system_folder(path) and not resolved(path).is_relative_to(_TOKENS)

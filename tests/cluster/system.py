"""Questions to the machine (root, cgroup version, free ports) and running a command to its end."""

import fcntl
import os
import random
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache as once
from pathlib import Path
from typing import IO

from tests.cluster import cache, progress

CGROUPS = Path("/sys/fs/cgroup")


class CommandFailed(RuntimeError):
    """A command of the test bed ended with an error; the message has its output."""


def run(
    argv: Sequence[str | Path],
    *,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a command, its output captured; `env` is added to ours. What it prints while something is being built shows
    where that is. Raises `CommandFailed` with both streams."""
    words, environment, step = [str(part) for part in argv], {**os.environ, **(env or {})}, progress.here.current()
    if step is None:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env=environment, cwd=cwd, input=stdin, timeout=timeout
        )
    else:
        done = _followed(words, step, environment, cwd, stdin, timeout)
    if check:
        succeeded(argv, done)
    return done


def _followed(
    words: list[str],
    step: progress.Step,
    environment: Mapping[str, str],
    cwd: Path | None,
    stdin: str | None,
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    """Run a command of something that is being built: people are told where it is."""
    given, pipe = subprocess.DEVNULL if stdin is None else subprocess.PIPE, subprocess.PIPE
    with subprocess.Popen(
        words, stdin=given, stdout=pipe, stderr=pipe, text=True, errors="replace", env=environment, cwd=cwd
    ) as process:
        try:
            out, err = progress.follow(process, step, timeout, stdin)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def succeeded(argv: Sequence[str | Path], done: "subprocess.CompletedProcess[str]") -> None:
    """Raises `CommandFailed` with both streams if the command has ended with an error."""
    if done.returncode:
        words = " ".join(str(part) for part in argv)
        raise CommandFailed(f"{words}\nexit {done.returncode}\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}")


def is_root() -> bool:
    """Whether containers, mounts and network namespaces can be made here."""
    return os.geteuid() == 0


def cgroup_v2() -> bool:
    """Whether the machine has the unified cgroup hierarchy only."""
    return (CGROUPS / "cgroup.controllers").exists()


def in_namespace(netns: str | None, argv: Sequence[str | Path]) -> list[str]:
    """The command, run inside a named network namespace if one is given.

    `nsenter` and not `ip netns exec`: the latter mounts a fresh /sys, which hides the cgroups.
    """
    prefix = ["nsenter", f"--net=/run/netns/{netns}", "--"] if netns else []
    return [*prefix, *(str(part) for part in argv)]


def free_ports(count: int, host: str = "127.0.0.1", netns: str | None = None) -> list[int]:
    """Ports nobody listens on, below the range the kernel gives to clients, so that a server can come back to them.

    They are this process's as long as it lives: no other run is given them while our server is starting or down.
    """
    if netns:
        code = f"from tests.cluster.system import free_ports; print(*free_ports({count}, {host!r}))"
        command, project = in_namespace(netns, [sys.executable, "-c", code]), Path(__file__).parents[2]
        while True:
            ports = [int(port) for port in run(command, cwd=project).stdout.split()]
            if all(port not in _claimed and _claim(port) for port in ports):  # the child's claims went with it
                return ports
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(18000, 29000)
        if port not in _claimed and _is_free(host, port) and _claim(port):
            found.append(port)
    return found


def name_of_address(host: str) -> str:
    """An address of IPv4 as a name with a dot in it that is none of the usual ones: every resolver knows it, and a
    server that takes the first part of a name as an account has one."""
    first, _, rest = host.partition(".")
    two, three, four = map(int, rest.split("."))
    return f"0x{int(first):02x}.{(two << 16) + (three << 8) + four}"


_claimed: set[int] = set()


def _claim(port: int) -> bool:
    """Lock the port's byte of a file, which the kernel unlocks when this process ends, or closes the file somewhere."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _claimed.add(port)
    return True


@once
def _claims() -> IO[str]:
    folder = cache.root() / "locks"
    folder.mkdir(exist_ok=True)
    return (folder / "ports").open("w")


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def host_port(host: str, port: int) -> str:
    """An address as URLs and settings have it: that of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def accepts(host: str, port: int) -> bool:
    """Whether a TCP connection to the address is accepted now."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False

"""The entry point of the engine's image, run by a user that the passwd file does not have."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).parents[3] / "docker/entrypoint.sh"


def command(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def environment(tmp_path: Path, known: bool) -> dict[str, str]:
    """The environment of a command of the image."""
    command(tmp_path, "getent", "exit 0" if known else "exit 2")
    command(tmp_path, "id", '[ "$1" = -u ] && echo 1000680000 || echo 0')
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    done = subprocess.run(["bash", ENTRYPOINT, "env"], env=environ, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_a_user_without_a_name_gets_one(tmp_path: Path) -> None:
    found = environment(tmp_path, known=False)
    assert found["LD_PRELOAD"] == "libnss_wrapper.so"
    assert found["NSS_WRAPPER_GROUP"] == "/etc/group"
    lines = Path(found["NSS_WRAPPER_PASSWD"]).read_text().splitlines()
    assert [line for line in lines if line.startswith("logkeep:")] == [
        "logkeep:x:1000680000:0::/tmp:/usr/sbin/nologin",
    ]
    assert any(line.startswith("root:x:0:0:") for line in lines)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "NSS_WRAPPER_PASSWD", "NSS_WRAPPER_GROUP"])
def test_a_user_with_a_name_is_left_alone(tmp_path: Path, name: str) -> None:
    assert name not in environment(tmp_path, known=True)

"""Lock the Python packages again, with the hashes of all their files: `make lock` calls `python -m tests.cluster.lock`.

Packages stay at the version of the lock as long as it is in the range of pyproject.toml and fits the others.
`--upgrade` looks for newer ones, `--upgrade-package NAME` for a newer one of that name.
"""

import sys
from pathlib import Path

from tests.cluster import system, tools

ROOT = Path(__file__).parents[2]
LOCKS = {
    ROOT / "requirements.lock": ("pyproject.toml", "--all-extras", "--group", "dev", "--group", "build"),
    tools.FILES / "docs.lock": ("--group", "docs"),
    tools.FILES / "programs.lock": ("--group", "programs", "--no-deps"),
}
OLDEST_PYTHON = "3.11"


def lock(*options: str) -> None:
    """Write the locks. They hold on x86 and arm64: the hashes are those of sources and of wheels for all platforms."""
    how = ("--quiet", "--generate-hashes", "--no-header", "--python-version", OLDEST_PYTHON)
    for target, which in LOCKS.items():
        system.run(
            [tools.uv(), "pip", "compile", *how, *which, "--output-file", target, *options], cwd=ROOT, timeout=1800
        )


if __name__ == "__main__":
    lock(*sys.argv[1:])

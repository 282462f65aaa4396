"""Publish a release: `python -m tests.cluster.publish 0.1.0` pushes the images and the chart of `dist/0.1.0` to the
registry of `names.toml`, where buildah and Helm are logged in. The workflow of releases does all else.

It prints what it has pushed, each by its digest, for who signs it. An image is pushed under one name for all
architectures whose archives are in the folder. A version that is there already is not replaced.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

from tests.cluster import images, names, system, tools


class Published(RuntimeError):
    """The registry has this version already."""


def publish(folder: Path, version: str, registry: str = names.REGISTRY, *, tls: bool = True) -> list[str]:
    """Push a release's images and chart, and return their names with digests.

    Raises Published before anything is pushed, and CommandFailed with what buildah or Helm says.
    """
    charts = f"{registry}/{names.CHART.removeprefix(f'oci://{names.REGISTRY}/').rpartition('/')[0]}"
    wanted = {target: f"{registry}/logkeep-{target}" for target in images.TARGETS}
    for name in (*wanted.values(), f"{charts}/logkeep"):
        if _is_there(f"{name}:{version}", tls):
            raise Published(
                f"{name}:{version} is published already, and stays as it is. A change needs another version."
            )
    pushed = [f"{name}@{_push(folder, target, f'{name}:{version}', tls)}" for target, name in wanted.items()]
    plain = () if tls else ("--plain-http",)
    done = system.run([tools.helm(), "push", folder / f"logkeep-{version}.tgz", f"oci://{charts}", *plain])
    return [*pushed, f"{charts}/logkeep@{_digest(done.stdout + done.stderr)}"]


def _is_there(name: str, tls: bool) -> bool:
    done = system.run([tools.crane(), "digest", name, *(() if tls else ("--insecure",))], check=False)
    if done.returncode and not re.search("MANIFEST_UNKNOWN|NAME_UNKNOWN|404 Not Found", done.stderr):
        raise system.CommandFailed(f"{name}: {done.stderr.strip()}")
    return done.returncode == 0


def _push(folder: Path, target: str, name: str, tls: bool) -> str:
    """Push the archives of an image as one name; return its digest."""
    archives = sorted(folder.glob(f"logkeep-{target}-linux-*.tar"))
    if not archives:
        raise FileNotFoundError(f"{folder} has no archive of the image of the {target}")
    images.buildah("manifest", "rm", name, check=False)
    images.buildah("manifest", "create", name)
    try:
        for archive in archives:
            images.buildah("manifest", "add", name, f"oci-archive:{archive}")
        with tempfile.NamedTemporaryFile("r") as digest:
            where = (f"--tls-verify={str(tls).lower()}", f"--digestfile={digest.name}")
            images.buildah("manifest", "push", "--all", *where, name, f"docker://{name}")
            return digest.read().strip()
    finally:
        images.buildah("manifest", "rm", name, check=False)


def _digest(printed: str) -> str:
    found = re.search(r"sha256:[0-9a-f]{64}", printed)
    if found is None:
        raise system.CommandFailed(f"Helm has not said what it has pushed: {printed}")
    return found[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.publish")
    parser.add_argument("version")
    version = parser.parse_args().version
    try:
        print(*publish(names.ROOT / "dist" / version, version), sep="\n")
    except Published as problem:
        sys.exit(str(problem))

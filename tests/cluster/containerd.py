"""containerd for one node: its configuration, and how images get into it quickly.

Unpacking the engine's base image takes half a minute, so it is done once: a containerd root with the base images
unpacked is kept in the cache ("seed"), and a node's root starts as a tree of hard links to it. That is safe because
containerd never changes a blob or a committed snapshot; only its databases are copied.
"""

import shutil
import subprocess
from pathlib import Path

from tests.cluster import cache, images, system
from tests.cluster.images import Archive, Image
from tests.cluster.process import Process
from tests.cluster.state import State

_CONFIG = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{folder}/runc"
"""


class Containerd:
    """containerd with all its files under `<state>/containerd`."""

    def __init__(self, state: State, netns: str | None = None) -> None:
        self.folder = state.path / "containerd"
        self.socket = self.folder / "containerd.sock"
        (self.folder / "cni").mkdir(parents=True)
        config = self.folder / "config.toml"
        config.write_text(_CONFIG.format(folder=self.folder, socket=self.socket, pause=images.PAUSE))
        self.process = Process(state, "containerd", ["containerd", "--config", config], netns=netns)

    def start(self) -> None:
        """Start it; returns when it answers."""
        self.process.start()
        self.process.wait_ready(lambda: self.socket.exists() and self.ctr("version", check=False).returncode == 0)

    def ctr(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run containerd's client in the namespace that kubelet uses."""
        return system.run(["ctr", "--address", self.socket, "--namespace", "k8s.io", *arguments], check=check)

    def load(self, image: Image | Archive) -> None:
        """Import an image of an OCI layout or of a release; layers that are here already are not sent."""
        present = set(self.ctr("content", "ls", "--quiet").stdout.split())
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", "images", "import", "-"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as child:
            assert child.stdin
            assert child.stdout
            try:
                image.write_archive(child.stdin, without=present)
                child.stdin.close()
            except BrokenPipeError:
                pass  # it ended early; its output says why
            output = child.stdout.read().decode()
        if child.returncode:
            raise system.CommandFailed(f"importing {image.name}: {output}")

    def plant(self, seed: Path) -> None:
        """Begin with the images of a seed; called before `start`."""
        system.run(["cp", "--archive", "--link", seed, self.folder / "root"])
        for database in (self.folder / "root").glob("*/*.db"):
            private = database.with_suffix(".copy")
            shutil.copy2(database, private)
            private.replace(database)


def seed() -> Path:
    """A containerd root with the base images unpacked, made if it is missing."""
    base = images.base_images()

    def produce(folder: Path) -> None:
        state = State.create("seed")
        containerd = Containerd(state)
        try:
            containerd.start()
            for image in base:
                containerd.load(image)
            containerd.process.stop()
            (containerd.folder / "root").rename(folder / "root")
        finally:
            containerd.process.kill()
            state.destroy()

    key = cache.digest(*(image.descriptor["digest"] for image in base))
    return cache.build("containerd-seed", key, produce, keep=2) / "root"

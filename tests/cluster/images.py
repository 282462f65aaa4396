"""The images of a release, which test nodes run: Logkeep's two, built by buildah from the Dockerfile. And the pause
image of pods.

Everything stays in the cache. What only the dependencies decide (`operator-base`, `engine-base`, `pause`) is built
once and kept in an OCI layout whose layers are not compressed; a change of the code adds one small layer to that
layout. A release has an archive of each image. A node starts from a copy of a containerd root into which the base
images are unpacked already (`containerd.py`), so it takes only the small layer from the archive.
"""

import json
import os
import platform
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import logkeep_kernel

from tests.cluster import cache, kernel, names, system

ROOT = Path(__file__).parents[2]
DEBIAN = "bookworm"
ARCHIVES = """\
deb {mirror} {suite} main
deb {mirror} {suite}-updates main
deb {mirror}-security {suite}-security main
"""
"""Where images have Debian's packages from, as Debian's own image has them, at the mirror that debootstrap has used: it
knows the first one only."""
BASE = f"localhost/debootstrap:{DEBIAN}-{cache.digest(ARCHIVES)}"
PAUSE = "localhost/pause:1"
KERNEL = Path(logkeep_kernel.__file__).resolve()
"""The compiled kernel of these tests. The images take it as it is: nothing is compiled in them."""
TARGETS = names.IMAGES
_NOT_IN_SLIM = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
)


@dataclass(frozen=True)
class Image:
    """One image in an OCI layout: the name pods use, the layout's folder, and the name of the image in it."""

    name: str
    layout: Path
    tag: str

    @property
    def descriptor(self) -> dict[str, Any]:
        """The entry of the layout's index: media type, digest and size of the manifest."""
        index: dict[str, Any] = json.loads((self.layout / "index.json").read_text())
        for entry in index["manifests"]:
            if entry["annotations"]["org.opencontainers.image.ref.name"] == self.tag:
                return {key: entry[key] for key in ("mediaType", "digest", "size")}
        raise KeyError(f"{self.tag} is not in {self.layout}")

    @property
    def digests(self) -> list[str]:
        """The blobs the image consists of: manifest, configuration, layers."""
        top = self.descriptor["digest"]
        manifest: dict[str, Any] = json.loads(_blob(self.layout, top).read_text())
        return [top, manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])]

    def write_archive(self, out: IO[bytes], without: Collection[str] = ()) -> None:
        """Write an OCI archive as `ctr images import`, podman and skopeo read it, leaving out blobs the reader has."""
        of_reader = {"io.containerd.image.name": self.name, "org.opencontainers.image.ref.name": self.name}
        index = {"schemaVersion": 2, "manifests": [{**self.descriptor, "annotations": of_reader}]}
        with tarfile.open(fileobj=out, mode="w|") as archive:
            for name, content in (("oci-layout", {"imageLayoutVersion": "1.0.0"}), ("index.json", index)):
                raw = json.dumps(content).encode()
                member = tarfile.TarInfo(name)
                member.size = len(raw)
                archive.addfile(member, BytesIO(raw))
            for digest in self.digests:
                if digest not in without:
                    blob = _blob(self.layout, digest)
                    member = tarfile.TarInfo(f"blobs/{digest.replace(':', '/')}")
                    member.size = blob.stat().st_size
                    with blob.open("rb") as layer:
                        archive.addfile(member, layer)


@dataclass(frozen=True)
class Archive:
    """An image of a release: the name pods use, and the file with the whole image."""

    name: str
    path: Path

    def write_archive(self, out: IO[bytes], without: Collection[str] = ()) -> None:
        """Write it as `ctr images import` reads it, leaving out blobs the reader has."""
        with tarfile.open(self.path) as whole, tarfile.open(fileobj=out, mode="w|") as archive:
            for member in whole:
                if member.name.removeprefix("blobs/").replace("/", ":") not in without:
                    archive.addfile(member, whole.extractfile(member))

    @property
    def digests(self) -> list[str]:
        """The digests by which a node may call the image: of the manifest and of the configuration."""
        with tarfile.open(self.path) as whole:
            (entry,) = json.loads(_member(whole, "index.json"))["manifests"]
            return [entry["digest"], json.loads(_member(whole, _of_blob(entry["digest"])))["config"]["digest"]]

    def read(self, name: str) -> bytes:
        """Return a file of the image, as its last layer with such a file has it."""
        with tarfile.open(self.path) as whole:
            (entry,) = json.loads(_member(whole, "index.json"))["manifests"]
            manifest = json.loads(_member(whole, _of_blob(entry["digest"])))
            for layer in reversed(manifest["layers"]):
                with tarfile.open(fileobj=whole.extractfile(_of_blob(layer["digest"]))) as files:
                    if name in files.getnames():
                        return _member(files, name)
        raise KeyError(f"{name} is not in {self.path}")


def _of_blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    content = archive.extractfile(name)
    if content is None:
        raise KeyError(f"{name} is no file of {archive.name!r}")
    return content.read()


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def base_images() -> list[Image]:
    """The images that only dependencies decide, built if they are missing."""
    layout = _base_layout()
    names = {"pause": PAUSE, **{f"{target}-base": _base_name(target, layout.name) for target in TARGETS}}
    return [Image(name, layout, tag) for tag, name in names.items()]


def logkeep_images() -> dict[str, Image]:
    """Logkeep's images of the code as it is now, `operator` and `engine`, named as those of its release."""
    layout = _base_layout()
    engine = ("engine/logkeep_engine", "engine/pyspark_logkeep", "docs/conditions")
    sources = (*engine, "operator/logkeep_operator", "docker")
    code = [ROOT / source for source in sources]
    key = cache.digest(*code, KERNEL)
    images = {target: Image(names.image(target), layout, f"{target}-{key}") for target in TARGETS}
    with cache.locked("buildah"):
        known = {entry["annotations"]["org.opencontainers.image.ref.name"] for entry in _index(layout)}
        for target, image in images.items():
            if image.tag not in known:
                built = f"localhost/logkeep-{target}:dev"
                _build(target, built, [*_kept_bases(layout.name), f"KERNEL={_kernel()}"])
                _push(built, layout, image.tag)
    return images


def architecture() -> str:
    """Return what images call the architecture of this machine, for which they are built."""
    return {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def file_name(target: str, of: str = "") -> str:
    """Return the name of an image's archive in a release, by default of this machine's architecture."""
    return f"logkeep-{target}-linux-{of or architecture()}.tar"


def archives() -> dict[str, Archive]:
    """Return the archives of `logkeep_images`, made if they are missing. Their layers are not compressed."""
    images = logkeep_images()

    def produce(folder: Path) -> None:
        for target, image in images.items():
            with (folder / file_name(target)).open("wb") as out:
                image.write_archive(out)

    key = cache.digest(*(f"{image.name} {image.descriptor['digest']}" for image in images.values()))
    folder = cache.build("image-archives", key, produce, keep=2)
    return {target: Archive(image.name, folder / file_name(target)) for target, image in images.items()}


def _index(layout: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((layout / "index.json").read_text())["manifests"]
    return entries


def _base_layout() -> Path:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = json.dumps([project["dependencies"], project["optional-dependencies"]])
    files = [
        ROOT / "Dockerfile",
        ROOT / "requirements.lock",
        *(ROOT / "docker" / f for f in ("classes.py", "install.sh", "requirements.py", "trim.sh")),
    ]

    key = cache.digest(requirements, BASE, *files)

    def produce(folder: Path) -> None:
        with cache.locked("buildah"):
            _forget_images(folder.parent)
            _build_pause()
            _push_uncompressed(PAUSE, folder, "pause")
            for target in TARGETS:
                name = _base_name(target, key)
                _build(f"{target}-base", name)
                _push_uncompressed(name, folder, f"{target}-base")

    return cache.build("images", key, produce, keep=2)


def _base_name(target: str, key: str) -> str:
    return f"localhost/logkeep-{target}-base:{key}"


def _kept_bases(key: str) -> list[str]:
    """Build arguments that start the code's stages from kept images: buildah then skips the stages before."""
    kept = {target: _base_name(target, key) for target in TARGETS}
    names = _names()
    return [f"{target.upper()}_BASE={name}" for target, name in kept.items() if name in names]


def _kernel() -> str:
    """The name of the image that holds the compiled kernel and the list of its crates, and nothing else."""
    name = f"localhost/logkeep-kernel:{cache.digest(KERNEL, 'crates')}"
    if name not in _names():
        with _context() as context:
            shutil.copy(KERNEL, context)
            (context / "crates.txt").write_text(kernel.crates())
            (context / "Dockerfile").write_text(f"FROM scratch\nCOPY {KERNEL.name} crates.txt /\n")
            _buildah("bud", "--tag", name, context)
    return name


def storage_options() -> list[str]:
    """buildah's storage, apart from the user's own."""
    storage = cache.root() / "buildah"
    return ["--root", str(storage / "root"), "--runroot", str(storage / "run")]


def buildah(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run buildah with its storage in the cache. Raises CommandFailed with what it says."""
    environment = {"STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot", "BUILDAH_FORMAT": "oci"}
    return system.run(["buildah", *storage_options(), *arguments], env=environment, timeout=3600, check=check)


def _buildah(*arguments: str | Path) -> str:
    return buildah(*arguments).stdout


def _build(target: str, name: str, arguments: Collection[str] = ()) -> None:
    if BASE not in _names():
        _build_base()
    options: list[str | Path] = [word for argument in arguments for word in ("--build-arg", argument)]
    fetched = cache.root() / "packages" / "current"
    if fetched.exists():
        options += ["--build-arg", "PIP_FIND_LINKS=/packages", "-v", f"{fetched.resolve()}:/packages:ro"]
    bundle = os.environ.get("PIP_CERT")
    if bundle:
        options += ["--build-arg", "PIP_CERT=/certificates.pem", "-v", f"{Path(bundle).resolve()}:/certificates.pem:ro"]
    common = ["--layers", "--network", "host", "--build-arg", f"BASE={BASE}", "--target", target, "--tag", name]
    try:
        _buildah("bud", *common, *options, ROOT)
    finally:
        _buildah("rm", "--all")  # containers of a build that failed or was killed


def _push(name: str, layout: Path, tag: str) -> None:
    """Add an image to the layout. Layers that are there uncompressed are found by digest and not written again."""
    _buildah("push", "--quiet", name, f"oci:{layout}:{tag}")


def _push_uncompressed(name: str, layout: Path, tag: str) -> None:
    """Add an image to the layout with its layers as they are: an `oci:` destination would compress them."""
    folder = layout / "incoming"
    _buildah("push", "--quiet", "--disable-compression", name, f"dir:{folder}")
    (folder / "version").unlink()
    raw = (folder / "manifest.json").read_bytes()
    digest = sha256(raw).hexdigest()
    (folder / "manifest.json").rename(folder / digest)
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    for blob in folder.iterdir():
        blob.rename(blobs / blob.name)
    folder.rmdir()
    (layout / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    entry = {
        "mediaType": json.loads(raw)["mediaType"],
        "digest": f"sha256:{digest}",
        "size": len(raw),
        "annotations": {"org.opencontainers.image.ref.name": tag},
    }
    known = _index(layout) if (layout / "index.json").exists() else []
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [*known, entry]}))


def _names() -> list[str]:
    return _buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()


def _forget_images(layouts: Path) -> None:
    """Take out of buildah's storage what was built for base images that are kept no longer: each leaves gigabytes."""
    kept = {BASE, PAUSE, *(_base_name(target, layout.name) for target in TARGETS for layout in layouts.iterdir())}
    if older := sorted(set(_names()) - kept - {"<none>:<none>"}):
        _buildah("rmi", "--force", *older)
    _buildah("rmi", "--prune")


def _build_base() -> None:
    """`debian:bookworm-slim` without an image registry: what debootstrap installs, less documentation and lists. It
    compares each package with what Debian has signed, and apt does, which then brings security updates."""
    with _context() as context:
        system.run(
            [
                "debootstrap",
                "--force-check-gpg",
                "--variant=minbase",
                "--include=ca-certificates",
                DEBIAN,
                context / "base",
            ],
            timeout=1800,
        )
        for part in _NOT_IN_SLIM:
            shutil.rmtree(context / "base" / part, ignore_errors=True)
        sources = context / "base/etc/apt/sources.list"
        _, mirror, suite, _ = sources.read_text().split()
        sources.write_text(ARCHIVES.format(mirror=mirror, suite=suite))
        (context / "Dockerfile").write_text('FROM scratch\nCOPY base/ /\nCMD ["bash"]\n')
        _buildah("bud", "--tag", BASE, context)


def _build_pause() -> None:
    """Build the image that holds a pod's namespaces: a static busybox that sleeps."""
    with _context() as context:
        busybox = shutil.which("busybox")
        if busybox is None:
            raise FileNotFoundError("busybox (package busybox-static) is needed for the pause image")
        shutil.copy(busybox, context / "busybox")
        (context / "Dockerfile").write_text(
            'FROM scratch\nCOPY busybox /busybox\nENTRYPOINT ["/busybox", "sleep", "2147483647"]\n'
        )
        _buildah("bud", "--tag", PAUSE, context)


@contextmanager
def _context() -> Iterator[Path]:
    context = cache.root() / "buildah" / "context"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    yield context
    shutil.rmtree(context, ignore_errors=True)

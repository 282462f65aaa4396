"""Write what an image holds, as a CycloneDX document: `sbom.py --image logkeep-engine --base debian@...
--packages /opt/logkeep [--crates crates.txt] sbom.cdx.json`. It runs in the image, beside the version of the code. A
release lists what is in its other files with the same functions.

It lists Debian's packages, the Python distributions and the jars of the folder, and the crates of the kernel. Libraries
in C that a Python wheel brings along have no entry of their own: they belong to the wheel.
"""

import argparse
import hashlib
import os
import re
import subprocess
import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from logkeep_engine import __version__

JAR = re.compile(r"(?P<name>.+?)-(?P<version>\d[^/]*)\.jar")
DEBIAN = "${db:Status-Status}\t${Package}\t${Version}\t${Architecture}\n"


def debian_packages() -> Iterator[Component]:
    """Yield the installed packages that dpkg knows."""
    reported = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={DEBIAN}"], capture_output=True, text=True, check=True
    )
    for line in reported.stdout.splitlines():
        status, name, version, architecture = line.split("\t")
        if status == "installed":
            yield _component(PackageURL("deb", "debian", name, version, {"arch": architecture}))


def python_distributions(sites: Iterable[Path]) -> Iterator[Component]:
    """Yield the distributions that lie in folders of Python's path."""
    for found in distributions(path=[str(site) for site in sites]):
        name = re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()
        yield _component(PackageURL("pypi", None, name, found.version))


def jars(folder: Path) -> Iterator[Component]:
    """Yield the jars below the folder, each with its digest and, where it tells them, its Maven coordinates."""
    for path in sorted(folder.rglob("*.jar")):
        yield _component(_maven(path) or _by_name(path), hashlib.sha256(path.read_bytes()).hexdigest())


def _maven(path: Path) -> PackageURL | None:
    """Return the coordinates of the artifact that the jar is named after. Jars hold those of others, too."""
    with zipfile.ZipFile(path) as jar:
        for name in jar.namelist():
            if re.fullmatch(r"META-INF/maven/[^/]+/[^/]+/pom\.properties", name):
                lines = jar.read(name).decode().splitlines()
                reported = dict(line.split("=", 1) for line in lines if "=" in line)
                artifact = f"{reported['artifactId']}-{reported['version']}"
                if path.stem == artifact or path.stem.startswith(f"{artifact}-"):
                    classifier = path.stem.removeprefix(artifact).removeprefix("-")
                    qualifiers = {"classifier": classifier} if classifier else None
                    return PackageURL(
                        "maven", reported["groupId"], reported["artifactId"], reported["version"], qualifiers
                    )
    return None


def _by_name(path: Path) -> PackageURL:
    """Return what the name of the file says: an artifact and a version, which begins with a digit."""
    named = JAR.fullmatch(path.name)
    return PackageURL("generic", None, *((named["name"], named["version"]) if named else (path.stem, None)))


def crates(listed: str) -> Iterator[Component]:
    """Yield the crates of lines such as `pyo3 v0.26.0`, which cargo tree prints, each once."""
    for name, version in sorted({tuple(line.split()[:2]) for line in listed.splitlines() if line}):
        yield _component(PackageURL("cargo", None, name, version.removeprefix("v")))


def _component(purl: PackageURL, sha256: str = "") -> Component:
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else None
    where = f"{purl}#{sha256}" if sha256 else str(purl)  # the same jar may lie in two places
    facts = {"group": purl.namespace, "name": purl.name, "version": purl.version}
    return Component(type=ComponentType.LIBRARY, bom_ref=where, purl=purl, hashes=hashes, **facts)


def document(name: str, version: str, components: list[Component], *, base: str = "") -> str:
    """Return the document in JSON: an image with the one that it is built upon, or else a file of a release, and the
    components. Only the time in it is another one for the same components."""
    bom = Bom(components=components)
    bom.serial_number = uuid5(
        NAMESPACE_URL, "\n".join([name, version, base, *sorted(c.bom_ref.value for c in components)])
    )
    kind = ComponentType.CONTAINER if base else ComponentType.APPLICATION
    bom.metadata.component = Component(type=kind, name=name, version=version, bom_ref=name)
    if base:
        bom.metadata.component.properties.add(Property(name="logkeep:base", value=base))
    if "SOURCE_DATE_EPOCH" in os.environ:
        bom.metadata.timestamp = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    bom.register_dependency(bom.metadata.component, bom.components)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1)


def main() -> None:
    """Write the document of the image that this runs in."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--crates", type=Path)
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    found = [
        *debian_packages(),
        *python_distributions(given.packages.glob("lib/python3*/site-packages")),
        *jars(given.packages),
    ]
    if given.crates:
        found += crates(given.crates.read_text())
    given.output.write_text(document(given.image, __version__, found, base=given.base) + "\n")


if __name__ == "__main__":
    main()

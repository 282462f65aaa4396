"""Another backup tool beside ours, given by the path of its program (`PEER=/path/to/binary`).

`bench/peers/<name of the program>/` says how it is called: `backup.yaml` and `restore.yaml` are templates of its
configuration ($bootstrap, $topic, $target, $storage, $name), `storage-file.yaml` and `storage-s3.yaml` the part about
storage, and `peer.yaml` the arguments. To put another tool beside ours, add such a folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

import yaml

from bench.bed import BUCKET, Bed

FOLDER = Path(__file__).parent / "peers"


class UnknownPeer(ValueError):
    """There is no folder of templates for this program."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A program and its templates. `arguments` by verb; `clock` finds the seconds it worked in its output."""

    program: Path
    templates: Path
    arguments: Mapping[str, Sequence[str]]
    version: str
    clock: re.Pattern[str]

    @property
    def name(self) -> str:
        """How the table calls it."""
        return self.program.name

    def command(self, verb: str, bed: Bed, storage: str, name: str, topic: str, target: str) -> list[str]:
        """Write the configuration of a backup or restore and return the command line that runs it."""
        values = {"bootstrap": bed.bootstrap, "topic": topic, "target": target, "name": name, "bucket": BUCKET}
        values |= {"path": str(bed.archive(storage, name))}
        if bed.s3 is not None:
            values |= {"endpoint": bed.s3.endpoint, "region": bed.s3.region}
            values |= {"access_key": bed.s3.access_key, "secret_key": bed.s3.secret_key}
        part = self._filled(f"storage-{storage}.yaml", values)
        config = bed.folder / f"{self.name}-{verb}.yaml"
        config.write_text(self._filled(f"{verb}.yaml", {**values, "storage": part}))
        return [str(self.program), *(Template(a).substitute(config=config) for a in self.arguments[verb])]

    def _filled(self, file: str, values: dict[str, str]) -> str:
        return Template((self.templates / file).read_text()).substitute(values)


def find(path: str) -> Peer:
    """The peer at a path. Raises UnknownPeer if there are no templates for it."""
    program = Path(path)
    templates = FOLDER / program.name
    if not templates.is_dir() or not program.is_file():
        known = ", ".join(sorted(entry.name for entry in FOLDER.iterdir() if entry.is_dir()))
        raise UnknownPeer(f"PEER={path}: no such program, or no templates for it; there are some for: {known}")
    document = yaml.safe_load((templates / "peer.yaml").read_text())
    arguments = {verb: tuple(document[verb]) for verb in ("backup", "restore")}
    return Peer(program, templates, arguments, str(document["version"]), re.compile(document["clock"]))

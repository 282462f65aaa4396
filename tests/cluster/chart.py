"""The Helm chart: its README, and the package of a release.

`python -m tests.cluster.chart` (`make chart`) writes `charts/logkeep/README.md` from the comments in `values.yaml`.
"""

import gzip
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from logkeep_engine import __version__
from tests.cluster import cache, names, system, tools

CHART = names.ROOT / "charts" / "logkeep"
README = CHART / "README.md"
_HEAD = f"""\
# Logkeep's Helm chart

Logkeep backs up Apache Kafka into an object store, and restores it. This chart installs its operator and the CRDs.

```console
helm install logkeep {names.CHART} --version {__version__} --namespace logkeep --create-namespace
helm test logkeep --namespace logkeep
```

[Install]({names.HOME}/docs/install.html) says what is made in the cluster and which rights it needs,
[Upgrade]({names.HOME}/docs/guides/upgrade.html) what comes before `helm upgrade`.
The chart refuses values that it does not know.

## Values

"""


def readme() -> str:
    """Return the chart's README: each value with its default and what `values.yaml` says of it."""
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for path, default, meaning in _values(yaml.safe_load(text), _comments(text), schema):
        rows.append(f"| `{path}` | {default} | {_cell(meaning)} |")
    return _HEAD + "\n".join(rows) + "\n"


def _values(values: dict[str, Any], comments: dict[str, str], schema: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    def walk(part: dict[str, Any], fields: dict[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
        for name, value in part.items():
            where = f"{path}{name}"
            field = _resolved(fields.get(name, {}), schema)
            if isinstance(value, dict) and value and "properties" in field:
                if where in comments:
                    yield where, "", comments[where]
                yield from walk(value, field["properties"], f"{where}.")
            else:
                yield where, f"`{json.dumps(value)}`", comments.get(where, "")

    return walk(values, schema["properties"], "")


def _resolved(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = field.get("$ref", "").rpartition("/")[2]
    return dict(schema["definitions"][name]) if name else field


def _comments(text: str) -> dict[str, str]:
    """Return the comment above each value, by the value's path."""
    found: dict[str, str] = {}
    above: list[str] = []
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        comment, key = re.fullmatch(r" *# ?(.*)", line), re.match(r"( *)([\w.-]+):", line)
        if comment:
            above.append(comment[1])
            continue
        if key:
            path = [(indent, name) for indent, name in path if indent < len(key[1])] + [(len(key[1]), key[2])]
            if above:
                found[".".join(name for _, name in path)] = " ".join(above)
        above = []
    return found


def _cell(text: str) -> str:
    """Return a comment as the text of a cell: what is in braces is code, and nothing else is markup."""
    found, depth = [], 0
    for letter in text.replace("|", "\\|"):
        depth += letter == "{"
        quote = "`" if depth == 1 and letter in "{}" else ""
        plain = letter if depth else {"*": "\\*", "<": "&lt;"}.get(letter, letter)
        found.append(quote + plain if letter == "{" else plain + quote)
        depth -= letter == "}"
    return "".join(found)


def package(folder: Path) -> Path:
    """Make the chart's package there, the same bytes for the same chart. Raises CommandFailed with what Helm says."""
    with tempfile.TemporaryDirectory() as scratch:
        system.run([tools.helm_4(), "package", CHART, "--destination", scratch])
        (made,) = Path(scratch).glob("*.tgz")
        target = folder / made.name
        target.write_bytes(repacked(made))
    return target


def packaged() -> Path:
    """Return the chart's package, made if it is missing."""

    def produce(folder: Path) -> None:
        package(folder)

    (found,) = cache.build("chart", cache.digest(CHART, tools.HELM_4), produce, keep=3).iterdir()
    return found


def repacked(archive: Path) -> bytes:
    """Return an archive with the same files, in which nothing tells when it was made."""
    with tarfile.open(archive) as old:
        members = [(member, old.extractfile(member)) for member in old if member.isfile()]
        return packed(
            {
                member.name: (content.read(), 0o755 if member.mode & 0o100 else 0o644)
                for member, content in members
                if content
            }
        )


def packed(files: dict[str, tuple[bytes, int]]) -> bytes:
    """Return a compressed archive of the files, each with its mode, in which nothing tells when it was made."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (content, mode) in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)


if __name__ == "__main__":
    README.write_text(readme())

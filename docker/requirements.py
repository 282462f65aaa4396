"""Print what the lock has for an extra or a dependency group of a pyproject.toml, with hashes:
`requirements.py pyproject.toml requirements.lock engine`. That is what it names, and all that those packages need."""

import re
import sys
import tomllib
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9-]+")
PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>\S+) \\\n")
NEEDED_BY = re.compile(r"^ +# +(?:via )?([a-z0-9-]+)$", re.MULTILINE)


def entries(lock: str) -> dict[str, str]:
    """Return the lock's entries by package: the pin, its hashes, and who needs the package."""
    found = {}
    for entry in re.split(r"^(?=\S)", lock, flags=re.MULTILINE)[1:]:
        pin = PIN.match(entry)
        if pin is None or "--hash=sha256:" not in entry:
            raise ValueError(f"the lock has an entry without a version or without hashes; make lock renews it: {entry}")
        found[pin["name"]] = entry
    return found


def subset(declared: list[str], lock: str) -> list[str]:
    """Return the entries that requirements such as `pyyaml>=6.0,<7` need together."""
    locked = entries(lock)
    wanted = {NAME.match(requirement)[0].lower() for requirement in declared}
    if missing := wanted - locked.keys():
        raise ValueError(f"the lock does not have {', '.join(sorted(missing))}; make lock renews it")
    needed_by = {name: set(NEEDED_BY.findall(entry)) for name, entry in locked.items()}
    while more := {name for name, by in needed_by.items() if name not in wanted and by & wanted}:
        wanted |= more
    return [locked[name] for name in sorted(wanted)]


def declared_in(pyproject: str, name: str) -> list[str]:
    """Return the requirements of an extra, with those of the project itself, or of a dependency group."""
    document = tomllib.loads(pyproject)
    groups: dict[str, list[str]] = document["dependency-groups"]
    project = document["project"]
    return groups.get(name) or [*project["dependencies"], *project["optional-dependencies"][name]]


if __name__ == "__main__":
    pyproject, lock, name = sys.argv[1:]
    print("".join(subset(declared_in(Path(pyproject).read_text(), name), Path(lock).read_text())), end="")

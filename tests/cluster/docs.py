"""The site of the docs: `make docs` calls `python -m tests.cluster.docs`. A warning of the builder is an error.

`python -m tests.cluster.docs changelog` prints what the next release would say (`make changelog`).
"""

import re
import shutil
import sys
from pathlib import Path

from logkeep_operator.metrics import Metrics
from tests.cluster import system, tools

ROOT = Path(__file__).parents[2]
METRICS = ROOT / "docs/reference/metrics.md"
# Pages and what they link to. They lie side by side as in the repository, so that links hold in both.
PAGES = (
    ":(glob)*.md",
    "LICENSE",
    "changes/README.md",
    "docs",
    "examples",
    "charts/logkeep/README.md",
    "charts/logkeep/files",
)


def build(folder: Path, root: Path = ROOT) -> Path:
    """Make the site of a checkout in a folder, again. Return where it lies. Raises CommandFailed with links that lead
    nowhere and pages that the navigation lacks."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", *PAGES)
    for name in system.run(listed, cwd=root).stdout.split("\0"):
        if (root / name).is_file():
            page = folder / "pages" / name
            page.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, page)
    reference = folder / "pages/docs/reference"
    reference.mkdir(parents=True, exist_ok=True)
    (reference / "logkeep-options.md").write_text(options("logkeep_engine.cli", "logkeep"))
    (reference / "kubectl-logkeep-options.md").write_text(options("logkeep_engine.cli.kubectl", "kubectl logkeep"))
    shutil.copy(root / "mkdocs.yml", folder)
    _run("mkdocs", "build", "--strict", cwd=folder)
    return folder / "site"


def changelog(root: Path = ROOT) -> str:
    """Return the next release's section of the changelog. Raises CommandFailed with names that are no fragments'."""
    return _run("towncrier", "build", "--draft", cwd=root)


def _run(module: str, *arguments: str, cwd: Path) -> str:
    environment = {"PYTHONPATH": str(tools.docs()), "NO_MKDOCS_2_WARNING": "1"}
    return system.run([sys.executable, "-m", module, *arguments], cwd=cwd, env=environment).stdout


def options(module: str, name: str) -> str:
    """Return a page with all commands and options of a program, by what its `--help` says."""
    page = system.run([sys.executable, "-m", "typer", module, "utils", "docs", "--name", name]).stdout
    epilog = re.search(r"^Exit codes: .*\n", page, re.MULTILINE)
    return page if epilog is None else page[: epilog.end()] + page[epilog.end() :].replace(epilog[0], "")


def metrics() -> str:
    """Return the page of the operator's metrics, by what it registers."""
    page, _, _ = METRICS.read_text().partition("| metric |")
    rows = ["| metric | type | meaning |", "|---|---|---|"]
    for family in Metrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append(f"| `{name}` | {family.type} | {family.documentation} |")
    return page + "\n".join([*rows[:2], *sorted(rows[2:])]) + "\n"


if __name__ == "__main__" and sys.argv[1:] == ["changelog"]:
    print(changelog(), end="")
elif __name__ == "__main__":
    METRICS.write_text(metrics())
    print(build(ROOT / "build/docs") / "index.html")

"""Links between documents lead to files and headings that are there."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A page of another tool, one that a test makes, and those that are made with the site.
MADE = {"docs/reference/logkeep-options.md", "docs/reference/kubectl-logkeep-options.md"}
ELSEWHERE = {"docs/Tooling.md", "docs/forgotten.md", *MADE}


def documents() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).is_file()]


def prose(text: str) -> str:
    """The text without what stands in blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def dead_links(path: Path, text: str) -> Iterator[str]:
    folder = ROOT if path.name.startswith("+") else path.parent  # a fragment becomes a part of CHANGELOG.md
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = folder / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(text if target == path else target.read_text())):
            yield link


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert list(dead_links(path, path.read_text())) == []


@pytest.mark.parametrize("link", ["gone.md", "README.md#gone", "#gone", "docs/gone/"])
def test_a_dead_link_is_found(link: str) -> None:
    text = f"# Here it is\n\n[a](#here-it-is) [b](docs/install.md#openshift) [c]({link})\n\n```\n[d](gone)\n```\n"
    assert list(dead_links(ROOT / "README.md", text)) == [link]


def test_pages_that_code_resources_and_pages_name_are_there() -> None:
    """`docs/archive.md` in a message, a description or a comment is no link, and gets stale when a page moves."""
    named = re.compile(r"(?<![\w/])docs/[\w/.-]+\.(?:md|svg|png|json)\b")
    command = ["git", "grep", "-lE", r"docs/.*\.(md|svg|png|json)"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    missing = {
        (name, page)
        for name in listed.stdout.split()
        for page in named.findall((ROOT / name).read_text())
        if not (ROOT / page).exists() and page not in ELSEWHERE
    }
    assert missing == set()

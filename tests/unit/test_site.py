"""The site of the docs: all links lead somewhere, and reading it fetches nothing from elsewhere."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import logkeep_engine
from tests.cluster import docs, system

LOADED = re.compile(
    r'<(?:script|img|iframe)\b[^>]*\bsrc="?(https?:[^"\s>]+)'
    r'|<link\b(?![^>]*\brel="?canonical)[^>]*\bhref="?(https?:[^"\s>]+)'  # a canonical link is a page's own address
)
IMPORTED = re.compile(r"""@import|url\(["']?https?:[^)]+\)""")


def test_a_page_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    site = docs.build(tmp_path / "site")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 150
    assert {path: found for path in pages if (found := LOADED.findall(path.read_text()))} == {}
    assert [path for path in site.rglob("*.css") if IMPORTED.search(path.read_text())] == []
    options = (site / "docs/reference/logkeep-options.html").read_text()
    assert "logkeep log index rebuild" in options
    assert options.count("3 another run owns the archive") == 1  # what most commands say alike


def test_a_dead_link_and_a_page_outside_the_navigation_are_refused(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "docs").mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", checkout], check=True)
    settings, _, _ = (docs.ROOT / "mkdocs.yml").read_text().partition("\nnav:")
    (checkout / "mkdocs.yml").write_text(f"{settings}\nnav: [README.md]\n")
    (checkout / "README.md").write_text("# Here\n\n[a](gone.md) [b](docs/forgotten.md#gone)\n")
    (checkout / "docs/forgotten.md").write_text("# Forgotten\n")
    with pytest.raises(system.CommandFailed) as refused:
        docs.build(tmp_path / "site", checkout)
    for said in ("docs/forgotten.md", "'gone.md'", "does not contain an anchor '#gone'"):
        assert said in str(refused.value)


def test_each_decision_is_in_the_list_of_them() -> None:
    folder = docs.ROOT / "docs/design"
    linked = re.findall(r"\]\((0.*?\.md)\)", (folder / "README.md").read_text())
    assert linked == sorted(path.name for path in folder.glob("0*.md"))


def test_what_belongs_to_an_item_of_a_list_is_indented_by_four() -> None:
    """GitHub takes two or three for it, the builder of the site ends the list."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=docs.ROOT, capture_output=True, text=True, check=True)
    pages = {name: (docs.ROOT / name).read_text() for name in listed.stdout.split() if (docs.ROOT / name).is_file()}
    prose = {name: re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL) for name, text in pages.items()}
    assert {name: found for name, text in prose.items() if (found := re.findall(r"\n\n {1,3}(\S.*)", text))} == {}


def test_the_page_of_metrics_is_that_of_the_code() -> None:
    assert docs.METRICS.read_text() == docs.metrics(), "make docs writes it"


def test_fragments_become_the_next_section_of_the_changelog(tmp_path: Path) -> None:
    shutil.copy(docs.ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "engine/logkeep_engine").mkdir(parents=True)
    shutil.copy(docs.ROOT / "engine/logkeep_engine/__init__.py", tmp_path / "engine/logkeep_engine")
    shutil.copytree(docs.ROOT / "changes", tmp_path / "changes")
    for name, text in (("fix", "B is right."), ("feature", "A is new."), ("upgrade", "Apply the CRDs.")):
        (tmp_path / f"changes/+short.{name}.md").write_text(text)
    said = docs.changelog(tmp_path)
    assert re.search(rf"^## {re.escape(logkeep_engine.__version__)} \(", said, re.MULTILINE)
    kinds = ["### Before the upgrade", "- Apply the CRDs.", "### What is new", "- A is new."]
    kinds += ["### What is fixed", "- B is right."]
    assert [line for line in said.splitlines() if line in kinds] == kinds
    (tmp_path / "changes/short.md").write_text("Which kind?")
    with pytest.raises(system.CommandFailed, match=r"short\.md"):
        docs.changelog(tmp_path)

"""Released names are in `names.toml`, and the version is in the code: all that types one of them again agrees."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml

import logkeep_engine
from logkeep_engine.contract.names import CRDS
from tests.cluster import names, system, version

ROOT = names.ROOT
OUR_OWN = re.compile(r"(?:oci://|https?://)?(?:[a-z0-9-]+\.)*\blogkeep\.dev(?=[/\s\"'`:),;]|\.\s|$)(?:/[\w./{}$-]*\w)?")
"""A place on our domain. As a group of Kubernetes' API, in labels and the like it is no place."""
AN_IMAGE = re.compile(r"(?<![\w./-])((?:[\w.:-]+/)*)logkeep-(operator|engine)(?=[:@]\S)")
FOREIGN = ("registry.example/", "localhost/")


def places(text: str) -> set[str]:
    found = {match[0] for match in OUR_OWN.finditer(text)}
    return {place for place in found if "://" in place or place.startswith(names.REGISTRY)}


def pages() -> list[Path]:
    listed = system.run(
        ["git", "ls-files", "*.md", "examples", "charts", "docs", "*.toml", "*.yml", ".github"], cwd=ROOT
    )
    return [
        ROOT / name for name in listed.stdout.split() if name.endswith((".md", ".yaml", ".yml", ".txt", ".toml", ".sh"))
    ]


def strange(text: str) -> list[str]:
    """All that the text names and that is no place of `names.toml`, and images that are neither ours nor a user's."""
    known = (names.SOURCE, names.FILES, names.CHART, f"{names.REGISTRY}/logkeep-", names.HOME)
    found = [place for place in sorted(places(text)) if not place.startswith(known) and place != names.REGISTRY]
    for host, which in AN_IMAGE.findall(text):
        if host not in (f"{names.REGISTRY}/", *FOREIGN) and not host.startswith(FOREIGN):
            found.append(f"{host}logkeep-{which}")
    return found


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_names_released_things_as_names_toml_does(path: Path) -> None:
    assert strange(path.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "oci://charts.logkeep.dev/logkeep", "https://get.logkeep.dev/0.1.0/x", "oci://registry.logkeep.dev/logkeep",
        "registry.logkeep.dev/operator:1", "docker run logkeep-engine:0.1.0", "ghcr.example/logkeep-operator@sha256:1",
    ],
)  # fmt: skip
def test_another_name_is_found(text: str) -> None:
    assert len(strange(text)) == 1


def test_code_chart_site_and_package_are_of_the_same_places() -> None:
    assert names.file("logkeep-crds.yaml") == CRDS
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"] == names.HOME
    about = yaml.safe_load((ROOT / "charts/logkeep/Chart.yaml").read_text())
    assert (about["home"], about["sources"]) == (names.HOME, [names.SOURCE])
    assert about["icon"].startswith(f"{names.HOME}/")


def test_all_that_types_the_version_has_that_of_the_code() -> None:
    version.check(logkeep_engine.__version__)
    assert {path for path, _ in version.typed()} > {*version.FILES, "docs/install.md", "README.md"}


@pytest.mark.parametrize("given", ["", "1", "v1.2.3", "1.2", "01.2.3", "1.2.3+4", "1.2.3rc1", "1.2.3-beta", "1.2.3\n"])
def test_a_version_that_python_or_helm_would_not_take_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="it must be like"):
        version.check(given)


def test_another_version_than_that_of_the_code_is_refused_by_the_names_of_files() -> None:
    with pytest.raises(
        ValueError, match=r"charts/logkeep/Chart.yaml has 0.1.0, .* docs/install.md has 0.1.0"
    ) as refused:
        version.check("9.9.9")
    assert str(refused.value).endswith("python -m tests.cluster.version 9.9.9")


@pytest.mark.parametrize("new", ["12.0.3", "12.0.3-rc.4"])
def test_one_command_writes_another_version_everywhere(new: str, tmp_path: Path) -> None:
    for name in system.run(
        ["git", "ls-files", "*.md", "docs", "examples", "charts", *version.FILES], cwd=ROOT
    ).stdout.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    system.run(["git", "init", "-q"], cwd=tmp_path)
    system.run(["git", "add", "."], cwd=tmp_path)
    before = len(list(version.typed(tmp_path)))
    version.write(new, tmp_path)
    found = [typed for _, typed in version.typed(tmp_path)]
    assert set(found) <= {new, version.canonical(new)}
    assert len(found) == before
    assert f"/logkeep-{version.canonical(new)}-cp311-" in (tmp_path / "docs/cli.md").read_text()
    old = re.compile(rf"(?<![\w.]){re.escape(logkeep_engine.__version__)}(?!\.?\d)")
    pages = [path for part in ("README.md", "docs", "examples", "charts") for path in files(tmp_path / part)]
    assert [path for path in pages if old.search(path.read_text())] == []


def files(place: Path) -> list[Path]:
    """All texts there, without what tells of the past."""
    found = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return [path for path in found if path.suffix not in (".png", ".svg") and "design" not in path.parts]

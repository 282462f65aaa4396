"""The workflows of GitHub, which cannot run here: they are well-formed, and call what is there."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import names, system, tools, version

WORKFLOWS = names.ROOT / ".github" / "workflows"
FILES = sorted(WORKFLOWS.glob("*.yml"))


def steps(path: Path) -> list[dict[str, Any]]:
    jobs: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_actionlint_finds_nothing() -> None:
    assert [path.name for path in FILES] == ["ci.yml", "release.yml"]
    assert system.run([tools.actionlint(), "-no-color", *FILES], check=False).stdout == ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_action_is_named_by_its_commit_since_a_tag_can_be_moved(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_a_workflow_calls_is_there(path: Path) -> None:
    commands = "\n".join(step["run"] for step in steps(path) if "run" in step)
    targets = re.findall(r"^(?:make|make --silent) (?!-)(\S+)", commands, re.MULTILINE)
    makefile = (names.ROOT / "Makefile").read_text()
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
    programs = re.findall(r"^(\.(?:ci|github)/\S+)", commands, re.MULTILINE)
    assert targets or programs
    assert [program for program in programs if not os.access(names.ROOT / program, os.X_OK)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_command_that_fails_before_a_pipe_ends_its_step(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    shell = workflow.get("defaults", {}).get("run", {}).get("shell")
    piped = [step["run"] for step in steps(path) if "run" in step and re.search(r"[^|]\|[^|]", step["run"])]
    # GitHub gives its own shell no pipefail, and one that is named has it.
    assert shell == "bash" or piped == []


def test_no_tag_but_a_version_begins_a_release() -> None:
    """The name of a tag goes to make and to shells; git lets it have almost any characters."""
    on = yaml.safe_load((WORKFLOWS / "release.yml").read_text())[True]  # YAML 1.1 reads "on" so
    patterns = [re.compile(pattern.replace(".", r"\.")) for pattern in on["push"]["tags"]]
    tags = ("v0.1.0", "v10.2.33", "v1.0.0-rc.1", "v1.0.0-rc.12")
    assert all(version.ALLOWED.fullmatch(tag[1:]) and any(one.fullmatch(tag) for one in patterns) for tag in tags)
    wrong = ("v", "vim", "v1", "v1.0.0;curl${IFS}x|sh", "v$(id)", "v1.0.0'", "v1.0.0-$(shell${IFS}id)", "1.0.0")
    assert [tag for tag in wrong if any(pattern.fullmatch(tag) for pattern in patterns)] == []


def test_only_the_workflow_of_one_repository_is_trusted_for_signatures() -> None:
    """A workflow of the same name in a repository of anybody has a certificate, too."""
    page = (names.ROOT / "docs" / "install.md").read_text()
    assert "--certificate-identity-regexp" not in page
    identities = re.findall(r"--certificate-identity[ =\\\n]+(\S+)", page)
    assert len(identities) == page.count("cosign verify")
    whole = r"https://github\.com/[^/]+/[^/]+/\.github/workflows/release\.yml@refs/tags/v\d+\.\d+\.\d+"
    assert [identity for identity in identities if not re.fullmatch(whole, identity)] == []


def test_only_jobs_that_publish_may_write_and_have_secrets() -> None:
    workflow = yaml.safe_load((WORKFLOWS / "release.yml").read_text())
    assert workflow["permissions"] == {}
    may_write = {name for name, job in workflow["jobs"].items() if "write" in job["permissions"].values()}
    assert may_write == {"sign", "pypi"}
    with_secrets = {name for name, job in workflow["jobs"].items() if "secrets." in yaml.safe_dump(job)}
    assert with_secrets == {"publish", "sign"}
    for name in with_secrets | may_write:
        assert workflow["jobs"][name]["environment"] == "release"


def test_the_login_is_for_the_registry_of_the_names(tmp_path: Path) -> None:
    """All of buildah, Helm, crane and cosign read Docker's own file."""
    environment = {"HOME": str(tmp_path), "REGISTRY_USER": "robot", "REGISTRY_PASSWORD": 'a"b c'}
    printed = system.run([names.ROOT / ".github/login"], env=environment).stdout
    assert printed == ""
    file = tmp_path / ".docker/config.json"
    assert yaml.safe_load(file.read_text()) == {"auths": {names.REGISTRY: {"auth": "cm9ib3Q6YSJiIGM="}}}
    assert file.stat().st_mode & 0o077 == 0


def test_the_name_at_pythons_index_reaches_the_workflow(tmp_path: Path) -> None:
    (command,) = (step["run"] for step in steps(WORKFLOWS / "release.yml") if step.get("id") == "names")
    said = (names.ROOT / "names.toml").read_text()
    for name in ("", "logkeep"):
        (tmp_path / "names.toml").write_text(re.sub(r'^pypi = ".*"', f'pypi = "{name}"', said, flags=re.MULTILINE))
        assert tomllib.loads((tmp_path / "names.toml").read_text())["pypi"] == name
        (tmp_path / "output").unlink(missing_ok=True)
        system.run(["bash", "-c", command], cwd=tmp_path, env={"GITHUB_OUTPUT": str(tmp_path / "output")})
        assert (tmp_path / "output").read_text() == f"pypi={name}\n"

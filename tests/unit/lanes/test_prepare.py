"""The test bed says what it builds while it builds it, and the demo builds what it runs."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.cluster import cache, prepare, system
from tests.cluster.process import wait_until
from tests.cluster.progress import Progress, Step, here
from tests.demo import __main__ as demo

ROOT = Path(__file__).parents[3]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache.root()


def at_once(line: str) -> str:
    """The line as it would be if this machine took no time."""
    return re.sub(r"\d+ s\b", "0 s", line)


def test_a_line_says_what_is_built_how_far_it_is_and_where() -> None:
    said: list[str] = []
    progress = Progress(every=0.05, say=said.append)
    progress.parts(3)
    with progress.step("kube") as step:
        step.expect(1563)
        step.said("k8s.io/api/core/v1\n")
        step.said("\n")
        wait_until(lambda: len(said) > 2, 60, "lines of progress")
    assert at_once(said[0]) == "0 s, 0 of 3 ready; kube 0 s (1 of 1563, k8s.io/api/core/v1)"
    after = len(said)
    progress.ready("kube", 93.4)
    assert said[after:] == ["1 of 3 ready: kube, after 93 s"]
    time.sleep(0.2)
    assert len(said) == after + 1, "nothing is built any more, and it goes on talking"


def test_steps_of_several_threads_are_in_one_line() -> None:
    progress = Progress(every=600)
    both = threading.Barrier(2)

    def other() -> None:
        with progress.step("images") as step:
            step.said("STEP 4/9: RUN " + "x" * 100)
            both.wait(60)
            both.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    both.wait(60)
    with progress.step("helm"):
        assert at_once(progress.line()) == f"images 0 s (STEP 4/9: RUN {'x' * 57}…); helm 0 s"
    both.wait(60)
    thread.join()
    assert progress.line() == ""


def test_a_build_of_an_image_says_at_which_of_its_steps_it_is() -> None:
    step = Step("images")
    step.said("[4/9] STEP 2/7: RUN apt-get update\n")
    assert at_once(str(step)) == "images 0 s ([4/9] STEP 2/7: RUN apt-get update)"
    step.said("Unpacking tini ...\n")
    assert at_once(str(step)) == "images 0 s ([4/9] STEP 2/7: Unpacking tini ...)"


def test_what_a_command_prints_says_where_it_is() -> None:
    script = "echo one; echo two >&2; cat; exit 3"
    with here.step("script") as step:
        done = system.run(["sh", "-c", script], check=False, stdin="three\n")
        assert at_once(str(step)) in ("script 0 s (two)", "script 0 s (three)")
    assert (done.returncode, done.stdout, done.stderr) == (3, "one\nthree\n", "two\n")


def test_a_command_that_takes_too_long_is_ended() -> None:
    with here.step("script"), pytest.raises(subprocess.TimeoutExpired):
        system.run(["sleep", "600"], timeout=0.2)


def test_whoever_waits_for_a_lock_is_told_who_has_it(own_cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    holds = "from tests.cluster.cache import locked\nwith locked('kube-1'):\n    print(flush=True)\n    input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", holds], cwd=ROOT, text=True, **pipes) as holder:  # type: ignore[call-overload]
        holder.stdout.readline()
        waiter = threading.Thread(target=lambda: cache.build("kube", "1", lambda _: None))
        waiter.start()
        wait_until(lambda: here.line() != "", 60, "somebody to wait")
        assert f": process {holder.pid}" in here.line()
        holder.communicate("\n")
        waiter.join(60)
    assert (own_cache / "kube" / "1").exists()
    told = capfd.readouterr().err
    assert "kube-1 is taken: waiting for the one that has held it for " in told
    assert f"process {holder.pid}" in told
    assert f"process {os.getpid()}" in (own_cache / "locks" / "kube-1.lock").read_text()


def test_a_command_of_the_bootstrap_is_a_step(tmp_path: Path) -> None:
    def step(*command: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "tests.cluster.progress", "the packages", *command]
        return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)

    done = step("sh", "-c", "echo much; echo more >&2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    failed = step("sh", "-c", "echo much; echo the reason >&2; exit 7")
    assert failed.returncode == 7
    assert "much\nthe reason\nlogkeep test bed: the packages ended with 7" in failed.stderr


def test_the_demo_may_not_ask_for_what_is_not_in_its_list(own_cache: Path) -> None:
    (own_cache / "azurite" / "1").mkdir(parents=True)
    (own_cache / "kube" / "1").mkdir(parents=True)
    refused = pytest.raises(RuntimeError, match=r"azurite is not one of .*kube.*tests/cluster/prepare\.py")
    with cache.only(prepare.kinds(prepare.DEMO)):
        cache.build("kube", "1", lambda _: None)
        with refused:
            cache.build("azurite", "1", lambda _: None)
    cache.build("azurite", "1", lambda _: None)


def test_the_demo_says_that_it_must_be_root_before_it_builds_anything(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system, "is_root", lambda: False)
    assert demo.main([]) == 2
    assert capfd.readouterr().err == "the demo starts a Kubernetes node, for which it must be root\n"


def test_a_kind_belongs_to_one_part() -> None:
    found = prepare.kinds((*prepare.DEMO, prepare.KEPT, *prepare.TESTS))
    assert len(found) == len(set(found))


def test_a_part_that_fails_is_named_at_once(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ValueError("no network")

    parts = [prepare.Part("helm", fail, ()), prepare.Part("kube", lambda: None, ())]
    with pytest.raises(ValueError, match="no network"):
        prepare.prepare(parts)
    told = capfd.readouterr().err
    assert "helm failed: no network. The other parts come to their end" in told
    assert "1 of 2 ready: kube, after 0 s" in told

"""docs/compatibility.md says which versions of Kafka were tried: those that the test bed runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import versions
from tests.cluster.kafka_tools import without_beginnings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/compatibility.md").read_text()
ROWS = re.findall(r"^\| (\d+\.\d+\.\d+) \| (\w+) \| (\w+) \| (.*) \|$", PAGE, re.MULTILINE)


def test_the_page_has_the_versions_that_tests_run_and_no_others() -> None:
    run = {versions.NEWEST, versions.TIERED, *versions.BESIDES}
    assert [row[0] for row in ROWS] == sorted(run, key=lambda version: [*map(int, version.split("."))], reverse=True)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_it_says_what_tests_do_with_a_version(row: tuple[str, str, str, str]) -> None:
    version, backup, restore, tried = row
    files = re.findall(r"`(tests/\S+\.py)`", tried)
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert ("tests/kafka/test_versions.py" in files) == (version in versions.BESIDES)
    assert (backup, restore) == ("yes", "yes" if versions.at_least(version, versions.OLDEST_TARGET) else "refused")
    if version in versions.BESIDES:
        assert (version, versions.NEWEST) in versions.PAIRS
        assert ((versions.NEWEST, version) in versions.PAIRS) == (restore == "yes")
        assert f"to {versions.NEWEST}" in tried


def test_install_promises_the_oldest() -> None:
    text = (ROOT / "docs/install.md").read_text()
    oldest, target = versions.OLDEST.rpartition(".")[0], versions.OLDEST_TARGET
    assert f"Backups need Kafka {oldest} or newer, restores need Kafka {target} or newer." in text
    assert f"Backups need Kafka {oldest} or newer, restores need Kafka {target} or newer." in PAGE


@pytest.mark.parametrize("name", ["latest", "4", "4.x", "v4.4.0", "4.4.0-rc1"])
def test_what_is_no_version_is_reported(name: str) -> None:
    with pytest.raises(ValueError, match=rf"'{re.escape(name)}' is not a version of Kafka such as \d"):
        versions.chosen({"LOGKEEP_KAFKA": name})


def test_tests_may_run_another_version_if_it_needs_no_zookeeper() -> None:
    assert (versions.chosen({}), versions.chosen({"LOGKEEP_KAFKA": "3.9.1"})) == (versions.NEWEST, "3.9.1")
    with pytest.raises(ValueError, match=r"LOGKEEP_KAFKA=2\.8\.2: Kafka before 3\.3 needs ZooKeeper"):
        versions.chosen({"LOGKEEP_KAFKA": "2.8.2"})


def test_the_page_says_on_which_versions_all_broker_tests_run() -> None:
    assert f"`make test-deep` runs all tests with a broker on {' and '.join(versions.OTHERS)}, too." in PAGE


def test_what_came_with_a_newer_kafka_is_left_out_and_listed() -> None:
    file = "tests/kafka/test_streams_groups.py"
    ran = {
        version: subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", file],
            cwd=ROOT,
            env={**os.environ, "LOGKEEP_KAFKA": version},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        for version in ("4.1.1", "4.2.1")
    }
    assert f"not run on Kafka 4.1.1, came with 4.2: {file} (1 test)" in ran["4.1.1"]
    assert f"{file}::" not in ran["4.1.1"]
    assert f"{file}::" in ran["4.2.1"]
    assert "not run" not in ran["4.2.1"]


@pytest.mark.parametrize(
    ("version", "config", "dump"),
    [("4.4.0", "org.apache.kafka.tools", "org.apache.kafka.tools"), ("4.2.1", "kafka.admin", "kafka.tools")],
)
def test_tools_have_moved(version: str, config: str, dump: str) -> None:
    assert versions.main_class("ConfigCommand", version) == f"{config}.ConfigCommand"
    assert versions.main_class("DumpLogSegments", version) == f"{dump}.DumpLogSegments"


def test_a_segment_that_does_not_begin_at_0_is_no_complaint_and_a_gap_is_one() -> None:
    said = (
        "Non-consecutive offsets in 00000000000000000567.log\n  -1 is followed by 567\n"
        "Non-consecutive offsets in 00000000000000001245.log\n  -1 is followed by 1245\n  1250 is followed by 1252\n"
        "Mismatches in :00000000000000000567.index\n  Index offset: 1, log offset: 2\n"
    )
    assert without_beginnings(said) == (
        "Non-consecutive offsets in 00000000000000001245.log\n  1250 is followed by 1252\n"
        "Mismatches in :00000000000000000567.index\n  Index offset: 1, log offset: 2\n"
    )

"""Which tests are near which package: `make check P=archive` and `make test-near P=archive` ask here.

    python -m tests.near archive            its tests without a broker
    python -m tests.near archive --parts    its tests with a broker, an API server or a simulated cluster

A file may be near several packages. The tests on a node (`tests/e2e`) are near all of them: `make test-e2e`.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tests.lanes.plan import test_files

ROOT = Path(__file__).parents[1]
EVERYWHERE = "tests/e2e/*"


@dataclass(frozen=True)
class Near:
    """Patterns of a package's code, of its unit tests, and of its tests with real or simulated parts."""

    code: tuple[str, ...]
    unit: tuple[str, ...]
    parts: tuple[str, ...] = ()


def _engine(*names: str) -> tuple[str, ...]:
    return tuple(f"engine/logkeep_engine/{name}" for name in names)


def _unit(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/unit/{name}" for name in names)


def _broker(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/kafka/test_{name}.py" for name in names)


MODEL = ("tests/model/*",)


def _simulated(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/simulation/test_{name}.py" for name in names)


PACKAGES: Mapping[str, Near] = {
    "archive": Near(
        _engine("archive", "archiving*", "digest*", "frame*"),
        _unit("archive/*", "test_archiving.py", "test_frame.py", "test_signed_runs.py"),
        (
            *_broker(
                "archive_s3",
                "compressed_segments",
                "cost",
                "generations",
                "merging",
                "object_lock",
                "retention*",
                "rolled_back",
                "signed_s3",
                "transactions",
                "toolbox_s3",
            ),
            *MODEL,
        ),
    ),
    "backup": Near(
        _engine("backup", "archiving*", "frame*"),
        _unit("backup/*", "test_archiving.py", "test_frame.py"),
        (
            *_broker(
                "archive_report",
                "backup*",
                "balance",
                "forged_backup_plan",
                "cluster_state",
                "everything",
                "created_again",
                "divergence",
                "dry_run",
                "follower_reads",
                "gaps",
                "holes",
                "hostile_batches",
                "old_brokers",
                "reconcile",
            ),
            *_broker(
                "rights",
                "acls",
                "round_trip_property",
                "task_memory",
                "tiered",
                "transactions",
                "versions",
                "kfake",
                "misrouted",
            ),
            *_simulated("coverage", "history", "ledger", "requests", "schedules", "stale_brokers", "unlisted_topics"),
            "tests/ledger/*",
        ),
    ),
    "bench": Near(("bench",), _unit("bench/*"), _broker("bench")),
    "cli": Near(
        _engine("cli*", "collector*", "interrupt*", "page*", "report*"),
        (
            *_unit("test_cli*.py", "test_collector.py", "test_hints.py", "test_interrupt.py", "test_report.py"),
            *_unit("test_run_shown.py"),
            *_unit("test_hostile_text.py", "test_page.py"),
            *_unit("archive/maintenance/test_cost.py", "archive/maintenance/test_inspect.py", "toolbox/test_output.py"),
        ),
        (*_broker("cli", "dry_run", "spark_start"), "tests/apiserver/test_kubectl_plugin.py"),
    ),
    "compaction": Near(
        _engine("compaction"),
        _unit("compaction/*", "backup/test_snapshots.py", "log/test_compaction.py"),
        (*_broker("branch_snapshots", "log_dump_tool", "snapshots"), *MODEL),
    ),
    "compare": Near(
        _engine("compare"),
        _unit("compare/*", "backup/test_reconcile_model.py", "restore/test_verif*.py"),
        (*_broker("drill", "divergence", "reconcile", "toolbox_s3", "verify_*"), *MODEL),
    ),
    "contract": Near(
        _engine("contract", "errors*", "stored*"),
        _unit(
            "contract/*", "operator/test_template_checks.py", "test_cli_checks.py", "test_examples.py", "test_report.py"
        ),
        _broker("patterns"),
    ),
    "convert": Near(
        _engine("convert"),
        _unit("convert/*"),
        (*_broker("convert", "import", "format_round_trip"), *MODEL),
    ),
    "erasure": Near(_engine("erasure", "archiving*", "frame*"), _unit("erasure/*"), (*_broker("erasure_s3"), *MODEL)),
    "formats": Near(
        _engine("formats"),
        _unit("formats/*", "archive/writing/test_record_*.py"),
        _broker("backup_formats", "format_round_trip", "restore_formats"),
    ),
    "kafka": Near(
        _engine("kafka", "limits*"),
        _unit("kafka/*", "test_limits.py"),
        (
            *_broker(
                "control_plane", "fetch", "follower_reads", "kept_pool", "limits", "positions", "produce", "survey"
            ),
            *_broker("ipv6", "kfake", "misrouted", "msk_iam", "oauth", "renewed_logins", "share_groups"),
            *_broker("streams_groups", "topics_not_known_yet"),
            *_simulated("partition_log", "protocol", "unlisted_topics"),
        ),
    ),
    "kernel": Near(
        ("kernel",),
        _unit("kernel/*", "formats/*", "log/*", "test_loop.py"),
        _broker("format_round_trip", "hostile_batches", "log_dump_tool"),
    ),
    "log": Near(_engine("log"), _unit("log/*"), _broker("hostile_batches", "log_dump_tool")),
    "operator": Near(("operator/logkeep_operator",), _unit("operator/*", "test_examples.py"), ("tests/apiserver/*",)),
    "restore": Near(
        _engine("restore"),
        _unit("restore/*"),
        (
            *_broker(
                "cold_*",
                "drill",
                "dry_run",
                "everything",
                "exit_codes",
                "forged_state",
                "forgotten_producers",
                "point",
                "restore*",
                "rights",
                "acls",
            ),
            *_broker("kfake", "newer_features", "round_trip_property", "verify_restored", "versions"),
            *MODEL,
            *_simulated("append", "count", "empty_restores", "restore_state", "restores_again", "schedules"),
            "tests/ledger/*",
        ),
    ),
    "spark": Near(
        (*_engine("spark", "tasks*"), "engine/pyspark_logkeep"),
        _unit("spark/*", "test_leases.py", "test_progress.py"),
        _broker("ipv6", "spark_*", "limits", "task_memory"),
    ),
    "storage": Near(
        _engine("storage*"),
        _unit("storage/*"),
        _broker("archive_s3", "cold_*", "policies", "s3_*", "storage*", "stores", "toolbox_s3"),
    ),
    "tests": Near(
        ("tests",),
        (
            *_unit(
                "lanes/*",
                "test_architecture.py",
                "test_as_it_was.py",
                "test_import_rules.py",
                "test_loop.py",
                "test_near.py",
            ),
            *_unit(
                "test_compatibility.py", "test_docstrings.py", "test_glossary.py", "test_links.py", "test_profiles.py"
            ),
            *_unit("test_listed.py", "test_locked.py", "test_names.py", "test_release.py", "test_repository_layout.py"),
            *_unit("test_shell.py", "test_site.py", "test_workflows.py", "test_documented_*.py"),
        ),
        (
            *_broker("bed*", "compare", "quickstart"),
            *_simulated("history", "ledger", "partition_log"),
            "tests/apiserver/test_bed.py",
            "tests/apiserver/test_quickstart.py",
        ),
    ),
    "toolbox": Near(
        _engine("toolbox"),
        _unit("toolbox/*", "compare/test_diff.py"),
        _broker("toolbox_*", "log_dump_tool"),
    ),
}


def fitting(patterns: Iterable[str], files: Iterable[str]) -> list[str]:
    """The files that one of the patterns fits."""
    wanted = tuple(patterns)
    return [path for path in files if any(fnmatch(path, pattern) for pattern in wanted)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the test files, or say which packages there are."""
    parser = argparse.ArgumentParser(prog="python -m tests.near", description=__doc__)
    parser.add_argument("package", nargs="?", default="")
    parser.add_argument("--parts", action="store_true", help="the tests with real or simulated parts")
    options = parser.parse_args(arguments)
    near = PACKAGES.get(options.package)
    if near is None:
        text = f"there is no package {options.package!r}" if options.package else "name a package"
        print(f"{text}: P=one of {', '.join(PACKAGES)}", file=sys.stderr)
        return 2
    print(*fitting(near.parts if options.parts else near.unit, test_files(ROOT)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

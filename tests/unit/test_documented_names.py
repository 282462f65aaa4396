"""Places and Secrets have the same names on every page and in every example: who reads two finds one archive."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.yaml")),
    *sorted((ROOT / "charts/logkeep").glob("*.md")),
    ROOT / "charts/logkeep/templates/NOTES.txt",
]
PLACES = {
    "backups/kafka-prod": "the archive",
    "restores/restores": "the state of restores",
    "bucket/prefix": "any place",
    "container/prefix": "any place",
    # Archives of their own: of a walk-through, and of examples that are applied beside each other.
    "backups/quickstart": "docs/guides/strimzi-quickstart.md",
    "backups/flights": "the demo",
    "backups/move": "docs/guides/move-a-cluster.md",
    "backups/audit": "examples/backup-sha256.yaml",
    "backups/compacted": "examples/backup-compacted.yaml",
    "backups/orders-avro": "examples/backup-avro.yaml",
    "backups/redpanda-prod": "examples/redpanda.yaml",
}
SECRETS = {
    "archive-s3": "of S3",
    "archive-google": "of Google",
    "archive-azure": "of Azure",
    "read-only": "docs/guides/while-a-restore-runs.md, of the archive",
    "read-write": "docs/guides/while-a-restore-runs.md, of the state",
}
PLACE = re.compile(r"\b(?:s3|gs|az)://([a-z0-9][a-z0-9.-]*/[a-z0-9.-]*[a-z0-9])")
SECRET = re.compile(r"credentials:\s*\{?\s*secretRef:\s*\{?\s*name: ([A-Za-z0-9._-]+)")


def unknown(text: str) -> Iterator[str]:
    """Yield the places and the Secrets of stores that have other names than they have elsewhere."""
    yield from (place for place in PLACE.findall(text) if place not in PLACES)
    yield from (name for name in SECRET.findall(text) if name not in SECRETS)


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_and_an_example_name_places_and_secrets_as_the_others_do(path: Path) -> None:
    assert list(unknown(path.read_text())) == [], "take the names of PLACES and SECRETS, or add an archive of its own"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("uri: s3://backups/prod\n", ["backups/prod"]),
        ("`logkeep inspect gs://lake/kafka-prod`", ["lake/kafka-prod"]),
        ("uri: s3://backups/kafka-prod/runs/1\n", []),
        ("s3://backups/kafka-prod.", []),
        ("credentials:\n      secretRef:\n        name: s3-keys\n", ["s3-keys"]),
        ("credentials: {secretRef: {name: minio}}", ["minio"]),
        ("credentials:\n  secretRef: {name: archive-s3}\n", []),
        ("sasl:\n  secretRef: {name: kafka-user}\n", []),
    ],
)
def test_another_name_is_found(text: str, found: list[str]) -> None:
    assert list(unknown(text)) == found


def test_no_name_is_left_over() -> None:
    whole = "\n".join(path.read_text() for path in OURS)
    assert set(PLACES) <= set(PLACE.findall(whole))
    assert set(SECRETS) <= set(SECRET.findall(whole))

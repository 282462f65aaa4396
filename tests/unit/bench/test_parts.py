"""Each step of moving batches is measured."""

from pathlib import Path

from bench import parts


def test_each_step_has_a_cost_and_nothing_is_left_behind(tmp_path: Path) -> None:
    rows = parts.measure(tmp_path, 8 << 20)
    assert [row["step"].split()[0] for row in rows] == [
        "receive", "CRC-32C", "SHA-256", "BLAKE3", "write", "read", "send", "walk", "walk",
    ]  # fmt: skip
    assert all(row["CPU s/GB"] >= 0 for row in rows)
    assert list(tmp_path.iterdir()) == []

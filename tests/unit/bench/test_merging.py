"""The play of merges by their rules: nothing of what it counts grows without bound."""

import random

from bench.merging import LEAST, MIX, Neighbours, kinds_of, play
from logkeep_engine.archive.maintenance.merging import chosen


def test_what_may_be_merged_is_never_passed_over() -> None:
    rng = random.Random(1)
    found = 0
    for _ in range(200):
        of = Neighbours()
        for _ in range(rng.randint(1, 120)):
            of.sizes.append(LEAST + int(rng.expovariate(1 / rng.choice([5, 50, 500]))))
            ranges = sorted(chosen(of.sizes, 8), reverse=True)
            assert of.may_merge(8) or not ranges
            for start, end in ranges:
                found += 1
                of.sizes[start:end] = [sum(of.sizes[start:end])]
                of.changed()
    assert found > 100


def test_the_kinds_are_all_of_the_partitions() -> None:
    kinds = kinds_of(300, 1)
    assert len(kinds) == 300
    assert {kind: kinds.count(kind) for kind in MIX} == {kind: round(300 * kind.part) for kind in MIX}


def test_days_of_merges_keep_packs_and_rows_few() -> None:
    rows = list(play(20, 4, grace=0))
    assert [row["days"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row["dead_bytes"] <= 3 * row["live_bytes"], "a pack that is less than a quarter alive is cleared"
        assert row["rewritten"] <= 4
        assert row["packs"] <= 300, "they are deleted as fast as they are made, but for four times 64"
    assert rows[-1]["rows"] <= 20 * 100
    assert sum(row["archived_a_day"] for row in rows) == rows[-1]["live_bytes"] + rows[-1]["own_bytes"]

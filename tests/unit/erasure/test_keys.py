"""The keys of an erasure on their way to its tasks."""

import pickle
from functools import partial
from pathlib import Path

from logkeep_engine.archive.maintenance.rewriting import RewritePlace
from logkeep_engine.erasure.work import ErasureSetting, erase_task, works_of
from logkeep_engine.log.keys import WantedKeys
from logkeep_engine.storage import LocalStorage
from tests.unit.erasure.erasing import KEY, archive_batches, batch_of, erased, seen, without


def test_many_keys_travel_with_the_function_of_the_tasks_and_not_with_each_of_them(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path.as_uri())
    state = archive_batches(storage, [[batch_of(at, [b"%d" % at])] for at in range(3)]).load()
    keys = [b"customer-%d" % number for number in range(10_000)]
    setting = ErasureSetting(RewritePlace(storage, 2), WantedKeys.of(keys))
    sent = pickle.dumps(partial(erase_task, setting))
    assert len(sent) < 33 * len(keys)
    assert not any(key in sent for key in keys[:100])
    assert all(len(pickle.dumps(work)) < 2000 for work in works_of(state, "orders", [KEY[0]]))


def test_keys_of_many_lengths_are_found(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path.as_uri())
    keys = [b"k" * length for length in range(40)]
    archive_batches(storage, [[batch_of(0, [*keys, None])]])
    gone = [*keys[::2], b"nobody has it"]
    expected = without(seen(storage), *gone)
    assert (erased(storage, *gone).records, seen(storage)) == (20, expected)

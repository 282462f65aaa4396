"""Plays histories, and makes those that fail short.

python -m tests.model.play --first 0 --count 1000
python -m tests.model.play --seed 4711
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import MISSING, fields, replace
from functools import partial
from typing import Any

from logkeep_engine.errors import LogkeepError
from tests.model.actions import History, random_history
from tests.model.asking import Fault
from tests.model.known import known
from tests.model.readers import check
from tests.model.world import World, clock_of

Wanted = Callable[[Fault], bool]


def play(history: History, *, thorough: bool = False, counts: Counter[str] | None = None) -> Iterator[Fault]:
    """All faults of a history, as they come. `thorough`: every time and every offset is asked for. `counts`: what was
    done how often, and what came of it."""
    logging.disable(logging.CRITICAL)
    world = World(history.settings)
    world.counts = Counter() if counts is None else counts
    try:
        with clock_of(world):
            for number, action in enumerate(history.actions):
                world.counts[f"action: {type(action).__name__}"] += 1
                try:
                    said = action.on(world)
                    if said is not None:
                        yield said
                    if type(action).__name__ not in _QUIET:
                        yield from check(world, None if thorough else number)
                except (LogkeepError, ValueError, AssertionError, KeyError, IndexError) as error:
                    yield Fault("fails", type(action).__name__, "", f"{type(error).__name__}: {error}", world.had())
                    return
    finally:
        logging.disable(logging.NOTSET)


_QUIET = {"Write", "Clean", "Expire", "CutOff", "Recreate", "AddPartition", "AddTopic", "SetPolicy", "Wait"}


def first_fault(history: History, wanted: Wanted = lambda fault: True) -> Fault | None:
    """The first fault that is wanted."""
    return next(filter(wanted, play(history)), None)


def shrunk(history: History, wanted: Wanted) -> History:
    """A shorter history that has a wanted fault, too."""

    def fails(tried: History) -> bool:
        return first_fault(tried, wanted) is not None

    size = len(history.actions) // 2
    while size:
        at = 0
        while at < len(history.actions):
            tried = replace(history, actions=history.actions[:at] + history.actions[at + size :])
            if fails(tried):
                history = tried
            else:
                at += size
        size //= 2
    for name, usual in _changes(history.settings, keeps=("policy", "format")).items():
        tried = replace(history, settings=replace(history.settings, **{name: usual}))
        history = tried if fails(tried) else history
    for at in range(len(history.actions)):
        for name, usual in _changes(history.actions[at]).items():
            action = replace(history.actions[at], **{name: usual})
            tried = replace(history, actions=(*history.actions[:at], action, *history.actions[at + 1 :]))
            history = tried if fails(tried) else history
    return history


def _changes(item: Any, keeps: Collection[str] = ()) -> dict[str, Any]:
    """The fields that are not as usual, with what is usual."""
    own = [field for field in fields(item) if field.name not in keeps and field.default is not MISSING]
    return {field.name: field.default for field in own if getattr(item, field.name) != field.default}


def found_in(seed: int, counts: Counter[str]) -> Counter[str]:
    """How often each fault comes in the history of a seed; a new one by all that tells it."""
    found: Counter[str] = Counter()
    for fault in play(random_history(seed), counts=counts):
        found[known(fault) or f"NEW: {fault} {sorted(fault.features)}"] += 1
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Play seeds and print what they find, or one and print it short."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.play", description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, help="show this one, made short")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _show(options.seed)
    began, histories, counts = time.monotonic(), Counter[str](), Counter[str]()
    for seed in range(options.first, options.first + options.count):
        for name in found_in(seed, counts):
            histories[name if not name.startswith("NEW") else "NEW"] += 1
            if name.startswith("NEW"):
                print(f"seed {seed}: {name}", flush=True)
    actions = sum(count for name, count in counts.items() if name.startswith("action: "))
    print(f"{options.count} histories of {actions} actions in {time.monotonic() - began:.0f} s:")
    for name, count in sorted(counts.items()):
        print(f"{count:8d} {name}")
    print("histories that have each fault:")
    for name, count in histories.most_common():
        print(f"{count:8d} {name}")
    return int("NEW" in histories)


def _are_alike(one: Fault, other: Fault) -> bool:
    return (known(one), one.kind, one.reader) == (known(other), other.kind, other.reader)


def _show(seed: int) -> int:
    """Print the new fault of a seed with the shortest history that has it; without a new one, each known fault."""
    faults = list(play(random_history(seed)))
    new = [fault for fault in faults if not known(fault)]
    for fault in new[:1] or {known(fault): fault for fault in reversed(faults)}.values():
        like = partial(_are_alike, fault)
        short = shrunk(random_history(seed), like)
        print(f"{known(fault) or 'NEW'}: {first_fault(short, like)}\n{short}")
    return bool(new)


if __name__ == "__main__":
    sys.exit(main())

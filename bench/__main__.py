"""`make bench`, or `python -m bench`: load topics, measure, print one table, store the samples as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench import (
    bed,
    contenders,
    digest,
    hostile,
    load,
    memory,
    parts,
    plan,
    process,
    report,
    requests,
    results,
    topics,
)
from bench.bed import Bed
from bench.contenders import Sample, Stage
from bench.load import Loaded
from bench.peer import UnknownPeer, find
from bench.plan import BROKER_CORE, ENGINE_CORE, SECTIONS, Group, Options, Turn
from bench.results import Results, Row
from logkeep_engine.contract.model import replace
from tests.cluster import cache

FOLDER = Path(__file__).parent / "results"
QUICK_FACTOR = 10
STOLEN_MOST = 0.1  # of a sample's seconds
TRIES = 3
DEFAULT = tuple(section for section in SECTIONS if section != "memory")  # needs 40 GB of disk and ten minutes


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the arguments say; exit code 2 for arguments that make no sense, 1 if a contender failed."""
    parsed = _parser().parse_args(arguments)
    try:
        options = _options(parsed)
    except (KeyError, UnknownPeer) as error:
        print(f"bench: {error.args[0]}", file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    path = parsed.output or FOLDER / f"{results.now().replace(':', '')}.json"
    words = " ".join(arguments if arguments is not None else sys.argv[1:])
    if parsed.peer:
        words = words.replace(parsed.peer, Path(parsed.peer).name)  # results are published: no paths of this machine
    found = measure(options, words, lambda part: path.write_text(part.to_json()))
    path.write_text(found.to_json())
    report.print_tables(found)
    print(f"\nstored in {path}")
    for section, topic, who, message in found.facts.get("failed", ()):
        print(f"failed: {section} {topic} {who}: {message.splitlines()[-1]}", file=sys.stderr)
    return 1 if "failed" in found.facts else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", default="", help=f"sections, with commas: {', '.join(SECTIONS)}; all but memory")
    parser.add_argument("--topics", default="", help=f"with commas: {', '.join(t.name for t in topics.TOPICS)}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, two samples: a look, no figures")
    parser.add_argument(
        "--repeat", type=int, default=5, help="samples of engine, floor and the peer's backups at main topics"
    )
    parser.add_argument("--repeat-slow", type=int, default=3, help="samples of the others")
    parser.add_argument("--peer", default="", help="path of another backup tool (see bench/peer.py)")
    parser.add_argument("--output", type=Path, help="where the JSON goes; by default bench/results/<time>.json")
    return parser


def _options(parsed: argparse.Namespace) -> Options:
    wanted = [part for part in parsed.only.split(",") if part] or list(DEFAULT)
    unknown = set(wanted) - set(SECTIONS)
    if unknown:
        raise KeyError(f"no section {sorted(unknown)[0]!r}: there are {', '.join(SECTIONS)}")
    chosen = topics.named([part for part in parsed.topics.split(",") if part]) if parsed.topics else topics.TOPICS
    factor = QUICK_FACTOR if parsed.quick else 1
    return Options(
        sections=frozenset(wanted),
        topics=tuple(topic.shrunk(factor) for topic in chosen),
        repeat=2 if parsed.quick else parsed.repeat,
        repeat_slow=1 if parsed.quick else parsed.repeat_slow,
        peer=find(parsed.peer) if parsed.peer else None,
        factor=factor,
    )


def measure(options: Options, command: str, keep: Callable[[Results], object]) -> Results:
    """Everything that `options` ask for. `keep` gets what there is after every row.

    A contender that fails is left out from then on, and the facts name it; the others continue.
    """
    found = Results(
        machine=results.machine(),
        started=results.now(),
        commit=results.commit(),
        options=command,
        bare=int(json.loads(process.run([sys.executable, "-c", _BARE]).output)),
        rows=(),
    )
    if options.peer is not None:
        found.facts["peer"] = {"name": options.peer.name, "version": options.peer.version}
    rows: list[Row] = []
    if options.sections & {"pinned", "backup", "restore", "s3", "spark", "scaling", "decode", "formats", "trust"}:
        for topic in options.topics:
            if groups := plan.groups(topic, options):
                with bed.started(s3=any(group.where == "s3" for group in groups)) as here:
                    loaded = load.load(here.bootstrap, topic)
                    _say(f"{topic.name}: {loaded.wire_bytes / 1e6:.0f} MB loaded in {loaded.seconds:.1f} s")
                    found.topics[topic.name] = _described(loaded)
                    for row in _at_topic(here, loaded, groups, options, found):
                        rows.append(row)
                        keep(replace(found, rows=tuple(_merged(rows))))
    _facts(found, options)
    return replace(found, rows=tuple(_merged(rows)))


def _facts(found: Results, options: Options) -> None:
    """The sections that are not rows of samples."""
    if "parts" in options.sections:
        with tempfile.TemporaryDirectory(dir=cache.root(), prefix="bench-") as folder:
            found.facts["parts"] = parts.measure(Path(folder))
    if "digest" in options.sections:
        found.facts["digest"] = digest.measure(digest.RECORDS // options.factor)
    if "requests" in options.sections:
        with bed.started(s3=True) as here:
            topic = topics.named(["plain-1k"])[0].shrunk(options.factor)
            found.facts["requests"] = requests.measure(here, topic, options.factor)
    if "scale" in options.sections:
        only = ["--only", "plan"] if options.factor > 1 else []
        command = [sys.executable, "-m", "bench.scale", *only]
        usage = process.run(command, env=contenders.environment(), timeout=3600)
        found.facts["scale"] = [json.loads(line) for line in usage.output.splitlines() if line.startswith("{")]
    if "memory" in options.sections:
        sizes = (1, 2) if options.factor > 1 else memory.SIZES_GB
        with bed.started(s3=False) as here:
            found.facts["memory"] = memory.measure(here, sizes)
    if "hostile" in options.sections:
        with bed.started(s3=False) as here:
            found.facts["hostile"] = hostile.measure(here)


_BARE = "print([int(l.split()[1])<<10 for l in open('/proc/self/status') if l.startswith('VmHWM')][0])"


def _described(loaded: Loaded) -> dict[str, object]:
    topic = asdict(loaded.topic)
    return {**topic, "codec": loaded.topic.codec.name.lower(), "wire": loaded.wire_bytes, "visible": loaded.visible}


def _at_topic(here: Bed, loaded: Loaded, groups: Sequence[Group], options: Options, found: Results) -> Iterator[Row]:
    for group in groups:
        cores = (ENGINE_CORE,) if group.pinned else None
        here.pin_broker((BROKER_CORE,) if group.pinned else None)
        stage = Stage(here, loaded, group.where, cores, options.factor)
        yield from _take_turns(stage, group, found)
        contenders.drop_archives(stage)


def _take_turns(stage: Stage, group: Group, found: Results) -> Iterator[Row]:
    contenders.floor_backup(stage)
    if group.before is not None:
        group.before(stage)
    samples: dict[str, list[Sample]] = {turn.who: [] for turn in group.turns}
    out: set[str] = set()
    for number in range(max(turn.repeat for turn in group.turns)):
        for turn in group.turns:
            if number >= turn.repeat or turn.who in out:
                continue
            started = time.monotonic()
            try:
                samples[turn.who].append(_undisturbed(turn, stage))
                _say(f"  {group.section} {group.where} {turn.who}: {time.monotonic() - started:.1f} s")
            except process.Failed as error:
                out.add(turn.who)
                found.facts.setdefault("failed", []).append([group.section, stage.topic, turn.who, str(error)])
                _say(f"  {group.section} {group.where} {turn.who}: {error}")
    for turn in group.turns:
        if samples[turn.who]:
            yield Row(group.section, stage.topic, turn.who, group.where, tuple(samples[turn.who]))


def _undisturbed(turn: Turn, stage: Stage) -> Sample:
    """A sample of a contender. It is taken again, a few times at most, if the host kept the machine from its work."""
    for _ in range(TRIES - 1):
        sample = turn.run(stage)
        if sample.steal <= STOLEN_MOST * sample.wall:
            return sample
        _say(f"  {turn.who}: once more, the host took {sample.steal:.1f} s of {sample.wall:.1f}")
    return turn.run(stage)


def _merged(rows: Sequence[Row]) -> list[Row]:
    """Rows in the order of their tables: sections first, then topics as they came."""
    return sorted(rows, key=lambda row: SECTIONS.index(row.section))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

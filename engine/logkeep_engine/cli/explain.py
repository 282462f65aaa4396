"""The command `explain` of both programs: prints the page about a reason, from what is installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.resources import files
from typing import Annotated

import typer

from logkeep_engine.cli.errors import errors
from logkeep_engine.cli.options import Debug, Output, OutputFormat, spread
from logkeep_engine.cli.output import print_json, print_lines, stdout, table
from logkeep_engine.contract.names import SITE
from logkeep_engine.errors import SpecError

_FOLDER = "docs/conditions"
_LINE = re.compile(r"^\| \[(\w+)\]\(\w+\.md\) \| (.*) \|$", re.MULTILINE)
_MARKUP = re.compile(r"\*\*(.+?)\*\*|(?<!\w)\*([^*\n]+)\*|^#+ ", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")

Reason = Annotated[
    str | None,
    typer.Argument(metavar="REASON", help="The word in front of an error, or of a condition.", show_default=False),
]


@spread
def explain(reason: Reason = None, output: OutputFormat = Output.TEXT, debug: Debug = False) -> None:
    """Print the page about a reason: why it is there, what happens next, what to do. Without REASON all are listed.

    The pages are those of this version. Nothing is asked of a cluster or of the network.
    """
    with errors(debug):
        known = reasons()
        if reason is None:
            _list(known, output)
            return
        name = next((name for name in known if name.lower() == reason.lower()), None)
        if name is None:
            near = get_close_matches(reason.lower(), [name.lower() for name in known], n=1)
            meant = next((name for name in known if near and name.lower() == near[0]), None)
            raise SpecError(
                f"There is no page about {reason!r}",
                hint=f"Did you mean {meant}?" if meant else "Without a word, this command lists all reasons.",
            )
        if output is Output.JSON:
            print_json({"reason": name, "short": known[name], "url": page_url(name), "text": _page(f"{name}.md")})
        else:
            print_lines(f"{_plain(_page(f'{name}.md'))}\n{page_url(name)}\n")


def page_url(reason: str) -> str:
    """Return where the site of the docs has the page about a reason."""
    return f"{SITE}/{_FOLDER}/{reason}.html"


def reasons() -> Mapping[str, str]:
    """Return all reasons that have a page, each with what it means in short."""
    return {name: _LINK.sub(r"\1", short).replace("`", "") for name, short in _LINE.findall(_page("README.md"))}


def _page(name: str) -> str:
    return (files("logkeep_engine") / "conditions" / name).read_text(encoding="utf-8")


def _list(known: Mapping[str, str], output: Output) -> None:
    if output is Output.JSON:
        print_json([{"reason": name, "short": short, "url": page_url(name)} for name, short in known.items()])
        return
    shown = table("reason", "in short")
    for name in sorted(known):
        shown.add_row(name, known[name])
    stdout().print(shown)


def _plain(text: str) -> str:
    """Return a page for a terminal: without markup, and with whole addresses of other pages."""

    def named(link: re.Match[str]) -> str:
        text, target = link[1], link[2]
        beside = re.fullmatch(r"(\w+)\.md", target)
        if beside is not None:
            return beside[1] if beside[1] == text else f"{text} ({beside[1]})"
        if "://" in target:
            return f"{text} ({target})"
        path, _, anchor = target.partition("#")
        parts = [*_FOLDER.split("/")]
        for step in path.split("/"):
            parts = parts[:-1] if step == ".." else [*parts, step]
        url = f"{SITE}/{'/'.join(parts).removesuffix('.md')}.html"
        return f"{text} ({url}{f'#{anchor}' if anchor else ''})"

    kept = []
    for number, part in enumerate(re.split(r"^```.*\n", text, flags=re.MULTILINE)):
        if number % 2:  # between two fences
            kept.append("".join(f"    {line}\n" for line in part.splitlines()))
        else:
            kept.append(_MARKUP.sub(lambda found: found[1] or found[2] or "", _LINK.sub(named, part)))
    return "".join(kept)

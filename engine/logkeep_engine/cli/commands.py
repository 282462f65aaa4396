"""The class of every group of commands: how their `--help` reads, and how what is wrong with an option is said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from logkeep_engine.cli.output import visible

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_CHOICES_IN_A_NAME = 24  # more characters of choices stand in the text of an option, not in its name
_USAGE_ERROR: type[typer.BadParameter] = typer.BadParameter.__mro__[1]  # typer names it nowhere


class Commands(TyperGroup):
    """The commands of a program, listed by what people do with them. What is wrong with an option is said without the
    words of the library below typer, and without characters that do something."""

    def make_context(self, *given: Any, **named: Any) -> Any:
        """Read the options that stand before the command."""
        with _plain_usage_errors():
            return super().make_context(*given, **named)

    def invoke(self, ctx: Any) -> Any:
        """Read the options of the command, and run it."""
        with _plain_usage_errors():
            return super().invoke(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command whose `--help` names the values of its options as people call them."""
        command = super().get_command(ctx, cmd_name)
        for parameter in () if command is None else command.params:
            if isinstance(parameter, TyperArgument):
                _name_argument(parameter)
            elif isinstance(parameter, TyperOption) and not parameter.is_flag:
                _name_value(parameter, ctx)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands in groups, each with its whole first sentence."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows = groups.setdefault(command.rich_help_panel or "Commands", [])
                rows.append((name, first_sentence(command.short_help or command.help or "")))
        column = max((len(name) for rows in groups.values() for name, _ in rows), default=0)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(column), text) for name, text in rows])


def first_sentence(text: str) -> str:
    """Return the first sentence of a command's help, without what stands after a semicolon."""
    return re.split(r"(?<=[.;])\s", " ".join(text.split()), maxsplit=1)[0].rstrip(".;") + "."


def _name_argument(argument: TyperArgument) -> None:
    """Let the help show an argument by its name alone: URI, [NAME], SOURCE..."""
    name = argument.metavar or argument.name or ""
    more = "..." if argument.nargs != 1 else ""
    usage = f"{name}{more}" if argument.required else f"[{name}]{more}"
    for what, shown in (("_usage_display_name", usage), ("display_type_rich", ""), ("_rich_display_name", name)):
        setattr(argument, what, lambda *_, shown=shown, **__: shown)


def _name_value(option: TyperOption, ctx: Any) -> None:
    """Give the value of an option a name: its choices, a number, or the last word of the option."""
    word = option.metavar or max(option.opts, key=len).rpartition("-")[2].upper()
    choices = re.sub(r"^<(?:list\[)?|\]?>$", "", option.display_type(ctx)) if option.type_descriptor.is_choice else ""
    if choices and option.metavar is None and len(choices) <= _CHOICES_IN_A_NAME:
        option.metavar = choices
    elif choices and option.metavar != choices:
        option.metavar = word
        said = f"One of {choices.replace('|', ', ')}."
        option.help = f"{option.help or ''} {said}" if said not in (option.help or "") else option.help
    elif option.metavar is not None:
        return
    elif option.display_type(ctx) in ("<int>", "<int range>", "<list[int]>"):
        option.metavar = "N"
    else:
        option.metavar = word


@contextmanager
def _plain_usage_errors() -> Iterator[None]:
    try:
        yield
    except _USAGE_ERROR as error:
        error.message = visible(error.message.removeprefix("Value error, "))
        raise

"""Regular expressions that users write, and the choice of names by them: the one door to the engine that matches them.

The engine is RE2. The time for a match grows with the lengths of the name and of the pattern, whatever the pattern
says, and each pattern has a bound of memory. Python's `re` may need years for a short pattern such as `(a+)+b`.
https://github.com/google/re2/wiki/Syntax describes the syntax: it has no lookarounds and no backreferences. A dot
matches line breaks, too, since a consumer group's id may hold any character.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import re2

MAX_PATTERN_LENGTH = 1024
MAX_PATTERNS = 500
# RE2 takes two thirds of the memory for the program of a pattern: 10,923 steps. `.{1000}` has 7,004.
_MEMORY = 1 << 20
# The steps of all patterns of a list. This bounds the time to read a resource: 100,000 steps take about 30 ms.
MAX_STEPS = 100_000
_MEMORY_OF_LIST = 16 << 20
_ANY = ".*"  # the pattern of most users; it needs no engine
_LACKING = re.compile(r"\(\?(<?[=!]|P=|>|\()|[*+?}]\+|\\[1-9]")
# RE2 takes a number with this many digits for text.
_ENDLESS = re.compile(r"\{[0-9]{9,}|\{[0-9]*,[0-9]{9,}")
# A number of times that Python's `re` reads. RE2 takes it for text, so the pattern would choose nothing, in silence.
_UNREAD = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\x\{[^}]*\}|\\.|\[\^?\]?(?:\\.|\[:[a-z^]*:\]|[^\]\\])*\]|"
    r"(?P<times>\{(?:,[0-9]*|0[0-9]+(?:,[0-9]*)?|[0-9]+,0[0-9]+)\})",
    re.DOTALL,
)
_QUOTED = r"\Q"  # RE2 takes all up to `\E` for text, up to the end where there is none
_IN_TEMPLATE = re.compile(r"\\(?:([1-9][0-9]?)|g<([0-9]{1,2}|[A-Za-z_][A-Za-z0-9_]*)>|(\\))")


class PatternInvalid(ValueError):
    """The message says what is wrong with a pattern, and does not repeat it."""


class Pattern:
    """A regular expression. Raises PatternInvalid."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._compiled = _compiled(text)

    def matches(self, name: str) -> bool:
        """Return whether it matches the whole name."""
        return self.text == _ANY or self._compiled.fullmatch(_bytes(name)) is not None

    def occurs_in(self, text: str) -> bool:
        """Return whether it matches a part of the text."""
        return self._compiled.search(_bytes(text)) is not None

    @property
    def steps(self) -> int:
        """The size of its program: it bounds the time of a match for each byte."""
        return int(self._compiled.programsize)


class RenameRule:
    """A pattern for whole names, and what becomes of the names that it matches: `to` may use its groups as \\1 or
    \\g<name>, and \\\\ is a backslash. Raises PatternInvalid for the pattern, and ValueError for `to`.
    """

    def __init__(self, pattern: str, to: str) -> None:
        self._compiled = _compiled(pattern, captures=True)
        self._parts = self._read(to)

    def new_name(self, name: str) -> str | None:
        """Return the name that a name gets, or None if the rule does not match it."""
        match = self._compiled.fullmatch(_bytes(name))
        if match is None:
            return None
        return "".join(part if isinstance(part, str) else (match[part] or b"").decode() for part in self._parts)

    @property
    def steps(self) -> int:
        """The size of the pattern's program."""
        return int(self._compiled.programsize)

    def _read(self, to: str) -> list[str | int]:
        """Return the pieces of the new name: text, and numbers of groups."""
        parts: list[str | int] = []
        rest = to
        while rest:
            plain, backslash, rest = rest.partition("\\")
            parts.append(plain)
            if not backslash:
                break
            found = _IN_TEMPLATE.match("\\" + rest)
            if found is None:
                raise ValueError(f"'\\{rest[:1]}' must be \\1 to \\99, \\g<name> or \\\\")
            rest = rest[found.end() - 1 :]
            parts.append("\\" if found[3] else self._group(found[1] or found[2]))
        return parts

    def _group(self, group: str) -> int:
        number = int(group) if group.isdigit() else self._compiled.groupindex.get(group)
        if number is None or number > self._compiled.groups:
            raise ValueError(f"the pattern has no group {group}")
        return int(number)


class NamePatterns:
    """Regular expressions that must match a whole name: one of `include`, and none of `exclude`."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str] = ()) -> None:
        self._each = [Pattern(text) for text in include]
        self._include = _any_of(self._each)
        self._exclude = _any_of([Pattern(text) for text in exclude])

    def chooses(self, name: str) -> bool:
        """Return whether the patterns choose the name."""
        return any(pattern.matches(name) for pattern in self._include) and not self.excludes(name)

    def excludes(self, name: str) -> bool:
        """Return whether `exclude` leaves the name out, whatever `include` says."""
        return any(pattern.matches(name) for pattern in self._exclude)

    def unmatched(self, names: Collection[str]) -> list[int]:
        """Return the places in `include` of the patterns that match none of these names. `.*` takes what there is, so
        it names nothing that could be missing."""
        return [
            at
            for at, pattern in enumerate(self._each)
            if pattern.text != _ANY and not any(pattern.matches(name) for name in names)
        ]


def check_size(steps: int) -> None:
    """Raises PatternInvalid for patterns whose steps are too many together."""
    if steps > MAX_STEPS:
        raise PatternInvalid(f"the patterns up to this one need {steps} steps of RE2, more than {MAX_STEPS}")


class _Together(Pattern):
    """Several patterns as one: a name is looked at once."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self.text = "|".join(f"(?:{pattern.text})" for pattern in patterns)
        self._compiled = _compiled(self.text, memory=_MEMORY_OF_LIST)


def _any_of(patterns: Sequence[Pattern]) -> Sequence[Pattern]:
    """Patterns that match what one of these matches: one if it can be compiled."""
    # An open quotation would take the patterns after it for text.
    if len(patterns) < 2 or any(_QUOTED in pattern.text for pattern in patterns):
        return patterns
    try:
        return [_Together(patterns)]
    except PatternInvalid:  # it is too large
        return patterns


def _compiled(text: str, *, captures: bool = False, memory: int = _MEMORY) -> Any:
    options = re2.Options()
    options.dot_nl = True
    options.never_capture = not captures
    options.log_errors = False  # RE2 would write a user's pattern to stderr
    options.max_mem = memory
    if _ENDLESS.search(text):
        raise PatternInvalid("a repetition is larger than 1000")
    try:
        compiled = re2.compile(text, options)
    except UnicodeEncodeError as error:
        raise PatternInvalid("it is not valid Unicode") from error
    except re2.error as error:
        said = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise PatternInvalid(said + _hint(said, text)) from error
    unread = next((found["times"] for found in _UNREAD.finditer(text) if found["times"]), None)
    if unread is not None:
        raise PatternInvalid(
            f"RE2 does not repeat for {unread}: write {{0,3}} for up to three times, and no zeros in front "
            "(\\{ is the character)"
        )
    return compiled


def _hint(said: str, text: str) -> str:
    if "too large" in said:
        return " (repeat less, or split the pattern)"
    if _LACKING.search(text):
        return " (RE2 has no lookarounds, backreferences and possessive repetitions; `exclude` leaves names out)"
    return ""


def _bytes(name: str) -> bytes:
    """UTF-8. Half of a surrogate pair, which is not a character, becomes a question mark."""
    return name.encode(errors="replace")

r"""Shows text from outside: on a terminal, in a log, in a message of Kubernetes.

Names, messages, keys and records come from Kafka, from archives and from resources. A character in them may do
something instead of being seen: move a terminal's cursor, set its clipboard, turn the direction of a line, begin a line
that looks like one of ours. `visible` is the one function that makes such text safe to print. What it shows can be read
and not be turned back: `a\nb` may stand for a line break, or for these four characters. JSON has the exact text.
"""

from __future__ import annotations

import json
import logging
import sys
import time


def visible(text: str) -> str:
    r"""Return the text on one line, with each character visible. One that is not printable (`str.isprintable`: control
    and format characters, line separators, halves of characters, blanks other than a space) is shown as \x1b or
    \u202e."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def visible_lines(text: str) -> str:
    """Return the text as `visible` shows it, but line breaks and tabs stay: for a document of ours, which has lines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def visible_json(document: str) -> str:
    r"""Return a JSON document with the same meaning, in which what is not printable is escaped as \u009b. Line breaks
    of the document itself stay."""
    if document.isprintable():
        return document
    return "".join(c if c.isprintable() or c == "\n" else _json_escaped(c) for c in document)


def say(line: object) -> None:
    """Print one line on stderr."""
    print(visible(str(line)), file=sys.stderr, flush=True)


def print_line(line: object, *, flush: bool = False) -> None:
    """Print one line of a result on stdout."""
    print(visible(str(line)), flush=flush)


def print_lines(text: str, *, flush: bool = False) -> None:
    """Print a document on stdout whose line breaks are its own: YAML, or lines of a log."""
    print(visible_lines(text), end="", flush=flush)


def _escaped(character: str) -> str:
    return repr(character)[1:-1]


def _json_escaped(character: str) -> str:
    # `json.dumps` leaves this one as it is.
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


class VisibleFormatter(logging.Formatter):
    """Formats a record of a log as one line that nothing in it can end or turn. Lines of a traceback are indented, so
    that none of them can be taken for a line of the log."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        return visible(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802
        return _indented(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))


def log_with_times(level: int | str) -> None:
    """Send the records of all loggers to stderr, each on a line with its time, as programs in pods do."""
    form = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    formatter = VisibleFormatter(form, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def log_warnings_alone() -> None:
    """Let warnings alone be printed, without a time: in processes whose tasks report their errors to the driver."""
    logging.getLogger().handlers.clear()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(VisibleFormatter())


def _indented(lines: str) -> str:
    return "\n".join(f"  {line}" for line in visible_lines(lines).split("\n"))


MESSAGE_MAX = 1024


def cut(message: str, most: int = MESSAGE_MAX) -> str:
    """Return the message on one line, of which each character is seen (`visible`), and at most this many characters of
    it: for conditions, events and entries of a status, which people read on terminals."""
    message = visible(message)
    return message if len(message) <= most else f"{message[: most - 1]}…"[:most]

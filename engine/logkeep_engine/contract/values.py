"""Values that fields of a resource take: quantities, durations, regular expressions, addresses, names."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, Field

from logkeep_engine.contract.model import meant, rule, schema

_QUANTITY = re.compile(r"([0-9]+)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
MIN_SEGMENT_BYTES = 1 << 20
MAX_PACK_BELOW = 8 << 20  # each stream of a task may keep a segment of that size in memory
MAX_SEGMENT_BYTES = 2**31 - 1  # positions in a Kafka offset index are int32
# A batch moves as a whole and has up to 1 MB by default: a lower limit would come in bursts of many seconds.
MIN_BYTES_PER_SECOND = 64 << 10


def parse_quantity(text: str) -> int:
    """Bytes of a Kubernetes quantity such as `128Mi`. Raises ValueError on anything else."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a whole quantity such as 128Mi or 1G")
    return int(match.group(1)) * _UNITS[match.group(2) or ""]


def parse_cores(text: str) -> int:
    """250m, 1 or 0.5 in thousandths of a core."""
    return int(text[:-1]) if text.endswith("m") else round(float(text) * 1000)


def parse_timestamp(text: object) -> datetime | None:
    """Return the time that a field of a resource says. The answer is None if there is no text, or if it is not a
    time."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def human_bytes(size: float) -> str:
    """1536 → 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def so_many(count: int, noun: str, plural: str = "") -> str:
    """1 topic, 2 topics. The `plural` is the noun with an s, unless it is given."""
    return f"1 {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def describe_aborted(records: int) -> str:
    """This many records of aborted transactions, in words."""
    return f"{so_many(records, 'record')} of aborted transactions"


def human_time(seconds: float) -> str:
    """Return a time in seconds since the epoch → 2026-11-21T14:05:00Z."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def human_duration(seconds: float) -> str:
    """93784 → 1d 2h: the two largest units."""
    left = int(seconds)
    lines: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size or (unit == "s" and not lines):
            lines.append(f"{left // size}{unit}")
            left %= size
    return " ".join(lines[:2])


def _quantity(text: str) -> str:
    parse_quantity(text)
    return text


def parse_segment_bytes(text: str) -> int:
    """Bytes of a quantity that a segment may have at most. Raises ValueError."""
    size = parse_quantity(text)
    if not MIN_SEGMENT_BYTES <= size <= MAX_SEGMENT_BYTES:
        raise ValueError(f"{text!r} must be between 1Mi and 2147483647 bytes")
    return size


def _segment_bytes(text: str) -> str:
    parse_segment_bytes(text)
    return text


def _merge_count(value: int) -> int:
    if value == 1:
        raise ValueError("must not be 1: one segment alone is not merged; 0 merges nothing")
    return value


def _pack_bytes(text: str) -> str:
    if parse_quantity(text) > MAX_PACK_BELOW:
        raise ValueError(f"{text!r} must be at most 8Mi; 0 gives each segment its own objects")
    return text


def _bytes_per_second(text: str) -> str:
    if parse_quantity(text) < MIN_BYTES_PER_SECOND:
        raise ValueError(f"{text!r} must be at least 64Ki")
    return text


_DURATION = re.compile(r"([1-9][0-9]{0,8})(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_duration(text: str) -> int:
    """Seconds of a duration such as `30d`, a whole number above 0 and one of s, m, h, d, w. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 12h or 30d")
    return int(match.group(1)) * _SECONDS[match.group(2)]


def _duration(text: str) -> str:
    parse_duration(text)
    return text


def _archive_bytes(text: str) -> str:
    if parse_quantity(text) < MIN_SEGMENT_BYTES:
        raise ValueError(f"{text!r} must be at least 1Mi")
    return text


_CRON_TERM = r"([*?]|[0-9]{1,2}|[A-Za-z]{3})(-([0-9]{1,2}|[A-Za-z]{3}))?(/[0-9]{1,2})?"
_CRON_FIELD = rf"{_CRON_TERM}(,{_CRON_TERM})*"
_CRON = re.compile(rf"@(yearly|annually|monthly|weekly|daily|midnight|hourly)|{_CRON_FIELD}( +{_CRON_FIELD}){{4}}")


def _cron(text: str) -> str:
    """Return the form alone. Whether the numbers are a time, the operator knows, who follows the schedule."""
    if _CRON.fullmatch(text) is None:
        raise ValueError(
            f"{text!r} is not a cron expression as in a CronJob: five fields such as '0 2 * * *', or @yearly, "
            "@monthly, @weekly, @daily or @hourly"
        )
    return text


def url_host(host: str) -> str:
    """Return a host as URLs have it: an address of IPv6 is in brackets."""
    return f"[{host}]" if ":" in host else host


def host_port(host: str, port: int | str) -> str:
    """Return an address as `bootstrapServers` has it."""
    return f"{url_host(host)}:{port}"


CronExpression = Annotated[
    str,
    Field(max_length=256),
    AfterValidator(_cron),
    rule(
        "self.matches('^(@[a-z]+|[0-9A-Za-z*?,/-]+( +[0-9A-Za-z*?,/-]+){4})$')",
        "cron must have five fields, such as 0 2 * * *, or be @hourly, @daily, @weekly, @monthly or @yearly; the time "
        "zone goes into timeZone",
    ),
]
TimeZoneName = Annotated[str, Field(min_length=1, max_length=64)]
DURATION = r"[1-9][0-9]{0,8}(s|m|h|d|w)"
DURATION_PATTERN = meant(f"^{DURATION}$", "a duration such as 12h or 30d, in s, m, h, d or w")
Duration = Annotated[str, AfterValidator(_duration), schema(maxLength=10, pattern=DURATION_PATTERN)]
QUANTITY = meant(r"^[0-9]+(Ki|Mi|Gi|Ti|k|M|G|T)?$", "a whole quantity of bytes such as 128Mi or 1G")
QuantityText = Annotated[str, schema(maxLength=32, pattern=QUANTITY)]
Quantity = Annotated[QuantityText, AfterValidator(_quantity)]
ArchiveBytes = Annotated[
    QuantityText,
    AfterValidator(_archive_bytes),
    rule("quantity(self).compareTo(quantity('1Mi')) >= 0", "maxBytes must be at least 1Mi"),
]
SegmentBytes = Annotated[QuantityText, AfterValidator(_segment_bytes)]
PackBytes = Annotated[
    QuantityText,
    AfterValidator(_pack_bytes),
    rule("quantity(self).compareTo(quantity('8Mi')) <= 0", "packBelow must be at most 8Mi"),
]
INT32 = schema(format="int32")
MergeCount = Annotated[
    int, Field(ge=0, le=1000), AfterValidator(_merge_count), INT32, rule("self != 1", "mergeCount must not be 1")
]
Percent = Annotated[int, Field(ge=0, le=100), INT32]
BytesPerSecond = Annotated[
    QuantityText,
    AfterValidator(_bytes_per_second),
    rule("quantity(self).compareTo(quantity('64Ki')) >= 0", "bytesPerSecond must be at least 64Ki"),
]
# Kubernetes' quantity of CPU, in whole millicores.
CORES = meant(
    r"^([1-9][0-9]{0,5}m|[1-9][0-9]{0,3}|[0-9]{1,3}\.[0-9]{1,3})$", "a number of cores such as 2, 0.5 or 250m"
)
Cores = Annotated[str, Field(pattern=CORES), schema(maxLength=8)]
HOST_PORT = meant(r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$", "host:port")
# Names of objects and of namespaces as RFC 1123 has them. They become parts of paths of the Kubernetes API.
DNS_LABEL = meant(
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "a name in Kubernetes: lower-case letters, digits, and '-' between them"
)
DNS_NAME = meant(
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    "a name in Kubernetes: lower-case letters, digits, '-', and '.' between them",
)
MAX_DNS_LABEL, MAX_DNS_NAME = 63, 253
ResourceName = Annotated[str, Field(max_length=MAX_DNS_NAME, pattern=DNS_NAME)]
NamespaceName = Annotated[str, Field(max_length=MAX_DNS_LABEL, pattern=DNS_LABEL)]
# A key of a Secret or a ConfigMap. Kubernetes takes neither `.` nor what begins with `..`.
SECRET_KEY = meant(
    r"^\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*$", "a key of a Secret or a ConfigMap: letters, digits, '-', '_' and '.'"
)
TOPIC_NAME = meant(r"^[a-zA-Z0-9._-]+$", "the name of a topic: letters, digits, '.', '_' and '-'")
SecretKey = Annotated[str, Field(max_length=253, pattern=SECRET_KEY)]

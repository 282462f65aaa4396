"""The target topics of a restore, as written in `spec.topics`: which topics come back, under which names, and how the
topics that the restore creates are made."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.values import Regex

MAX_REPLICAS = 2**15 - 1  # an int16 in Kafka's protocol

TopicName = Annotated[str, Field(min_length=1, max_length=249)]
ConfigKey = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-z0-9._-]+$")]


class Rename(Model):
    """`from` must match the whole topic name; `to` may use its groups as \\1 or \\g<name>. The first rule that
    matches is used.
    """

    from_: Annotated[Regex, Field(alias="from")]
    to: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _groups_exist(self) -> Rename:
        try:
            re._parser.parse_template(self.to, re.compile(self.from_))  # type: ignore[attr-defined]
        except (re.error, IndexError) as error:
            raise ValueError(f"to: {self.to!r} does not fit the groups of {self.from_!r}: {error}") from error
        return self


class ConfigPolicy(StrEnum):
    """`Restore`: created topics get the archived configuration. `Ignore`: they have the defaults of the cluster."""

    RESTORE = "Restore"
    IGNORE = "Ignore"


class TopicConfigs(Model):
    """The configuration of created topics. `override` goes before what was archived, and `ignore` names keys that stay
    at the cluster's default whatever was archived.
    """

    policy: ConfigPolicy = ConfigPolicy.RESTORE
    override: dict[ConfigKey, str] = Field(default={})
    ignore: tuple[ConfigKey, ...] = ()

    @model_validator(mode="after")
    def _each_key_once(self) -> TopicConfigs:
        if self.policy is ConfigPolicy.IGNORE and self.ignore:
            raise ValueError("ignore has no effect with policy Ignore, which restores no key; leave it out")
        if set(self.ignore) & set(self.override):
            raise ValueError("a key may be in override or in ignore, not in both")
        if len(set(self.ignore)) < len(self.ignore):
            raise ValueError("ignore names a key twice")
        return self


class RestoreTopics(Model):
    """`replicationFactor` is that of created topics; None: as many replicas as the archived topic had."""

    include: Annotated[tuple[Regex, ...], Field(min_length=1)] = (".*",)
    exclude: tuple[Regex, ...] = ()
    rename: tuple[Rename, ...] = ()
    replication_factor: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    configs: TopicConfigs = TopicConfigs()

"""The part of a KafkaRestore that makes a drill of it: what it restores is verified, and deleted again."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.model import Model

DRILL_PREFIX = "logkeep-drill-"
MAX_PREFIX = 100


class DrillSpec(Model):
    """`prefix`: how the names of the topics begin that a drill creates. Behind it each attempt has a random part of its
    own."""

    prefix: Annotated[str, Field(pattern=rf"^[a-zA-Z0-9._-]{{1,{MAX_PREFIX}}}$")] = DRILL_PREFIX

"""The defaults that an installation gives to `spec.spark.driver` and `spec.spark.executor`. What a resource says itself
wins, as a template wins over the operator's own defaults (`pod_template.merge`).

They are checked when the operator starts, by the same rules as resources. So what is wrong with a resource that was
completed with them is the resource's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logkeep_engine.contract.checks import spark_problems
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.parsing import SpecInvalid, parse_model
from logkeep_engine.contract.running import SparkSpec
from logkeep_operator.api import Resource
from logkeep_operator.errors import SettingsInvalid
from logkeep_operator.resources.allowed import spark_not_allowed
from logkeep_operator.resources.pod_template import merge
from logkeep_operator.settings import RUN_DEFAULTS, EngineSettings


def check_defaults(engine: EngineSettings) -> None:
    """Raises SettingsInvalid, which names the chart's values, if the defaults are not what a resource might say."""
    try:
        spark = parse_model(SparkSpec, engine.defaults)
        problems = [*spark_problems(spark), *spark_not_allowed(spark, engine)]
    except SpecInvalid as error:
        problems = [(path.replace("spec", "spec.spark", 1), what) for path, what in error.problems]
    if problems:
        said = "; ".join(f"{path.replace('spec.spark', 'engine.defaults', 1)}: {what}" for path, what in problems)
        raise SettingsInvalid(f"{RUN_DEFAULTS}, the chart's engine.defaults: {said}")


def with_defaults(resource: Resource, engine: EngineSettings) -> Resource:
    """Return the resource as if it had said the defaults of the installation itself. Its own spec must be valid."""
    if not engine.defaults:
        return resource
    own: Mapping[str, Any] = resource.spec.get("spark") or {}
    return replace(resource, spec={**resource.spec, "spark": merge(engine.defaults, own)})

"""This package lets PySpark find `spark.read.format("logkeep")` by itself: PySpark looks for `DefaultSource` in
packages of this prefix."""

from logkeep_engine.spark.source import LogkeepSource as DefaultSource

__all__ = ["DefaultSource"]

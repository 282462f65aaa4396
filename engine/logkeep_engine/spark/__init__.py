"""The engine on Spark: session, task runner and the driver's entry point. The only package (with `compaction/`) that
imports pyspark.
"""

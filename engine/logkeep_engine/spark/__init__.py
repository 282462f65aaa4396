"""The engine on Spark: session, task runner and the driver's entry point. The only package that imports pyspark."""

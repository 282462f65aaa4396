"""The engine on Spark: session, task runner, the driver's entry point and the data source. Only this package imports
pyspark."""

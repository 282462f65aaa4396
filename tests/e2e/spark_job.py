"""A query on an archive in the engine's image, as docs/guides/spark-reader.md has it. What executors reach is the
subject of each run on the node.

Arguments: S3 endpoint, its region, URI of an archive. Prints one line when everything worked.
"""

import os
import sys

from pyspark.sql import SparkSession

JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:SharedArchiveFile=" + os.environ["LOGKEEP_CLASS_ARCHIVE"]


def main() -> None:
    """Read the archive in a DataFrame job with a shuffle."""
    endpoint, region, archive = sys.argv[1:]
    settings = {
        "spark.driver.extraJavaOptions": JAVA,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[1]").appName("query")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        rows = spark.read.format("logkeep").options(endpoint=endpoint, region=region).load(archive)
        groups = rows.selectExpr("offset % 7 as g").groupBy("g").count().collect()
        print(f"{len(groups)} groups, {sum(row['count'] for row in groups)} archived records")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()

"""The test bed's own check, which runs in a driver pod: a Spark application with one executor that uses the network.

Arguments: bootstrap servers, S3 endpoint, its region, URI of an archive. Prints one line when everything worked.
"""

import os
import sys

from pyspark.sql import SparkSession

SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"


def reach(servers: str, endpoint: str) -> str:
    """Ask the broker and the S3 server for something; returns the host name of the executor."""
    import socket
    import urllib.error
    import urllib.request

    from confluent_kafka.admin import AdminClient

    if not AdminClient({"bootstrap.servers": servers}).list_topics(timeout=20).brokers:
        raise RuntimeError(f"{servers} names no broker")
    try:
        urllib.request.urlopen(endpoint, timeout=20)
    except urllib.error.HTTPError as refused:  # without credentials
        refused.close()
    return socket.gethostname()


def main() -> None:
    """Start Spark as a Logkeep driver does, run an RDD job and a DataFrame job with a shuffle, and read an archive."""
    pod, address = os.environ["POD_NAME"], os.environ["POD_IP"]
    api = f"{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    servers, endpoint, region, archive = sys.argv[1:]
    settings = {
        "spark.kubernetes.namespace": os.environ["POD_NAMESPACE"],
        "spark.kubernetes.container.image": "localhost/logkeep-engine:dev",
        "spark.kubernetes.container.image.pullPolicy": "Never",
        "spark.kubernetes.driver.pod.name": pod,
        "spark.kubernetes.executor.podNamePrefix": pod,
        "spark.kubernetes.executor.request.cores": "100m",
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.driver.extraJavaOptions": SMALL_JAVA,
        "spark.executor.extraJavaOptions": SMALL_JAVA,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        **{f"spark.executorEnv.{key}": os.environ[key] for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")},
    }
    builder = SparkSession.builder.master(f"k8s://https://{api}").appName("test bed")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        hosts = spark.sparkContext.parallelize([0], 1).map(lambda _: reach(servers, endpoint)).collect()
        groups = spark.range(100, numPartitions=2).selectExpr("id % 7 as g").groupBy("g").count().orderBy("g").collect()
        place = {"endpoint": endpoint, "region": region}
        rows = spark.read.format("logkeep").options(**place).load(archive).selectExpr("count(value) as n").collect()
        print(f"executor {hosts[0]} reached all, {len(groups)} groups, {rows[0].n} archived records")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()

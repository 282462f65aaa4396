"""The queries of docs/guides/spark-reader.md, on the demo's topics: the document shows what they answer."""

import re
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from logkeep_engine.spark.source import PUSHDOWN
from tests.cluster.kafka import KafkaBroker
from tests.cluster.s3 import S3Server
from tests.data import nycflights
from tests.examples import number
from tests.kafka.backing_up import Backups

DOCUMENT = Path(__file__).parents[2] / "docs/guides/spark-reader.md"


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_queries_of_the_document_answer_what_it_says(
    kafka: KafkaBroker,
    spark_context: SparkContext,
    sql_session: SparkSession,
    s3: S3Server,
) -> None:
    _, _, section = DOCUMENT.read_text().partition("## Three queries")
    (setup,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    queries = re.findall(r"```sql\n(.*?)```\n\n```text\n(.*?)```", section, re.DOTALL)
    assert len(queries) == 3
    year = bool(number(0, deep=1))
    queries = queries[0 if year else 1 :]  # the first one is about all flights, the others about February and planes
    written = nycflights.load(kafka.bootstrap, month=None if year else 2)
    s3.create_bucket("backups")
    place = {"uri": "s3://backups/flights", "endpoint": s3.endpoint, "region": s3.region}
    backups = Backups(kafka, place, lambda: spark_context)
    assert backups.run(*nycflights.TOPICS).outcome == "Succeeded"
    spark = sql_session.newSession()
    registration = "from logkeep_engine.spark.source import register\n"
    exec(registration + setup, {"spark": spark, "endpoint": s3.endpoint})
    assert spark.conf.get(PUSHDOWN) == "true"
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    counts = spark.sql("SELECT topic, count(*) FROM archive GROUP BY topic").collect()
    assert {row[0]: row[1] for row in counts} == written, "aborted records are not seen"
    found = [spark.sql(query)._jdf.showString(100, 0, False).strip() for query, _ in queries]
    assert found == [answer.strip() for _, answer in queries]

"""One Spark for all tests of this folder: it takes seconds to start."""

import os
from collections.abc import Iterator

import pytest
from pyspark import SparkContext

from logkeep_engine.contract import names
from logkeep_engine.spark.session import Session, local_conf
from tests.cluster.s3 import S3Server


@pytest.fixture(scope="session")
def storage_environment(s3: S3Server) -> Iterator[None]:
    """The S3 server's credentials in this process's environment, where Python workers inherit them."""
    values = {names.ENV_S3_ACCESS_KEY: s3.access_key, names.ENV_S3_SECRET_KEY: s3.secret_key}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setitem(os.environ, name, value)
        yield


@pytest.fixture(scope="session")
def spark_context(storage_environment: None) -> Iterator[SparkContext]:
    """A context with two task slots, started as the command line starts its own."""
    with Session(local_conf(2)) as session:
        yield session.context()

"""What tests of the Spark floor share: one Spark, our broker, Apache Kafka.

They are a process of their own (`pytest tests/spark`): there can be one Spark in a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import onceflow
from onceflow.spark.sink.task import CLUSTERS
from onceflow.spark.source.task import READERS
from tests.interop.real_kafka import (
    apache_kafka as apache_kafka,
    cannot_test,
    kafka_jars as kafka_jars,
)
from tests.spark.session import SparkMissing, require_spark, spark_session
from tools.kafka_jars import KafkaJarsError
from tools.spark_jars import ensure_spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def spark_is_there(request: pytest.FixtureRequest) -> None:
    """Where it is not, nothing here can be tested, and that is said."""
    try:
        require_spark()
        ensure_spark_jars()
    except (SparkMissing, KafkaJarsError) as error:
        cannot_test(request, "spark_is_there", str(error))


@pytest.fixture(scope="session")
def spark(spark_is_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for the whole session, with the jars of its own Kafka connector."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def broker() -> Iterator[onceflow.Broker]:
    """Our broker, in a process of its own, for the whole session."""
    with onceflow.Broker(process=True) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka(apache_kafka: str) -> str:
    """The address of Apache Kafka."""
    return apache_kafka


@pytest.fixture(autouse=True)
def connections() -> Iterator[None]:
    """A test that reads or writes in this process leaves no connection behind."""
    yield
    READERS.close()
    CLUSTERS.close()


@pytest.fixture(params=["broker", "kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of our broker, then that of Apache Kafka."""
    found = request.getfixturevalue(request.param)
    return found if isinstance(found, str) else str(found.bootstrap)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A directory for the checkpoint of one query."""
    return str(tmp_path / "checkpoint")

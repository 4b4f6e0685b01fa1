"""Puts the jars of Spark's own Kafka connector into `.cache/spark-kafka-<version>/`, once.

`python -m tools.spark_jars` prints that directory; tests call `ensure_spark_jars()`. The connector
is the newest that is published; it runs on the Spark of `requirements-spark.lock`. Spark brings
everything else that it needs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tools.kafka_jars import KafkaJarsError, ensure_jars

CONNECTOR_VERSION: Final = "4.2.0"
VERSIONS: Final = {
    "connector.version": CONNECTOR_VERSION,
    "token.provider.version": "4.0.0",
    "kafka.clients.version": "3.9.2",
    "pool.version": "2.12.1",
}


def ensure_spark_jars() -> Path:
    """The directory that holds the four jars, after fetching them if need be."""
    return ensure_jars("spark_pom.xml", f"spark-kafka-{CONNECTOR_VERSION}", VERSIONS)


if __name__ == "__main__":
    try:
        print(ensure_spark_jars())
    except KafkaJarsError as problem:
        sys.exit(str(problem))

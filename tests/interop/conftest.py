"""What interop tests share: Apache Kafka's jars, or a loud word on what is not tested without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.java import OLDEST_USABLE, find_java
from tools.kafka_jars import KafkaJarsError, ensure_kafka_jars


@pytest.fixture(scope="session")
def kafka_jars(request: pytest.FixtureRequest) -> Path:
    """The directory of Apache Kafka's jars, with a Java there to run them.

    Where that cannot be had, the tests that need it are skipped, by name and with what to
    install; under CI=true nothing may go untested, and they fail.
    """
    try:
        jars = ensure_kafka_jars()
    except KafkaJarsError as error:
        problem = str(error)
    else:
        if find_java() is not None:
            return jars
        problem = (
            f"there is no Java {OLDEST_USABLE} or later: install a JDK (Debian and Ubuntu: "
            "apt-get install default-jdk-headless) or name its java program in ONCEFLOW_JAVA"
        )
    untested = [item.nodeid for item in request.session.items if _needs_jars(item)]
    reason = f"NOT TESTED against Apache Kafka, because {problem}\n" + "\n".join(untested)
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _needs_jars(item: pytest.Item) -> bool:
    return "kafka_jars" in getattr(item, "fixturenames", ())

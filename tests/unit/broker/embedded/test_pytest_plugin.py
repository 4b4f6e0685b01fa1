"""The fixtures that pytest finds when Onceflow is installed, in a pytest run of their own."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from textwrap import dedent

import pytest

pytest_plugins = ["pytester"]
PLUGIN = "onceflow.broker.embedded.pytest_plugin"


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A run in which the plugin is loaded once, installed or not."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", f"-p {PLUGIN} -W error")
    return pytester


def test_it_is_found_without_being_named() -> None:
    (found,) = entry_points(group="pytest11", name="onceflow")
    assert found.value == PLUGIN


def test_it_loads_nothing_of_the_broker_at_the_start_of_a_run() -> None:
    code = f"import pytest, sys; before = set(sys.modules); import {PLUGIN}; "
    code += "print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    doors = ["onceflow", "onceflow.broker", "onceflow.broker.embedded", "onceflow.doors"]
    assert done.stdout.split() == sorted([*doors, PLUGIN])


def test_a_test_is_given_a_broker(run: pytest.Pytester) -> None:
    run.makepyfile(
        dedent(
            """
            from confluent_kafka import Consumer, Producer

            def test_round_trip(onceflow_broker):
                servers = {"bootstrap.servers": onceflow_broker.bootstrap}
                producer = Producer(servers)
                producer.produce("orders", b"one")
                assert producer.flush(20) == 0
                consumer = Consumer(
                    {**servers, "group.id": "g", "auto.offset.reset": "earliest"}
                )
                consumer.subscribe(["orders"])
                assert consumer.poll(20).value() == b"one"
                consumer.close()
            """
        )
    )
    run.runpytest_subprocess().assert_outcomes(passed=1)


def test_brokers_of_tests_differ_and_that_of_the_session_stays(run: pytest.Pytester) -> None:
    run.makepyfile(
        dedent(
            """
            import pytest
            seen, session = [], set()

            @pytest.mark.parametrize("time", [1, 2])
            def test_given(time, onceflow_broker, onceflow_broker_session):
                assert onceflow_broker.data_dir.is_dir()
                assert not any(each.exists() for each in seen)  # the last one is gone
                seen.append(onceflow_broker.data_dir)
                session.add(onceflow_broker_session.bootstrap)

            def test_all():
                assert len(set(seen)) == 2
                assert len(session) == 1
            """
        )
    )
    run.runpytest_subprocess().assert_outcomes(passed=3)


def test_a_failing_test_shows_what_the_broker_logged(run: pytest.Pytester) -> None:
    run.makepyfile(
        dedent(
            """
            import pytest
            import onceflow

            @pytest.fixture
            def my_broker():
                with onceflow.Broker(num_partitions=3) as broker:
                    yield broker

            def test_fails(onceflow_broker):
                assert False, "for a reason"

            def test_passes(onceflow_broker):
                pass

            def test_fails_with_its_own(my_broker):
                assert False, "for a reason"
            """
        )
    )
    result = run.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*- Captured log of onceflow_broker call -*",
            "* INFO *broker.server: opened *",
            "*- Captured log of my_broker call -*",
            "* INFO *broker.server: opened *",
        ]
    )
    assert str(result.stdout).count("Captured log of") == 2


def test_a_test_without_a_broker_fails_as_ever(run: pytest.Pytester) -> None:
    run.makepyfile("def test_fails():\n    assert False")
    result = run.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*Captured log of*")


def test_the_programs_own_log_is_not_touched(run: pytest.Pytester) -> None:
    run.makepyfile(
        dedent(
            """
            import logging

            def test_quiet(onceflow_broker, caplog):
                assert onceflow_broker.log_text
                assert not caplog.get_records("setup")
                logging.getLogger("onceflow.broker.server").warning("heard")
                assert caplog.messages == ["heard"]
            """
        )
    )
    run.runpytest_subprocess().assert_outcomes(passed=1)

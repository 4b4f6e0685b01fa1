"""What embedded brokers log: each its own, and a program's logging as if they were not there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from onceflow.broker.embedded.broker import Broker
from onceflow.broker.embedded.log import MOST_LINES, LogBuffer, attach, detach

BROKER = logging.getLogger("onceflow.broker")
ONE_OF_ITS_MODULES = logging.getLogger("onceflow.broker.some_module")


class Seen(logging.Handler):
    """A handler such as a program may have."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(f"{record.levelname} {record.getMessage()}")


@pytest.fixture
def program() -> Iterator[Seen]:
    """The program's own handler, on the root logger."""
    seen = Seen()
    logging.getLogger().addHandler(seen)
    yield seen
    logging.getLogger().removeHandler(seen)


@pytest.fixture
def buffer() -> Iterator[LogBuffer]:
    """That of a broker which runs on this thread."""
    made = LogBuffer("info")
    made.adopt_thread()
    attach(made)
    yield made
    detach(made)


def on_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def log_all() -> None:
    ONE_OF_ITS_MODULES.debug("quiet")
    ONE_OF_ITS_MODULES.info("usual")
    ONE_OF_ITS_MODULES.warning("loud")


def test_the_broker_keeps_what_is_usual_and_the_program_sees_what_is_loud(
    program: Seen, buffer: LogBuffer
) -> None:
    log_all()
    assert [line.split(maxsplit=1)[1] for line in buffer.text.splitlines()] == [
        "INFO  broker.some_module: usual",
        "WARN  broker.some_module: loud",
    ]
    assert program.messages == ["WARNING loud"]


@pytest.mark.parametrize("name", ["", "onceflow", "onceflow.broker", "onceflow.broker.some_module"])
def test_the_program_sees_what_it_asks_for(name: str, program: Seen, buffer: LogBuffer) -> None:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.INFO)
    log_all()
    assert program.messages == ["INFO usual", "WARNING loud"]
    logger.setLevel(logging.ERROR)
    log_all()
    assert program.messages == ["INFO usual", "WARNING loud"]
    logger.setLevel(before)
    log_all()
    assert program.messages[2:] == ["WARNING loud"]


def test_a_level_that_was_set_before_is_kept_and_given_back(program: Seen) -> None:
    BROKER.setLevel(logging.ERROR)
    buffer = LogBuffer("debug")
    buffer.adopt_thread()
    attach(buffer)
    log_all()
    assert buffer.text.count("\n") == 3
    assert not program.messages
    detach(buffer)
    assert BROKER.level == logging.ERROR
    BROKER.setLevel(logging.NOTSET)


def test_every_thread_is_heard_by_its_own_broker_only(buffer: LogBuffer) -> None:
    other = LogBuffer("info")

    def work() -> None:
        other.adopt_thread()
        ONE_OF_ITS_MODULES.info("there")

    attach(other)
    on_a_thread(work)
    ONE_OF_ITS_MODULES.info("here")
    on_a_thread(lambda: ONE_OF_ITS_MODULES.info("nobody's"))
    detach(other)
    assert buffer.text.endswith(": here\n")
    assert other.text.endswith(": there\n")
    assert (buffer.text + other.text).count("\n") == 2


def test_callbacks_that_failed_on_the_loop_are_heard(program: Seen, buffer: LogBuffer) -> None:
    logging.getLogger("asyncio").error("Exception in callback")
    assert "ERROR asyncio: Exception in callback" in buffer.text
    assert program.messages == ["ERROR Exception in callback"]


def test_what_is_kept_is_bounded(buffer: LogBuffer) -> None:
    for number in range(MOST_LINES + 5):
        ONE_OF_ITS_MODULES.info("line %d", number)
    assert buffer.text.count("\n") == MOST_LINES
    assert "line 4\n" not in buffer.text


def test_everything_is_given_back_by_the_last_broker() -> None:
    def state() -> tuple[object, ...]:
        loop = logging.getLogger("asyncio")
        return (*BROKER.handlers, BROKER.level, BROKER.propagate, *loop.handlers, loop.level)

    before = state()
    with Broker(), Broker(log_level="debug"):
        assert BROKER.isEnabledFor(logging.DEBUG)
        assert BROKER.propagate
    assert state() == before

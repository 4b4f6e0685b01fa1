"""Who may write where: one owner for each partition in each epoch, asked for over a socket."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from onceflow.client.settings.clients import ClientSettings
from onceflow.spark.errors.sink import (
    AttemptRefused,
    ClaimsUnreachable,
    LaterAttempt,
    ReportsWrong,
    RowRefused,
)
from onceflow.spark.sink.batch import check_reports
from onceflow.spark.sink.claims import (
    AttemptFailure,
    ClaimBook,
    ClaimClient,
    ClaimService,
    TargetOwner,
    TopicCounts,
)
from onceflow.spark.sink.job_context import ALL_ROWS, Report
from onceflow.spark.sink.topics import SinkTopics

EPOCH, NEXT = (7, 1), (7, 2)
FIRST, RETRY, OTHER_TASK = TargetOwner(10, 0), TargetOwner(20, 0), TargetOwner(11, 1)


@pytest.fixture
def book() -> ClaimBook:
    book = ClaimBook()
    book.open(EPOCH)
    return book


def test_the_first_attempt_that_asks_owns_it(book: ClaimBook) -> None:
    assert book.claim(EPOCH, FIRST, [0, 2]) is None
    assert book.claim(EPOCH, FIRST, [2]) is None
    refused = book.claim(EPOCH, RETRY, [0])
    assert refused is not None
    assert not refused.is_final
    assert "attempt 10" in refused.message
    assert book.owners == {0: FIRST, 2: FIRST}


def test_a_claim_is_granted_whole_or_not_at_all(book: ClaimBook) -> None:
    assert book.claim(EPOCH, FIRST, [1]) is None
    assert book.claim(EPOCH, RETRY, [0, 1]) is not None
    assert book.owners == {1: FIRST}


def test_two_tasks_for_one_partition_will_always_be_two(book: ClaimBook) -> None:
    assert book.claim(EPOCH, FIRST, [1]) is None
    refused = book.claim(EPOCH, OTHER_TASK, [1])
    assert refused is not None
    assert refused.is_final


def test_an_epoch_that_is_over(book: ClaimBook) -> None:
    assert book.claim(NEXT, FIRST, [0]) is not None
    book.claim(EPOCH, FIRST, [0])
    book.add_failure(EPOCH, AttemptFailure("old", is_final=True))
    book.open(NEXT)
    assert book.claim(EPOCH, FIRST, [0]) is not None
    book.add_failure(EPOCH, AttemptFailure("late", is_final=True))
    assert book.failures == ()
    assert book.claim(NEXT, RETRY, [0]) is None
    book.close()
    assert book.claim(NEXT, RETRY, [0]) is not None
    assert book.owners == {0: RETRY}


def test_what_follows_from_another_failure_is_told_after_it(book: ClaimBook) -> None:
    given_up: list[str] = []
    book.give_up = lambda: given_up.append("once")
    late, first = (
        AttemptFailure("too late", False, is_late=True),
        AttemptFailure("ValueError", False),
    )
    book.add_failure(EPOCH, late)
    book.add_failure(EPOCH, first)
    assert book.failures == (first, late)
    assert given_up == ["once"]


# --- the service --------------------------------------------------------------------------------


def layout(topics: Sequence[str]) -> TopicCounts:
    if "missing" in topics:
        raise RowRefused("there is no topic 'missing'")
    if "later" in topics:
        raise AttemptRefused("not in this epoch")
    return (("out", 3), *((topic, 1) for topic in topics))


@pytest.fixture
def service(book: ClaimBook) -> Iterator[ClaimService]:
    with ClaimService(book, "127.0.0.1", "127.0.0.1", layout) as service:
        yield service


def test_tasks_ask_over_a_socket(service: ClaimService) -> None:
    client = service.client
    client.claim(EPOCH, FIRST, [0, 1])
    with pytest.raises(LaterAttempt, match="attempt 10 of task 0"):
        client.claim(EPOCH, RETRY, [1])
    with pytest.raises(RowRefused, match="task 0 has claimed"):
        client.claim(EPOCH, OTHER_TASK, [1])
    told = (
        AttemptFailure("because", is_final=True),
        AttemptFailure("again", is_final=False, is_late=True),
    )
    for each in told:
        client.report_failure(EPOCH, each)
    assert service.book.failures == told
    assert client.layout(["more"]) == (("out", 3), ("more", 1))
    with pytest.raises(RowRefused, match="missing"):
        client.layout(["missing"])
    with pytest.raises(AttemptRefused, match="not in this epoch"):
        client.layout(["later"])


def test_a_million_partitions_in_one_claim(service: ClaimService) -> None:
    service.client.claim(EPOCH, FIRST, range(200_000))
    assert len(service.book.owners) == 200_000


def test_strangers_are_told_nothing(service: ClaimService) -> None:
    stranger = service.client._replace(token="guessed")
    with pytest.raises(ClaimsUnreachable, match="closed the connection"):
        stranger.claim(EPOCH, FIRST, [0])
    assert service.book.owners == {}
    assert service.client.token not in repr(service.client)
    assert service.client.token not in repr(service)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}\n",
        b"[1]\n",
        b"GET / HTTP/1.1\r\n",
        b'{"token": 7}\n',
        b"\xff\n",
        pytest.param(b"x" * 100, id="no end of line"),
    ],
)
def test_nonsense_gets_no_answer(service: ClaimService, line: bytes) -> None:
    assert service.answer(line) is None
    with socket.create_connection(
        (service.client.host, service.client.port), timeout=5
    ) as stranger:
        stranger.sendall(line)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(100) == b""
    service.client.claim(EPOCH, FIRST, [0])


def test_a_request_with_the_token_and_nothing_else(service: ClaimService) -> None:
    for rest in ({}, {"ask": "claim"}, {"ask": "claim", "epoch": [1]}, {"ask": "all"}):
        assert service.answer(json.dumps({"token": service.token, **rest}).encode()) is None


def reset(connection: socket.socket, _: bytes) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def say_nothing(connection: socket.socket, _: bytes) -> None:
    """It is ended as connections are."""


def say_half(connection: socket.socket, answer: bytes) -> None:
    connection.sendall(answer[:5])


Cut = Callable[[socket.socket, bytes], None]


@contextmanager
def cut_off(service: ClaimService, cut: Cut, times: int) -> Iterator[ClaimClient]:
    """A way to the service on which answers are lost so often; what was asked has happened."""
    with socket.create_server(("127.0.0.1", 0)) as between:

        def serve() -> None:
            for number in range(times + 1):
                connection, _ = between.accept()
                with connection, connection.makefile("rb") as asked:
                    answer = service.answer(asked.readline()) or b""
                    if number == times:
                        connection.sendall(answer)
                    else:
                        cut(connection, answer)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield ClaimClient("127.0.0.1", between.getsockname()[1], service.token)
        serving.join(10)


@pytest.mark.parametrize("cut", [reset, say_nothing, say_half])
def test_an_answer_that_is_lost_is_asked_for_again(book: ClaimBook, cut: Cut) -> None:
    """The claim was granted, and whoever asked was cut off before it heard of that."""
    with (
        ClaimService(book, "127.0.0.1", "127.0.0.1") as service,
        cut_off(service, cut, 2) as client,
    ):
        client.claim(EPOCH, FIRST, [0, 1])
    assert book.owners == {0: FIRST, 1: FIRST}
    assert book.claim(EPOCH, RETRY, [0]) is not None


@pytest.mark.parametrize("times", [0, 1])
def test_a_refusal_that_is_lost_is_one_when_it_is_asked_for_again(
    book: ClaimBook, times: int
) -> None:
    """In the older protocol a topic that rows name first can join the next transaction only."""
    topics = SinkTopics(ClientSettings.of(), ["known"], create=lambda name: None)
    sizes: Any = lambda names, may_be_gone=(): dict.fromkeys(names, 1)  # noqa: E731
    topics._sizes = sizes  # type: ignore[method-assign]
    topics.refresh()
    topics.may_grow = False
    with (
        ClaimService(book, "127.0.0.1", "127.0.0.1", topics.ensure) as service,
        cut_off(service, reset, times) as client,
        pytest.raises(AttemptRefused, match="'new' can join the next transaction only"),
    ):
        client.layout(["new"])
    assert topics.ensure(["known"]) == (("known", 1), ("new", 1)), "it is known by now"
    topics.refresh()
    assert topics.ensure(["new"]) == (("known", 1), ("new", 1))


def test_a_driver_that_is_gone(book: ClaimBook) -> None:
    with ClaimService(book, "127.0.0.1", "127.0.0.1") as service:
        client: ClaimClient = service.client
    with pytest.raises(ClaimsUnreachable, match="does not answer"):
        client.claim(EPOCH, FIRST, [0])


# --- reports ------------------------------------------------------------------------------------

OWNERS = {0: FIRST, 2: FIRST, 1: OTHER_TASK}
GOOD = [
    Report(0, 10, ALL_ROWS, 5, -1),
    Report(0, 10, 0, 3, 2),
    Report(0, 10, 2, 2, 1),
    Report(1, 11, ALL_ROWS, 0, -1),
]


def test_reports_that_fit() -> None:
    assert check_reports(GOOD, OWNERS) == 5
    assert check_reports([], {}) == 0


@pytest.mark.parametrize(
    ("reports", "problem"),
    [
        ([*GOOD, GOOD[1]], "target 0 is reported twice"),
        ([GOOD[0]._replace(rows=6), *GOOD[1:]], "task 0 was given 6 rows and wrote 5"),
        ([*GOOD[:2], *GOOD[3:]], "task 0 was given 5 rows and wrote 3"),
        (GOOD[:3], "task 1 has claimed partitions and reported nothing"),
        ([*GOOD[:1], GOOD[1]._replace(last_sequence=1), *GOOD[2:]], "ends at sequence 1"),
        ([*GOOD, Report(1, 20, ALL_ROWS, 0, -1)], "task 1 has reported twice"),
        (
            [*GOOD[:3], Report(1, 20, ALL_ROWS, 1, -1), Report(1, 20, 1, 1, 0)],
            "target 1 was written by attempt 20, not by its owner",
        ),
        ([*GOOD, Report(1, 11, 3, 0, -1)], "target 3 was written by attempt 11"),
    ],
)
def test_reports_that_do_not(reports: list[Report], problem: str) -> None:
    with pytest.raises(ReportsWrong, match=problem):
        check_reports(reports, OWNERS)

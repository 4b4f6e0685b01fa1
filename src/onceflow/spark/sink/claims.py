"""Which task may write to which partition: the driver keeps the book, tasks ask before they write.

Within one epoch a broker takes a second writer's rows for repeated ones, or mixes them in. So the
first task attempt that claims an output partition owns it as long as the epoch lasts, and any other
attempt is refused: a retry, a speculative copy, or a task of a stage that Spark runs again, which
counts its attempts from 0 again. The service is a small TCP server beside the query: one request
and one answer on each connection, a line of JSON each, with a token that only its tasks have.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias

from onceflow.errors import OnceflowError
from onceflow.spark.errors import AttemptRefused, ClaimsUnreachable, LaterAttempt, RowRefused

LARGEST_LINE: Final = 4 << 20
"""Bytes; the ids of a million partitions fit."""
_DEADLINE_S: Final = 20.0
_LAYOUT_DEADLINE_S: Final = 120.0
"""For an answer that the driver may have to wait for brokers for."""
_REFUSED_S: Final = 2.0
"""So long a driver is asked again that takes no connections, or closes them at once: most likely it
has ended."""
_PAUSE_S: Final = 0.05
Epoch: TypeAlias = tuple[int, int]
"""Producer id and epoch of a transaction."""
TopicCounts: TypeAlias = Sequence[tuple[str, int]]
"""Topics in order, each with its number of partitions."""


class AttemptFailure(NamedTuple):
    """Why a task attempt ended."""

    message: str
    is_final: bool
    """Trying again would not help."""
    is_late: bool = False
    """It was refused because another attempt came before, and says nothing of what happened."""


class TargetOwner(NamedTuple):
    """The task attempt that has claimed a target."""

    attempt: int
    task: int


class ClaimRefusal(NamedTuple):
    """Why a claim is not granted."""

    message: str
    is_final: bool = False
    """Two tasks have rows for one partition: trying again would not help."""
    is_late: bool = False
    """Another attempt of the same task came before."""


def _go_on() -> None:
    """Nothing has to be given up."""


class ClaimBook:
    """The claims of the epoch that is open. Used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch: Epoch | None = None
        self._owners: dict[int, TargetOwner] = {}
        self._failures: list[AttemptFailure] = []
        self.give_up: Callable[[], None] = _go_on
        """Called when a task attempt of the open epoch has failed: no other can take its place."""

    def open(self, epoch: Epoch) -> None:
        """From now on only this epoch counts, and nothing is claimed in it."""
        with self._lock:
            self._epoch = epoch
            self._owners = {}
            self._failures = []

    def close(self) -> None:
        """Nothing can be claimed any more; what is known stays."""
        with self._lock:
            self._epoch = None

    def claim(
        self, epoch: Epoch, asker: TargetOwner, targets: Sequence[int]
    ) -> ClaimRefusal | None:
        """All of the targets or none; why not, if not."""
        with self._lock:
            if epoch != self._epoch:
                return ClaimRefusal(f"epoch {epoch[1]} of producer {epoch[0]} is over")
            for target in targets:
                owner = self._owners.get(target, asker)
                if owner.task != asker.task:
                    return ClaimRefusal(f"task {owner.task} has claimed it", is_final=True)
                if owner != asker:
                    return ClaimRefusal(
                        f"attempt {owner.attempt} of task {owner.task} has claimed its partitions "
                        f"in this epoch, attempt {asker.attempt} comes too late",
                        is_late=True,
                    )
            self._owners.update(dict.fromkeys(targets, asker))
            return None

    def add_failure(self, epoch: Epoch, failure: AttemptFailure) -> None:
        """A task attempt has failed."""
        with self._lock:
            if epoch != self._epoch:
                return
            self._failures.append(failure)
            is_first = len(self._failures) == 1
        if is_first:
            self.give_up()

    @property
    def owners(self) -> dict[int, TargetOwner]:
        """The owner of each target."""
        with self._lock:
            return dict(self._owners)

    @property
    def failures(self) -> tuple[AttemptFailure, ...]:
        """In the order in which they were noted; late attempts, which follow from others, last."""
        with self._lock:
            return tuple(sorted(self._failures, key=lambda each: each.is_late))


# --- the driver's side --------------------------------------------------------------------------


def _no_layout(topics: Sequence[str]) -> TopicCounts:
    raise RowRefused(f"no topic was expected in a row, but {', '.join(map(repr, topics))}")


@dataclass
class ClaimService:
    """Serves a book, and the layout of topics that rows name: `layout` is given the topics that a
    task has met and returns all there are."""

    book: ClaimBook
    host: str
    bind: str
    layout: Callable[[Sequence[str]], TopicCounts] = _no_layout
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    def __post_init__(self) -> None:
        service = self

        class Handler(socketserver.StreamRequestHandler):
            timeout = _DEADLINE_S

            def handle(self) -> None:
                try:
                    answer = service.answer(self.rfile.readline(LARGEST_LINE))
                    if answer is not None:
                        self.wfile.write(answer)
                except OSError:
                    return  # the task is gone

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 256
            address_family = socket.AF_INET6 if ":" in self.bind else socket.AF_INET

        self._server = Server((self.bind, 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    @property
    def client(self) -> ClaimClient:
        """What a task needs to ask."""
        return ClaimClient(self.host, self._server.server_address[1], self.token)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def answer(self, line: bytes) -> bytes | None:
        """None for a stranger: only tasks of this query know the token."""
        try:
            asked = json.loads(line)
            if not hmac.compare_digest(asked["token"].encode(), self.token.encode()):
                return None
            answer = self._answer(asked)
        except (ValueError, LookupError, TypeError, AttributeError):
            return None
        return json.dumps(answer).encode() + b"\n"

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["ask"] == "layout":
            try:
                return {"layout": [list(each) for each in self.layout(asked["topics"])]}
            except AttemptRefused as error:
                return {"refused": str(error)}
            except OnceflowError as error:
                return {"refused": str(error), "final": True}
        epoch = (int(asked["epoch"][0]), int(asked["epoch"][1]))
        if asked["ask"] == "claim":
            targets = [int(each) for each in asked["targets"]]
            asker = TargetOwner(int(asked["attempt"]), int(asked["task"]))
            refusal = self.book.claim(epoch, asker, targets)
            if refusal is None:
                return {"granted": True}
            return {
                "refused": refusal.message,
                "final": refusal.is_final,
                "late": refusal.is_late,
            }
        if asked["ask"] == "failed":
            failure = AttemptFailure(
                str(asked["message"]), bool(asked["final"]), bool(asked["late"])
            )
            self.book.add_failure(epoch, failure)
            return {"noted": True}
        raise ValueError(asked["ask"])


# --- the task's side ----------------------------------------------------------------------------


class _HungUp(OSError):
    """The connection was closed without a word, as it is to strangers."""


class ClaimClient(NamedTuple):
    """Where a task asks. Goes to tasks inside their function."""

    host: str
    port: int
    token: str

    def __repr__(self) -> str:
        return f"Door({self.host}:{self.port})"

    def claim(self, epoch: Epoch, asker: TargetOwner, targets: Sequence[int]) -> None:
        """Raises `AttemptRefused`, or `RowRefused` when they are another task's."""
        self._ask({"ask": "claim", "epoch": epoch, **asker._asdict(), "targets": list(targets)})

    def layout(self, topics: Sequence[str]) -> TopicCounts:
        """All topics that are known, these included; raises `RowRefused` or `AttemptRefused`."""
        asked = {"ask": "layout", "topics": list(topics)}
        answer = self._ask(asked, _LAYOUT_DEADLINE_S)
        return tuple((str(topic), int(count)) for topic, count in answer["layout"])

    def report_failure(self, epoch: Epoch, failure: AttemptFailure) -> None:
        """Tells the driver why this attempt ends."""
        fields = {"message": failure.message[:4000], "final": failure.is_final}
        self._ask({"ask": "failed", "epoch": epoch, **fields, "late": failure.is_late})

    def _ask(self, asked: dict[str, Any], deadline_s: float = _DEADLINE_S) -> dict[str, Any]:
        line = json.dumps({**asked, "token": self.token}).encode() + b"\n"
        line_of_answer = self._answer(line, deadline_s)
        answer: dict[str, Any] = json.loads(line_of_answer)
        if "refused" in answer:
            late = LaterAttempt if answer.get("late") else AttemptRefused
            raise (RowRefused if answer.get("final") else late)(answer["refused"])
        return answer

    def _answer(self, line: bytes, deadline_s: float) -> bytes:
        """Asks again where a connection breaks: nothing that is asked means more when it is asked
        twice, and an attempt that gives up costs a whole batch."""
        began = time.monotonic()
        while True:
            try:
                return self._answer_at_once(line, deadline_s)
            except OSError as error:
                is_gone = isinstance(error, ConnectionRefusedError | _HungUp)
                patience_s = _REFUSED_S if is_gone else deadline_s
                if time.monotonic() - began >= patience_s:
                    raise ClaimsUnreachable(
                        f"the driver does not answer at {self.host}:{self.port} ({error}): it has "
                        "ended, or executors cannot reach it (spark.driver.host, a firewall)"
                    ) from error
            time.sleep(_PAUSE_S)

    def _answer_at_once(self, line: bytes, deadline_s: float) -> bytes:
        """A whole line, or an `OSError`, however the connection ended."""
        with (
            socket.create_connection((self.host, self.port), timeout=deadline_s) as connection,
            connection.makefile("rb") as answers,
        ):
            connection.sendall(line)
            answer = answers.readline(LARGEST_LINE)
        if not answer:
            raise _HungUp("it closed the connection: perhaps another driver started this task")
        if not answer.endswith(b"\n"):
            raise ConnectionResetError("it closed the connection in the middle of its answer")
        return answer

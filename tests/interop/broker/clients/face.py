"""One face for the Kafka clients of Python that others wrote, so that one script runs on each.

Each client has an adapter, in a module of its own, that only translates: values in, values out,
errors by Kafka's names. What a client cannot do, its adapter says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from tests.interop.broker.raw.raw_client import error_name

HEARTBEAT_MS: Final = 200
SESSION_MS: Final = 10_000
CREATE_TIME, LOG_APPEND_TIME = 0, 1
Headers = tuple[tuple[str, bytes | None], ...]
Place = tuple[str, int]
"""A topic and a partition."""


class Message(NamedTuple):
    """What is sent."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int = 0


class Received(NamedTuple):
    """What comes back."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


def all_received(batches: Mapping[Any, Sequence[Any]]) -> list[Received]:
    """What one poll of aiokafka or kafka-python gives, by partition."""
    return [
        Received(
            record.partition,
            record.offset,
            record.key,
            record.value,
            tuple((key, value) for key, value in record.headers),
            record.timestamp,
        )
        for records in batches.values()
        for record in records
    ]


class Refused(Exception):
    """A broker's refusal, by Kafka's name for it, or a client's own."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    @staticmethod
    def by_code(code: int | None, otherwise: str) -> Refused:
        """Codes below -1 are a client's own; then its own name says more."""
        return Refused(error_name(code) if code is not None and code >= -1 else otherwise)


class Reader(Protocol):
    """A consumer: of assigned partitions, or as a member of a group."""

    def poll(self, seconds: float) -> Sequence[Received]: ...
    def seek(self, partition: int, offset: int) -> None: ...
    def assignment(self) -> frozenset[Place]: ...
    def commit(self, offsets: Mapping[Place, int]) -> None: ...
    def committed(self, place: Place) -> int | None: ...
    def close(self) -> None: ...


class Client(Protocol):
    """What scripts ask of a client, and what it can do."""

    name: str
    codecs: Sequence[str]
    strategies: Sequence[str]
    null_headers: bool

    def __init__(self, bootstrap: str) -> None: ...
    def produce(
        self, topic: str, messages: Sequence[Message], *, acks: int = -1, codec: str = "none"
    ) -> list[int | str]:
        """The offset of each message, or the name of its error."""

    def read(self, topic: str, *, start: str = "earliest", partition: int = 0) -> Reader:
        """A reader of one partition; `start`: where it goes when there is no such offset."""

    def join(
        self, group: str, topic: str, *, strategy: str = "range", instance: str | None = None
    ) -> Reader:
        """A new member of the group."""

    def offsets(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        """First offset, and the one after the last."""

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        """The first offset of that time or later; None: there is none."""

    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        factor: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> None: ...

    def delete(self, topic: str) -> None: ...
    def add_partitions(self, topic: str, total: int) -> None: ...
    def topics(self) -> Mapping[str, int]:
        """Number of partitions of every topic."""

    def configs(self, topic: str) -> Mapping[str, str | None]: ...
    def delete_records(self, topic: str, before: int) -> int:
        """The log start after it."""

    def group_state(self, group: str) -> tuple[str, int]:
        """The group's state and its number of members."""

    def groups(self) -> Sequence[str]: ...
    def group_offsets(self, group: str) -> Mapping[Place, int]: ...
    def close(self) -> None: ...


def refusal_of(act: object, *arguments: object, **options: object) -> str:
    """The name of the error that a call is refused with; NONE: it is not refused."""
    assert callable(act)
    try:
        act(*arguments, **options)
    except Refused as refused:
        return refused.name
    return "NONE"


def read_all(reader: Reader, count: int, *, polls: int = 200) -> list[Received]:
    """Reads until it has that many, then closes; fails when they do not come."""
    found: list[Received] = []
    for _ in range(polls):
        found += reader.poll(0.1)
        if len(found) >= count:
            break
    reader.close()
    assert len(found) >= count, f"{len(found)} of {count} records came"
    return sorted(found, key=lambda record: (record.partition, record.offset))

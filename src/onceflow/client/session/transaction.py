"""The transaction of a session's batch, for the application that processes the batch.

When the transaction has failed in a way that an abort settles, the session aborts it and returns
the batch again. Until then the application's sends do not raise: their records go nowhere, and
their receipts fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from onceflow.client.codec import GroupMember, OffsetToCommit
from onceflow.client.errors import AbortableError, FatalProducerError, Fenced, WrongUse
from onceflow.client.producer import Receipt, TableReceipt
from onceflow.client.session.clients import SessionProducer
from onceflow.client.session.errors import SessionFailed, SessionFenced, SessionForgotten
from onceflow.client.session.states import refusal_in
from onceflow.client.transactions import WrongState
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    import pyarrow as pa

    from onceflow.client.consumer import Record
    from onceflow.client.producer import Headers


class SessionTransaction:
    """The transaction that comes with a batch; use it until you ask for the next batch. The session
    begins it, adds the batch's offsets and ends it, so it needs no `async with`.

    >>> from onceflow import Producer, Session
    >>> async def main() -> None:
    ...     async with Producer(bootstrap) as producer:
    ...         await producer.send("payments", b"42")
    ...     settings = {"group.id": "billing", "auto.offset.reset": "earliest"}
    ...     async with Session(bootstrap, settings, topics=["payments"]) as session:
    ...         async for batch, txn in session:
    ...             receipts = [await txn.send("orders", record.value) for record in batch]
    ...             break
    ...     print([(await receipt).offset for receipt in receipts])
    >>> asyncio.run(main())
    [0]
    """

    def __init__(self, producer: SessionProducer, dead_letter_topic: str | None) -> None:
        self._sends = producer
        self._dead_letter_topic = dead_letter_topic
        self._gather: Callable[..., Receipt | None] = producer.gather
        self._failure: AbortableError | None = None
        self._is_over = False

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> Receipt:
        """Like `Producer.send`. The commit waits for the record: no need to await the receipt."""
        receipt = self._gather(topic, value, key, partition, timestamp_ms, headers)
        if receipt is not None:
            return receipt
        if self._is_over or self._failure is not None:
            return self._too_late(topic)
        try:
            return await self._sends.send(
                topic,
                value,
                key=key,
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=headers,
            )
        except AbortableError as error:
            self._failed(error)
            return self._too_late(topic)
        except FatalProducerError as error:
            raise fatal(error, self._sends) from error

    async def send_table(
        self, topic: str, table: pa.Table | pa.RecordBatch, *, partition: int | None = None
    ) -> TableReceipt:
        """Like `Producer.send_table`."""
        if not self._is_over and self._failure is None:
            try:
                return await self._sends.send_table(topic, table, partition=partition)
            except AbortableError as error:
                self._failed(error)
            except FatalProducerError as error:
                raise fatal(error, self._sends) from error
        return TableReceipt([self._too_late(topic).batch])

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetToCommit], group: str | GroupMember
    ) -> None:
        """Like `Producer.send_offsets_to_transaction`, for another group: the session itself sends
        the offsets of its own group."""
        if not self._is_over and self._failure is None:
            try:
                return await self._sends.send_offsets_to_transaction(offsets, group)
            except AbortableError as error:
                self._failed(error)
            except FatalProducerError as error:
                raise fatal(error, self._sends) from error
        self._too_late("")
        return None

    async def dead_letter(self, record: Record, error: BaseException | str) -> Receipt:
        """Sends a record that cannot be processed to `dead.letter.topic`, unchanged, with headers
        that name the error (`error`, `error.class`) and the record's origin (`source.topic`,
        `source.partition`, `source.offset`)."""
        topic = self._dead_letter_topic
        if topic is None:
            raise WrongUse("there is no topic for dead letters: set dead.letter.topic")
        headers = (*record.headers, *dead_letter_headers(record, error))
        return await self.send(topic, record.value, key=record.key, headers=headers)

    def __repr__(self) -> str:
        state = "over" if self._is_over else "open" if self._failure is None else "failed"
        return f"<SessionTransaction of {self._sends.settings.transactional_id!r}, {state}>"

    def _failed(self, error: AbortableError) -> None:
        self._failure = error
        self._gather = _not_gathered

    def _too_late(self, topic: str) -> Receipt:
        if self._is_over:
            raise WrongState(
                "send: the batch of this transaction is done; send before the next one is asked for"
            )
        error = self._failure or AbortableError("the transaction has failed")
        return self._sends.failed_receipt(topic, error)


def end(transaction: SessionTransaction) -> None:
    """Closes the transaction of a batch that is done or was given up: it takes no more records."""
    transaction._is_over = True
    transaction._gather = _not_gathered


def _not_gathered(*_record: object) -> None:
    """Replaces `SessionProducer.gather`, so that `send` need not check the state each time."""


def dead_letter_headers(
    record: Record, error: BaseException | str
) -> tuple[tuple[str, bytes], ...]:
    """Headers that name the error and the record, as those of the Spark sink do."""
    texts = {
        "error": str(error) or type(error).__name__,
        **({} if isinstance(error, str) else {"error.class": class_name(type(error))}),
        "source.topic": record.topic,
        "source.partition": str(record.partition),
        "source.offset": str(record.offset),
    }
    return tuple((name, text.encode()) for name, text in texts.items())


def class_name(kind: type[BaseException]) -> str:
    """The class's name, with its module unless it is a builtin."""
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def fatal(error: FatalProducerError, producer: SessionProducer) -> SessionFailed | SessionFenced:
    """The session's error for a fatal error of its producer."""
    name = producer.settings.transactional_id
    if isinstance(error, Fenced):
        return SessionFenced(
            f"another session uses the transactional id {name!r} by now: {error}",
            outcome=error.outcome,
        )
    refusal = refusal_in(error)
    is_forgotten = refusal is not None and refusal.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    kind = SessionForgotten if is_forgotten else SessionFailed
    return kind(f"transactional id {name!r}: {error}", outcome=error.outcome)

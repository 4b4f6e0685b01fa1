"""An open transaction as a value: what another process needs to write in it, or to end it.

It is small and frozen, can be pickled or written as JSON, and holds no secret: the other process
has its own login. Reading it back is strict: an unknown version, an extra field or a number out of
range raises an error that names it, because a wrong epoch or sequence number would lose records
silently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from onceflow.client.address import (
    BrokerAddress,
)
from onceflow.client.codec import ProducerIdentity
from onceflow.client.errors import ClientError
from onceflow.types import TopicPartition
from onceflow.wire import LAST_EPOCH, TRANSACTION_V2

if TYPE_CHECKING:
    from onceflow.client.transactions.machine import TransactionMachine

KIND: Final = "onceflow open transaction"
FORMAT: Final = 1
_OLDER_PROTOCOL: Final = 1

_LARGEST_INT32: Final = 2**31 - 1
_LARGEST_INT64: Final = 2**63 - 1
_LARGEST_PORT: Final = 65_535


class OpenTransactionMalformed(ClientError):
    """What was given as an open transaction is none; the message names the field."""

    advice = "pass on what to_json wrote, unchanged, to a process of the same release"


class NotClaimed(ClientError):
    """A partition that this transaction was not handed over for."""

    advice = "claim the partition where the transaction was begun, before it is handed over"


class Claim(NamedTuple):
    """A partition that may be written, and the sequence of the next record there."""

    partition: TopicPartition
    next_sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """One transaction. At most one writer may write to a claimed partition, once: inside one epoch
    a broker takes a second writer's records for repeated ones, or mixes them in.

    >>> from onceflow import Producer
    >>> async def main() -> None:
    ...     async with Producer(bootstrap, transactional_id="shop") as producer:
    ...         await producer.init_transactions()
    ...         await producer.begin_transaction()
    ...         opened = await producer.open_transaction([TopicPartition("orders", 0)])
    ...         print(OpenTransaction.from_json(opened.to_json()) == opened)
    ...         await producer.abort_transaction()
    >>> asyncio.run(main())
    True
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int
    """2: the epoch is this transaction's own; 1: of the older protocol."""
    timeout_ms: int
    """After which the coordinator aborts it by itself."""
    bootstrap: tuple[BrokerAddress, ...]
    claims: tuple[Claim, ...] = ()

    def __post_init__(self) -> None:
        if len({each.partition for each in self.claims}) != len(self.claims):
            raise OpenTransactionMalformed("claims: a partition is claimed twice")

    @classmethod
    def of(
        cls,
        machine: TransactionMachine,
        bootstrap: Sequence[BrokerAddress],
        claims: Iterable[Claim],
    ) -> Self:
        """The transaction that a producer has open."""
        identity = machine.identity
        return cls(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            transaction_version=max(machine.transaction_version, _OLDER_PROTOCOL),
            timeout_ms=machine.timeout_ms,
            bootstrap=tuple(bootstrap),
            claims=tuple(claims),
        )

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.transactional_id, self.producer_id, self.producer_epoch)

    @property
    def has_own_epoch(self) -> bool:
        return self.transaction_version >= TRANSACTION_V2

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The claimed ones, in order."""
        return tuple(each.partition for each in self.claims)

    def next_sequence(self, partition: TopicPartition) -> int:
        """Raises `NotClaimed`."""
        for each in self.claims:
            if each.partition == partition:
                return each.next_sequence
        raise NotClaimed(
            f"partition {partition} is not among those that were handed over with the transaction "
            f"of {self.identity}"
        )

    def only(self, partitions: Iterable[TopicPartition]) -> Self:
        """The same for a process that is to write to some of the partitions; raises
        `NotClaimed`."""
        claims = tuple(Claim(each, self.next_sequence(each)) for each in partitions)
        return replace(self, claims=claims)

    def to_json(self) -> str:
        """One line of JSON; `from_json` reads it back."""
        fields = {
            "kind": KIND,
            "format": FORMAT,
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "transaction_version": self.transaction_version,
            "timeout_ms": self.timeout_ms,
            "bootstrap": [[each.host, each.port] for each in self.bootstrap],
            "claims": [[*each.partition, each.next_sequence] for each in self.claims],
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Raises `OpenTransactionMalformed`."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise OpenTransactionMalformed(f"not JSON: {error}") from error
        if not isinstance(found, dict) or found.get("kind") != KIND:
            raise OpenTransactionMalformed("this is not an open transaction")
        if found.get("format") != FORMAT:
            raise OpenTransactionMalformed(
                f"format {found.get('format')!r}: this release reads format {FORMAT}"
            )
        if odd := found.keys() ^ {*_FIELDS, "kind", "format"}:
            raise OpenTransactionMalformed(
                f"fields that are missing or not known: {', '.join(odd)}"
            )
        return cls(**{name: read(name, found[name]) for name, read in _FIELDS.items()})


def _number(lowest: int, highest: int) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        # A bool is an int, too.
        if type(value) is not int or not lowest <= value <= highest:
            raise OpenTransactionMalformed(
                f"{name}: {value!r} is no number from {lowest} to {highest}"
            )
        return value

    return read


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise OpenTransactionMalformed(f"{name}: {value!r} is not a text")
    return value


def _rows(
    name: str, value: Any, readers: tuple[Callable[[str, Any], Any], ...]
) -> list[tuple[Any, ...]]:
    rows: list[Any] = value if isinstance(value, list) else [None]
    if any(not isinstance(row, list) or len(row) != len(readers) for row in rows):
        raise OpenTransactionMalformed(f"{name}: not a list of lists of {len(readers)} values")
    return [
        tuple(read(name, field) for read, field in zip(readers, row, strict=True)) for row in rows
    ]


def _addresses(name: str, value: Any) -> tuple[BrokerAddress, ...]:
    found = tuple(
        BrokerAddress(*row) for row in _rows(name, value, (_text, _number(1, _LARGEST_PORT)))
    )
    if not found:
        raise OpenTransactionMalformed(f"{name}: there is no address")
    return found


def _claims(name: str, value: Any) -> tuple[Claim, ...]:
    small = _number(0, _LARGEST_INT32)
    rows = _rows(name, value, (_text, small, small))
    return tuple(
        Claim(TopicPartition(topic, partition), next_sequence)
        for topic, partition, next_sequence in rows
    )


_FIELDS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "transactional_id": _text,
    "producer_id": _number(0, _LARGEST_INT64),
    "producer_epoch": _number(0, LAST_EPOCH),
    "transaction_version": _number(1, TRANSACTION_V2),
    "timeout_ms": _number(1, _LARGEST_INT32),
    "bootstrap": _addresses,
    "claims": _claims,
}

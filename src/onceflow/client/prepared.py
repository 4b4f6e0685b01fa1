"""The name of a prepared transaction, to be kept by the program that decides how it ends.

In a two-phase commit a database decides: it stores the name together with its own changes. After a
crash the transaction that is still open is committed if its name is the stored one, else aborted.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

from onceflow.client.errors import ClientError

_FORM: Final = re.compile(r"(\d{1,19}):(\d{1,5})", re.ASCII)


class PreparedMalformed(ClientError):
    """What was given as the name of a prepared transaction is none."""

    advice = "pass what str() of a PreparedTransaction gave, or an empty text for none"


class PreparedTransaction(NamedTuple):
    """As text `producer id:epoch`, as Apache Kafka writes it; empty when there is none.

    >>> str(PreparedTransaction(7, 3))
    '7:3'
    >>> PreparedTransaction.parse("7:3")
    PreparedTransaction(producer_id=7, producer_epoch=3)
    >>> bool(PreparedTransaction.parse(""))
    False
    """

    producer_id: int = -1
    producer_epoch: int = -1

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}" if self else ""

    def __bool__(self) -> bool:
        return self.producer_id >= 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `PreparedMalformed`."""
        if not text:
            return cls()
        found = _FORM.fullmatch(text)
        if found is None:
            raise PreparedMalformed(f"{text!r} is not the name of a prepared transaction")
        return cls(int(found[1]), int(found[2]))

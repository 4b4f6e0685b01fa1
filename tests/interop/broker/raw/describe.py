"""DescribeTransactions, decoded by hand: kio has no value for the time at which no transaction has
begun, -1."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import RawConnection, error_name


def describe_transactions(connection: RawConnection, names: Sequence[str | None]) -> list[Any]:
    """The rows of the answer, as `plain` would give them."""
    connection.send(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": names})
    reader = Reader(connection.receive_bytes())
    reader.tags()
    assert reader.number(">i") == 0, "throttled"
    rows = [
        {
            "error_code": error_name(reader.number(">h")),
            "transactional_id": reader.text(),
            "transaction_state": reader.text(),
            "transaction_timeout": reader.number(">i"),
            "transaction_start_time": reader.number(">q"),
            "producer_id": reader.number(">q"),
            "producer_epoch": reader.number(">h"),
            "topics": [
                {
                    "topic": reader.text(),
                    "partitions": [reader.number(">i") for _ in range(reader.length())],
                    "tags": reader.tags(),
                }
                for _ in range(reader.length())
            ],
            "tags": reader.tags(),
        }
        for _ in range(reader.length())
    ]
    reader.tags()
    reader.close()
    return rows


class Reader:
    """Reads what flexible versions are made of."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, layout: str) -> int:
        found: int = struct.unpack_from(layout, self._data, self._at)[0]
        self._at += struct.calcsize(layout)
        return found

    def length(self) -> int:
        """Of an array or a string that is not null, and shorter than 127."""
        found = self.number(">b")
        assert found > 0
        return found - 1

    def text(self) -> str:
        size = self.length()
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def tags(self) -> int:
        found = self.number(">b")
        assert found == 0, "a tag that nobody knows"
        return found

    def close(self) -> None:
        assert self._at == len(self._data), "bytes are left over"

"""A blocking reader of exact ranges, on both brokers: what is committed, what is not, what is
missing."""

from __future__ import annotations

from tests.interop.client.worker.reader_scripts import not_there, ranges
from tests.interop.harness import Compare


def test_ranges(compare: Compare) -> None:
    compare(ranges)


def test_not_there(compare: Compare) -> None:
    compare(not_there)

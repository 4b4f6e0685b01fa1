"""Where the kernels and those who call them put what: the order of every array of int64.

This is apart from the kernels because importing those loads numba.
"""

from __future__ import annotations

from enum import IntEnum

SPILL = 64
"""The room that `copy_wide` needs behind what it copies."""


class Total(IntEnum):
    """Where in `totals` a kernel leaves what."""

    KEY_BYTES = 0
    VALUE_BYTES = 1
    HEADERS = 2
    HEADER_KEY_BYTES = 3
    HEADER_VALUE_BYTES = 4
    NULL_KEYS = 5
    NULL_VALUES = 6
    NULL_HEADER_VALUES = 7
    MAX_TIMESTAMP = 8
    BAD_BATCH = 9
    BAD_RECORD = 10
    BAD_POSITION = 11


class Column(IntEnum):
    """Where in `columns` which Arrow buffer's address stands; `ROWS` is how many rows they hold."""

    KEY_OFFSETS = 0
    KEY_DATA = 1
    KEY_VALIDITY = 2
    VALUE_OFFSETS = 3
    VALUE_DATA = 4
    VALUE_VALIDITY = 5
    TIMESTAMPS = 6
    OFFSETS = 7
    HEADER_COUNTS = 8
    ROWS = 9


class HeaderColumn(IntEnum):
    """Where in `columns` of `fill_headers` the address of which Arrow buffer stands."""

    KEY_OFFSETS = 0
    KEY_DATA = 1
    VALUE_OFFSETS = 2
    VALUE_DATA = 3
    VALUE_VALIDITY = 4


class SourceField(IntEnum):
    """The first of five entries of each binary column, and the single ones."""

    KEY = 0
    VALUE = 5
    HEADER_KEY = 10
    HEADER_VALUE = 15
    TIMESTAMPS = 20
    LIST_OFFSETS = 21
    LIST_VALIDITY = 22
    LIST_FIRST_BIT = 23


class Binary(IntEnum):
    """The five entries of a binary column; validity 0 means that nothing is null."""

    OFFSETS = 0
    DATA = 1
    DATA_END = 2
    VALIDITY = 3
    FIRST_BIT = 4


class WrittenTotal(IntEnum):
    """What `write` says of a batch: its rows, its bytes, its timestamps."""

    ROWS = 0
    SIZE = 1
    BASE_TIMESTAMP = 2
    MAX_TIMESTAMP = 3

"""Java's hash of a text, by which Kafka chooses the partition that a coordinator keeps it in.

Its tools choose in the same way, so that they ask about the right partition.
"""

from __future__ import annotations

LONGEST_KEPT = 249
"""Partitions of longer texts are not kept in caches: whoever sends one chooses how long it is."""


def partition_by_hash(text: str, partitions: int) -> int:
    """The hash without its sign, modulo the partitions; -2^31 cannot lose it in Java: it is 0."""
    unsigned = java_hash(text)
    magnitude = unsigned if unsigned < 2**31 else 2**32 - unsigned
    return magnitude % 2**31 % partitions


def java_hash(text: str) -> int:
    """`String.hashCode` as an unsigned 32-bit number: Java hashes UTF-16 code units."""
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] | units[at + 1] << 8)) & 0xFFFF_FFFF
    return value

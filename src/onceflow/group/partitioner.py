"""Which partition of `__consumer_offsets` keeps a group: Kafka's choice, so its tools agree."""

from __future__ import annotations


def partition_for(group_id: str, partitions: int) -> int:
    """The hash of the group's id, as Java computes it, without its sign."""
    return (java_hash(group_id) & 0x7FFF_FFFF) % partitions


def java_hash(text: str) -> int:
    """`String.hashCode` as an unsigned 32-bit number: Java hashes UTF-16 code units."""
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] | units[at + 1] << 8)) & 0xFFFF_FFFF
    return value

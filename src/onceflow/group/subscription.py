"""The topics inside a consumer's subscription, which otherwise is the clients' business alone.

Every version of the embedded consumer protocol starts with the fields of version 0; the topics are
read from those, and what follows is not looked at. Bytes of some other protocol give no answer
rather than an error.
"""

from __future__ import annotations

import struct


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics that a member's metadata names; None where it is not a consumer's subscription."""
    try:
        version, count = struct.unpack_from(">hi", metadata, 0)
        if version < 0 or count < 0:
            return None
        topics = []
        at = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, at)
            name = metadata[at + 2 : at + 2 + length]
            if length < 0 or len(name) < length:
                return None
            topics.append(name.decode())
            at += 2 + length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)

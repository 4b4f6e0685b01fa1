"""How a producer gathers records, in the units of whoever does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from onceflow.client.settings import ProducerSettings
from onceflow.records import Codec

CODECS: Final[Mapping[str, Codec]] = {codec.name.lower(): codec for codec in Codec}


@dataclass(frozen=True, slots=True)
class Limits:
    """Kafka's settings of the same names, times in seconds."""

    batch_size: int = 16384
    linger: float = 0.005
    buffer_memory: int = 32 << 20
    delivery_timeout: float = 120.0
    codec: Codec = Codec.NONE
    level: int | None = None

    @classmethod
    def of(cls, settings: ProducerSettings) -> Self:
        return cls(
            batch_size=settings.batch_size,
            linger=settings.linger_ms / 1000,
            buffer_memory=settings.buffer_memory,
            delivery_timeout=settings.delivery_timeout_ms / 1000,
            codec=CODECS[settings.compression_type],
        )

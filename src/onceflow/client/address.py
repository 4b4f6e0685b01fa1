"""Where a broker is: `HOST:PORT`, or several of them separated by commas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from onceflow.errors import InvalidSetting
from onceflow.settings import LARGEST_PORT, host_and_port

DEFAULT_PORT: Final = 9092


class BrokerAddress(NamedTuple):
    """A host, by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def comma_separated(addresses: Iterable[BrokerAddress]) -> str:
    """The addresses as text that `parse_addresses` reads."""
    return ",".join(map(str, addresses))


def parse_addresses(text: str) -> tuple[BrokerAddress, ...]:
    """The addresses in a list; a port that is left out is 9092."""
    addresses = tuple(_parse(part.strip()) for part in text.split(",") if part.strip())
    if not addresses:
        raise InvalidSetting("there is no broker address; give HOST:PORT, as in 127.0.0.1:9092")
    return addresses


def _parse(text: str) -> BrokerAddress:
    try:
        return BrokerAddress(*host_and_port(text, least_port=1, default_port=DEFAULT_PORT))
    except ValueError as error:
        raise InvalidSetting(
            f"{text!r} is not the address of a broker; "
            f"give HOST:PORT with a port from 1 to {LARGEST_PORT}, as in 127.0.0.1:9092"
        ) from error

"""Where a broker is: `HOST:PORT`, or several of them separated by commas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from onceflow.errors import InvalidSetting

DEFAULT_PORT: Final = 9092
_LARGEST_PORT: Final = 65_535


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
    host, port = _split(text)
    is_number = port.isascii() and port.isdigit() and len(port) <= len(str(_LARGEST_PORT))
    number = int(port) if is_number else -1
    if not host or "/" in host or not 0 < number <= _LARGEST_PORT:
        raise InvalidSetting(
            f"{text!r} is not the address of a broker; "
            f"give HOST:PORT with a port from 1 to {_LARGEST_PORT}, as in 127.0.0.1:9092"
        )
    return BrokerAddress(host, number)


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):  # an IPv6 address
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") if rest else str(DEFAULT_PORT)
    host, colon, port = text.rpartition(":")
    return (host, port) if colon else (text, str(DEFAULT_PORT))

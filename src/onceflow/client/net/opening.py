"""What opening a connection takes, without the sockets: the agreement on versions, and what to say
to the user when a step fails."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Generator
from functools import cache
from typing import Final

from onceflow.client.address import BrokerAddress
from onceflow.client.codec import (
    SPOKEN,
    BrokerOffer,
    VersionRange,
    choose,
    read_api_versions,
    write_api_versions,
)
from onceflow.client.errors import ApiNotServed, BrokerUnreachable, NotKafka, TlsFailed
from onceflow.wire import ApiKey, ErrorCode, error_code

SOFTWARE_NAME: Final = "onceflow"


def agree_on_versions(
    address: BrokerAddress,
    software_version: str,
    newest: int = SPOKEN[ApiKey.API_VERSIONS].newest,
) -> Generator[tuple[int, bytes], memoryview, BrokerOffer]:
    """Yields the version and body of an ApiVersions request, takes the response, returns what the
    broker offers. Asks in the `newest` version; a broker that does not know it answers in version
    0.    Raises `NotKafka`, or `MessageMalformed` for bytes that are no response."""
    version = newest
    while True:
        answer = yield version, write_api_versions(version, SOFTWARE_NAME, software_version)
        offer = read_api_versions(version, answer)
        if offer.error != ErrorCode.UNSUPPORTED_VERSION or version == 0:
            break
        version = _older_version(offer, version)
    if offer.error:
        raise NotKafka(
            f"{address} does not say which versions it speaks ({error_code(offer.error).name})"
        )
    return offer


def _older_version(refusal: BrokerOffer, tried: int) -> int:
    """The version to ask in after `tried` was refused: the newest on offer, else 0."""
    offered = refusal.versions.get(ApiKey.API_VERSIONS)
    newest = 0 if offered is None else offered.newest
    return newest if 0 <= newest < tried else 0


@cache
def software_version() -> str:
    """For ApiVersions, in the few characters that brokers allow. Takes 20 ms the first time."""
    from importlib import metadata  # slow to load

    try:
        return re.sub(r"[^a-zA-Z0-9.-]", "-", metadata.version("onceflow"))
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"


def version_for(
    key: ApiKey, ours: VersionRange, theirs: VersionRange | None, address: BrokerAddress
) -> int:
    """The newest version that both sides speak; raises `ApiNotServed`."""
    version = choose(ours, theirs)
    if version is None:
        offer = f"only versions {theirs}" if theirs else "no version at all"
        raise ApiNotServed(
            f"the broker at {address} offers {offer} of {key.name}; this client speaks {ours} here"
        )
    return version


# --- when it fails ------------------------------------------------------------------------------


def unreachable(address: BrokerAddress, error: OSError) -> BrokerUnreachable:
    """No connection: the error to raise."""
    if isinstance(error, ConnectionRefusedError):
        return BrokerUnreachable(
            f"nothing listens at {address}; check host and port, and that the broker runs"
        )
    if isinstance(error, socket.gaierror):
        return BrokerUnreachable(
            f"the host name {address.host!r} of {address} is not known; check its spelling"
        )
    if isinstance(error, TimeoutError):
        return BrokerUnreachable(
            f"{address} does not answer; check host and port, and that no firewall is between"
        )
    return BrokerUnreachable(f"cannot connect to {address}: {error.strerror or error}")


def tls_failed(address: BrokerAddress, error: OSError) -> TlsFailed | NotKafka:
    """No agreement on TLS: the error to raise."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(
            f"the certificate of {address} is not accepted: {error.verify_message}; "
            "check ssl.cafile and the names in the certificate"
        )
    if isinstance(error, ssl.SSLError):
        return TlsFailed(
            f"{address} does not agree to TLS ({error.reason or error}); is it a TLS port, and "
            "does it want a certificate of ours (ssl.certfile)?"
        )
    if isinstance(error, TimeoutError):
        return NotKafka(
            f"{address} accepts connections and does not answer a TLS handshake; is it a TLS port?"
        )
    return NotKafka(f"{address} closes the connection in the TLS handshake; is it a TLS port?")


def silent(address: BrokerAddress) -> NotKafka:
    """No response to the first request: the error to raise."""
    return NotKafka(f"{address} accepts connections and does not answer; is it a Kafka broker?")


def hangs_up(address: BrokerAddress) -> NotKafka:
    """The end of the connection instead of the first response: the error to raise."""
    return NotKafka(
        f"{address} closes the connection at once; it is not a Kafka broker, or one "
        "that wants TLS (security.protocol)"
    )

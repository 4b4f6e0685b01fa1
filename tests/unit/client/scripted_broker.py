"""A broker for tests of the client: a table of answers, behind a simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from onceflow.client.address import BrokerAddress
from onceflow.client.codec.versions import SPOKEN, VersionRange
from onceflow.client.net.connection import BrokerConnection
from onceflow.runtime.net import Net
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import decode, encode, message_class
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.frame import FrameReader, Scratch
from onceflow.wire.header import read_request_header, response_header
from onceflow.wire.primitives import INT32
from onceflow.wire.schema import recast

NO_TIME = timedelta(0)
PORT = 9092
HOST = "broker"
ADDRESS = BrokerAddress(HOST, PORT)

Answer = Callable[[int, Any], Any]
"""From version and request to a response of any version, bytes of a body, or None: no answer."""


def new(key: ApiKey, kind: str, *path: str) -> Any:
    """The newest class of a message that the client speaks, or of one inside it."""
    found: Any = message_class(key, SPOKEN[key].newest, kind)
    if not path:
        return found
    module = __import__(found.__module__, fromlist=["*"])
    return getattr(module, path[0])


def api_versions(offer: Mapping[ApiKey, VersionRange]) -> Any:
    item = new(ApiKey.API_VERSIONS, "response", "ApiVersion")
    return new(ApiKey.API_VERSIONS, "response")(
        error_code=ErrorCode.NONE,
        api_keys=tuple(
            item(api_key=key, min_version=each.oldest, max_version=each.newest)
            for key, each in offer.items()
        ),
        throttle_time=NO_TIME,
    )


def with_features(levels: Mapping[str, int], epoch: int) -> Any:
    """What a broker says that speaks all we do, in a cluster with these features finalized."""
    feature = new(ApiKey.API_VERSIONS, "response", "FinalizedFeatureKey")
    return replace(
        api_versions(SPOKEN),
        finalized_features_epoch=epoch,
        finalized_features=tuple(
            feature(name=name, max_version_level=level, min_version_level=level)
            for name, level in levels.items()
        ),
    )


class FakeBroker(asyncio.BufferedProtocol):
    """One connection to it. `seen` are the keys and versions of requests, in order."""

    def __init__(self, answers: Mapping[ApiKey, Answer], seen: list[tuple[ApiKey, int]]) -> None:
        self._answers = {ApiKey.API_VERSIONS: lambda *_: api_versions(SPOKEN), **answers}
        self._seen = seen
        self.transport: Any = None
        self._frames = FrameReader(Scratch(), 1 << 24, self._on_frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.received(nbytes)

    def _on_frame(self, frame: memoryview) -> bool:
        header = read_request_header(frame)
        key, version = ApiKey(header.api_key), header.version
        self._seen.append((key, version))
        request = decode(message_class(key, version, "request"), frame, header.body_at)
        answer = self._answers[key](version, request)
        if answer is CLOSE:
            self.transport.close()
        elif answer is not None:
            body = answer
            if not isinstance(answer, bytes):
                body = encode(recast(answer, message_class(key, version, "response")))
            reply = response_header(key, version, header.correlation_id) + body
            self.transport.write(INT32.pack(len(reply)) + reply)
        return True


CLOSE = object()
"""As an answer: the connection is closed."""


async def listen(
    net: Net, answers: Mapping[ApiKey, Answer], *, port: int = PORT
) -> list[tuple[ApiKey, int]]:
    """Starts a broker; the list of requests that it sees."""
    seen: list[tuple[ApiKey, int]] = []
    await net.listen("0.0.0.0", port, lambda: FakeBroker(answers, seen))
    return seen


async def connect(net: Net, **settings: Any) -> BrokerConnection:
    return await BrokerConnection.open(net, ADDRESS, **settings)


def metadata(
    topics: Mapping[str, Mapping[int, int]], brokers: Mapping[int, BrokerAddress] | None = None
) -> Any:
    """A Metadata answer: the leaders of the partitions of topics; no leaders mean no topic."""
    broker = new(ApiKey.METADATA, "response", "MetadataResponseBroker")
    topic = new(ApiKey.METADATA, "response", "MetadataResponseTopic")
    partition = new(ApiKey.METADATA, "response", "MetadataResponsePartition")
    return new(ApiKey.METADATA, "response")(
        throttle_time=NO_TIME,
        brokers=tuple(
            broker(node_id=number, host=address.host, port=address.port)
            for number, address in (brokers or {1: ADDRESS}).items()
        ),
        controller_id=1,
        topics=tuple(
            topic(
                error_code=ErrorCode.NONE if leaders else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                name=name,
                topic_id=None,
                partitions=tuple(
                    partition(
                        error_code=ErrorCode.NONE,
                        partition_index=number,
                        leader_id=leader,
                        replica_nodes=(leader,),
                        isr_nodes=(leader,),
                    )
                    for number, leader in leaders.items()
                ),
            )
            for name, leaders in topics.items()
        ),
    )

"""confluent-kafka, aiokafka and kafka-python write and read, on our broker as on Apache Kafka."""

from __future__ import annotations

import time

import pytest

from tests.interop.broker.clients.face import (
    Client,
    Message,
    Received,
    Refused,
    read_all,
    refusal_of,
)
from tests.interop.broker.clients.scripts import CLIENTS, ClientScript, ready_topic, with_client
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.steps import START_MS, fetch
from tests.interop.harness import Compare, Names, Transcript

pytestmark = [
    pytest.mark.interop,
    # kafka-python leaves sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
VARIED = (
    Message(b"value", b"key", (("h", b"1"), ("h", b"2")), START_MS),
    Message(b"", b"", (("empty", b""),), START_MS + 5),
    Message(None, b"tombstone", (), START_MS + 3),
    Message(b"no key", None, (("null", None),), START_MS + 3),
    Message(bytes(range(256)) * 20, b"\x00\xff", (), START_MS + 9),
    Message("žluťoučký".encode(), "kůň".encode(), (("ý", "á".encode()),), START_MS + 10),
)


def varied(client: Client) -> list[Message]:
    """Messages of every shape that the client can send."""
    if client.null_headers:
        return list(VARIED)
    return [row for row in VARIED if all(value is not None for _, value in row.headers)]


def sent(messages: list[Message]) -> list[Received]:
    """What must come back of messages that were sent to one partition of an empty topic."""
    return [
        Received(0, offset, message.key, message.value, message.headers, message.timestamp_ms or 0)
        for offset, message in enumerate(messages)
    ]


def stored_codecs(names: Names, topic: str) -> set[str]:
    """The codecs of the batches in a partition, as its bytes say."""
    found, offset = set(), 0
    with RawConnection(names.bootstrap) as connection:
        while data := fetch(connection, topic, offset)["records"]:
            position = 0
            while position < len(data):
                length = int.from_bytes(data[position + 8 : position + 12], "big")
                found.add(CODEC_NAMES[data[position + 22] & 7])
                base = int.from_bytes(data[position : position + 8], "big")
                offset = base + int.from_bytes(data[position + 23 : position + 27], "big") + 1
                position += 12 + length
    return found


def round_trip(client: Client, names: Names, transcript: Transcript) -> None:
    """Keys, nulls, headers and times come back as they were sent, with every codec."""
    messages = varied(client)
    for codec in client.codecs:
        topic = ready_topic(names, codec)
        offsets = client.produce(topic, messages, codec=codec)
        assert offsets == list(range(len(messages)))
        received = read_all(client.read(topic), len(messages))
        assert received == sent(messages)
        transcript.note(codec, received)
        # A batch that does not shrink may be sent as it is; one holds thousands of equal bytes.
        assert codec in stored_codecs(names, topic)


def acks(client: Client, names: Names, transcript: Transcript) -> None:
    messages = varied(client)
    topic = ready_topic(names)
    for wanted in (1, -1, 0):
        transcript.note(f"acks={wanted}", client.produce(topic, messages, acks=wanted))
    received = read_all(client.read(topic), 3 * len(messages))
    assert [record.value for record in received] == [message.value for message in messages] * 3
    transcript.note("read", received)


def many(client: Client, names: Names, transcript: Transcript) -> None:
    """Thousands of records over three partitions, none lost, none twice, each in its order."""
    topic = ready_topic(names, partitions=3)
    messages = [
        Message(b"%d " % number * 20, b"k", (), START_MS + number, number % 3)
        for number in range(6000)
    ]
    offsets = client.produce(topic, messages, codec=client.codecs[-1])
    assert offsets == [number // 3 for number in range(6000)]
    for partition in range(3):
        received = read_all(client.read(topic, partition=partition), 2000)
        wanted = [message.value for message in messages[partition::3]]
        assert [record.value for record in received] == wanted
        assert [record.offset for record in received] == list(range(2000))
        transcript.note(f"partition {partition}", client.offsets(topic, partition=partition))


def sizes(client: Client, names: Names, transcript: Transcript) -> None:
    """A record at the limit passes; one above it is refused by its name, and only that one."""
    default = ready_topic(names, "default")
    small = ready_topic(names, "small", configs={"max.message.bytes": "10000"})
    for topic, limit in ((default, 1_048_588), (small, 10_000)):
        for size in (limit - 100, limit):
            result = client.produce(topic, [Message(b"x" * size, None, (), START_MS)])
            transcript.note(f"{size} of {limit}", result)
            assert result == ([0] if size < limit else ["MESSAGE_TOO_LARGE"])
        (received,) = read_all(client.read(topic), 1)
        assert received.value == b"x" * (limit - 100)


def ten_records(client: Client, names: Names) -> str:
    topic = ready_topic(names)
    rows = [Message(b"%d" % n, None, (), START_MS + n * 10) for n in range(10)]
    for row in rows:
        assert isinstance(client.produce(topic, [row])[0], int)
    return topic


def positions(client: Client, names: Names, transcript: Transcript) -> None:
    """Reading from the first offset, the last, a given one, one that is not there."""
    topic = ten_records(client, names)
    transcript.note("offsets", client.offsets(topic))
    assert [record.offset for record in read_all(client.read(topic), 10)] == list(range(10))
    reader = client.read(topic)
    reader.seek(0, 4)
    assert [record.offset for record in read_all(reader, 6)] == list(range(4, 10))
    for ms in (-1, 0, 1, 45, 90, 91):
        transcript.note(f"offset at {ms}", client.offset_at(topic, START_MS + ms))
    assert client.offset_at(topic, START_MS + 45) == 5
    reader = client.read(topic)
    reader.seek(0, 999)
    received = read_all(reader, 10)
    transcript.note("out of range, reset to earliest", [record.offset for record in received])
    reader = client.read(topic, start="none")
    reader.seek(0, 999)
    with pytest.raises(Refused) as refusal:
        read_all(reader, 1, polls=100)
    reader.close()
    transcript.note("out of range, no reset", refusal.value.name)


def latest(client: Client, names: Names, transcript: Transcript) -> None:
    topic = ten_records(client, names)
    reader = client.read(topic, start="latest")
    received: list[Received] = []
    for _ in range(100):
        client.produce(topic, [Message(b"new")])
        if received := list(reader.poll(0.2)):
            break
    reader.close()
    assert received
    assert {record.value for record in received} == {b"new"}
    transcript.note("only new ones", received[0].offset >= 10)


def append_time(client: Client, names: Names, transcript: Transcript) -> None:
    """With LogAppendTime the broker's clock counts, whatever the producer said."""
    messages = varied(client)
    topic = ready_topic(names, configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    offsets = client.produce(topic, messages)
    transcript.note("offsets", offsets)
    received = read_all(client.read(topic), len(messages))
    now = int(time.time() * 1000)
    assert all(before - 1000 <= record.timestamp_ms <= now + 1000 for record in received)
    transcript.note("read", [record._replace(timestamp_ms=0) for record in received])
    transcript.note("by time", client.offset_at(topic, before - 1000))


def stored_as_the_topic_says(client: Client, names: Names, transcript: Transcript) -> None:
    """compression.type of the topic: the broker packs anew where the producer's does not fit."""
    messages = varied(client)
    for wanted in ("uncompressed", "gzip", "zstd"):
        for codec in ("none", "gzip"):
            label = f"{codec} to {wanted}"
            name = label.replace(" ", "-")
            topic = ready_topic(names, name, configs={"compression.type": wanted})
            assert client.produce(topic, messages, codec=codec) == list(range(len(messages)))
            stored = stored_codecs(names, topic)
            assert stored == {"none" if wanted == "uncompressed" else wanted}
            transcript.note(label, stored)
            if wanted == "zstd" and wanted not in client.codecs:
                continue
            assert read_all(client.read(topic), len(messages)) == sent(messages)


def compacted_topics_need_keys(client: Client, names: Names, transcript: Transcript) -> None:
    topic = ready_topic(names, configs={"cleanup.policy": "compact"})
    for message in (Message(b"v"), Message(b"v", b"k"), Message(None, b"k")):
        transcript.note(f"{message.key!r} {message.value!r}", client.produce(topic, [message]))
    assert len(read_all(client.read(topic), 2)) == 2


def topics_that_are_not_there(client: Client, names: Names, transcript: Transcript) -> None:
    """A producer's first message makes the topic; questions about an absent one are refused."""
    result = client.produce(names("made"), [Message(b"first")])
    transcript.note("made by producing", result)
    assert result == [0]
    assert read_all(client.read(names("made")), 1)[0].value == b"first"
    transcript.note("bad name", refusal_of(client.create, "not/valid"))


SCRIPTS: tuple[ClientScript, ...] = (
    round_trip,
    acks,
    many,
    sizes,
    positions,
    latest,
    append_time,
    stored_as_the_topic_says,
    compacted_topics_need_keys,
    topics_that_are_not_there,
)


@pytest.mark.parametrize("make", CLIENTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_data(make: type[Client], script: ClientScript, compare: Compare) -> None:
    compare(with_client(make, script))

"""Bytes from nobody's friend: noise, and messages in which something was changed.

Whatever comes, it is read or refused by name, and neither takes memory or time that the bytes
themselves do not account for.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from onceflow.errors import MessageMalformed
from onceflow.wire import fetch, produce
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import decode
from onceflow.wire.header import read_request_header
from onceflow.wire.primitives import MOST_ELEMENTS, uvarint
from tests.doses import examples
from tests.property.wire.any_message import Kind, kinds, messages, their_bytes

HOT: dict[ApiKey, Callable[[memoryview, int, int], Any]] = {
    ApiKey.PRODUCE: produce.read_produce_request,
    ApiKey.FETCH: fetch.read_fetch_request,
}
READ = [each for each in kinds() if (each.key, each.kind) != (ApiKey.PRODUCE, "response")]
REQUESTS = kinds(kind="request")
noisy = settings(deadline=None, max_examples=examples(40))


def read(kind: Kind, data: bytes) -> Any:
    """By the way that the broker reads it; None when it was refused."""
    view = memoryview(bytearray(data))
    try:
        if kind.kind == "request" and kind.key in HOT:
            return HOT[kind.key](view, 0, kind.version)
        return decode(kind.message, view, most_elements=MOST_ELEMENTS)
    except MessageMalformed:
        return None


def mutated(rand: random.Random, data: bytes) -> bytes:
    """The message with a few bytes changed, cut out, put in or repeated."""
    out = bytearray(data)
    for _ in range(rand.randint(1, 4)):
        at = rand.randrange(len(out) + 1)
        match rand.randrange(5):
            case 0 if out:
                out[at % len(out)] = rand.choice((0, 1, 0x7F, 0x80, 0xFF, rand.randrange(256)))
            case 1:
                del out[at:]
            case 2:
                out[at:at] = rand.choice((b"\xff\xff\xff\xff", b"\xff" * 5, b"\x7f\xff\xff\xff"))
            case 3:
                del out[at : at + rand.randint(1, 4)]
            case _:
                out[at:at] = out[at : at + rand.randint(1, 40)]
    return bytes(out)


@pytest.mark.parametrize(
    "key", list(dict.fromkeys(each.key for each in READ)), ids=lambda k: k.schema
)
def test_noise_and_changed_messages_are_read_or_refused_by_name(key: ApiKey) -> None:
    those = [each for each in READ if each.key is key]

    @noisy
    @given(data=st.data(), noise=st.binary(max_size=200), seed=st.integers(0, 2**32))
    def check(data: st.DataObject, noise: bytes, seed: int) -> None:
        kind = data.draw(st.sampled_from(those))
        read(kind, noise)
        sound = their_bytes(data.draw(messages(kind.message)))
        assert read(kind, sound) is not None
        rand = random.Random(seed)
        for _ in range(5):
            read(kind, mutated(rand, sound))

    check()


@settings(deadline=None, max_examples=examples(500))
@given(noise=st.binary(max_size=60))
def test_noise_in_place_of_a_header(noise: bytes) -> None:
    try:
        header = read_request_header(memoryview(noise))
    except MessageMalformed:
        return
    assert 10 <= header.body_at <= len(noise)


COUNTS = (2**31 - 1, 2**31, 2**32 - 1, 2**28, 10**6, 200)


def with_count(kind: Kind, number: int) -> bytes:
    """Nothing but a count, wherever in the first bytes it may be taken for one."""
    fixed = (number & 0xFFFFFFFF).to_bytes(4, "big")
    return (fixed + uvarint(number)) * 3


@pytest.mark.parametrize("number", COUNTS)
def test_huge_counts_allocate_nothing(number: int) -> None:
    for kind in READ:
        read(kind, with_count(kind, number))  # so that the classes are loaded
    tracemalloc.start()
    try:
        for kind in READ:
            data = with_count(kind, number)
            for skipped in range(0, 12, 2):
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                read(kind, bytes(skipped) + data)
                _, peak = tracemalloc.get_traced_memory()
                assert peak - before < 100_000, str(kind)
    finally:
        tracemalloc.stop()


def stuffed(kind: Kind, size: int) -> list[bytes]:
    """Requests of `size` bytes that are nothing but as many elements as fit."""
    flexible = bool(kind.message.__flexible__)  # type: ignore[attr-defined]  # all have it
    out = []
    for element in (
        b"\x01\x00",
        b"\x00",
        b"\x01\x01\x00",
        b"\x01",
        bytes(16) + b"\x01\x00",
        bytes(4),
    ):
        many = size // len(element)
        count = uvarint(many) if flexible else many.to_bytes(4, "big")
        for before in (0, 1, 2, 4, 7, 21):
            out.append(bytes(before) + count + element * many)
    return out


def test_a_large_request_of_tiny_elements_is_refused_soon() -> None:
    """Of a byte or two each: they would be millions of objects, and seconds for everybody."""
    size = 4 << 20
    slowest = 0.0
    for kind in REQUESTS:
        if kind.version != max(each.version for each in REQUESTS if each.key is kind.key):
            continue
        for data in stuffed(kind, size):
            started = time.process_time()
            read(kind, data)
            slowest = max(slowest, time.process_time() - started)
    assert slowest < 1.0

"""Messages over the wire: what the message library writes is what we read, in every version.

And versions among themselves: a message that is carried to an older version and back keeps all
that the older one has.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from onceflow.broker.router import SERVED
from onceflow.wire.api import ApiKey, is_flexible
from onceflow.wire.codec import decode, encode, message_class
from onceflow.wire.header import read_request_header, request_header, response_header
from onceflow.wire.primitives import uvarint
from onceflow.wire.reader import read_message
from onceflow.wire.schema import is_array, is_optional, message_class_in, recast
from tests.doses import examples
from tests.property.wire.any_message import TEXT, Kind, kinds, messages, their_bytes

few = settings(deadline=None, max_examples=examples(8))
# Produce's answers are read and written by hand.
READ = [each for each in kinds() if (each.key, each.kind) != (ApiKey.PRODUCE, "response")]
BROUGHT_UP = [
    each for each in kinds() if each.version < SERVED[each.key].highest and each in set(READ)
]


@pytest.mark.parametrize("kind", READ, ids=str)
def test_what_the_library_writes_is_what_we_read(kind: Kind) -> None:
    @few
    @given(value=messages(kind.message), before=st.binary(max_size=3))
    def check(value: Any, before: bytes) -> None:
        data = their_bytes(value)
        assert encode(value) == data
        found, end = read_message(
            kind.message, memoryview(before + data + b"more"), len(before), 10_000
        )
        assert found == value
        assert end == len(before) + len(data)

    check()


@pytest.mark.parametrize("kind", READ, ids=str)
def test_whether_a_version_is_flexible_is_known_without_its_class(kind: Kind) -> None:
    message: Any = kind.message
    assert is_flexible(kind.key, kind.version) is message.__flexible__


def same(old: Any, new: Any) -> bool:
    """Whether two versions agree on every field that both have. Null stays null, and becomes
    empty only where the other version knows no null."""
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(map(same, old, new))
    if not hasattr(type(old), "__flexible__"):
        return bool(old == new)
    names = {each.name for each in fields(old)}
    for each in fields(new):
        before, after = getattr(old, each.name, None), getattr(new, each.name)
        if each.name not in names:
            continue
        if before is None and (after is not None if is_optional(each.type) else after):
            return False
        if before is not None and not same(before, after):
            return False
    return True


@pytest.mark.parametrize("kind", BROUGHT_UP, ids=str)
def test_a_message_brought_up_and_down_keeps_what_both_versions_have(kind: Kind) -> None:
    newest = message_class(kind.key, SERVED[kind.key].highest, kind.kind)

    @few
    @given(old=messages(kind.message), new=messages(newest))
    def check(old: Any, new: Any) -> None:
        assert same(old, recast(old, newest))
        down: Any = recast(new, kind.message)
        assert same(new, down)
        assert same(down, recast(recast(down, newest), kind.message))
        assert decode(kind.message, memoryview(encode(down))) == down

    check()


def test_two_versions_that_share_a_field_share_its_kind() -> None:
    """Else a recast by field name would carry a list into a number."""
    for kind in BROUGHT_UP:
        newest = message_class(kind.key, SERVED[kind.key].highest, kind.kind)
        assert_alike(kind.message, newest)


def assert_alike(old: Any, new: Any) -> None:
    theirs = {each.name: each for each in fields(new)}
    for each in fields(old):
        other = theirs.get(each.name)
        if other is None:
            continue
        assert each.metadata.get("kafka_type") == other.metadata.get("kafka_type"), each.name
        assert is_array(each.type) == is_array(other.type), each.name
        inner = message_class_in(each.type)
        assert (inner is None) == (message_class_in(other.type) is None), each.name
        if inner is not None:
            assert_alike(inner, message_class_in(other.type))


# --- tagged fields and headers -------------------------------------------------------------------

TAGS = st.lists(st.tuples(st.integers(100, 2**32 - 1), st.binary(max_size=20)), max_size=3)


def tag_bytes(tags: list[tuple[int, bytes]]) -> bytes:
    parts = [uvarint(tag) + uvarint(len(data)) + data for tag, data in tags]
    return uvarint(len(tags)) + b"".join(parts)


PLAIN = [
    each
    for each in READ
    if is_flexible(each.key, each.version)
    and not any("tag" in f.metadata for f in fields(each.message))
]


@pytest.mark.parametrize("kind", PLAIN[::4], ids=str)
def test_tagged_fields_that_nobody_knows_are_skipped(kind: Kind) -> None:
    @few
    @given(value=messages(kind.message), tags=TAGS)
    def check(value: Any, tags: list[tuple[int, bytes]]) -> None:
        data = their_bytes(value)
        assert data[-1] == 0, "the tagged fields are the last, and there are none"
        sent = data[:-1] + tag_bytes(tags)
        found, end = read_message(kind.message, memoryview(sent), 0, 10_000)
        assert found == value
        assert end == len(sent)

    check()


@settings(deadline=None)
@given(
    kind=st.sampled_from(kinds(kind="request")),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    client_id=TEXT,
    tags=TAGS,
)
def test_request_headers(
    kind: Kind, correlation_id: int, client_id: str, tags: list[tuple[int, bytes]]
) -> None:
    header = request_header(kind.key, kind.version, correlation_id, client_id)
    if is_flexible(kind.key, kind.version):
        assert header[-1] == 0
        header = header[:-1] + tag_bytes(tags)
    found = read_request_header(memoryview(header + b"body"))
    assert found == (kind.key, kind.version, correlation_id, client_id, len(header))


def test_a_header_without_a_client_id_is_read() -> None:
    header = request_header(ApiKey.METADATA, 1, 7, "")
    found = read_request_header(memoryview(header[:-2] + b"\xff\xff"))
    assert (found.client_id, found.body_at) == ("", 10)


@pytest.mark.parametrize("kind", kinds(kind="response"), ids=str)
def test_response_headers_have_tagged_fields_unless_they_tell_the_versions(kind: Kind) -> None:
    flexible = is_flexible(kind.key, kind.version) and kind.key is not ApiKey.API_VERSIONS
    expected = b"\x00\x00\x00\x07" + (b"\x00" if flexible else b"")
    assert response_header(kind.key, kind.version, 7) == expected

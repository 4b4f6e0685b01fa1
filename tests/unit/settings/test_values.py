"""What values settings take: from texts and from values of Python, and what they refuse."""

from __future__ import annotations

import pickle
import re
from enum import Enum
from typing import Any

import pytest

from onceflow.settings.values import (
    LONG_MAX,
    PATTERN,
    SECRET,
    TEXT,
    TOPIC_NAME,
    TRUE_OR_FALSE,
    YES_OR_NO,
    NotAllowed,
    Secret,
    SettingKind,
    duration,
    host_and_port,
    list_of,
    one_of,
    read_whole,
    shown,
    text_of,
    whole_number,
)


class Colour(Enum):
    RED = "red"
    DARK = "dark red"


NAMES = list_of(TEXT, "names")
EACH_ONCE = list_of(one_of("a", "b"), "a and b", each_once=True)


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (whole_number(0), 20, 20),
        (whole_number(0), " +20 ", 20),
        (whole_number(-5), "-5", -5),
        (whole_number(0, LONG_MAX), str(LONG_MAX), LONG_MAX),
        (TRUE_OR_FALSE, " TRUE ", True),
        (TRUE_OR_FALSE, False, False),
        (YES_OR_NO, "yes", True),
        (YES_OR_NO, 0, False),
        (one_of("fsync", "os"), " os", "os"),
        (one_of("PLAIN", any_case=True), "plain", "PLAIN"),
        (one_of(*Colour), "dark red", Colour.DARK),
        (TEXT, " a ", " a "),
        (TOPIC_NAME, "a.b_c-1", "a.b_c-1"),
        (PATTERN, "a.*", "a.*"),
        (PATTERN, re.compile("a.*"), "a.*"),
        (NAMES, "a, b,,a", ("a", "b")),
        (NAMES, ["a", " b "], ("a", "b")),
        (NAMES, ("a",), ("a",)),
        (EACH_ONCE, "b,a", ("b", "a")),
        (duration(bare=True), "500", 500),
        (duration(bare=True), "2 us", 0),
        (duration(bare=False), "10 Minutes", 600_000),
        (duration(bare=False), "2d", 172_800_000),
    ],
)
def test_what_is_read(kind: SettingKind, written: object, value: object) -> None:
    found = kind(written)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (whole_number(1), 0),
        (whole_number(1), True),
        (whole_number(1), 1.0),
        (whole_number(1, 5), 6),
        (whole_number(1), "1_000"),
        (whole_number(1), "1e3"),
        (whole_number(1), "\u0661"),
        (whole_number(1), "9" * 5000),
        (TRUE_OR_FALSE, "yes"),
        (TRUE_OR_FALSE, 1),
        (YES_OR_NO, "maybe"),
        (YES_OR_NO, None),
        (one_of("fsync"), "FSYNC"),
        (one_of("fsync", any_case=True), 7),
        (TEXT, ""),
        (TEXT, 7),
        (SECRET, ""),
        (TOPIC_NAME, "or ders"),
        (TOPIC_NAME, ".."),
        (TOPIC_NAME, "a" * 250),
        (PATTERN, "("),
        (PATTERN, ""),
        (PATTERN, 7),
        (NAMES, ""),
        (NAMES, []),
        (NAMES, ["a", ""]),
        (NAMES, ["a", 3]),
        (NAMES, {"a": 1}),
        (EACH_ONCE, "a,a"),
        (EACH_ONCE, "a,c"),
        (duration(bare=False), "500"),
        (duration(bare=True), "5 weeks"),
        (duration(bare=True), "-1s"),
        (duration(bare=True), 5),
    ],
)
def test_what_is_refused_is_told_with_what_would_be_right(
    kind: SettingKind, written: object
) -> None:
    with pytest.raises(NotAllowed) as told:
        kind(written)
    assert str(told.value).startswith(kind.allowed)


def test_words_for_what_is_allowed() -> None:
    assert whole_number(1, 5).allowed == "a whole number from 1 to 5"
    assert one_of("a", "b", "c").allowed == "a, b or c"
    assert one_of(*Colour).allowed == "red or dark red"
    with pytest.raises(NotAllowed, match=r"a regular expression \(missing \)"):
        PATTERN("(")


def test_the_item_of_a_list_that_is_wrong_is_named() -> None:
    with pytest.raises(NotAllowed, match=r"^names \(3 is not one\)$"):
        NAMES(["a", 3])


def test_types_by_kafkas_words() -> None:
    kinds = (whole_number(1), whole_number(1, LONG_MAX), TRUE_OR_FALSE, TEXT, SECRET, NAMES)
    types = ["int", "long", "boolean", "string", "password", "list"]
    assert [each.type for each in kinds] == types


def test_a_secret_is_not_shown_and_stays_one() -> None:
    secret = SECRET("hush")
    assert secret == "hush"
    assert repr(secret) == "'***'"
    assert isinstance(pickle.loads(pickle.dumps(secret)), Secret)
    assert SECRET.is_secret


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (5, "5"), (("a", "b"), "a,b"), (Colour.RED, "red"), ("", "")],
)
def test_values_as_text(value: Any, text: str) -> None:
    assert text_of(value) == text


def test_what_is_long_is_cut_off_in_messages() -> None:
    assert shown("a") == "'a'"
    assert len(shown("a" * 5000)) == 100


def test_numbers_are_those_of_ascii() -> None:
    assert read_whole(" -7 ") == -7
    for text in ("", "7 7", "0x7", "\u0667", "--7"):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            read_whole(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a:1", ("a", 1)),
        ("[::1]:65535", ("::1", 65_535)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert host_and_port(text, least_port=0) == address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a", ("a", 9092)),
        ("[::1]", ("::1", 9092)),
        ("fe80::1:7", ("fe80::1", 7)),
        ("a:7", ("a", 7)),
    ],
)
def test_addresses_with_a_default_port(text: str, address: tuple[str, int]) -> None:
    assert host_and_port(text, least_port=1, default_port=9092) == address


@pytest.mark.parametrize(
    "text", ["", "a", ":1", "::1:1", "a:x", "a:", "a b:1", "a/b:1", "a:65536", "a:+1", "[::1]"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        host_and_port(text, least_port=0)
    with pytest.raises(ValueError, match="a:0"):
        host_and_port("a:0", least_port=1, default_port=9092)

"""The list of aborted transactions, and its file."""

from __future__ import annotations

import struct

import pytest

from onceflow.producers.aborted import Aborted, AbortedTransactions


def many(count: int) -> list[Aborted]:
    """Ten offsets each; every hundredth began long before the others around it."""
    return [
        Aborted(number, max(0, 10 * number - (900 if number % 100 == 0 else 0)), 10 * number + 9, 0)
        for number in range(count)
    ]


def test_what_a_reader_must_know_ends_behind_where_it_starts_and_begins_below_its_end() -> None:
    aborted = AbortedTransactions([Aborted(1, 5, 10, 11), Aborted(2, 8, 12, 13)])
    assert aborted.between(0, 5) == ()
    assert aborted.between(0, 6) == ((1, 5),)
    assert aborted.between(0, 9) == ((1, 5), (2, 8))
    assert aborted.between(10, 11) == ((1, 5), (2, 8))
    assert aborted.between(11, 12) == ((2, 8),)
    assert aborted.between(12, 13) == ((2, 8),)
    assert aborted.between(13, 99) == ()
    assert aborted.overlapping(11, 12) == [Aborted(2, 8, 12, 13)]
    assert AbortedTransactions().between(0, 99) == ()


@pytest.mark.parametrize("dropped", [0, 1, 63, 64, 65, 500, 999, 1000])
def test_a_long_list_answers_as_a_search_of_all_of_it(dropped: int) -> None:
    entries = many(1000)
    aborted = AbortedTransactions(entries)
    aborted.drop_before(10 * dropped)
    left = entries[dropped:]
    assert list(aborted) == left
    assert len(aborted) == len(left)
    for start in range(0, 10_100, 97):
        for end in (start, start + 1, start + 50, start + 3000):
            assert aborted.overlapping(start, end) == [
                entry for entry in left if entry.last_offset >= start and entry.first_offset < end
            ]


def test_entries_can_be_added_after_some_were_dropped() -> None:
    entries = many(300)
    aborted = AbortedTransactions()
    kept: list[Aborted] = []
    for number, entry in enumerate(entries):
        aborted.append(entry)
        kept.append(entry)
        if number % 7 == 0:
            aborted.drop_before(entry.last_offset - 600)
            kept = [each for each in kept if each.last_offset >= entry.last_offset - 600]
    assert list(aborted) == kept
    assert aborted.overlapping(2500, 2600) == [
        entry for entry in kept if entry.last_offset >= 2500 and entry.first_offset < 2600
    ]


def test_what_ends_before_an_offset_is_dropped_and_nothing_else() -> None:
    aborted = AbortedTransactions([Aborted(1, 0, 10, 11), Aborted(2, 3, 20, 21)])
    aborted.drop_before(10)
    assert len(aborted) == 2
    aborted.drop_before(11)
    assert [entry.producer_id for entry in aborted] == [2]
    aborted.drop_before(100)
    assert len(aborted) == 0


def test_a_segment_s_index_has_the_entries_whose_marker_lies_in_it() -> None:
    aborted = AbortedTransactions(
        [Aborted(1, 5, 10, 11), Aborted(2, 8, 20, 9), Aborted(3, 21, 30, 31)]
    )
    assert aborted.encode(0, 10) == b""
    assert aborted.encode(11, 20) == b""
    assert aborted.encode(10, 21) == (
        struct.pack(">hqqqq", 0, 1, 5, 10, 11) + struct.pack(">hqqqq", 0, 2, 8, 20, 9)
    )
    assert aborted.encode(30, 31).hex() == (
        "000000000000000000030000000000000015000000000000001e000000000000001f"
    )
    assert len(aborted.encode(0, 100)) == 3 * 34

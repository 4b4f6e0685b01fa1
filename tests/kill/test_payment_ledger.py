"""The bookkeeping behind `make kill`: what counts as lost, as twice, as out of order."""

from __future__ import annotations

import pytest

from tests.kill import payment_clients
from tests.kill.payment_clients import ClientMissing, Place, decode, encode, find_client
from tests.kill.payment_ledger import Verdict, judge

GOOD = {Place(0, 0): 0, Place(1, 0): 1, Place(0, 1): 2, Place(1, 1): 3}
ALL = GOOD.items()


def test_what_is_all_there_is_good() -> None:
    verdict = judge(ALL, ALL, GOOD)
    assert verdict == Verdict(4, 4, 0, 0, 0, 0)
    assert verdict.is_good


def test_what_was_acknowledged_and_is_gone_is_lost() -> None:
    found = {place: number for place, number in GOOD.items() if number != 3}
    verdict = judge(ALL, [], found)
    assert (verdict.lost, verdict.vanished, verdict.is_good) == (1, 0, False)


def test_what_is_at_another_place_is_lost() -> None:
    found = {**GOOD, Place(1, 1): 4, Place(1, 2): 3}
    assert judge(ALL, [], found).lost == 1


def test_what_another_has_taken_the_place_of_is_lost() -> None:
    assert judge([*ALL, (Place(0, 1), 6)], [], {**GOOD, Place(0, 1): 6}).lost == 1


def test_what_a_reader_saw_may_not_vanish() -> None:
    verdict = judge(ALL, [*ALL, (Place(0, 2), 4)], GOOD)
    assert (verdict.lost, verdict.vanished, verdict.is_good) == (0, 1, False)


def test_what_was_sent_again_may_not_be_there_twice() -> None:
    found = {Place(0, 0): 0, Place(0, 1): 4, Place(0, 2): 0, Place(0, 3): 4, Place(0, 4): 8}
    verdict = judge([(Place(0, 2), 0), (Place(0, 3), 4), (Place(0, 4), 8)], [], found)
    assert verdict == Verdict(3, 5, 0, 0, 0, 2)
    assert not verdict.is_good


def test_what_was_overtaken_is_out_of_order() -> None:
    found = {Place(0, 0): 0, Place(0, 1): 8, Place(0, 2): 4, Place(1, 0): 1}
    verdict = judge(found.items(), [], found)
    assert (verdict.out_of_order, verdict.is_good) == (1, False)


def test_payments_are_read_as_they_were_written() -> None:
    assert decode(encode(12_345)) == 12_345


def test_the_best_client_is_taken_or_the_one_that_is_named() -> None:
    assert find_client().package == "confluent-kafka"
    assert find_client("aiokafka").package == "aiokafka"


def test_without_a_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payment_clients, "find_spec", lambda name: None)
    with pytest.raises(ClientMissing, match="pip install confluent-kafka"):
        find_client()
    with pytest.raises(ClientMissing, match=r"no kafka-python .* pip install kafka-python"):
        find_client("kafka-python")
    with pytest.raises(ClientMissing, match="'java' is none of the clients confluent-kafka"):
        find_client("java")

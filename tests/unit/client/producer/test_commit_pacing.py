"""How long a producer leaves a broker alone after a transaction: learnt from first batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.client.producer.commit_pacing import CommitPacing

END_S = 0.001
STEP_S = 0.02


class Transactions:
    """One after the other against a broker, which says what a first batch takes that comes so many
    seconds after the end before it."""

    def __init__(self, batch_s: Callable[[float], float], end_s: float = END_S) -> None:
        self.commit_pacing = CommitPacing()
        self.now = 100.0
        self._batch_s = batch_s
        self._end_s = end_s
        self._ended = -1.0

    def run(self, count: int) -> list[float]:
        """The pause before each of them."""
        pauses = []
        for _ in range(count):
            sent = self.commit_pacing.held_until(self.now)
            pauses.append(sent - self.now)
            self.commit_pacing.sent(sent)
            self.now = sent + self._batch_s(sent - self._ended)
            self.commit_pacing.answered(self.now)
            began, self.now = self.now, self.now + self._end_s
            self.commit_pacing.ended(began, self.now)
            self._ended = self.now
        return pauses


def test_a_broker_that_makes_nobody_wait_is_not_waited_for() -> None:
    assert Transactions(lambda _: 0.0005).run(100) == [0.0] * 100


def test_a_broker_far_away_is_not_waited_for() -> None:
    assert Transactions(lambda _: 0.051, end_s=0.05).run(100) == [0.0] * 100


def test_who_would_wait_for_long_learns_to_come_a_little_later() -> None:
    markers_s = 0.0012
    met: list[float] = []

    def batch_s(after_s: float) -> float:
        met.append(0.0005 if after_s >= markers_s else STEP_S)
        return met[-1]

    pauses = Transactions(batch_s).run(1000)
    assert met[1] == STEP_S
    assert met[100:].count(STEP_S) < 50
    assert max(pauses) < markers_s + 0.002


def test_a_pause_that_is_not_needed_any_more_is_forgotten() -> None:
    slow = [True]
    transactions = Transactions(lambda after_s: STEP_S if slow[0] and after_s < 0.002 else 0.001)
    transactions.run(100)
    assert transactions.commit_pacing.pause_s > 0.001
    slow[0] = False
    transactions.run(1000)
    assert transactions.commit_pacing.pause_s == 0.0


def test_a_lone_slow_batch_has_other_reasons() -> None:
    number = iter(range(1000))
    transactions = Transactions(lambda _: 0.1 if next(number) % 20 == 0 else 0.001)
    assert max(transactions.run(500)) == 0.0


def test_where_coming_later_does_not_help_nothing_is_waited_for() -> None:
    pauses = Transactions(lambda _: STEP_S).run(400)
    assert max(pauses) == pytest.approx(0.01)
    assert pauses.count(0.0) > 300


def test_a_refusal_says_the_same_as_a_wait() -> None:
    commit_pacing = CommitPacing()
    for number in range(3):
        now = 100.0 + number
        commit_pacing.ended(now, now)
        commit_pacing.sent(now)
        commit_pacing.answered(now, refused=True)
    assert commit_pacing.pause_s == pytest.approx(0.002)


def test_only_the_first_batch_is_held_and_only_once() -> None:
    transactions = Transactions(lambda after_s: STEP_S if after_s < 0.002 else 0.001)
    transactions.run(20)
    commit_pacing, now = transactions.commit_pacing, transactions.now
    assert commit_pacing.held_until(now) > now
    assert commit_pacing.held_until(now + 1) == now + 1, "the time has passed meanwhile"
    commit_pacing.sent(now + 1)
    assert commit_pacing.held_until(now + 1) == now + 1, "it is not the first any more"


def test_a_transaction_without_batches_does_not_begin_the_pause_anew() -> None:
    transactions = Transactions(lambda after_s: STEP_S if after_s < 0.002 else 0.001)
    transactions.run(20)
    commit_pacing, now = transactions.commit_pacing, transactions.now
    commit_pacing.ended(now + 1, now + 1)
    assert commit_pacing.held_until(now + 1) == now + 1


def test_offsets_that_go_first_hold_back_batches_and_end_the_pause() -> None:
    transactions = Transactions(lambda after_s: STEP_S if after_s < 0.002 else 0.001)
    transactions.run(20)
    commit_pacing, now = transactions.commit_pacing, transactions.now
    assert commit_pacing.is_needed
    assert commit_pacing.is_first
    with commit_pacing.offsets_first():
        assert commit_pacing.held_until(now + 1) > now + 1, (
            "however long ago the last one has ended"
        )
    assert commit_pacing.held_until(now) == now
    assert not commit_pacing.is_first


def test_offsets_that_were_refused_do_not_end_the_pause() -> None:
    transactions = Transactions(lambda after_s: STEP_S if after_s < 0.002 else 0.001)
    transactions.run(20)
    commit_pacing, now = transactions.commit_pacing, transactions.now
    with pytest.raises(KeyError), commit_pacing.offsets_first():
        raise KeyError
    assert commit_pacing.is_first
    assert commit_pacing.held_until(now) > now


def test_where_offsets_follow_batches_pause_as_long_as_any() -> None:
    transactions = Transactions(lambda after_s: STEP_S if after_s < 0.002 else 0.001)
    transactions.run(20)
    commit_pacing, now = transactions.commit_pacing, transactions.now
    learnt = commit_pacing.held_until(now)
    commit_pacing.offsets_follow = True
    assert commit_pacing.held_until(now) == pytest.approx(now + 0.01)
    assert learnt < now + 0.01


def test_where_offsets_follow_a_broker_that_makes_nobody_wait_is_not_waited_for() -> None:
    transactions = Transactions(lambda _: 0.0005)
    transactions.commit_pacing.offsets_follow = True
    assert transactions.run(100) == [0.0] * 100


def test_what_is_not_met_with_any_more_is_forgotten_also_where_offsets_go_first() -> None:
    transactions = Transactions(lambda after_s: STEP_S if after_s < 0.002 else 0.001)
    transactions.run(20)
    commit_pacing, now = transactions.commit_pacing, transactions.now
    count = 0
    while commit_pacing.is_needed:
        with commit_pacing.offsets_first():
            pass
        commit_pacing.ended(now, now)
        count += 1
    assert 100 < count < 1000

"""Transactions that are handed to other processes, and what can go wrong with them: on both
brokers, in both protocols, answers compared."""

from __future__ import annotations

from tests.interop.client.worker.scripts import (
    doubt_settled_by_ledger,
    fenced_commit,
    handed_over,
    lost_ends,
    timeout,
    two_attempts,
    two_processes,
    unclear_commit,
    zombies,
)
from tests.interop.harness import Compare


def test_two_processes(compare: Compare) -> None:
    compare(two_processes)


def test_handed_over(compare: Compare) -> None:
    compare(handed_over)


def test_zombies(compare: Compare) -> None:
    compare(zombies)


def test_fenced_commit(compare: Compare) -> None:
    compare(fenced_commit)


def test_lost_ends(compare: Compare) -> None:
    compare(lost_ends)


def test_unclear_commit(compare: Compare) -> None:
    compare(unclear_commit)


def test_doubt_settled_by_ledger(compare: Compare) -> None:
    compare(doubt_settled_by_ledger)


def test_two_attempts(compare: Compare) -> None:
    compare(two_attempts)


def test_timeout(compare: Compare) -> None:
    compare(timeout)

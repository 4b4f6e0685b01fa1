"""Connections that tasks leave for the next ones in their process."""

from __future__ import annotations

import os

import pytest

from onceflow.spark.connection_cache import ConnectionCache


class Door:
    """Something that can be closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


def test_what_is_given_back_is_used_again() -> None:
    kept = ConnectionCache(Door)
    with kept.lease("a") as first:
        pass
    with kept.lease("a") as again, kept.lease("b") as other:
        assert again is first
        assert again.is_open
        assert other is not first


def test_two_never_have_the_same() -> None:
    kept = ConnectionCache(Door)
    with kept.lease("a") as one, kept.lease("a") as other:
        assert one is not other
    kept.close()
    assert not one.is_open
    assert not other.is_open


def test_with_what_something_failed_is_closed_and_not_kept() -> None:
    kept = ConnectionCache(Door)
    with pytest.raises(RuntimeError, match="lost"), kept.lease("a") as failed:
        raise RuntimeError("lost")
    assert not failed.is_open
    with kept.lease("a") as next_one:
        assert next_one is not failed


def test_few_are_kept_and_closing_ends_them() -> None:
    kept = ConnectionCache(Door)
    made = []
    for name in "abcdef":
        with kept.lease(name) as door:
            made.append(door)
    assert [door.name for door in made if door.is_open] == list("cdef")
    kept.close()
    assert not any(door.is_open for door in made)


def test_a_process_that_is_forked_off_opens_its_own() -> None:
    kept = ConnectionCache(Door)
    with kept.lease("a") as parents:
        pass
    child = os.fork()
    if child == 0:
        with kept.lease("a") as mine:
            os._exit(0 if mine is not parents and parents.is_open else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

"""The next batch of a session is made while a commit is waited for: nobody may notice."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.client.session.session import Session
from onceflow.client.session.session_work import SessionWork
from tests.unit.client.session.simulated_sessions import OUT, Theatre, numbers, theatre


async def sent(session: Session) -> tuple[Any, Any]:
    """A batch that is sent on, record by record, and whose work is not done."""
    batch, txn = await anext(session)
    for record in batch:
        await txn.send(OUT, record.value)
    return batch, txn


def test_the_next_batch_is_made_while_a_commit_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared: list[Any] = []
    prepare = SessionWork._prepare

    def noting(self: SessionWork) -> None:
        prepare(self)
        prepared.append(self._ahead)

    monkeypatch.setattr(SessionWork, "_prepare", noting)

    async def program(on: Theatre) -> None:
        await on.produce(*numbers(8))
        async with on.session(max_poll_records=2) as session:
            await sent(session)
            second, txn = await anext(session)
            assert second is prepared[0]
            assert second._values is not None, "its records, as those of the one before were read"
            assert [record.value for record in second] == numbers(2, 2)
            await txn.send_table(OUT, second.table().select(["value"]))
            third, _ = await anext(session)
            assert third is prepared[1]
            assert third.table().column("value").to_pylist() == numbers(2, 4)
            fourth, _ = await anext(session)
            assert fourth is prepared[2]
            assert fourth._values is None, "nobody went through the third"
        assert await on.values() == numbers(4)
        assert await on.committed() == [8]

    theatre(program)


def test_what_was_made_ahead_is_not_handed_out_after_an_abort() -> None:
    async def program(on: Theatre) -> None:
        await on.produce(*numbers(6))
        async with on.session(max_poll_records=2) as session:
            await sent(session)
            await sent(session)
            ahead = session._work._prepare
            await on.expel(session)
            ahead()  # as if there had been time during the commit that is refused
            batch, _ = await sent(session)
            assert [record.value for record in batch] == numbers(2, 2)
        assert await on.values() == numbers(4)
        assert await on.committed() == [4]

    theatre(program)

"""What a broker counts of its own work, and how it tells: numbers that no noisy machine moves."""

from __future__ import annotations

import json
import logging

import pytest

from onceflow.broker.server import Totals
from onceflow.log.journal.journal import JournalTotals
from onceflow.runtime.logs import JsonFormatter, TextFormatter
from onceflow.testing.world import World
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import RawClient, Running, batch, play
from tests.unit.broker.txn.transactional_requests import (
    GENERATIONS,
    Generation,
    ended,
    ready,
    wrote,
)

TRANSACTIONS = 5


def journal(running: Running) -> JournalTotals:
    totals = running.server.node.store.journal_totals
    assert totals is not None
    return totals


@pytest.mark.parametrize("speaks", GENERATIONS.values(), ids=GENERATIONS)
def test_a_transaction_of_one_record_takes_two_journal_groups(speaks: Generation) -> None:
    async def script(_: World, running: Running, client: RawClient) -> None:
        served = running.server.node.served
        await client.create("orders")
        who = await ready(client, "a")
        requests, groups = served.copy(), journal(running).groups
        for number in range(TRANSACTIONS):
            # An epoch for every transaction starts its sequences anew.
            sequence = 0 if speaks.end >= 5 else number
            await wrote(client, who, "orders", b"x", sequence=sequence, speaks=speaks)
            who = await ended(client, who, commit=True, version=speaks.end)
        expected = dict.fromkeys((ApiKey.PRODUCE, ApiKey.END_TXN), TRANSACTIONS)
        if speaks.adds:
            expected[ApiKey.ADD_PARTITIONS_TO_TXN] = TRANSACTIONS
        assert served - requests == expected
        assert journal(running).groups - groups == 2 * TRANSACTIONS

    play(script)


def test_bytes_of_the_journal_are_those_that_were_written() -> None:
    async def script(_: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        before = journal(running)
        await client.produce("orders", batch(bytes(10_000)))
        after = journal(running)
        assert after == (before.groups + 1, before.bytes + 12288), "padded to whole blocks"

    play(script)


def test_an_orderly_stop_says_once_what_was_done(caplog: pytest.LogCaptureFixture) -> None:
    async def script(_: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        for _number in range(3):
            await client.produce("orders", batch(b"x"))

    with caplog.at_level(logging.INFO):
        play(script)
    (record,) = [each for each in caplog.records if each.getMessage().startswith("served")]
    text = TextFormatter().format(record)
    assert "served 4 requests (Produce 3, CreateTopics 1), wrote " in text
    assert text.endswith(" MB")
    numbers = json.loads(JsonFormatter().format(record))["numbers"]
    assert numbers["requests"] == {"Produce": 3, "CreateTopics": 1}
    assert numbers["journal"]["groups"] >= 4
    assert numbers["journal"]["bytes"] == 4096 * numbers["journal"]["groups"]


def test_a_broker_without_a_journal_tells_of_none() -> None:
    totals = Totals({ApiKey.API_VERSIONS: 2, ApiKey.METADATA: 2}, None)
    assert str(totals) == "served 4 requests (Metadata 2, ApiVersions 2)"
    assert totals.as_json() == {
        "requests": {"Metadata": 2, "ApiVersions": 2},
        "journal": None,
        "failed_jobs": {},
    }
    assert str(Totals({}, None)) == "served 0 requests"


def test_jobs_that_failed_are_told_by_their_names() -> None:
    totals = Totals({}, None, {"retention": 1, "compaction": 2})
    assert str(totals) == (
        "served 0 requests, 3 jobs of housekeeping failed (compaction 2, retention 1)"
    )
    assert totals.as_json()["failed_jobs"] == {"retention": 1, "compaction": 2}

"""Notes about connections: once when a broker is gone, once when it is back; none where a command
takes brokers away itself."""

from __future__ import annotations

import logging

import pytest

from onceflow.cli.common.notes import client_notes, no_connection_notes

CONNECTIONS = logging.getLogger("onceflow.client.connections")


def lose_and_find(address: str = "b:1") -> None:
    fields = {"address": address}
    for _ in range(2):
        CONNECTIONS.warning("%s closed the connection", address, extra={"fields": fields})
    CONNECTIONS.info("connected", extra={"event": "connected", "fields": fields})


def test_a_broker_that_goes_and_comes_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with client_notes(as_json=False):
        lose_and_find()
    gone, back = capsys.readouterr().err.splitlines()
    assert "b:1 closed the connection; trying again" in gone
    assert "connected to b:1 again" in back


def test_nothing_is_told_where_the_command_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    with client_notes(as_json=False):
        with no_connection_notes():
            lose_and_find()
        assert capsys.readouterr().err == ""
        lose_and_find()
    assert "trying again" in capsys.readouterr().err

"""Apache Kafka's own dump tool reads what our broker keeps of transactions: their states, their
offsets and the index of those that were aborted.

Of our broker only: the tool is the judge. It needs a broker that writes `__transaction_state`,
offsets in transactions, and `.txnindex` files beside its segments when it stops.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.interop.broker.dump.dump_tool import dump
from tests.interop.broker.raw.steps import wait_for_coordinator
from tests.interop.broker.raw.transactions import (
    TV2_END,
    TV2_OFFSETS,
    TV2_PRODUCE,
    Identity,
    Probe,
    sequenced,
)
from tests.interop.harness import Names, Transcript
from tests.interop.onceflow_server import OnceflowServer

pytestmark = pytest.mark.interop

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)


class Written(NamedTuple):
    """A stopped broker's directory, and what it was told."""

    data_dir: Path
    who: Identity
    topic: str
    group: str

    def files(self, topic: str, suffix: str) -> list[Path]:
        found = sorted(self.data_dir.glob(f"{topic}-*/*.{suffix}"))
        return [path for path in found if path.stat().st_size]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """One transaction is committed, with an offset; the next one is aborted, with another."""
    data_dir = tmp_path_factory.mktemp("dumped") / "data"
    with OnceflowServer(data_dir, settings={}) as server:
        names = Names.fresh(server.bootstrap)
        with Probe(server.bootstrap, names, Transcript()) as probe:
            topic, group = probe.topic(), names("group")
            wait_for_coordinator(probe.connection, group)
            who = first = probe.producer("id")
            for number, commit in enumerate((True, False)):
                batch = sequenced(who, 0, b"a", b"b")
                assert probe.produce((topic, 0), batch, who=who, version=TV2_PRODUCE)[0] == "NONE"
                place = (topic, 0)
                errors = probe.commit_offset(who, group, place, number, version=TV2_OFFSETS)
                assert errors == ["NONE"]
                who = probe.ended(who, commit=commit, version=TV2_END)
    return Written(data_dir, first, topic, group)


def payloads(text: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Keys and values of the records that a decoder made readable."""
    pairs = re.findall(r"key: (\{.*?\}) payload: (\{.*\})$", text, re.MULTILINE)
    return [(json.loads(key)["data"], json.loads(value)["data"]) for key, value in pairs]


def test_every_state_of_a_transaction_is_readable(kafka_jars: Path, written: Written) -> None:
    files = written.files("__transaction_state", "log")
    text = dump(kafka_jars, files, "--transaction-log-decoder")
    assert "isvalid: false" not in text
    rows = [value for key, value in payloads(text) if key["transactionalId"] == written.who[0]]
    assert {row["producerId"] for row in rows} == {written.who.producer_id}
    states = [row["transactionStatus"] for row in rows]
    ends = [PREPARE_COMMIT, COMPLETE_COMMIT, PREPARE_ABORT, COMPLETE_ABORT]
    assert states[0] == EMPTY
    assert [state for state in states if state in ends] == ends
    ongoing = [row for row in rows if row["transactionStatus"] == ONGOING]
    topics = {part["topic"] for part in ongoing[-1]["transactionPartitions"]}
    assert topics == {written.topic, "__consumer_offsets"}
    epochs = [row["producerEpoch"] for row in rows]
    assert epochs == sorted(epochs)
    assert rows[-1]["producerEpoch"] == written.who.producer_epoch + 2


def test_offsets_in_transactions_are_readable(kafka_jars: Path, written: Written) -> None:
    text = dump(kafka_jars, written.files("__consumer_offsets", "log"), "--offsets-decoder")
    assert "isvalid: false" not in text
    offsets = [
        value["offset"] for key, value in payloads(text) if key.get("group") == written.group
    ]
    assert offsets == [0, 1]
    assert text.count("isTransactional: true isControl: false") == 2
    assert text.count("endTxnMarker: COMMIT") == text.count("endTxnMarker: ABORT") == 1


def test_aborted_transactions_are_indexed(kafka_jars: Path, written: Written) -> None:
    files = written.files(written.topic, "txnindex")
    assert len(files) == 1
    text = dump(kafka_jars, files)
    found = re.findall(r"(\w+): (-?\d+)", text.splitlines()[-1])
    assert dict(found) == {
        "version": "0",
        "producerId": str(written.who.producer_id),
        "firstOffset": "3",
        "lastOffset": "5",
        "lastStableOffset": "6",
    }

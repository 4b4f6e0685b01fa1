"""The records of `__transaction_state`: byte for byte what Apache Kafka 4.3.1 writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onceflow.errors import NewerRecord, RecordError, RecordMalformed
from onceflow.txn.records import (
    LAST_EPOCH_TAG,
    TransactionRecordMalformed,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from onceflow.txn.state import TransactionMetadata, TransactionState
from onceflow.types import TopicPartition

PARTITIONS = frozenset(
    {TopicPartition("orders", 1), TopicPartition("a", 2), TopicPartition("a", 0)}
)
ONGOING = TransactionMetadata(
    "my-id",
    42,
    7,
    60_000,
    TransactionState.ONGOING,
    2_000,
    partitions=PARTITIONS,
    started_ms=1_000,
)
EMPTY = TransactionMetadata("my-id", 42, 0, 60_000, TransactionState.EMPTY, 2_000)
FULL = replace(ONGOING, client_version=2, previous_producer_id=41, next_producer_id=43)

HEAD = "000000000000002a00070000ea60"
TIMES = "00000000000007d000000000000003e8"
FLEXIBLE_PARTITIONS = "03026103000000000000000200076f7264657273020000000100"
ONGOING_0 = (
    "0000" + HEAD + "01" + "00000002" + "000161" + "00000002" + "00000000" + "00000002"
    "00066f7264657273" + "00000001" + "00000001" + TIMES
)
FULL_1 = (
    "0001" + HEAD + "01" + FLEXIBLE_PARTITIONS + TIMES + "03"
    "00080000000000000029" + "0108000000000000002b" + "02020002"
)
EMPTY_0 = "0000000000000000002a00000000ea6000ffffffff00000000000007d0ffffffffffffffff"
EMPTY_1 = "0001000000000000002a00000000ea60000000000000000007d0ffffffffffffffff00"


def test_the_key() -> None:
    assert encode_key("my-id").hex() == "000000056d792d6964"
    assert decode_key(encode_key("schlüssel")) == "schlüssel"


@pytest.mark.parametrize(
    ("number", "error"),
    [
        ("0002", NewerRecord),
        ("00ff", NewerRecord),
        ("0100", RecordMalformed),
        ("ffff", RecordMalformed),
    ],
)
def test_what_a_newer_version_may_write_is_told_from_what_nobody_does(
    number: str, error: type[RecordError]
) -> None:
    with pytest.raises(error, match=f"a key of type {int(number, 16)} |a key of type -1 "):
        decode_key(bytes.fromhex(number + "0001ff"))
    with pytest.raises(error, match="a value of version"):
        decode_value("my-id", bytes.fromhex(number + EMPTY_1[4:]))


@pytest.mark.parametrize(("transaction", "data"), [(FULL, FULL_1), (EMPTY, EMPTY_1)])
def test_values_are_written_as_kafka_writes_them(
    transaction: TransactionMetadata, data: str
) -> None:
    assert encode_value(transaction).hex() == data


@pytest.mark.parametrize(
    ("data", "transaction"),
    [(ONGOING_0, ONGOING), (FULL_1, FULL), (EMPTY_0, EMPTY), (EMPTY_1, EMPTY)],
)
def test_values_of_both_versions_are_read(data: str, transaction: TransactionMetadata) -> None:
    assert decode_value("my-id", bytes.fromhex(data)) == transaction


@pytest.mark.parametrize(
    "state",
    [
        each
        for each in TransactionState
        if each not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
    ],
)
def test_all_that_a_decision_may_need_survives(state: TransactionState) -> None:
    transaction = TransactionMetadata(
        "my-id",
        2**62,
        32_767,
        2**31 - 1,
        state,
        5,
        previous_producer_id=7,
        next_producer_id=8,
        next_producer_epoch=9,
        last_epoch=32_766,
        partitions=frozenset() if state is TransactionState.EMPTY else PARTITIONS,
        started_ms=4,
        client_version=2,
    )
    assert decode_value("my-id", encode_value(transaction)) == transaction


def test_a_transaction_without_partitions_has_none_where_an_empty_id_has_null() -> None:
    done = TransactionMetadata(
        "my-id", 42, 0, 60_000, TransactionState.COMPLETE_ABORT, 2_000, started_ms=1
    )
    data = encode_value(done).hex()
    assert data[32:36] == "0501"
    assert decode_value("my-id", bytes.fromhex(data)) == done


def test_the_field_that_is_not_kafkas_is_far_from_those_that_are() -> None:
    data = encode_value(replace(EMPTY, last_epoch=5))
    assert data.hex() == EMPTY_1[:-2] + "01" + "904e" + "02" + "0005"
    assert LAST_EPOCH_TAG == 0x10 + (0x4E << 7)


def test_tags_that_are_not_known_are_passed_over_everywhere() -> None:
    partitions = "020261020000000001" + "63" + "01ff"
    tags = "03" + "02020002" + "05" + "03aabbcc" + "904e" + "020005"
    data = "0001" + HEAD + "01" + partitions + TIMES + tags
    read = decode_value("my-id", bytes.fromhex(data))
    assert (read.client_version, read.last_epoch) == (2, 5)
    assert read.partitions == {TopicPartition("a", 0)}


def test_equal_states_are_equal_bytes() -> None:
    many = [TopicPartition(f"t{number % 7}", number) for number in range(100)]
    assert encode_value(replace(ONGOING, partitions=frozenset(many))) == encode_value(
        replace(ONGOING, partitions=frozenset(reversed(many)))
    )


# --- what is not a record ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (EMPTY_1 + "00", "1 bytes are left over"),
        (EMPTY_0 + "0000", "2 bytes are left over"),
        (EMPTY_1.replace("ea6000", "ea6006"), "status 6 is none that is ever written"),
        (EMPTY_1.replace("ea6000", "ea6007"), "status 7 is none that is ever written"),
        (EMPTY_1.replace("ea6000", "ea60ff"), "status -1 is none that is ever written"),
        (EMPTY_1[:-2] + "01" + "02" + "08" + "00" * 8, "tagged field 2 has 8 bytes"),
        (EMPTY_1[:-2] + "01" + "02" + "01" + "00", "cut off"),
        (EMPTY_1[:-2] + "01" + "63" + "02" + "00", "tagged field 99 reaches past the end"),
        (ONGOING_0.replace("000161", "ffff61"), "a text that must be there is null"),
        (ONGOING_0.replace("000161", "0001ff"), "not UTF-8"),
        (FULL_1.replace("ea600103", "ea6001f0ffffff07"), "elements"),
    ],
)
def test_a_value_that_is_wrong_is_refused_by_name(data: str, what: str) -> None:
    with pytest.raises(TransactionRecordMalformed, match=what) as refused:
        decode_value("my-id", bytes.fromhex(data))
    assert "'my-id'" in str(refused.value)


@pytest.mark.parametrize("data", [ONGOING_0, FULL_1, EMPTY_0, EMPTY_1])
def test_a_value_that_is_cut_off_is_refused_at_every_byte(data: str) -> None:
    whole = bytes.fromhex(data)
    for size in range(len(whole)):
        with pytest.raises(TransactionRecordMalformed):
            decode_value("my-id", whole[:size])


@pytest.mark.parametrize(
    "key", ["", "00", "0000", "00000005", "0000ffff", "00000001ff", "0000000161ff"]
)
def test_a_key_that_is_wrong_is_refused(key: str) -> None:
    with pytest.raises(TransactionRecordMalformed, match="key"):
        decode_key(bytes.fromhex(key))


def test_what_must_not_be_written_is_not() -> None:
    with pytest.raises(TransactionRecordMalformed, match="32768 bytes"):
        encode_key("x" * 32_768)
    with pytest.raises(TransactionRecordMalformed, match="as Empty with 3 partitions"):
        encode_value(replace(EMPTY, partitions=PARTITIONS))
    for state in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
        with pytest.raises(TransactionRecordMalformed, match=state.title):
            encode_value(replace(EMPTY, state=state))

"""What users write and read: places, settings, lines, formats, bytes as JSON."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import typer

from onceflow.cli.common.errors import as_document, hint_for
from onceflow.cli.common.output import counted
from onceflow.cli.common.values import (
    Place,
    Position,
    bytes_from_json,
    bytes_to_json,
    duration_text,
    parse_client_settings,
    parse_pairs,
    parse_position,
    parse_settings,
    parse_topic,
    time_text,
)
from onceflow.cli.consume.record_format import format_renderer, json_renderer
from onceflow.cli.produce.lines import (
    InputMalformed,
    NewRecord,
    json_parser,
    parse_lines,
    read_lines,
    text_parser,
)
from onceflow.cli.produce.sending import lines_text
from onceflow.client.consumer.fetched import Record, columns_of, records_of
from onceflow.client.errors.requests import (
    BrokerError,
    BrokerUnreachable,
    DeliveryFailed,
    TopicNotFound,
)
from onceflow.records.batch import StoredBatch
from onceflow.records.columns import encode
from onceflow.types import TopicPartition
from onceflow.wire.error_codes import ErrorCode


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Position(Place.EARLIEST)),
        ("Latest", Position(Place.LATEST)),
        ("0", Position(Place.OFFSET, 0)),
        ("9223372036854775807", Position(Place.OFFSET, 2**63 - 1)),
        ("@1700000000123", Position(Place.TIMESTAMP, 1_700_000_000_123)),
        ("2023-11-14T22:13:20Z", Position(Place.TIMESTAMP, 1_700_000_000_000)),
        ("2023-11-14T23:13:20.5+01:00", Position(Place.TIMESTAMP, 1_700_000_000_500)),
        ("1969-12-31T23:59:59.999Z", Position(Place.TIMESTAMP, 0)),  # -1 would be the end
        ("1969-12-31T23:59:59.998Z", Position(Place.TIMESTAMP, 0)),  # -2 the beginning
        ("1912-06-23T00:00:00Z", Position(Place.TIMESTAMP, 0)),
    ],
)
def test_places(text: str, position: Position) -> None:
    assert parse_position(text) == position


def test_a_time_without_a_zone_is_local() -> None:
    here = parse_position("2023-11-14T22:13:20").number - parse_position("2023-11-14").number
    assert here == (22 * 3600 + 13 * 60 + 20) * 1000


@pytest.mark.parametrize("text", ["", "-1", "@", "@-5", "soon", "9223372036854775808", "1.5"])
def test_what_is_no_place_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"earliest, latest, an offset \(42\), a time"):
        parse_position(text)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([3], "line 3"),
        ([3, 4], "lines 3 to 4"),
        ([1, 3, 4, 5], "lines 1 and 3 to 5"),
        ([1, 3, 5, 7, 9, 11, 13], "lines 1, 3, 5, 7, 9 and others"),
    ],
)
def test_lines_of_an_input(lines: list[int], text: str) -> None:
    assert lines_text(lines) == text


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"value":' * 100_000])
def test_json_without_end_is_no_record(line: bytes) -> None:
    _, problem = parse_lines([line], json_parser(()), 7)
    assert "line 7 of the input cannot be sent: its JSON is nested too deeply" in str(problem)


def test_a_separator_may_be_any_bytes() -> None:
    parse = text_parser(os.fsdecode(b"\xff"), ())
    assert parse(b"a\xffb") == NewRecord(b"b", b"a")


def test_a_file_of_settings_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "client").write_bytes(b"\xef\xbb\xbfclient.id=me\n")
    assert parse_client_settings([f"@{tmp_path / 'client'}"]) == {"client.id": "me"}


def test_settings() -> None:
    assert parse_settings(["a=1", "b = x=y ", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in ("a", "=1", ""):
        with pytest.raises(typer.BadParameter, match="NAME=VALUE"):
            parse_settings([wrong])


def test_pairs_keep_their_order_and_their_number() -> None:
    assert parse_pairs(["a=1", "b=2", "a=3"]) == [("a", "1"), ("b", "2"), ("a", "3")]


def test_settings_of_a_client_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# a login\n\nsasl.username = me\nsasl_password=a=b\n")
    found = parse_client_settings(["sasl.username=you", f"@{file}", "request_timeout_ms=5000"])
    assert found == {"sasl.username": "me", "sasl.password": "a=b", "request.timeout.ms": "5000"}
    with pytest.raises(typer.BadParameter, match=r"cannot read .*missing: No such file"):
        parse_client_settings([f"@{tmp_path / 'missing'}"])
    file.write_bytes(b"\xff")
    with pytest.raises(typer.BadParameter, match="is not a text"):
        parse_client_settings([f"@{file}"])


def test_topics_with_and_without_partitions() -> None:
    assert parse_topic("orders") == ("orders", [])
    assert parse_topic("orders:0,12") == ("orders", [0, 12])
    for wrong in ("", ":1", "orders:", "orders:a", "orders:-1"):
        with pytest.raises(typer.BadParameter, match="TOPIC or TOPIC:0,1"):
            parse_topic(wrong)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-5, "0 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (7_200_000, "2 h"),
        (7_500_000, "2 h 5 min"),
    ],
)
def test_durations(milliseconds: int, text: str) -> None:
    assert duration_text(milliseconds) == text


def test_times() -> None:
    assert time_text(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert time_text(2**63 - 1) == str(2**63 - 1)


@pytest.mark.parametrize(
    "data", [None, b"", b"text", "ümlaut".encode(), b"\xff\x00", b"\xed\xa0\x80"]
)
def test_bytes_go_through_json_and_back(data: bytes | None) -> None:
    assert bytes_from_json(json.loads(json.dumps(bytes_to_json(data))), "value") == data


@pytest.mark.parametrize("value", [1, True, [], {}, {"base64": 1}, {"base64": "a"}, {"b": "YQ=="}])
def test_other_json_is_no_value(value: object) -> None:
    with pytest.raises(ValueError, match="the value"):
        bytes_from_json(value, "the value")


def test_numbers_of_things() -> None:
    assert counted(1, "record") == "1 record"
    assert counted(2000, "record") == "2,000 records"
    assert counted(0, "batch") == "0 batches"


# --- lines in ---------------------------------------------------------------------------------


@contextmanager
def pipe_with(*pieces: bytes) -> Iterator[int]:
    reading, writing = os.pipe()
    try:
        for piece in pieces:
            os.write(writing, piece)
        os.close(writing)
        yield reading
    finally:
        os.close(reading)


async def all_lines(descriptor: int) -> list[list[bytes]]:
    return [lines async for lines in read_lines(descriptor)]


def test_lines_are_cut_whatever_their_ends(tmp_path: Path) -> None:
    with pipe_with(b"one\ntwo\r\n\nlast") as descriptor:
        assert asyncio.run(all_lines(descriptor)) == [[b"one", b"two", b""], [b"last"]]
    with pipe_with() as descriptor:
        assert asyncio.run(all_lines(descriptor)) == []
    (tmp_path / "file").write_bytes(b"one\ntwo")
    with (tmp_path / "file").open("rb") as file:
        assert asyncio.run(all_lines(file.fileno())) == [[b"one"], [b"two"]]


def test_a_line_that_comes_in_pieces_is_one() -> None:
    reading, writing = os.pipe()

    async def main() -> None:
        lines = aiter(read_lines(reading))
        os.write(writing, b"a\nhal")
        assert await anext(lines) == [b"a"]
        os.write(writing, b"f\n")
        assert await anext(lines) == [b"half"]
        os.close(writing)
        assert await anext(lines, None) is None

    asyncio.run(main())
    os.close(reading)


def test_waiting_for_a_line_can_be_given_up() -> None:
    reading, writing = os.pipe()

    async def main() -> None:
        waiting = asyncio.ensure_future(all_lines(reading))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    os.close(reading)
    os.close(writing)


def test_keys_stand_before_the_first_separator() -> None:
    parse = text_parser("::", (("h", b"1"),))
    assert parse(b"a::b::c") == NewRecord(b"b::c", b"a", (("h", b"1"),))
    assert parse(b"::") == NewRecord(b"", b"", (("h", b"1"),))
    assert text_parser(None, ())(b"a::b") == NewRecord(b"a::b")


def test_lines_before_a_bad_one_are_records_and_the_bad_one_is_numbered() -> None:
    records, problem = parse_lines([b"a:1", b"b:2", b"c", b"d:4"], text_parser(":", ()), 10)
    assert [each.value for each in records] == [b"1", b"2"]
    assert isinstance(problem, InputMalformed)
    assert "line 12 of the input cannot be sent: it does not contain the key separator ':'" in str(
        problem
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'"a"', "not a JSON object"),
        (b"{}", "there is no 'value'"),
        (b'{"value": "a", "vlaue": "b"}', "unknown field 'vlaue'"),
        (b'{"value": {"a": 1}}', "value must be a string"),
        (b'{"value": "a", "key": 5}', "key must be a string"),
        (b'{"value": "a", "headers": {"a": "b"}}', "headers must be a list"),
        (b'{"value": "a", "headers": [["a", "b"]]}', "a header must be"),
        (b'{"value": "a", "timestamp": "now"}', "timestamp must be a whole number"),
        (b'{"value": "a", "timestamp": true}', "timestamp must be a whole number"),
    ],
)
def test_json_lines_that_are_no_records_say_why(line: bytes, said: str) -> None:
    _, problem = parse_lines([line], json_parser(()), 1)
    assert said in str(problem)


# --- records out ------------------------------------------------------------------------------

RECORD = Record("orders", 2, 41, 1_700_000_000_123, 0, b"k", None, (("h", b"1"), ("h", b"1")))


def test_a_format_takes_fields_and_escapes() -> None:
    render = format_renderer(r"{topic}/{partition}/{offset}\t{key}={value}{{}} {headers} {time}")
    assert render(RECORD) == b"orders/2/41\tk=null{} h=1,h=1 2023-11-14T22:13:20.123Z\n"
    raw = RECORD._replace(value=b"\xff\n\x00")
    assert format_renderer("{value}")(raw) == b"\xff\n\x00\n"


@pytest.mark.parametrize(
    "template", ["{foo}", "{}", "{value", "{value.real}", "{key!r}", "{key:5}"]
)
def test_other_fields_are_refused(template: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"the fields are \{topic\}, "):
        format_renderer(template)


def test_what_consume_writes_produce_takes() -> None:
    record = RECORD._replace(value=b"\xff", key="ü".encode())
    line = json_renderer(record)
    assert json.loads(line)["offset"] == 41
    assert json_parser((("more", b""),))(line) == NewRecord(
        b"\xff", "ü".encode(), (("h", b"1"), ("h", b"1"), ("more", b"")), 1_700_000_000_123
    )


def test_records_are_the_rows_of_columns_even_with_times_of_no_calendar() -> None:
    columns = pa.record_batch(
        {
            "value": pa.array([b"a", None], pa.binary()),
            "timestamp": pa.array([2**62, 5], pa.int64()),
        }
    )
    batch = encode(columns)
    stored = [StoredBatch(batch.header, batch.buffer)]
    rows = records_of([columns_of(TopicPartition("t", 1), stored, 0)])
    assert rows[0] == Record("t", 1, 0, 2**62, 0, None, b"a", ())
    assert rows[1] == Record("t", 1, 1, 5, 0, None, None, ())
    assert time_text(rows[0].timestamp) == str(2**62)


def test_errors_that_are_each_others_cause_are_told() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert as_document(first)["error"]["message"] == "first"


def test_errors_carry_their_hints() -> None:
    assert "onceflow serve" in (hint_for(BrokerUnreachable("x")) or "")
    assert hint_for(ValueError("x")) is None
    document = as_document(TopicNotFound("ordrs", ["orders"]))
    assert document["error"]["type"] == "TopicNotFound"
    assert document["error"]["message"] == "there is no topic 'ordrs'; did you mean 'orders'?"
    assert "topics list" in document["error"]["hint"]


def test_what_a_broker_said_is_told_of_an_error_that_came_of_it() -> None:
    error = DeliveryFailed("not sent", outcome="unknown")
    error.__cause__ = BrokerError(ErrorCode.MESSAGE_TOO_LARGE, "PRODUCE", "partition orders-0")
    told = as_document(error)["error"]
    assert (told["type"], told["name"], told["code"]) == ("DeliveryFailed", "MESSAGE_TOO_LARGE", 10)
    assert told["outcome"] == "unknown"
    assert "max.message.bytes" in told["hint"]

"""What a `pipeline.toml` may say, and what is told of one that says something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceflow.spark.errors.pipeline import InvalidPipeline
from onceflow.spark.formats.format import Format
from onceflow.spark.formats.schema import Field, Plain
from onceflow.spark.pipeline.file import load_plan
from onceflow.spark.pipeline.functions import NamedFunction
from onceflow.spark.pipeline.parse import with_function
from onceflow.spark.pipeline.plan import OutputMode, PipelinePlan, TransformKind, Watermark

GOOD = """\
[pipeline]
name = "totals"
checkpoint = "state/totals"

[source]
topics = ["orders"]
format = "json"
schema = "id BIGINT, cents INT"

[sink]
topic = "totals"
format = "json"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    return path


def plan_of(tmp_path: Path, text: str) -> PipelinePlan:
    return load_plan(write(tmp_path, text))


def problems_of(tmp_path: Path, text: str, **options: str) -> list[str]:
    """One line for each problem, as a user sees them."""
    path = write(tmp_path, text)
    with pytest.raises(InvalidPipeline) as raised:
        load_plan(path, **options)
    first, *rest = str(raised.value).split("\n  ")
    assert first.startswith(f"{path} cannot be run; ")
    assert len(rest) == len(raised.value.problems)
    return rest


def test_the_least_that_a_pipeline_is(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, GOOD)
    assert plan.name == "totals"
    assert plan.checkpoint == str(tmp_path / "state/totals")
    assert plan.bootstrap is None
    assert plan.broker == {"data.dir": str(tmp_path / "onceflow-data")}
    (source,) = plan.sources
    assert source.name == "source"
    assert source.options == {"subscribe": "orders", "startingOffsets": "earliest"}
    assert source.schema == (Field("id", Plain("bigint")), Field("cents", Plain("int")))
    assert plan.transform.kind is TransformKind.NOTHING
    assert (plan.sink.topic, plan.sink.format, plan.sink.key) == ("totals", Format.JSON, None)
    assert plan.sink.mode is OutputMode.APPEND
    assert (plan.interval_ms, plan.available_now, plan.dead_letters) == (None, False, None)


EVERYTHING = """\
[pipeline]
name = "joined"
checkpoint = "hdfs://names/joined"
[source]
bootstrap = "one:9092,two:9092"
[source.orders]
topics = "orders"
starting = 2026-01-01T00:00:00Z
format = "csv"
schema = "id BIGINT, at TIMESTAMP"
format_options = { sep = ";" }
watermark = { column = "at", delay = "10 minutes" }
options = { maxOffsetsPerTrigger = 1000, fetchOffset.numRetries = 1 }
[source.payments]
pattern = "payments-.*"
starting = { payments-a = { 0 = 5, 1 = -2 } }
format = "text"
[rules.orders]
known = "id IS NOT NULL"
[transform]
sql_file = "totals.sql"
[sink]
topic = "joined"
key = "CAST(id AS STRING)"
format = "csv"
partition = "id % 3"
mode = "update"
headers = { kind = "'joined'" }
[dead_letters]
topic = "bad"
[trigger]
interval = "2 seconds"
[settings]
compression.type = "lz4"
fetch.max.bytes = 1000000
request.timeout.ms = 5000
spark.sql.shuffle.partitions = 4
"""


def test_all_that_a_pipeline_can_be(tmp_path: Path) -> None:
    (tmp_path / "totals.sql").write_text("SELECT * FROM orders JOIN payments USING (id)")
    plan = plan_of(tmp_path, EVERYTHING)
    orders, payments = plan.sources
    assert (orders.name, payments.name) == ("orders", "payments")
    assert orders.options == {
        "subscribe": "orders",
        "startingTimestamp": "1767225600000",
        "startingOffsetsByTimestampStrategy": "latest",
        "maxOffsetsPerTrigger": "1000",
        "fetchOffset.numRetries": "1",
    }
    assert orders.watermark == Watermark("at", 600_000)
    assert orders.rules == {"known": "id IS NOT NULL"}
    assert orders.format_options == {"sep": ";"}
    assert payments.options == {
        "subscribePattern": "payments-.*",
        "startingOffsets": '{"payments-a": {"0": 5, "1": -2}}',
    }
    assert payments.rules == {}


def test_what_belongs_to_the_whole_of_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "totals.sql").write_text("SELECT * FROM orders JOIN payments USING (id)")
    plan = plan_of(tmp_path, EVERYTHING)
    assert (plan.checkpoint, plan.bootstrap) == ("hdfs://names/joined", "one:9092,two:9092")
    assert plan.broker == {}
    assert plan.transform.sql == "SELECT * FROM orders JOIN payments USING (id)"
    assert plan.sink.headers == {"kind": "'joined'"}
    assert plan.sink.mode is OutputMode.UPDATE
    assert plan.interval_ms == 2000
    assert plan.spark_settings == {"spark.sql.shuffle.partitions": "4"}
    assert plan.reader_settings == {"fetch.max.bytes": "1000000", "request.timeout.ms": "5000"}
    assert plan.producer_settings == {"compression.type": "lz4", "request.timeout.ms": "5000"}
    assert plan.producers("one:9092").compression_type == "lz4"


WRONG = """\
[pipeline]
nmae = "totals"
checkpoint = "state"
[source]
topics = ["or ders"]
format = "jsn"
[source.options]
maxOfsetsPerTrigger = 5
[transfrom]
sql = "SELECT 1"
[sink]
format = "json"
mode = "apend"
[trigger]
interval = "often"
[settings]
compression.typ = "lz4"
acks = 1
linger.ms = "soon"
[broker]
num.partitions = 0
"""


def test_everything_that_is_wrong_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    assert problems_of(tmp_path, WRONG) == [
        "line 1: pipeline: name is missing: the name of the pipeline, the same at every start",
        "line 2: pipeline.nmae: there is no such key; did you mean 'name'?",
        (
            "line 5: source.topics: ['or ders'] is not allowed; it may be one or several topic "
            "names: up to 249 ASCII letters, digits, '.', '_' and '-', and not '.' or '..' "
            "('or ders' is not one)"
        ),
        "line 6: source.format: 'jsn' is not allowed; it may be json, csv, text or raw",
        "line 9: transfrom: there is no such table; did you mean 'transform'?",
        "line 11: sink: topic is missing: where the rows go",
        "line 13: sink.mode: 'apend' is not allowed; it may be append, update or complete",
        (
            "line 15: trigger.interval: 'often' is not allowed; it may be a time such as "
            '"500 ms", "10 s", "5 minutes", "1 hour" or "2 d"'
        ),
        (
            "line 17: settings.compression.typ: there is no such setting of a Kafka client; did "
            "you mean 'compression.type'?"
        ),
        "line 18: settings.acks: it cannot be set here: a pipeline is exactly-once",
        (
            "line 19: settings.linger.ms: 'soon' is not allowed; it may be a whole number from 0 "
            "to 2147483647"
        ),
        (
            "line 21: broker.num.partitions: num.partitions = '0' is not allowed; it may be "
            "a whole number from 1 to 10000"
        ),
    ]


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ('topics = ["orders"]', "", "line 5: source: topics or pattern is missing: what to read"),
        ('topics = ["orders"]', 'pattern = "("', "line 6: source.pattern: '(' is not allowed; "),
        (
            'topics = ["orders"]',
            'topics = "a"\npattern = "b"',
            "line 7: source.pattern: contradicts topics: give one of them",
        ),
        ('topics = ["orders"]', "topics = []", "line 6: source.topics: [] is not allowed"),
        (
            'schema = "id BIGINT, cents INT"',
            "",
            "line 5: source: schema is missing: the columns, as in",
        ),
        ("BIGINT, cents", "BIGNIT, cents", "did you mean 'BIGINT'?"),
        (
            'format = "json"\nschema',
            'format = "raw"\nschema',
            "line 8: source.schema: raw has one column, value: leave it out",
        ),
        (
            'topics = ["orders"]',
            'topics = "orders"\nstarting = "first"',
            'line 7: source.starting: \'first\' is not allowed; it may be "earliest", "latest"',
        ),
        (
            'topics = ["orders"]',
            'topics = "orders"\nstarting = { orders = { x = 1 } }',
            "line 7: source.starting: startingOffsets = ",
        ),
        (
            'topics = ["orders"]',
            'topics = "orders"\nwatermark = { colunm = "at" }',
            "line 7: source.watermark.colunm: there is no such key; did you mean 'column'?",
        ),
        (
            'topics = ["orders"]',
            'topics = "orders"\noptions = { subscribe = "x" }',
            "line 7: source.options.subscribe: give it as topics",
        ),
        (
            'topics = ["orders"]',
            'topics = "orders"\noptions = { minPartitions = 0 }',
            "line 7: source.options.minPartitions: minPartitions = '0' is not allowed",
        ),
        (
            'topics = ["orders"]',
            'topics = "orders"\noptions = { maxOfsetsPerTrigger = 1 }',
            (
                "line 7: source.options.maxOfsetsPerTrigger: unknown option 'maxOfsetsPerTrigger'; "
                "did you mean 'maxOffsetsPerTrigger'?"
            ),
        ),
        ("[sink]", "[sink]\nkey = 3", "line 11: sink.key: 3 is not allowed; it may be a text"),
        ("[sink]", "[dead_letters]\n[sink]", "line 10: dead_letters: topic is missing"),
        (
            "[sink]",
            '[dead_letters]\ntopic = "orders"\n[sink]',
            "line 11: dead_letters.topic: 'orders' is a topic of the data already",
        ),
        (
            "[sink]",
            '[rules]\npositive = "cents > 0"\n[sink]',
            "line 10: rules: rows that break a rule need a topic to go to: add [dead_letters]",
        ),
        ("[sink]", "[rules]\nx = 1\n[sink]", "line 10: rules: {'x': 1} is not allowed"),
        (
            "[sink]",
            '[transform]\nsql = "SELECT 1"\npython = "math:sqrt"\n[sink]',
            "line 12: transform.python: contradicts sql: give one of them",
        ),
        ("[sink]", "[transform]\nsql = ''\n[sink]", "line 11: transform.sql: '' is not allowed"),
        (
            "[sink]",
            '[transform]\nsql_file = "none.sql"\n[sink]',
            "none.sql cannot be read: No such file or directory",
        ),
        (
            "[sink]",
            '[trigger]\ninterval = "1 s"\navailable_now = true\n[sink]',
            "line 12: trigger.available_now: contradicts interval: give one of them",
        ),
        (
            "[sink]",
            '[settings]\nsasl.mechanism = "PLAIN"\n[sink]',
            "line 10: settings: sasl.mechanism = 'PLAIN' contradicts security.protocol",
        ),
        (
            "[sink]",
            "[settings]\nsasl.password = 5\n[sink]",
            "line 10: settings: sasl.password",
        ),
        (
            "[source]",
            '[broker]\n[source]\nbootstrap = "a:1"',
            "line 5: broker: contradicts source.bootstrap",
        ),
        ("[sink]", "settings = 3\n[sink]", "source.settings: there is no such key"),
    ],
)
def test_one_thing_that_is_wrong(tmp_path: Path, was: str, becomes: str, said: str) -> None:
    assert was in GOOD
    found = problems_of(tmp_path, GOOD.replace(was, becomes, 1))
    assert any(said in each for each in found), found


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    text = GOOD + '[settings]\nsasl.password = ""\n'
    (found,) = problems_of(tmp_path, text)
    assert found == "line 14: settings.sasl.password: the value is not allowed; it may be a text"


def test_several_sources(tmp_path: Path) -> None:
    text = GOOD.replace("[source]", "[source.orders]").replace(
        "[sink]", '[source]\nformat="raw"\n[sink]'
    )
    assert any(
        "source.format: where there are several sources it belongs to one of them" in each
        for each in problems_of(tmp_path, text)
    )
    text = GOOD.replace("[source]", "[source.1st]")
    assert any(
        "source.1st: the name is not allowed; it may be letters" in each
        for each in problems_of(tmp_path, text)
    )
    two = GOOD.replace("[source]", "[source.orders]").replace(
        "[sink]", '[source.more]\ntopics = "more"\nformat = "raw"\n[rules.ordes]\nx = "1"\n[sink]'
    )
    assert problems_of(tmp_path, two) == [
        "transform: sql, sql_file, python or arrow is missing: several sources need a transform",
        "line 13: rules: rows that break a rule need a topic to go to: add [dead_letters]",
        "line 13: rules.ordes: there is no such source; did you mean 'orders'?",
    ]


MINE = """\
import helper_of_mine
from os import path as joined
def one(table, *, more: Undefined = helper_of_mine.nothing): return table
def two(a, b): return a
value = 3
if value:
    def inside(table): return table
"""


def test_functions_are_looked_at_before_there_is_a_session(tmp_path: Path) -> None:
    """Without running their modules, which may need one."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "helper_of_mine.py").write_text("raise RuntimeError('there is no session')")
    (tmp_path / "broken.py").write_text("def f(:\n")

    def told(reference: str) -> str:
        text = GOOD.replace("[sink]", f'[transform]\npython = "{reference}"\n[sink]')
        return problems_of(tmp_path, text)[0]

    plan = plan_of(tmp_path, GOOD.replace("[sink]", '[transform]\npython = "mine:one"\n[sink]'))
    assert isinstance(plan.transform.function, NamedFunction)
    for name in ("value", "inside", "joined"):
        plan_of(tmp_path, GOOD.replace("[sink]", f'[transform]\npython = "mine:{name}"\n[sink]'))
    assert "the function must take (table); it takes (a, b): missing" in told("mine:two")
    assert "which has no three" in told("mine:three")
    assert 'it may be "module:function"' in told("mine")
    assert "broken.py cannot be loaded: SyntaxError" in told("broken:f")
    assert "there is no " in told("nowhere_at_all:f")
    assert "ModuleNotFoundError" in told("nowhere_at_all:f")


def test_functions_are_loaded_when_there_is_a_session(tmp_path: Path) -> None:
    (tmp_path / "mine_then.py").write_text(
        "from pathlib import Path\nif not (Path(__file__).parent / 'session').exists():\n"
        "    raise RuntimeError('F.col needs a session')\n"
        "def one(table): return table\ndef two(*, b): return b\nvalue, more = 3, two\n"
    )

    def load(name: str) -> Any:
        text = GOOD.replace("[sink]", f'[transform]\npython = "mine_then:{name}"\n[sink]')
        return with_function(plan_of(tmp_path, text)).transform.function

    with pytest.raises(InvalidPipeline, match=r"mine_then\.py cannot be loaded: RuntimeError: F"):
        load("one")
    (tmp_path / "session").touch()
    assert load("one")(5) == 5
    with pytest.raises(InvalidPipeline, match=r"transform\.python: .*which has no value"):
        load("value")
    with pytest.raises(InvalidPipeline, match=r"must take \(table\); it takes \(\*, b\)"):
        load("more")


def test_arrow_pipelines_refuse_what_needs_the_engine(tmp_path: Path) -> None:
    (tmp_path / "mine_too.py").write_text("def one(table): return table\n")
    text = GOOD.replace(
        "[sink]",
        """options = { minPartitions = 5 }
watermark = { column = "at", delay = "1 s" }
[rules]
x = "id > 0"
[dead_letters]
topic = "bad"
[transform]
arrow = "mine_too:one"
[sink]
mode = "update\"""",
    )
    keys = [each.split(": ")[1] for each in problems_of(tmp_path, text)]
    assert keys == ["source.options.minPartitions", "source.watermark", "rules", "sink.mode"]


def test_a_file_that_is_none(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "[pipeline\n") == [
        "it is not TOML: Expected ']' at the end of a table declaration (at line 1, column 10)"
    ]
    with pytest.raises(InvalidPipeline, match="it cannot be read: No such file"):
        load_plan(tmp_path / "nothing.toml")


def test_an_address_from_outside_wins(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "[broker]\nnum.partitions = 3\n")
    plan = load_plan(path, bootstrap="far:9092")
    assert (plan.bootstrap, plan.broker) == ("far:9092", {})

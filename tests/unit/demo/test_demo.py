"""`onceflow demo`: its orders, its count, its looks, and what it needs. A whole run of it needs
Spark, and is in `tests/spark`."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from rich.console import Console

import onceflow
from onceflow.cli import run
from onceflow.client.admin.admin import Admin
from onceflow.demo import command as demo_command
from onceflow.demo.count import Count, Output, Sample, judge
from onceflow.demo.driver import DemoStuck
from onceflow.demo.feeder import Feeder
from onceflow.demo.orders import ORDERS, PARTITIONS, Order, order, pipeline_file
from onceflow.demo.picture import draw, ticks
from onceflow.demo.screen import Screen, pulse
from onceflow.demo.stage import make_topics
from onceflow.demo.strikes import COMMITTED, STRIKES, Asking, Points, Survived, Victim, planned
from onceflow.demo.verdict import Outcome, bar, figures, headline, show
from onceflow.spark.pipeline.file import load_plan
from onceflow.spark.session import home as session_java, session
from onceflow.types import TopicPartition
from tests.interop.harness import eventually

SENT = 400
PATIENCE_S = 60.0


# --- orders -------------------------------------------------------------------------------------


def is_fine(value: bytes) -> bool:
    """By the rules of the pipeline."""
    try:
        fields = json.loads(value)
    except ValueError:
        return False
    return fields["customer"] is not None and fields["quantity"] > 0


def test_an_order_is_broken_exactly_if_it_cannot_be_read_or_breaks_a_rule() -> None:
    orders = [order(number) for number in range(SENT)]
    assert [each.is_broken for each in orders] == [not is_fine(each.value) for each in orders]
    assert sum(each.is_broken for each in orders) == SENT // 50
    assert len({each.value for each in orders}) == SENT
    good = [each for each in orders if not each.is_broken]
    fields = [json.loads(each.value) for each in good]
    assert [each.number for each in good] == [row["order_id"] for row in fields]
    assert [each.total_cents for each in good] == [row["quantity"] * row["cents"] for row in fields]


def test_orders_are_broken_in_each_way() -> None:
    broken = [order(number).value for number in range(SENT) if order(number).is_broken]
    assert any(b'"quantity": 0' in value for value in broken)
    assert any(b'"customer": null' in value for value in broken)
    assert any(not value.endswith(b"}") for value in broken)


def test_the_pipeline_is_one_that_can_be_run(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(pipeline_file("127.0.0.1:9"))
    plan = load_plan(path)
    (source,) = plan.sources
    topics = {source.options["subscribe"], plan.sink.topic, plan.dead_letters}
    assert (topics, plan.bootstrap) == (set(PARTITIONS), "127.0.0.1:9")


# --- the count ----------------------------------------------------------------------------------


def total(of: Order) -> bytes:
    return json.dumps({"order_id": of.number, "total_cents": of.total_cents}).encode()


def exact() -> Output:
    """What has to come out."""
    orders = [order(number) for number in range(SENT)]
    return Output(
        [total(each) for each in orders if not each.is_broken],
        [each.value for each in orders if each.is_broken],
    )


def test_every_order_once_where_it_belongs_is_exact() -> None:
    found = judge(SENT, exact(), hidden=7)
    assert found.is_exact
    assert (found.orders, found.totals, found.dead_letters) == (SENT, 392, 8)
    assert (found.duplicates, found.losses, found.strangers, found.hidden) == (0, 0, 0, 7)
    assert found.cents == found.cents_expected > 0


def test_a_row_that_is_not_there_is_a_loss() -> None:
    output = exact()
    output.totals.pop()
    output.dead_letters.pop()
    found = judge(SENT, output, 0)
    assert (found.losses, found.duplicates, found.is_exact) == (2, 0, False)


def test_a_row_that_is_there_again_is_a_duplicate() -> None:
    output = exact()
    output.totals.append(output.totals[0])
    output.dead_letters.append(output.dead_letters[0])
    found = judge(SENT, output, 0)
    assert (found.losses, found.duplicates, found.is_exact) == (0, 2, False)


def test_an_order_with_a_wrong_total_is_lost_and_a_stranger() -> None:
    output = exact()
    output.totals[3] = json.dumps({"order_id": 3, "total_cents": 1}).encode()
    found = judge(SENT, output, 0)
    assert (found.losses, found.strangers, found.is_exact) == (1, 1, False)
    assert found.cents != found.cents_expected


def test_a_good_order_does_not_belong_into_the_dead_letters() -> None:
    output = exact()
    output.totals.remove(total(order(1)))
    output.dead_letters.append(order(1).value)
    found = judge(SENT, output, 0)
    assert (found.losses, found.strangers, found.is_exact) == (1, 1, False)


# --- strikes ------------------------------------------------------------------------------------


def test_driver_worker_and_broker_are_hit_around_the_commit() -> None:
    hit = {(each.victim, each.point) for each in STRIKES}
    assert {victim for victim, _ in hit} == set(Victim)
    assert (Victim.DRIVER, COMMITTED) in hit
    assert len(STRIKES) == demo_command.ALL


def test_more_strikes_than_there_are_go_round_again() -> None:
    assert planned(2) == list(STRIKES[:2])
    assert planned(5) == [*STRIKES, STRIKES[0]]


def test_who_comes_to_a_point_is_held_there_and_nobody_else() -> None:
    with Points() as points:
        held = points.hold("driver-2", "before EndTxn")
        Asking(points.port, "driver-1")("before EndTxn")
        Asking(points.port, "driver-2")("after write")
        assert held.arrivals == []
        waiting = threading.Thread(target=Asking(points.port, "driver-2"), args=["before EndTxn"])
        waiting.start()
        eventually(lambda: held.arrivals, lambda arrivals: len(arrivals) == 1)
        assert waiting.is_alive()
        Asking(points.port, "driver-2")("before EndTxn")  # the next one passes
        held.release()
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        assert points.arrivals["driver-2", "before EndTxn"] == 2
        assert points.arrivals["driver-1", "before EndTxn"] == 1


def test_a_process_that_dies_at_a_point_disturbs_nobody() -> None:
    with Points() as points:
        held = points.hold("driver-1", "mid-write")
        with socket.create_connection(("127.0.0.1", points.port)) as connection:
            connection.sendall(b'["driver-1", "mid-write", 1]\n')
            eventually(lambda: held.arrivals, lambda arrivals: len(arrivals) == 1)
        held.release()
        Asking(points.port, "driver-1")("mid-write")
        assert points.arrivals["driver-1", "mid-write"] == 2


# --- the feeder ---------------------------------------------------------------------------------


async def in_the_log(bootstrap: str) -> int:
    places = [TopicPartition(ORDERS, number) for number in range(PARTITIONS[ORDERS])]
    async with Admin(bootstrap) as admin:
        found = await admin.offset_ranges(places)
    return sum(each.latest for each in found.values())


def test_orders_outlive_their_broker_and_are_in_the_log_once() -> None:
    with onceflow.Broker(process=True) as broker:
        asyncio.run(make_topics(broker.bootstrap))
        feeder = Feeder(broker.bootstrap)
        feeder.start()
        eventually(lambda: feeder.acknowledged, lambda count: count > 0)
        broker.kill()
        broker.restart()
        before = feeder.acknowledged
        eventually(lambda: feeder.acknowledged, lambda count: count > before)
        feeder.stop()
        assert feeder.sent == feeder.acknowledged
        assert asyncio.run(in_the_log(broker.bootstrap)) == feeder.sent


def test_orders_that_cannot_be_sent_are_told() -> None:
    with onceflow.Broker(auto_create_topics_enable=False) as broker:
        feeder = Feeder(broker.bootstrap)
        feeder.start()
        eventually(lambda: feeder.failure, lambda failure: failure is not None)
        with pytest.raises(DemoStuck, match=r"orders could not be sent: .*orders"):
            feeder.stop()


# --- how it looks -------------------------------------------------------------------------------

SAMPLES = (
    Sample(0.0, 0, 0, 0),
    Sample(0.6, 100, 50, 0),
    Sample(1.2, 200, 140, 10),
    Sample(1.4, 300, 140, 10),
    Sample(2.1, 400, 392, 8),
)
GOOD = judge(SENT, exact(), 7)


def outcome(found: Count = GOOD) -> Outcome:
    survived = tuple(
        Survived(strike, number / 3, number + 0.25, "fenced" * (number == 3))
        for number, strike in enumerate(STRIKES)
    )
    return Outcome(found, SAMPLES, survived)


def test_the_pulse_rises_falls_and_marks_strikes() -> None:
    assert pulse(SAMPLES, [], 10).plain == " ▂▄ █"
    assert pulse(SAMPLES, [1.6], 10).plain == " ▂▄✖█"
    assert pulse(SAMPLES[:1], [], 10).plain == " "


def test_a_pulse_that_would_be_too_long_has_blocks_for_more_time() -> None:
    assert pulse(SAMPLES, [1.6], 4).plain == "▂✖█"


def test_elsewhere_than_in_a_terminal_there_is_a_line_for_each_event() -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=40), lambda: 12.345, 4)
    with screen.live():
        screen.say("the broker starts")
        screen.struck(STRIKES[0])
        screen.survived(Survived(STRIKES[0], 12.0, 0.84))
        screen.struck(STRIKES[3])
        screen.survived(Survived(STRIKES[3], 12.0, 9.96, "fenced"))
    assert out.getvalue().splitlines() == [
        "  12.3 s  the broker starts",
        "  12.3 s  1/4 Python worker killed while it writes; the batch is written again",
        "  12.3 s      committed again after 0.8 s",
        "  12.3 s  2/4 driver frozen, replaced, woken up; a second Spark starts",
        "  12.3 s      committed again after 10.0 s; the first one is fenced",
    ]


def test_in_a_terminal_there_is_a_table_of_what_happened() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    screen = Screen(console, lambda: 12.345, 4)
    with screen.live():
        screen.say("Spark starts")
        screen.survived(Survived(STRIKES[3], 12.0, 9.96, "fenced"))
    shown = out.getvalue()
    assert f"1/4   {STRIKES[3].words} (fenced)" in shown
    assert "pulse" in shown


def test_a_bar_shows_whatever_is_not_nothing() -> None:
    assert bar(0, 1000, 4) == ""
    assert bar(1, 1000, 4) == "▏"
    assert bar(500, 1000, 4) == "██"
    assert bar(2000, 1000, 4) == "████"
    assert bar(0, 0, 4) == ""


def shown(found: Count) -> str:
    out = io.StringIO()
    show(Console(file=out, width=40), outcome(found))
    return out.getvalue()


def test_the_end_says_what_was_counted() -> None:
    text = shown(GOOD)
    assert "Exactly once: 400 orders, 4 strikes, none lost, none doubled" in text
    lines = [line.split()[:3] for line in text.splitlines()]
    assert ["duplicates", "0"] in lines
    assert ["losses", "0"] in lines
    assert ["hidden", "rows", "7"] in lines
    assert "strangers" not in text


def test_the_end_says_what_is_wrong() -> None:
    text = shown(GOOD._replace(losses=3, duplicates=2, strangers=1))
    assert "NOT EXACT: of 400 orders 3 are lost; 2 rows doubled, 1 of no order" in text
    assert ["strangers", "1"] in [line.split()[:2] for line in text.splitlines()]


def test_a_figure_is_good_if_it_is_what_it_must_be() -> None:
    assert all(figure.is_good for figure in figures(GOOD))
    wrong = figures(GOOD._replace(totals=391, losses=1))
    assert [figure.label for figure in wrong if not figure.is_good] == ["rows out", "losses"]


def texts(of: Outcome) -> list[str]:
    tree = ElementTree.fromstring(draw(of))
    return ["".join(each.itertext()) for each in tree.iter("{http://www.w3.org/2000/svg}text")]


def test_the_picture_says_everything_in_words() -> None:
    said = texts(outcome())
    assert said[0] == headline(outcome())
    for figure in figures(GOOD):
        assert figure.label in said
        assert f"{figure.number:,}" in said
    for number, event in enumerate(outcome().survived, 1):
        assert said.count(str(number)) >= 2  # at its moment, and beside its words
        assert any(each.startswith(event.strike.words) for each in said)
        assert f"committed again after {event.again_after_s:.1f} s" in said


def test_the_picture_of_what_went_wrong_says_so() -> None:
    found = GOOD._replace(losses=3)
    assert texts(outcome(found))[0].startswith("NOT EXACT: of 400 orders 3 are lost")


def test_curves_of_the_picture_end_at_the_same_height() -> None:
    tree = ElementTree.fromstring(draw(outcome()))
    curves = [each.attrib["points"] for each in tree.iter() if each.tag.endswith("polyline")]
    assert len(curves) == 2
    assert len({points.split()[-1] for points in curves}) == 1


def test_ticks_are_round_numbers() -> None:
    assert ticks(73_950, 6) == [0, 20_000, 40_000, 60_000]
    assert ticks(81.2, 14) == [0, 10, 20, 30, 40, 50, 60, 70, 80]
    assert ticks(1, 6) == [0, 1]


# --- what it needs ------------------------------------------------------------------------------


def test_without_the_client_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_command, "find_spec", lambda name: None)
    assert run(["demo"]) == 1
    assert "pip install confluent-kafka" in capsys.readouterr().err


def test_without_spark_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    assert run(["demo"]) == 1
    assert "pip install 'onceflow[spark]'" in capsys.readouterr().err


def test_without_java_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "require_spark", lambda: None)
    monkeypatch.setattr(session_java, "find_spec", lambda name: None)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "")
    assert run(["demo"]) == 1
    told = capsys.readouterr().err
    assert "Spark needs Java 17 or later" in told
    assert "openjdk-17-jre-headless" in told


def test_a_picture_that_has_no_place_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", "--picture", str(tmp_path / "nowhere" / "demo.svg")]) == 2
    assert "--picture" in capsys.readouterr().err

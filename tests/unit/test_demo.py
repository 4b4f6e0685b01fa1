"""`onceflow demo`: its bookkeeping, its looks, and a short run with every client."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console

from onceflow.cli import demo_clients
from onceflow.cli.demo_clients import CLIENTS, ClientMissing, Place, decode, encode, find_client
from onceflow.cli.demo_ledger import Verdict, judge
from onceflow.cli.demo_screen import Kill, Progress, Pulse, Screen, verdict_lines

GOOD = {Place(0, 0): 0, Place(1, 0): 1, Place(0, 1): 2, Place(1, 1): 3}
ALL = GOOD.items()


def test_what_is_all_there_is_good() -> None:
    verdict = judge(ALL, ALL, GOOD)
    assert verdict == Verdict(4, 4, 0, 0, 0, 0)
    assert verdict.is_good


def test_what_was_acknowledged_and_is_gone_is_lost() -> None:
    found = {place: number for place, number in GOOD.items() if number != 3}
    verdict = judge(ALL, [], found)
    assert (verdict.lost, verdict.vanished, verdict.is_good) == (1, 0, False)


def test_what_is_at_another_place_is_lost() -> None:
    found = {**GOOD, Place(1, 1): 4, Place(1, 2): 3}
    assert judge(ALL, [], found).lost == 1


def test_what_another_has_taken_the_place_of_is_lost() -> None:
    assert judge([*ALL, (Place(0, 1), 6)], [], {**GOOD, Place(0, 1): 6}).lost == 1


def test_what_a_reader_saw_may_not_vanish() -> None:
    verdict = judge(ALL, [*ALL, (Place(0, 2), 4)], GOOD)
    assert (verdict.lost, verdict.vanished, verdict.is_good) == (0, 1, False)


def test_what_was_sent_again_is_legal_and_counted() -> None:
    found = {Place(0, 0): 0, Place(0, 1): 4, Place(0, 2): 0, Place(0, 3): 4, Place(0, 4): 8}
    verdict = judge([(Place(0, 2), 0), (Place(0, 3), 4), (Place(0, 4), 8)], [], found)
    assert verdict == Verdict(3, 5, 0, 0, 0, 2)
    assert verdict.is_good


def test_what_was_overtaken_is_out_of_order() -> None:
    found = {Place(0, 0): 0, Place(0, 1): 8, Place(0, 2): 4, Place(1, 0): 1}
    verdict = judge(found.items(), [], found)
    assert (verdict.out_of_order, verdict.is_good) == (1, False)


def test_payments_are_read_as_they_were_written() -> None:
    assert decode(encode(12_345)) == 12_345


def test_the_best_client_is_taken_or_the_one_that_is_named() -> None:
    assert find_client().package == "confluent-kafka"
    assert find_client("aiokafka").package == "aiokafka"


def test_without_a_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_clients, "find_spec", lambda name: None)
    with pytest.raises(ClientMissing, match="pip install confluent-kafka"):
        find_client()
    with pytest.raises(ClientMissing, match=r"no kafka-python .* pip install kafka-python"):
        find_client("kafka-python")
    with pytest.raises(ClientMissing, match="'java' is none of the clients confluent-kafka"):
        find_client("java")


def test_the_pulse_rises_falls_and_marks_kills() -> None:
    pulse = Pulse()
    for count in (0, 100, 300):
        pulse.sample(count)
    pulse.mark()
    pulse.sample(300)
    assert pulse.render(10).plain == " ▄█✖ "
    assert pulse.render(2).plain == "✖ "


def test_elsewhere_than_in_a_terminal_there_is_a_line_for_each_kill() -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=40), Progress(1))
    with screen.live():
        screen.killed()
        screen.back(Kill(12_345, 400, 301.4, 702.6))
    assert out.getvalue() == (
        "kill 1: 12,345 acknowledged, 400 in flight; listening again after 301 ms, "
        "next acknowledgement after 703 ms\n"
    )


def test_the_end_says_what_is_wrong() -> None:
    (line,) = verdict_lines(Verdict(100, 97, 3, 2, 1, 0), 4)
    assert "BROKEN" in line
    assert "3 are lost" in line
    good, repeated = verdict_lines(Verdict(100, 105, 0, 0, 0, 5), 4)
    assert "Nothing lost" in good
    assert "5 are there twice" in repeated


@pytest.mark.parametrize("client", [each.package for each in CLIENTS])
def test_nothing_is_lost_when_the_broker_is_killed(client: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onceflow", "demo", "--kills", "1", "--client", client],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "kill 1: " in done.stdout
    assert "Nothing lost" in done.stdout
    assert "\x1b" not in done.stdout  # no colours where there is no terminal


def test_a_loss_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from onceflow.cli import demo_load, run

    def lose(*arguments: object) -> None:
        """Finds nothing."""

    monkeypatch.setattr(demo_load, "read_back", lose)
    assert run(["demo", "--kills", "1"]) == 1
    assert "BROKEN" in capsys.readouterr().out

"""`onceflow demo`: its count, its looks, and a whole run of it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter

import pytest
from rich.console import Console

from onceflow.cli import demo as demo_command
from onceflow.cli import run
from onceflow.cli.demo_count import Count, judge, verdict_lines
from onceflow.cli.demo_moments import MOMENTS, Point, Victim
from onceflow.cli.demo_screen import Pulse, Screen
from onceflow.cli.demo_stage import Stage, Survived
from onceflow.cli.demo_worker import booking

EACH_ONCE = Counter(range(4))


def test_each_payment_booked_once_is_good() -> None:
    counted = judge(4, EACH_ONCE, EACH_ONCE + Counter([1, 2]))
    assert counted == Count(payments=4, booked=4, missing=0, repeated=0, hidden=2)
    assert counted.is_good


def test_a_payment_that_is_not_booked_is_missing() -> None:
    counted = judge(5, EACH_ONCE, EACH_ONCE)
    assert (counted.missing, counted.is_good) == (1, False)


def test_a_payment_that_is_booked_twice_is_one_too_many() -> None:
    twice = EACH_ONCE + Counter([3])
    counted = judge(4, twice, twice)
    assert (counted.repeated, counted.is_good) == (1, False)


def test_a_booking_that_nobody_paid_for_is_not_good() -> None:
    more = EACH_ONCE + Counter([99])
    assert not judge(4, more, more).is_good


def test_a_booking_says_what_was_paid_and_the_fee() -> None:
    paid = json.dumps({"payment": 7, "cents": 4250}).encode()
    assert json.loads(booking(paid)) == {"payment": 7, "cents": 4250, "fee": 42}


def test_worker_and_broker_die_at_every_point_where_something_is_at_stake() -> None:
    hit = {(moment.victim, moment.point) for moment in MOMENTS}
    for point in (Point.READ, Point.WRITTEN, Point.OFFSETS_SENT, Point.COMMITTED):
        assert (Victim.WORKER, point) in hit
    for point in (Point.WRITTEN, Point.OFFSETS_SENT, Point.COMMITTING):
        assert (Victim.BROKER, point) in hit
    assert any(victim is Victim.ZOMBIE for victim, _ in hit)


def test_the_pulse_rises_falls_and_marks_kills() -> None:
    pulse = Pulse()
    for count in (0, 100, 300):
        pulse.sample(count)
    pulse.mark()
    pulse.sample(300)
    assert pulse.render(10).plain == " ▄█✖ "
    assert pulse.render(2).plain == "✖ "


def test_elsewhere_than_in_a_terminal_there_is_a_line_for_each_death() -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=40), 8)
    with screen.live(Stage()):
        screen.survived(Survived(MOMENTS[0], 12_345, 301.4))
        screen.survived(Survived(MOMENTS[-1], 12_345, 1702.6, "fenced"))
    assert out.getvalue() == (
        "1/8 worker killed after it has read, before it writes; booking again after 301 ms\n"
        "2/8 worker replaced while it sleeps, wakes up, commits (fenced); booking again after "
        "1,703 ms\n"
    )


def test_the_end_says_what_is_wrong() -> None:
    (line,) = verdict_lines(Count(100, 99, 3, 2, 0), 8)
    assert "BROKEN" in line
    assert "3 are not booked and 2 bookings are one too many" in line
    good, hidden = verdict_lines(Count(1000, 1000, 0, 0, 200), 8)
    assert "Each counted once" in good
    assert "200 more bookings" in hidden


def test_without_the_client_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_command, "find_spec", lambda name: None)
    assert run(["demo"]) == 1
    assert "pip install confluent-kafka" in capsys.readouterr().err


def test_each_payment_counts_once_whoever_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onceflow", "demo"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert f"{len(MOMENTS)}/{len(MOMENTS)} worker replaced" in done.stdout
    assert "Each counted once" in done.stdout
    assert "\x1b" not in done.stdout  # no colours where there is no terminal

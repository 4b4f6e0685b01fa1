"""Commands whose standard streams are closed, full or hung up: a sentence, never a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Final

import pytest

import onceflow
from onceflow.blocking import Admin, Producer
from onceflow.cli import run
from onceflow.types import TopicPartition

SECONDS: Final = 120.0
CRASHES: Final = ("Traceback", "Assertion", "Exception ignored")
ALL_CLOSED: Final = "<&- >&- 2>&-"
COMMANDS: Final = ("--help", "consume jobs --exit-at-end", "log dump {data} --records")
"""What prints something, each in a way of its own. `{data}` is the data directory of a broker."""


@pytest.fixture(scope="module")
def broker() -> Iterator[onceflow.Broker]:
    with onceflow.Broker() as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("jobs", partitions=1)
        settings = {"transactional.id": "t"}
        with Producer(broker.bootstrap, settings) as producer, producer.transaction():
            for number in range(2000):
                producer.send("jobs", b"%d" % number)
        yield broker


def shell(
    line: str, bootstrap: str = "127.0.0.1:1", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a line of sh in which `onceflow` is the command; its status is that of `onceflow`."""
    command = f"{quote(sys.executable)} -m onceflow"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("onceflow", command, 1)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "ONCEFLOW_BOOTSTRAP": bootstrap, **environment},
    )


def without_crash(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    for word in CRASHES:
        assert word not in done.stderr
    return done


@pytest.mark.parametrize("closed", ["<&-", ALL_CLOSED])
def test_a_broker_serves_with_closed_streams(closed: str, tmp_path: Path) -> None:
    """It is stopped by the end of its parent, which has seen it open its directory."""
    wait = f"until [ -e {tmp_path}/data/checkpoint ]; do kill -0 $! || exit 9; done"
    line = (
        f"onceflow serve --data-dir {tmp_path}/data --listen 127.0.0.1:0 {closed} & "
        f"{wait}; kill -TERM $!; wait $!"
    )
    done = without_crash(shell(line))
    assert done.returncode in (0, 143)  # 143: before it was ready to be stopped


def test_a_broker_serves_when_nobody_reads_its_output(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    serve = ["serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-m", "onceflow", *serve],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    ) as serving:
        os.close(writing)
        assert serving.stderr is not None
        try:
            ready = next((line for line in serving.stderr if "listening on" in line), None)
            assert ready is not None, "it has ended"
            address = ready.partition("listening on ")[2].partition(";")[0]
            with Admin(address) as admin:
                admin.create_topic("jobs")
            serving.terminate()
            _, errors = serving.communicate(timeout=SECONDS)
        finally:
            serving.kill()
    assert serving.returncode == 0
    assert not any(word in errors for word in CRASHES)


def test_an_embedded_broker_lives_in_a_program_with_closed_streams() -> None:
    program = (
        "import onceflow; from onceflow.blocking import Admin\n"
        "with onceflow.Broker() as broker, Admin(broker.bootstrap) as admin:\n"
        "    admin.create_topic('x')\n"
    )
    done = subprocess.run(
        ["bash", "-c", f"{quote(sys.executable)} -c {quote(program)} {ALL_CLOSED}"],
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0


def command(line: str, broker: onceflow.Broker) -> str:
    return "onceflow " + line.format(data=quote(str(broker.data_dir)))


@pytest.mark.parametrize("line", COMMANDS)
def test_an_output_that_is_full_is_told(line: str, broker: onceflow.Broker) -> None:
    done = without_crash(shell(f"{command(line, broker)} > /dev/full", broker.bootstrap))
    assert done.returncode == 1
    assert "cannot write to standard output: No space left on device" in done.stderr


@pytest.mark.parametrize("line", COMMANDS)
def test_who_has_seen_enough_is_no_error(line: str, broker: onceflow.Broker) -> None:
    done = without_crash(shell(f"{command(line, broker)} | head -1", broker.bootstrap))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("line", ["--version", "consume jobs -f"])
def test_nobody_at_the_other_end_is_no_error(line: str, broker: onceflow.Broker) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "onceflow", *line.split()],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "ONCEFLOW_BOOTSTRAP": broker.bootstrap},
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("closed", [">&-", ALL_CLOSED])
def test_closed_streams_are_no_matter(closed: str, broker: onceflow.Broker) -> None:
    done = without_crash(shell(f"onceflow topics list {closed}", broker.bootstrap))
    assert done.returncode == 0


def test_an_error_stream_that_is_full_is_no_matter(broker: onceflow.Broker) -> None:
    done = shell("onceflow topics list 2> /dev/full", broker.bootstrap)
    assert (done.returncode, "jobs" in done.stdout) == (0, True)
    assert shell("onceflow topics list 2> /dev/full").returncode == 1  # nothing listens there


def test_a_full_output_commits_nothing_of_what_was_lost(broker: onceflow.Broker) -> None:
    group = ["-g", "lost", "--exit-at-end"]
    done = without_crash(
        shell(f"onceflow consume jobs {' '.join(group)} > /dev/full", broker.bootstrap)
    )
    assert done.returncode == 1
    with Admin(broker.bootstrap) as admin:
        assert TopicPartition("jobs", 0) not in admin.committed_offsets("lost")


def test_records_are_not_read_from_or_written_to_what_is_closed(broker: onceflow.Broker) -> None:
    done = without_crash(shell("onceflow produce jobs <&-", broker.bootstrap))
    assert done.returncode == 1
    assert "error: standard input is closed, so there are no lines to send" in done.stderr
    done = without_crash(shell("onceflow consume jobs -g closed -e >&-", broker.bootstrap))
    assert done.returncode == 1
    assert "error: standard output is closed, so records cannot be written out" in done.stderr


def test_an_output_that_does_not_block_is_waited_for(broker: onceflow.Broker) -> None:
    program = "import os; os.set_blocking(1, False)"
    line = (
        f"({quote(sys.executable)} -c {quote(program)}; "
        f"onceflow consume jobs --exit-at-end) | (read first; cat)"
    )
    done = without_crash(shell(line, broker.bootstrap))
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "1999"


# --- odd arguments, files and places ------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("topics create \udcff", 1, "'\\udcff' is not valid UTF-8"),
        ("produce \udcff -f /dev/null", 1, "'\\udcff' is not valid UTF-8"),
        ("consume jobs -e -g \udcff", 1, "'\\udcff' is not valid UTF-8"),
        ("produce jobs -f /proc/self/mem", 1, "error: cannot read the input: "),
        ("produce jobs -f /", 2, "cannot read /: Is a directory"),
        ("produce jobs -f /nowhere", 2, "cannot read /nowhere: No such file or directory"),
        ("log dump /nowhere", 1, "/nowhere does not exist"),
        ("log dump /dev/null", 1, "error: /dev/null: Not a directory"),
    ],
)
def test_odd_inputs_get_a_sentence(
    line: str,
    status: int,
    words: str,
    broker: onceflow.Broker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ONCEFLOW_BOOTSTRAP", broker.bootstrap)
    assert run(line.split()) == status
    assert words in capsys.readouterr().err


def test_bytes_that_are_no_text_pass_through(broker: onceflow.Broker) -> None:
    line = r"printf 'k\xffv\n' | onceflow produce jobs -k $'\xff' -H $'h=\xfe'"
    assert without_crash(shell(line, broker.bootstrap)).returncode == 0
    done = shell("onceflow consume jobs --exit-at-end --json --from 2001", broker.bootstrap)
    assert '"key": "k", "value": "v", "headers": [{"key": "h", "value": {"base64": "/g=="}}]' in (
        done.stdout
    )


def test_a_bare_environment_is_enough(broker: onceflow.Broker) -> None:
    line = "env -u HOME onceflow topics list"
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert "jobs" in without_crash(shell(line, broker.bootstrap, **environment)).stdout


def test_a_data_directory_where_there_can_be_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = without_crash(shell(f"onceflow serve --data-dir {tmp_path}/file/below"))
    assert (done.returncode, done.stderr) == (
        1,
        f"error: {tmp_path}/file is not a directory; choose another data directory\n",
    )


def test_a_data_directory_with_blanks_around_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").write_bytes(b"\xef\xbb\xbfdata.dir = 'x '\n")
    for options, words in (
        (["--data-dir", f"{tmp_path}/blank "], "without blanks before or behind it"),
        (["--set", f"data.dir={tmp_path}/blank "], "without blanks before or behind it"),
        (["--config", f"{tmp_path}/config"], "data.dir = 'x ' (file "),
        (["--config", f"{tmp_path}"], "Is a directory"),
    ):
        assert run(["serve", *options]) == 1
        assert words in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["config"]

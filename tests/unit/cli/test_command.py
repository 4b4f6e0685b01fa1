"""The command as a person runs it, in a process of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from onceflow import __version__
from onceflow.cli import run


def onceflow(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "onceflow", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_names_the_commands() -> None:
    done = onceflow("--help")
    assert done.returncode == 0
    assert "Exactly-once streaming" in done.stdout
    for command in (
        "serve",
        "topics",
        "produce",
        "consume",
        "groups",
        "transactions",
        "log",
        "demo",
    ):
        assert f"\n  {command} " in done.stdout


def test_the_installed_command_is_the_same() -> None:
    command = Path(sys.executable).with_name("onceflow")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"onceflow {__version__}\n"
    assert onceflow("--version").stdout == done.stdout


def test_wrong_arguments_are_named() -> None:
    done = onceflow("demo", "--strikes", "0")
    assert done.returncode == 2
    assert "--strikes" in done.stderr
    done = onceflow("serv")
    assert done.returncode == 2
    assert "No such command 'serv'. Did you mean 'serve'?" in done.stderr
    done = onceflow("consume", "orders", "--from", "soon", "--json")
    assert done.returncode == 2
    assert "'soon' is none of: earliest" in json.loads(done.stderr)["error"]["message"]


def test_the_help_waits_for_nothing_heavy() -> None:
    program = (
        "import sys; from onceflow.cli import run; status = run(['--help']); "
        "heavy = {'numba', 'numpy', 'pyarrow', 'kio', 'rich', 'asyncio'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "topics create",
        "produce",
        "consume",
        "groups reset-offsets",
        "transactions abort",
        "transactions find-hanging",
        "log dump",
        "serve",
    ],
)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    assert f"Usage: onceflow {command} [OPTIONS]" in capsys.readouterr().out


def test_a_broker_that_is_down_is_told_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    address = f"127.0.0.1:{port}"
    assert run(["topics", "list", "--bootstrap", address]) == 1
    said = capsys.readouterr().err
    assert f"error: nothing listens at {address}" in said
    assert "hint:  start a broker with `onceflow serve`" in said
    assert run(["topics", "list", "--bootstrap", address, "--json"]) == 1
    output = capsys.readouterr()
    assert json.loads(output.err)["error"]["type"] == "BrokerUnreachable"
    assert output.out == ""


def test_the_address_may_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEFLOW_BOOTSTRAP", "127.0.0.1:port")
    assert run(["groups", "list"]) == 1
    assert "'127.0.0.1:port' is not the address of a broker" in capsys.readouterr().err


def test_a_damaged_directory_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("nonsense")
    done = onceflow("serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert "error: checkpoint is not a checkpoint" in done.stderr
    assert "Traceback" not in done.stderr

"""The command as a person runs it, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from onceflow import __version__


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
    assert "demo" in done.stdout
    assert "demo-writer" not in done.stdout  # for the demo's own use


def test_the_installed_command_is_the_same() -> None:
    command = Path(sys.executable).with_name("onceflow")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"onceflow {__version__}\n"
    assert onceflow("--version").stdout == done.stdout


def test_wrong_arguments_are_named() -> None:
    done = onceflow("demo", "--kills", "0")
    assert done.returncode == 2
    assert "--kills" in done.stderr
    assert "No such command 'serv'" in onceflow("serv").stderr


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    directory = ("--directory", str(tmp_path))
    done = onceflow("demo", "--kills", "3", "--batches", "400", *directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing lost" in done.stdout
    # A second run goes on with what the first one left.
    assert "Nothing lost" in onceflow("demo", "--kills", "1", "--batches", "10", *directory).stdout


def test_a_damaged_directory_is_told_in_one_line(tmp_path: Path) -> None:
    onceflow("demo", "--kills", "1", "--batches", "10", "--directory", str(tmp_path))
    (tmp_path / "checkpoint").write_text("nonsense")
    done = onceflow("demo", "--kills", "1", "--directory", str(tmp_path))
    assert done.returncode == 1
    assert "error: checkpoint is not a checkpoint" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr

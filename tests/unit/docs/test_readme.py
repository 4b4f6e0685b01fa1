"""What the README shows works as it is written there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onceflow.cli import COMMANDS

README = Path(__file__).resolve().parents[3] / "README.md"


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "b'42' b'paid'" in done.stdout


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """A command, or the commands of a group."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for each, found in below.items():
        yield from _leaves(f"{name} {each}", found)


def test_the_commands_without_json_are_named() -> None:
    commands = [each for name, lazy in COMMANDS.items() for each in _leaves(name, lazy.load(name))]
    without = [
        name
        for name, command in commands
        if not any("--json" in option.opts for option in command.params)
    ]
    assert len(commands) > len(COMMANDS)
    assert without == ["serve", "demo"]
    assert "all but `serve` and `demo` speak JSON with `--json`" in README.read_text()

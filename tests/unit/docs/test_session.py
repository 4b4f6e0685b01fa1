"""What the document of sessions shows works as it is written there, and what it names is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from onceflow.client.errors import FencedMember
from onceflow.client.session import errors as session_errors
from onceflow.client.session.settings import SessionSettings

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "SESSION.md").read_text()
(WHOLE,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_example_runs_as_it_is(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHOLE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"b'booked order {number}'" for number in range(3)]


def test_settings_of_its_own_and_their_defaults_are_told() -> None:
    made = SessionSettings.of(group_id="a", topics="b")
    for key in ("commit.interval.ms", "commit.max.records"):
        assert f"| `{key}` | {getattr(made, key.replace('.', '_'))} |" in TEXT
    for key in ("topics", "pattern", "instance", "dead.letter.topic"):
        assert f"`{key}`" in TEXT


def test_every_error_is_told() -> None:
    mine = {name for name in dir(session_errors) if name.startswith(("Session", "Batch", "No"))}
    for name in mine - {"SessionError"} | {FencedMember.__name__}:
        assert f"| `{name}` |" in TEXT

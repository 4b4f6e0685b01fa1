"""`onceflow run` up to the start of Spark, which it does not come to here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceflow.cli import run


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--help"]) == 0
    said = capsys.readouterr().out
    assert "Usage: onceflow run [OPTIONS] {FILE}" in said
    for option in ("--master", "--bootstrap", "--once", "--json"):
        assert option in said


def test_a_wrong_file_is_told_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text('[pipeline]\nname = "a b"\ncheckpoint = "c"\n[sink]\nformat = "jsn"\n')
    assert run(["run", str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path} cannot be run; 5 things are wrong:\n")
    assert '\n  line 2: pipeline.name: "a b" is not allowed; it may be up to 200 letters' in said
    assert '\n  line 5: sink.format: "jsn" is not allowed; it may be json, csv, text or raw' in said
    assert run(["run", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["type"] == "InvalidPipeline"


def test_a_file_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run"]) == 2
    assert "FILE" in capsys.readouterr().err

"""Reads a `pipeline.toml`: every problem comes with the line on which it stands."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceflow.spark.errors import InvalidPipeline, Problem
from onceflow.spark.pipeline.file_lines import key_lines
from onceflow.spark.pipeline.parse import read_plan
from onceflow.spark.pipeline.plan import PipelinePlan


def load_plan(path: Path, *, bootstrap: str | None = None) -> PipelinePlan:
    """The plan that a file describes; with `bootstrap`, on that cluster, whatever the file says of
    one. Raises `InvalidPipeline`. Relative paths in it are relative to where it lies."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = tomllib.loads(text)
    except OSError as error:
        raise InvalidPipeline(
            [Problem((), f"it cannot be read: {error.strerror}")], path
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidPipeline([Problem((), f"it is not TOML: {error}")], path) from error
    except RecursionError:
        raise InvalidPipeline([Problem((), "it is nested too deeply")], path) from None
    if bootstrap is not None:
        document = _elsewhere(document, bootstrap)
    try:
        return read_plan(document, path.parent.absolute())
    except InvalidPipeline as error:
        raise InvalidPipeline(error.problems, path, key_lines(text)) from None


def _elsewhere(document: Mapping[str, Any], bootstrap: str) -> dict[str, Any]:
    """The same document for another cluster."""
    found = {name: table for name, table in document.items() if name != "broker"}
    source = found.get("source")
    if isinstance(source, Mapping):
        found["source"] = {**source, "bootstrap": bootstrap}
    return found

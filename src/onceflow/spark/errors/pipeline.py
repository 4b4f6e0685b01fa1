"""Errors of a pipeline, before it starts and while it runs, in words for the person who runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from onceflow.errors import InvalidSetting, OnceflowError

KeyPath: TypeAlias = tuple[str, ...]


class KeyProblem(NamedTuple):
    """Something wrong in a description of a pipeline, and the key where it is."""

    path: KeyPath
    text: str

    @property
    def key(self) -> str:
        return ".".join(part if _is_bare(part) else f'"{part}"' for part in self.path)

    @property
    def sentence(self) -> str:
        return f"{self.key}: {self.text}" if self.path else self.text


class InvalidPipeline(InvalidSetting):
    """A pipeline that cannot be run as it is described; the text lists all that is wrong, with its
    line where it was read from a file."""

    def __init__(
        self,
        problems: Sequence[KeyProblem],
        path: Path | None = None,
        lines: Mapping[KeyPath, int] | None = None,
    ) -> None:
        placed = sorted((_line(each.path, lines or {}), each) for each in problems)
        listed = [f"{_at(line)}{each.sentence}" for line, each in placed]
        what = "this pipeline" if path is None else str(path)
        count = "something is" if len(listed) == 1 else f"{len(listed)} things are"
        super().__init__("\n  ".join([f"{what} cannot be run; {count} wrong:", *listed]))
        self.problems = tuple(each for _, each in placed)
        self.lines = tuple(line for line, _ in placed)


def _line(path: KeyPath, lines: Mapping[KeyPath, int]) -> int:
    """That of the key, or of the nearest table around it; 0 for the whole document."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 0


def _at(line: int) -> str:
    return f"line {line}: " if line else ""


def _is_bare(part: str) -> bool:
    return part.replace("_", "").replace("-", "").isalnum() and part.isascii()


class PipelineError(OnceflowError):
    """Root of what goes wrong with a pipeline that is described well."""


class SparkMissing(PipelineError):
    """Spark, or the Java that it needs, is not installed."""


class MasterRefused(PipelineError):
    """This pipeline cannot run on that master."""


class PipelineFailed(PipelineError):
    """The query ended by an error: what happened, where, and what to do."""

    def __init__(
        self, what: str, where: str = "", advice: str = "", log: Path | None = None
    ) -> None:
        parts = [what]
        if where:
            parts.append(f"  where: {where}")
        if advice:
            parts.append(f"  what to do: {advice}")
        if log is not None:
            parts.append(f"  all that Spark says: {log}")
        super().__init__("\n".join(parts))
        self.what = what
        self.where = where
        self.advice = advice

    def logged_in(self, log: Path | None) -> PipelineFailed:
        """The same with the place of Spark's log."""
        return PipelineFailed(self.what, self.where, self.advice, log)

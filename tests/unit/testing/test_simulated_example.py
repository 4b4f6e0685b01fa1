"""The example of a simulated test finds the bug that it was written for, and nothing else."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
EXAMPLE: Final = ROOT / "examples" / "simulated_test"

OPTIONS: Final = ("-v", "-W", "error", "-p", "no:onceflow", "-p", "no:cacheprovider")
ALL_SEEDS: Final = range(20)
FEW_SEEDS: Final = range(6, 12)
"""Half of them hit the moment. A seed costs a tenth of a second, and Python's start two."""

pytest_plugins = ["pytester"]


def mended(text: str) -> str:
    """As the diff of the README has it."""
    (diff,) = re.findall(r"```diff\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] != "+")
    new = "".join(line[1:] for line in lines if line[0] != "-")
    assert text.count(old) == 1
    text = text.replace(old, new)
    return text.replace("import Consumer, Producer", "import Consumer, Producer, TopicPartition")


def write_both(directory: Path, seeds: range) -> None:
    """The example as it is, and beside it the same test of the mended program."""
    program = (EXAMPLE / "booking.py").read_text()
    test = (EXAMPLE / "test_booking.py").read_text()
    assert test.count("range(20)") == test.count("from booking import") == 1
    test = test.replace("range(20)", f"range({seeds.start}, {seeds.stop})")
    (directory / "booking.py").write_text(program)
    (directory / "test_booking.py").write_text(test)
    (directory / "mended.py").write_text(mended(program))
    (directory / "test_mended.py").write_text(test.replace("from booking", "from mended"))


@pytest.mark.parametrize("seeds", [FEW_SEEDS, pytest.param(ALL_SEEDS, marks=pytest.mark.long)])
def test_some_seeds_find_the_bug_and_none_fails_with_the_change_that_its_readme_shows(
    pytester: pytest.Pytester, seeds: range
) -> None:
    write_both(pytester.path, seeds)
    lines = pytester.runpytest_subprocess(*OPTIONS).outlines
    found = re.findall(r"^(test_\w+)\.py::\S+ (PASSED|FAILED)", "\n".join(lines), re.MULTILINE)
    outcomes = Counter(found)
    assert outcomes["test_mended", "PASSED"] == len(seeds)
    # Which seeds hit the moment changes with the client; each fails by payments booked twice.
    failed, passed = (outcomes["test_booking", how] for how in ("FAILED", "PASSED"))
    assert failed > 0
    assert passed > 0
    assert failed + passed == len(seeds)


def blocks() -> list[str]:
    page = (ROOT / "docs" / "TESTING_WITH_ONCEFLOW.md").read_text()
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_world_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    world, _ = blocks()
    exec(world, names)
    assert capsys.readouterr().out == "[b'paid']\n"


def test_the_program_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    _, program = blocks()
    exec(program, names)
    assert callable(names["book"])

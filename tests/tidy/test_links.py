"""Links between pages lead somewhere, and the files that pages name are there."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
TRACKED: Final = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.split("\n")
PAGES: Final = [name for name in TRACKED if name.endswith(".md") and (ROOT / name).exists()]
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
NAMED: Final = re.compile(r"`([\w./-]+\.(?:py|toml|md))`")
NOT_OURS: Final = {"pipeline.toml", "onceflow.toml"}
"""Names of files that users write."""


def text_of(page: Path) -> str:
    """Without its code, in which brackets are no links."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


@cache
def anchors(page: Path) -> frozenset[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return frozenset(
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    )


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_pages_and_headings_that_are_there(name: str) -> None:
    page = ROOT / name
    broken = []
    for link in LINK.findall(text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("name", [name for name in PAGES if name != "CHANGELOG.md"])
def test_files_that_a_page_names_are_there(name: str) -> None:
    paths = [f"/{each}" for each in TRACKED if (ROOT / each).exists()]
    gone = [
        named
        for named in NAMED.findall(text_of(ROOT / name))
        if named not in NOT_OURS and not any(path.endswith(f"/{named}") for path in paths)
    ]
    assert not gone


@pytest.mark.parametrize("folder", ["docs", "docs/internals"])
def test_the_index_names_every_page(folder: str) -> None:
    index = ROOT / "docs" / "README.md"
    links = [link.partition("#")[0] for link in LINK.findall(text_of(index))]
    linked = {(index.parent / link).resolve() for link in links}
    pages = {(ROOT / name) for name in PAGES if Path(name).parent == Path(folder)} - {index}
    assert not pages - linked


MAPS: Final = ("docs/DESIGN.md", "CONTRIBUTING.md")
CODE: Final = {
    name: (ROOT / name).read_text()
    for name in TRACKED
    if name.endswith(".py") and (ROOT / name).exists()
}


@pytest.mark.parametrize("name", MAPS)
def test_classes_and_tests_that_a_map_names_are_there(name: str) -> None:
    """A map that is wrong is worse than none: whoever renames something renames it there too."""
    classes = {
        found
        for path, code in CODE.items()
        if path.startswith("src/")
        for found in re.findall(r"^class (\w+)", code, re.MULTILINE)
    }
    tests = {
        found
        for path, code in CODE.items()
        if path.startswith("tests/")
        for found in re.findall(r"^(?:async )?def (test_\w+)", code, re.MULTILINE)
    }
    text = text_of(ROOT / name)
    words = set(re.findall(r"`([A-Z][a-z]\w+|test_\w+)`", text))
    assert not {word for word in words if word not in classes | tests}


@pytest.mark.parametrize("name", MAPS)
def test_rooms_that_a_map_names_are_there(name: str) -> None:
    rooms = re.findall(r"`((?:\w+/)+)`", text_of(ROOT / name))
    places = (ROOT, ROOT / "src/onceflow")
    assert not [each for each in rooms if not any((place / each).is_dir() for place in places)]

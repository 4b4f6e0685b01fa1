"""docs/reference says what the settings say, each once, and in a sentence."""

from __future__ import annotations

import re

import pytest

from tools.write_reference import COMMAND, FOLDER, PAGES, all_pages

WRITTEN = all_pages()


@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_is_what_the_settings_say(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == WRITTEN[name], f"run {COMMAND}"


def test_there_are_no_other_pages() -> None:
    assert {path.name for path in FOLDER.iterdir()} == WRITTEN.keys()


@pytest.mark.parametrize("name", PAGES)
def test_a_setting_stands_on_its_page_once_with_a_meaning(name: str) -> None:
    for section in PAGES[name].sections:
        names = [each.name for each in section.settings]
        assert len(set(names)) == len(names)
        for each in section.settings:
            assert each.meaning[0].isupper() or re.match(r"at-most-once|as |\"module", each.meaning)
            assert each.meaning.endswith("."), each.name
            assert each.kind.allowed
            assert f"| `{each.name}` | {each.kind.type} |" in WRITTEN[f"{name}.md"]

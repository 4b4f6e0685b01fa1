"""Reference pages and example files, made of the settings themselves."""

from __future__ import annotations

import tomllib

from onceflow.settings.catalogue import Setting
from onceflow.settings.pages import Page, Section, example_lines, render_page, wrapped_comment
from onceflow.settings.values import TEXT, TRUE_OR_FALSE, list_of, one_of, whole_number

SETTINGS = [
    Setting("data.dir", TEXT, "Where.", is_required=True, example="data"),
    Setting("linger.ms", whole_number(0, 9), "How long.", 5),
    Setting("fast", TRUE_OR_FALSE, "Whether it is.", False),
    Setting("codec", one_of("a|b", "c"), "Which.", "c"),
    Setting("topics", list_of(TEXT, "names"), "What.", ()),
    Setting("tell", TEXT, "Whom.", unset="nobody", example="me"),
]
PAGE = """\
# Settings

<!-- Written by make it: change the settings in the code. -->

All of them.

## Of somebody

Set there.

| setting | type | default | allowed values | meaning |
| --- | --- | --- | --- | --- |
| `data.dir` | string | must be given | a text | Where. |
| `linger.ms` | int | `5` | a whole number from 0 to 9 | How long. |
| `fast` | boolean | `false` | true or false | Whether it is. |
| `codec` | string | `c` | a\\|b or c | Which. |
| `topics` | list | empty | names | What. |
| `tell` | string | nobody | a text | Whom. |
"""


def test_a_page() -> None:
    page = Page("Settings", "All of them.", [Section("Of somebody", "Set there.", SETTINGS)])
    assert render_page(page, "make it") == PAGE


def test_an_example_shows_what_holds_without_it() -> None:
    lines = list(example_lines(each for each in SETTINGS if each.name != "topics"))
    assert tomllib.loads("\n".join(lines)) == {"data": {"dir": "data"}}
    live = [line.removeprefix("#") for line in lines if not line.startswith("# ")]
    assert tomllib.loads("\n".join(live)) == {
        "data": {"dir": "data"},
        "linger": {"ms": 5},
        "fast": False,
        "codec": "c",
        "tell": "me",
    }
    assert "# Type: a whole number from 0 to 9. Default: 5." in lines
    assert "# Type: a text. Default: nobody." in lines


def test_comments_are_wrapped() -> None:
    assert wrapped_comment("word " * 30) == [
        f"# {'word ' * 19}".strip(),
        f"# {'word ' * 11}".strip(),
    ]

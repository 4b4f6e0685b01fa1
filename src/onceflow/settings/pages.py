"""What people read of settings, made of the fields themselves: reference pages, and files with
every setting commented out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from onceflow.settings.catalogue import Setting
from onceflow.settings.values import text_of

_WIDTH: Final = 98
_HEAD: Final = ("setting", "type", "default", "allowed values", "meaning")


@dataclass(frozen=True, slots=True)
class Section:
    """Settings that are given in the same place."""

    title: str
    text: str
    """Where they are set, and by which names."""
    settings: Sequence[Setting]


@dataclass(frozen=True, slots=True)
class Page:
    """A reference page."""

    title: str
    text: str
    sections: Sequence[Section]


def render_page(page: Page, written_by: str) -> str:
    """In Markdown; `written_by` is the command that writes it."""
    head = (
        f"# {page.title}",
        "",
        f"<!-- Written by {written_by}: change the settings in the code. -->",
        "",
    )
    return "\n".join((*head, page.text, *_sections(page.sections))) + "\n"


def _sections(sections: Iterable[Section]) -> Iterator[str]:
    for section in sections:
        yield from ("", f"## {section.title}")
        if section.text:
            yield from ("", section.text)
        if section.settings:
            yield from ("", _row(_HEAD), _row(["---"] * len(_HEAD)))
        for each in section.settings:
            cells = (each.kind.type, _default(each), each.kind.allowed, each.meaning)
            yield _row((f"`{each.name}`", *(cell.replace("|", "\\|") for cell in cells)))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _default(each: Setting) -> str:
    if each.is_required:
        return "must be given"
    if each.default is None:
        return each.unset or "none"
    return f"`{each.kind.show(each.default)}`" if each.kind.show(each.default) else "empty"


# --- files ---------------------------------------------------------------------------------------


def example_lines(settings: Iterable[Setting]) -> Iterator[str]:
    """Lines of a TOML file: what is commented out shows the default, and what must be given
    stands there as an example."""
    for each in settings:
        value = each.example if each.default is None else each.default
        default = (each.unset or "none") if each.default is None else _toml(each, each.default)
        yield from ("", *wrapped_comment(each.meaning))
        yield from wrapped_comment(f"Type: {each.kind.allowed}. Default: {default}.")
        yield f"{'' if each.is_required else '#'}{each.name} = {_toml(each, value)}"


def wrapped_comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text, _WIDTH, break_on_hyphens=False)]


def _toml(each: Setting, value: object) -> str:
    return text_of(value) if isinstance(value, int | float) else f'"{each.kind.show(value)}"'

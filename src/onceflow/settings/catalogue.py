"""Settings by name: what each takes, what holds without it, and what it means.

Kafka's names have dots, and files, flags, options and messages show them so. Keywords of Python
have underscores in their place; those, and hyphens, are understood everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from typing import Any, Final

from onceflow.errors import InvalidSetting
from onceflow.settings.suggestions import did_you_mean
from onceflow.settings.values import NotAllowed, SettingKind, shown

_KEY: Final = "onceflow.setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    name: str
    kind: SettingKind
    meaning: str
    """In a plain sentence."""
    default: Any = None
    """None where there is none."""
    _: KW_ONLY
    unset: str = ""
    """What counts without a default, in words."""
    example: object = None
    """A value, where there is no default to show."""
    is_required: bool = False
    attribute: str = ""
    """Of the class that holds the value."""

    def with_value(self, value: object) -> str:
        """The setting with its value, in a message."""
        if value is None:
            return f"{self.name}, which is not set"
        if self.kind.is_secret:
            return self.name
        return f"{self.name} = {repr(value) if isinstance(value, str) else self.kind.show(value)}"


def setting(
    kind: SettingKind,
    default: Any,
    meaning: str,
    *,
    name: str = "",
    unset: str = "",
    example: object = None,
) -> Any:
    """A field of a dataclass that is a setting, called as the field, with dots for underscores,
    unless it has a `name`. `MISSING` as the default: it must be given."""
    described = {"kind": kind, "meaning": meaning, "unset": unset, "example": example}
    return field(default=default, metadata={_KEY: {**described, "name": name}})


def settings_of(kind: type[Any]) -> Mapping[str, Setting]:
    """The settings that are fields of a dataclass, by name."""
    settings = {}
    for each in fields(kind):
        if _KEY not in each.metadata:
            continue
        described = dict(each.metadata[_KEY])
        name = described.pop("name") or dotted(each.name)
        is_required = each.default is MISSING
        settings[name] = Setting(
            name=name,
            attribute=each.name,
            default=None if is_required else each.default,
            is_required=is_required,
            **described,
        )
    return settings


def by_name(*settings: Setting) -> dict[str, Setting]:
    """A table of settings that are no fields of a class."""
    return {each.name: each for each in settings}


def dotted(written: str) -> str:
    """The name of a setting, however it was written."""
    return written.removeprefix("--").replace("_", ".").replace("-", ".")


def merged(
    catalogue: Catalogue, settings: Mapping[str, object], named: Mapping[str, object]
) -> dict[str, object]:
    """The settings of a mapping and of keywords, by name; None stands for one that is left out.
    Raises `InvalidSetting` for a setting that is there twice."""
    values: dict[str, object] = {}
    spelled: dict[str, str] = {}
    for written, value in (*settings.items(), *named.items()):
        name = catalogue.name_of(written)
        if name in spelled:
            raise InvalidSetting(
                f"{spelled[name]!r} and {written!r} are the same; give one of them"
            )
        spelled[name] = written
        if value is not None:
            values[name] = value
    return values


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Names with dots and values, however a file nests them."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The settings of one owner: a broker, a kind of client, a part of Spark."""

    settings: Mapping[str, Setting]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names that others have for some of them."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Names that are known to others and refused here, and why."""

    def name_of(self, written: str) -> str:
        """The one name of a setting."""
        name = dotted(written)
        return self.aliases.get(name, name)

    def read(self, name: str, value: object, *, written: str = "", where: str = "") -> Any:
        """The value. Raises `InvalidSetting`, which says what was wrong and what would be right,
        and `where` it was set; `written` is the name that it had there."""
        written = written or name
        if name in self.refused:
            raise InvalidSetting(f"{written} cannot be set{where}: {self.refused[name]}")
        if name not in self.settings:
            raise self.unknown(written, where=where)
        kind = self.settings[name].kind
        try:
            return kind(value)
        except NotAllowed as error:
            text = "" if kind.is_secret else f" = {shown(value)}"
            raise InvalidSetting(not_allowed(f"{written}{text}{where}", error)) from error

    def unknown(self, written: str, *, where: str = "") -> InvalidSetting:
        guess = did_you_mean(self.name_of(written), self.settings)
        return InvalidSetting(f"unknown setting {written!r}{where}{guess}")


def not_allowed(what: str, allowed: object) -> str:
    """For a value that is none."""
    return f"{what} is not allowed; it may be {allowed}"

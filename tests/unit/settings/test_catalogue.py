"""Settings by name: one spelling of each, what is refused and in which words, and suggestions."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import MISSING, dataclass

import pytest

from onceflow.errors import InvalidSetting
from onceflow.settings.catalogue import Catalogue, dotted, flat, merged, setting, settings_of
from onceflow.settings.suggestions import did_you_mean, either
from onceflow.settings.values import SECRET, TEXT, whole_number


@dataclass(frozen=True, kw_only=True)
class Settings:
    data_dir: str = setting(TEXT, MISSING, "Where it is.", example="data")
    linger_ms: int = setting(whole_number(0), 5, "How long.")
    large: int = setting(whole_number(1), 7, "How large.", name="request.max.bytes")
    password: str | None = setting(SECRET, None, "What nobody sees.")
    made: str = ""


KNOWN = Catalogue(
    settings_of(Settings), aliases={"linger": "linger.ms"}, refused={"jaas": "it is for Java"}
)


def refusal(name: str, value: object, written: str = "", where: str = "") -> str:
    with pytest.raises(InvalidSetting) as told:
        KNOWN.read(name, value, written=written, where=where)
    return str(told.value)


def test_settings_are_those_fields_of_a_class_that_say_what_they_take() -> None:
    found = settings_of(Settings)
    assert list(found) == ["data.dir", "linger.ms", "request.max.bytes", "password"]
    assert [each.attribute for each in found.values()] == [
        "data_dir",
        "linger_ms",
        "large",
        "password",
    ]
    assert [each.default for each in found.values()] == [None, 5, 7, None]
    assert [name for name, each in found.items() if each.is_required] == ["data.dir"]
    assert found["linger.ms"].meaning == "How long."
    assert Settings(data_dir="x").large == 7


@pytest.mark.parametrize("written", ["linger.ms", "linger_ms", "--linger-ms", "linger"])
def test_one_name_however_it_is_written(written: str) -> None:
    assert KNOWN.name_of(written) == "linger.ms"


def test_a_value_is_read() -> None:
    assert KNOWN.read("linger.ms", "20") == 20


def test_what_is_wrong_is_told_with_its_place_and_what_would_be_right() -> None:
    assert refusal("linger.ms", "5s") == (
        "linger.ms = '5s' is not allowed; it may be a whole number from 0 to 2147483647"
    )
    assert refusal("linger.ms", -1, "kafka.linger.ms", " (file x)") == (
        "kafka.linger.ms = -1 (file x) is not allowed; it may be a whole number from 0 to "
        "2147483647"
    )
    assert refusal("lingr.ms", 5) == "unknown setting 'lingr.ms'; did you mean 'linger.ms'?"
    assert refusal("lingr_ms", 5, where=" (--x)") == (
        "unknown setting 'lingr_ms' (--x); did you mean 'linger.ms'?"
    )
    assert refusal("zzz", 5) == "unknown setting 'zzz'"
    assert refusal("jaas", 5) == "jaas cannot be set: it is for Java"


def test_a_secret_is_in_no_message() -> None:
    assert refusal("password", 12345) == "password is not allowed; it may be a text"
    assert settings_of(Settings)["password"].with_value("hush") == "password"


def test_a_setting_with_its_value() -> None:
    known = settings_of(Settings)
    assert known["linger.ms"].with_value(5) == "linger.ms = 5"
    assert known["data.dir"].with_value("a") == "data.dir = 'a'"
    assert known["data.dir"].with_value(None) == "data.dir, which is not set"


def test_a_mapping_and_keywords_become_one() -> None:
    assert merged(KNOWN, {"data.dir": "a", "password": None}, {"linger_ms": 1}) == {
        "data.dir": "a",
        "linger.ms": 1,
    }
    with pytest.raises(InvalidSetting, match=r"'linger' and 'linger_ms' are the same; give one"):
        merged(KNOWN, {"linger": 1}, {"linger_ms": 1})


def test_tables_are_made_flat() -> None:
    table = {"a": {"b.c": 1, "d": {"e": [2]}}, "f": True}
    assert dict(flat(table)) == {"a.b.c": 1, "a.d.e": [2], "f": True}


def test_names_have_dots() -> None:
    assert dotted("--a-b_c.d") == "a.b.c.d"


def test_suggestions() -> None:
    known = ["orders", "order", "bills"]
    assert did_you_mean("ordrs", known) == "; did you mean 'orders'?"
    assert did_you_mean("ordrs", known, most=2) == "; did you mean 'orders' or 'order'?"
    assert did_you_mean("ordrs", known, likeness=0.99) == ""
    assert either(["a"]) == "a"
    assert either(iter("abc")) == "a, b or c"


def test_importing_it_loads_nothing_heavy() -> None:
    script = (
        "import sys, onceflow.settings.pages\n"
        "heavy = {'kio', 'numpy', 'pyarrow', 'numba', 'asyncio', 'tomllib', 'difflib', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

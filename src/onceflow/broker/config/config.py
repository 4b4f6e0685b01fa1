"""The broker's settings from flags, environment and a TOML file, judged together.

Flags win over the environment (`ONCEFLOW_NUM_PARTITIONS` is `num.partitions`), that over the file,
that over the defaults. One `InvalidSetting` reports all errors at once: the key, the value, where
it was set and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from onceflow.broker.config.settings import SETTINGS, BrokerConfig, report, wrong_together
from onceflow.broker.config.topic_settings import DEFAULTS
from onceflow.errors import InvalidSetting
from onceflow.settings import Catalogue, did_you_mean, flat, not_allowed, plain_text, shown

PREFIX: Final = "ONCEFLOW_"
_ALL: Final = Catalogue({**SETTINGS, **DEFAULTS})
_BY_VARIABLE: Final = {PREFIX + key.replace(".", "_").upper(): key for key in _ALL.settings}


class _Given(NamedTuple):
    """A setting as it was written."""

    text: str
    where: str
    """For a message; empty where the reader of the message knows."""


def load_config(
    written: Mapping[str, str | None], environ: Mapping[str, str], toml_path: Path | None
) -> BrokerConfig:
    """The settings from all sources.

    `written` are settings by name (`data.dir`), and flags by theirs (`--data-dir`), which messages
    then name; None is one that was not given.
    """
    problems: list[str] = []
    given = {
        **_from_file(toml_path, problems),
        **_from_environment(environ, problems),
        **_from_written(written, problems),
    }
    values: dict[str, Any] = {}
    defaults: dict[str, str] = {}
    for key, each in given.items():
        try:
            value = _ALL.read(key, each.text, where=each.where)
        except InvalidSetting as problem:
            problems.append(str(problem))
        else:
            if key in SETTINGS:
                values[SETTINGS[key].attribute] = value
            else:
                defaults[key] = each.text.strip()
    if "data.dir" not in given:
        problems.append(
            "data.dir is not set: give a directory by the option --data-dir, by the environment "
            f"variable {PREFIX}DATA_DIR or by data.dir in the file"
        )
    if problems:
        problems += wrong_together({**_DEFAULTS, **values, "topic_defaults": defaults})
        raise InvalidSetting(report(problems))
    return BrokerConfig(**values, topic_defaults=defaults)


# --- the sources -------------------------------------------------------------------------------


def _from_written(written: Mapping[str, str | None], problems: list[str]) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    for name, text in written.items():
        if text is not None:
            where = f" ({name})" if name.startswith("--") else ""
            _take(given, _ALL.name_of(name), _Given(text, where), problems)
    return given


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, _Given]:
    """A variable that is nearly a setting's is a mistake; others may be somebody else's.

    A cluster manager makes variables such as ONCEFLOW_SERVICE_HOST out of a service's name.
    """
    given = {}
    for name, text in environ.items():
        if name in _BY_VARIABLE:
            given[_BY_VARIABLE[name]] = _Given(text, f" (environment {name})")
        elif name.startswith(PREFIX) and (hint := did_you_mean(name, _BY_VARIABLE, likeness=0.85)):
            problems.append(f"unknown setting: environment {name}{hint}")
    return given


def _from_file(path: Path | None, problems: list[str]) -> dict[str, _Given]:
    if path is None:
        return {}
    import tomllib

    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        problems.append(f"the file {path} cannot be read: {error.strerror}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"the file {path} is not TOML: {error}")
        return {}
    except RecursionError:
        problems.append(f"the file {path} is nested too deeply to hold settings")
        return {}
    given: dict[str, _Given] = {}
    for written, value in flat(tables):
        key, where = _ALL.name_of(written), f" (file {path}: {written})"
        text = plain_text(value)
        if key in given:
            problems.append(f"{key} is set twice (file {path}): once is enough")
        elif text is None and key in _ALL.settings:
            problems.append(not_allowed(f"{key} = {shown(str(value))}{where}", "one value"))
        else:
            _take(given, key, _Given(text or "", where), problems)
    return given


def _take(given: dict[str, _Given], key: str, value: _Given, problems: list[str]) -> None:
    if key in _ALL.settings:
        given[key] = value
    else:
        problems.append(str(_ALL.unknown(key, where=value.where)))


_DEFAULTS: Final = {each.attribute: each.default for each in SETTINGS.values()}

"""The broker's current settings: those of its start, and what was altered since.

As in Apache Kafka, a setting may be altered for this broker (by its number) or for all brokers (by
an empty name). The first wins over the second, and both win over flags, environment and file. Only
the settings that a running broker can take over can be altered. The metadata log keeps what was
altered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from onceflow.broker.config.settings import SETTINGS, BrokerConfig
from onceflow.broker.config.topic_config import (
    Alteration,
    BrokerDefaults,
    ConfigSource,
    Operation,
    changed_list,
    malformed,
)
from onceflow.broker.config.topic_settings import BROKER_NAMES
from onceflow.broker.config.topic_values import ConfigType, config_type
from onceflow.broker.requests import RequestRefusal
from onceflow.errors import InvalidSetting
from onceflow.settings import NotAllowed
from onceflow.wire import ErrorCode

ALL_BROKERS: Final = ""
_OWN: Final = frozenset(("log.cleaner.backoff.ms", "max.connections", "producer.id.expiration.ms"))
ALTERABLE: Final = _OWN | {
    name for name, (_, unit) in BROKER_NAMES.items() if not unit.has_unit_of_its_own
}
"""As in Apache Kafka, of the settings that this broker has."""

_log = logging.getLogger(__name__)


class BrokerSettings:
    """Belongs to the broker's loop."""

    def __init__(self, started_with: BrokerConfig) -> None:
        self.started_with: Final = started_with
        self.config = started_with
        """What holds now."""
        self._altered: dict[str, Mapping[str, str]] = {}
        self.defaults = self._layered({})
        """What topics take over that do not set it themselves."""
        self.on_altered: Callable[[], None] = lambda: None

    @property
    def broker(self) -> str:
        """The name under which this broker alone is altered."""
        return str(self.started_with.node_id)

    @property
    def layers(self) -> tuple[tuple[ConfigSource, Mapping[str, str]], ...]:
        """What was altered, from what counts most on."""
        return _layers(self._altered, self.broker)

    def altered_of(self, broker: str) -> Mapping[str, str]:
        """What was altered under this name."""
        return self._altered.get(broker, MappingProxyType({}))

    # --- changes ------------------------------------------------------------------------------

    def decide(
        self, broker: str, alterations: Sequence[Alteration], *, anew: bool
    ) -> Mapping[str, str] | RequestRefusal:
        """What is altered under this name after all of the alterations, or why none is made.
        `anew`: what they do not name goes back to what it was."""
        if refusal := malformed(alterations) or _unalterable(alterations):
            return refusal
        configs = {} if anew else dict(self.altered_of(broker))
        for name, operation, value in alterations:
            if operation == Operation.DELETE or value is None:
                configs.pop(name, None)
                continue
            if operation != Operation.SET:
                changed = self._changed_list(broker, Alteration(name, operation, value), value)
                if isinstance(changed, RequestRefusal):
                    return changed
                value = changed
            configs[name] = value
        try:
            _check_values(configs)
            self._combined({**self._altered, broker: configs})
        except InvalidSetting as problem:
            return RequestRefusal(ErrorCode.INVALID_REQUEST, str(problem))
        return configs

    def apply(self, broker: str, configs: Mapping[str, str]) -> None:
        """What `decide` has said holds from now on."""
        self._altered[broker] = MappingProxyType({**configs})
        self._hold()

    def _hold(self) -> None:
        self.config = self._combined(self._altered)
        self.defaults = self._layered(self._altered)
        self.on_altered()

    def restore(self, altered: Mapping[str, Mapping[str, str]]) -> None:
        """What the metadata log has kept. What cannot be used any more is left out: it must not
        keep the broker from starting."""
        usable = {
            broker: {name: text for name, text in configs.items() if _is_usable(name, text)}
            for broker, configs in altered.items()
        }
        for broker, configs in self._fitting(usable).items():
            self._altered[broker] = MappingProxyType({**configs})
        self._hold()

    def _fitting(self, altered: Mapping[str, Mapping[str, str]]) -> Mapping[str, Mapping[str, str]]:
        """All of it, if it goes together: one may be allowed only because of another that comes
        later. Where what the broker was started with has changed, without those in its way."""
        try:
            self._combined(altered)
        except InvalidSetting:
            pass
        else:
            return altered
        fitting: dict[str, dict[str, str]] = {}
        for broker, configs in altered.items():
            for name, text in configs.items():
                more = {**fitting, broker: {**fitting.get(broker, {}), name: text}}
                try:
                    self._combined(more)
                except InvalidSetting as problem:
                    _log.error("what was altered of %s is not used: %s", name, problem)
                else:
                    fitting = more
        return fitting

    def _changed_list(
        self, broker: str, alteration: Alteration, value: str
    ) -> str | RequestRefusal:
        """From what holds under this name on: what one broker has is nothing for all of them."""
        name, operation, _ = alteration
        setting = BROKER_NAMES[name][0] if name in BROKER_NAMES else None
        if setting is None or config_type(setting) is not ConfigType.LIST:
            verb = Operation(operation).name
            message = f"Can't {verb} to key {name} because its type is not LIST."
            return RequestRefusal(ErrorCode.INVALID_CONFIG, message)
        layers = self.defaults.layers
        found = BrokerDefaults(*(layers[1:] if broker == ALL_BROKERS else layers)).find(name)
        return changed_list(name, operation, setting.default if found is None else found[0], value)

    # --- what follows -------------------------------------------------------------------------

    def _combined(self, altered: Mapping[str, Mapping[str, str]]) -> BrokerConfig:
        """The settings with what was altered; `InvalidSetting` where that does not go together."""
        texts = {**altered.get(ALL_BROKERS, {}), **altered.get(self.broker, {})}
        values: dict[str, Any] = {
            SETTINGS[name].attribute: SETTINGS[name].kind(text)
            for name, text in texts.items()
            if name in SETTINGS
        }
        defaults = {name: text for name, text in texts.items() if name in BROKER_NAMES}
        values["topic_defaults"] = {**self.started_with.topic_defaults, **defaults}
        return replace(self.started_with, **values)

    def _layered(self, altered: Mapping[str, Mapping[str, str]]) -> BrokerDefaults:
        return BrokerDefaults(
            *_layers(altered, self.broker),
            (ConfigSource.STATIC_BROKER, self.started_with.topic_defaults),
        )


def _layers(
    altered: Mapping[str, Mapping[str, str]], broker: str
) -> tuple[tuple[ConfigSource, Mapping[str, str]], ...]:
    return (
        (ConfigSource.DYNAMIC_BROKER, altered.get(broker, {})),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER, altered.get(ALL_BROKERS, {})),
    )


def _unalterable(alterations: Sequence[Alteration]) -> RequestRefusal | None:
    """Also for names that Kafka does not know, either: it takes them, and nothing comes of it."""
    names = [
        name
        for name, operation, _ in alterations
        if name not in ALTERABLE and operation != Operation.DELETE  # of what cannot be there
    ]
    if not names:
        return None
    return RequestRefusal(
        ErrorCode.INVALID_REQUEST,
        f"Cannot update these configs dynamically: [{', '.join(names)}]. What this broker has of "
        "them is set by a flag, a variable or its file, and holds from the next start on",
    )


def _check_values(configs: Mapping[str, str]) -> None:
    """Raises `InvalidSetting` for the first value that is not allowed by itself."""
    for name, text in configs.items():
        if name in BROKER_NAMES:
            replace(BROKER_NAMES[name][0], name=name).parse(text)
            continue
        try:
            SETTINGS[name].kind(text)
        except NotAllowed as error:
            told = f"Invalid value {text} for configuration {name}: it may be {error}"
            raise InvalidSetting(told) from error


def _is_usable(name: str, text: str) -> bool:
    try:
        if name not in ALTERABLE:
            raise InvalidSetting(f"{name} cannot be altered in this version")
        _check_values({name: text})
    except InvalidSetting as problem:
        _log.error("what was altered of the broker's settings is not used: %s", problem)
        return False
    return True

"""Settings that contradict each other, as one table of rules.

A contradiction names both keys, their values (and whether one is only the default), and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from onceflow.errors import InvalidSetting
from onceflow.settings import (
    INT_MAX,
    Rule,
    Setting,
    broken_rules,
    contradiction,
    first_is_larger,
    settings_of,
)

RawSettings: TypeAlias = Mapping[str, Any]
"""What was said, by key; all else is a default."""

ALL_REPLICAS: Final = -1
_TWO_PHASE: Final = "transaction.two.phase.commit.enable"
_LIMIT: Final = "transaction.timeout.ms"
MOST_IN_FLIGHT: Final = 5
"""Brokers remember so many batches of a producer and partition."""

IMPLIED: Final[Mapping[str, Mapping[str, Any]]] = {
    "at-most-once": {"acks": 0, "enable.idempotence": False, "retries": 0},
    "at-least-once": {
        "acks": ALL_REPLICAS,
        "enable.idempotence": False,
        "retries": INT_MAX,
    },
    "idempotent": {"acks": ALL_REPLICAS, "enable.idempotence": True},
    "exactly-once": {"acks": ALL_REPLICAS, "enable.idempotence": True},
}
DELIVERIES: Final = tuple(IMPLIED)


def name_of_delivery(complete: RawSettings) -> str | None:
    """The word for what these settings promise; None when there is none."""
    if "delivery" in complete:
        return str(complete["delivery"])
    if "transactional.id" in complete:
        return "exactly-once"
    if complete.get("enable.idempotence", True):
        return "idempotent"
    by_acks = {0: "at-most-once", ALL_REPLICAS: "at-least-once"}
    return by_acks.get(complete.get("acks", ALL_REPLICAS))


_SASL: Final = ("SASL_PLAINTEXT", "SASL_SSL")
_TLS: Final = ("SSL", "SASL_SSL")


_RULES: Final = (
    Rule(
        "delivery",
        "transactional.id",
        lambda word, name: word == "exactly-once" and name is None,
        "exactly-once needs a name that stays the same when the program is started again: set "
        "transactional.id",
    ),
    Rule(
        "delivery",
        "transactional.id",
        lambda word, name: word != "exactly-once" and name is not None,
        "set delivery to exactly-once, or leave transactional.id out",
    ),
    Rule(
        "transactional.id",
        "enable.idempotence",
        lambda name, on: name is not None and not on,
        "transactions need idempotence: leave enable.idempotence out, or transactional.id",
    ),
    Rule(
        _TWO_PHASE,
        "transactional.id",
        lambda on, name: on and name is None,
        "there are no transactions to commit: set transactional.id",
    ),
    Rule(
        "acks",
        "enable.idempotence",
        lambda acks, on: on and acks != ALL_REPLICAS,
        "idempotence needs acks = all: leave acks out, or set enable.idempotence to false",
    ),
    Rule(
        "max.in.flight.requests.per.connection",
        "enable.idempotence",
        lambda number, on: on and number > MOST_IN_FLIGHT,
        f"with idempotence at most {MOST_IN_FLIGHT} requests can be in flight: set it to "
        f"{MOST_IN_FLIGHT} or less, or set enable.idempotence to false",
    ),
    Rule(
        "retries",
        "enable.idempotence",
        lambda number, on: on and number == 0,
        "idempotence is of use only with retries: leave retries out, or set "
        "enable.idempotence to false",
    ),
    Rule(
        "batch.size",
        "max.request.size",
        first_is_larger,
        "a full batch could not be sent: make batch.size smaller or max.request.size larger",
    ),
    Rule(
        "max.request.size",
        "buffer.memory",
        first_is_larger,
        "a request would not fit into memory: make buffer.memory larger",
    ),
    Rule(
        "fetch.min.bytes",
        "fetch.max.bytes",
        first_is_larger,
        "the broker could never answer at once: make fetch.min.bytes smaller",
    ),
    Rule(
        "fetch.max.wait.ms",
        "request.timeout.ms",
        lambda wait, limit: wait >= limit,
        "the broker would still wait when the client gives up: make request.timeout.ms larger",
    ),
    Rule(
        "group.instance.id",
        "group.id",
        lambda instance, group: instance is not None and group is None,
        "a static member needs a group: set group.id, or leave group.instance.id out",
    ),
    Rule(
        "enable.auto.commit",
        "group.id",
        lambda on, group: on and group is None,
        "offsets are committed for a group: set group.id, or leave enable.auto.commit out",
    ),
    Rule(
        "delivery",
        "group.id",
        lambda word, group: word is not None and group is None,
        "it says when offsets are committed, and that is done for a group: set group.id, or leave "
        "delivery out",
    ),
    Rule(
        "delivery",
        "enable.auto.commit",
        lambda word, on: word is not None and on != (word == "at-least-once"),
        "at-least-once commits by itself, at-most-once does so earlier: leave enable.auto.commit "
        "out",
    ),
    Rule(
        "heartbeat.interval.ms",
        "session.timeout.ms",
        lambda interval, session: interval >= session,
        "a member would be taken for dead between two heartbeats: make heartbeat.interval.ms a "
        "third of session.timeout.ms",
    ),
    Rule(
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        first_is_larger,
        "make retry.backoff.max.ms larger",
    ),
    Rule(
        "transaction.retry.backoff.ms",
        "transaction.retry.backoff.max.ms",
        first_is_larger,
        "make transaction.retry.backoff.max.ms larger",
    ),
    *(
        Rule(
            key,
            "security.protocol",
            lambda value, protocol: value is not None and protocol not in _SASL,
            "set security.protocol to SASL_SSL or SASL_PLAINTEXT, or leave the login out",
        )
        for key in ("sasl.mechanism", "sasl.username", "sasl.password")
    ),
    *(
        Rule(
            "security.protocol",
            key,
            lambda protocol, value: protocol in _SASL and value is None,
            f"set {key}, or a security.protocol without a login",
        )
        for key in ("sasl.mechanism", "sasl.username", "sasl.password")
    ),
    *(
        Rule(
            key,
            "security.protocol",
            lambda value, protocol: value is not None and protocol not in _TLS,
            f"set security.protocol to SSL or SASL_SSL, or leave {key} out",
        )
        for key in ("ssl.cafile", "ssl.certfile", "ssl.keyfile")
    ),
    Rule(
        "ssl.keyfile",
        "ssl.certfile",
        lambda key, certificate: key is not None and certificate is None,
        "set ssl.certfile: a key is of no use without its certificate",
    ),
)


def check(settings: Any, given: RawSettings) -> None:
    """Raise `InvalidSetting` for the first contradiction."""
    known = settings_of(type(settings))
    values = {name: getattr(settings, each.attribute) for name, each in known.items()}

    def described(name: str) -> str:
        value = values[name]
        return known[name].with_value(value) + _why(name, value, given)

    _check_delivery(known, given)
    for rule in broken_rules(_RULES, values):
        raise InvalidSetting(contradiction(described(rule.one), described(rule.other), rule.advice))
    if given.get(_TWO_PHASE) and _LIMIT in given:
        advice = f"a prepared transaction waits for its decision, however long: leave {_LIMIT} out"
        raise InvalidSetting(contradiction(described(_TWO_PHASE), described(_LIMIT), advice))
    if _TOTAL in values and values[_TOTAL] < values[_LINGER] + values[_REQUEST]:
        least = values[_LINGER] + values[_REQUEST]
        advice = f"a batch could fail before its request times out: set {_TOTAL} to {least} or more"
        parts = f"{described(_LINGER)} plus {described(_REQUEST)}"
        raise InvalidSetting(contradiction(described(_TOTAL), parts, advice))


_TOTAL, _LINGER, _REQUEST = "delivery.timeout.ms", "linger.ms", "request.timeout.ms"


def _check_delivery(known: Mapping[str, Setting], given: RawSettings) -> None:
    """What `delivery` sets must not be set to anything else."""
    word = given.get("delivery")
    for key, value in IMPLIED.get(word or "", {}).items():
        if key not in given or given[key] == value:
            continue
        if key == "retries" and value and given[key]:  # fewer, and still some
            continue
        advice = f"leave {key} out, or choose another delivery"
        raise InvalidSetting(
            contradiction(f"delivery = {word!r}", known[key].with_value(given[key]), advice)
        )


def _why(name: str, value: Any, given: RawSettings) -> str:
    if value is None or name in given:
        return ""
    word = given.get("delivery", "")
    return f" (by delivery = {word!r})" if name in IMPLIED.get(word, {}) else " (by default)"

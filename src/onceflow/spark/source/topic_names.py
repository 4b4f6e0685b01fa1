"""Which names a topic can have: Kafka's rule, for what is told before a broker is asked."""

from __future__ import annotations

import re
from typing import Final

TOPIC_RULE: Final = "up to 249 letters of ASCII, digits, '.', '_' and '-', and not '.' or '..'"
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")

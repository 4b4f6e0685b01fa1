"""Under which names a query writes, kept in its checkpoint: it cannot be changed unnoticed.

Another name would have another ledger, in which nothing is committed yet: a batch whose commit
Spark did not hear of would be written twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from typing import Final, Protocol

from onceflow.settings import SettingKind
from onceflow.spark.errors import IdentityChanged, SinkError
from onceflow.types import TopicPartition

KIND: Final = "onceflow sink"
FORMAT: Final = 1
FILE: Final = "onceflow-sink.json"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


def _read_name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(value)
    return value


QUERY_NAME: Final = SettingKind("string", "up to 200 letters, digits, '.', '_' and '-'", _read_name)
"""It becomes a transactional id, a group and the name of a query."""


class Files(Protocol):
    """The files of a checkpoint, by names relative to its directory."""

    def read(self, name: str) -> str | None:
        """None when there is no such file."""
        ...

    def names(self, prefix: str) -> Collection[str]:
        """Of all files that begin so."""
        ...

    def create(self, name: str, text: str) -> None:
        """All of the file or nothing; where there is one, it may raise."""
        ...

    def delete(self, name: str) -> None:
        """Returns when there is no such file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkIdentity:
    """The names of one query's output."""

    name: str
    group: str
    """Of the source offsets."""
    transactional_id: str
    ledger_topic: str
    ledger_group: str

    @property
    def own_names(self) -> tuple[str, ...]:
        """Those that follow from `name`."""
        return self.name, self.transactional_id

    @property
    def ledger(self) -> TopicPartition:
        """Where the ledger's offset is committed."""
        return TopicPartition(self.ledger_topic, 0)

    @classmethod
    def of_query(cls, name: str, group: str | None, ledger_topic: str) -> SinkIdentity:
        return cls(
            name=name,
            group=group or name,
            transactional_id=name,
            ledger_topic=ledger_topic,
            ledger_group=f"{name}.ledger",
        )

    @classmethod
    def of_write(cls, name: str, ledger_topic: str) -> SinkIdentity:
        """For a frame that is written at once: never that of a query, whatever its name, because
        names have no slash."""
        whole = f"{name}/write"
        return cls(
            name=name,
            group=whole,
            transactional_id=whole,
            ledger_topic=ledger_topic,
            ledger_group=f"{whole}.ledger",
        )

    def to_json(self) -> str:
        return json.dumps({"kind": KIND, "format": FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> SinkIdentity:
        """Raises `IdentityChanged` for what this release cannot read."""
        try:
            found = json.loads(text)
            if found.pop("kind") != KIND or found.pop("format") != FORMAT:
                raise ValueError("another kind or format")
            return cls(**found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IdentityChanged(
                f"the checkpoint's file {FILE} cannot be read ({error}): it was damaged, or "
                "written by a newer release"
            ) from error


def check_identity(files: Files, identity: SinkIdentity) -> bool:
    """Whether the checkpoint has this identity; raises `IdentityChanged` when it has another."""
    text = files.read(FILE)
    if text is None:
        return False
    kept = SinkIdentity.from_json(text)
    changed = [
        f"{each.name} was {getattr(kept, each.name)!r} and is {getattr(identity, each.name)!r}"
        for each in fields(SinkIdentity)
        if getattr(kept, each.name) != getattr(identity, each.name)
    ]
    if changed:
        raise IdentityChanged(
            f"this checkpoint belongs to {kept.name!r}: {'; '.join(changed)}. Rows could be "
            "written twice under other names: use those, or a new checkpoint for a new query"
        )
    return True


def keep_identity(files: Files, identity: SinkIdentity) -> None:
    """Writes the identity into a checkpoint that has none; raises `IdentityChanged` when it has
    another one."""
    if check_identity(files, identity):
        return
    try:
        files.create(FILE, identity.to_json())
    except SinkError:  # another driver on this checkpoint may have been faster
        if not check_identity(files, identity):
            raise

"""Deleting things by name, the same way for all kinds, when that was confirmed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from onceflow.cli.common.confirmation import confirm
from onceflow.cli.common.output import print_json, print_text

if TYPE_CHECKING:
    from onceflow.client import Cluster


class Kind(NamedTuple):
    """What is deleted."""

    name: str
    with_it: str
    """What goes with it for good."""
    delete: Callable[[Cluster, str], Coroutine[Any, Any, object]]


def delete_each(
    kind: Kind,
    names: Sequence[str],
    *,
    bootstrap: str,
    given: Sequence[str] | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Stops at the first that cannot be deleted; those before it are gone, and are told however it
    ends: each as soon as it is gone, or with `as_json` all in one document before the error."""
    from onceflow.cli.common.session import connected

    confirm(f"Delete {', '.join(names)} with all {kind.with_it}?", yes=yes)
    deleted: list[str] = []
    with connected(bootstrap, given) as session:
        try:
            for name in names:
                session.run(kind.delete(session.cluster, name))
                deleted.append(name)
                if not as_json:
                    print_text(f"deleted {kind.name} {name}")
        finally:
            if as_json:
                print_json({"deleted": deleted})

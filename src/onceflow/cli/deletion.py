"""Deleting things by name, the same way for all kinds, when that was confirmed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from onceflow.cli.confirm import confirm
from onceflow.cli.output import print_json, print_text

if TYPE_CHECKING:
    from onceflow.client.cluster import Cluster


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
    """Stops at the first that cannot be deleted; those before it are gone, and were told."""
    from onceflow.cli.session import connected

    confirm(f"Delete {', '.join(names)} with all {kind.with_it}?", yes=yes)
    with connected(bootstrap, given) as session:
        for name in names:
            session.run(kind.delete(session.cluster, name))
            if not as_json:
                print_text(f"deleted {kind.name} {name}")
    if as_json:
        print_json({"deleted": names})

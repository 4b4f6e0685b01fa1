"""`onceflow groups`: list, describe, reset-offsets, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from onceflow.cli.common import (
    APP_SETTINGS,
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ClientSettings,
    Kind,
    Position,
    Yes,
    counted,
    delete_each,
    parse_position,
    parse_topic,
    print_json,
    print_table,
    print_text,
    print_title,
    warn,
)

if TYPE_CHECKING:
    from onceflow.cli.common import Session
    from onceflow.client import GroupDescription, GroupOffset, OffsetRange, PartitionLag
    from onceflow.types import TopicPartition

    Lags = dict[TopicPartition, PartitionLag]

app = typer.Typer(
    help="List, describe and delete consumer groups, and reset their offsets.",
    no_args_is_help=True,
    **APP_SETTINGS,
)

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
GroupNames = Annotated[list[str], typer.Argument(metavar="GROUP...", help="Names of groups.")]


class Move(NamedTuple):
    """What a reset does to one partition."""

    partition: TopicPartition
    current: int | None
    new: int


@app.command("list")
def list_(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """List all consumer groups."""
    from onceflow.cli.common import connected
    from onceflow.client.admin import admin

    with connected(bootstrap, settings) as session:
        groups = session.run(admin.list_groups(session.cluster))
    if as_json:
        print_json(
            [
                {"group": each.group_id, "state": each.state, "protocol_type": each.protocol_type}
                for each in groups
            ]
        )
    elif groups:
        print_table(("GROUP", "STATE"), [(each.group_id, each.state) for each in groups])
    else:
        print_text("There are no groups yet; consumers make them.")


@app.command("describe")
def describe(
    groups: GroupNames,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Count exactly, by reading every record that the group is behind."
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """Show the state, the members and the lag of groups.

    Lag is in records that were committed and can be read now: markers and aborted records are not
    in it. A large lag is estimated from offsets (~). HELD is the number of offsets that open
    transactions hold back.
    """
    from onceflow.cli.common import connected
    from onceflow.client.admin import admin

    with connected(bootstrap, settings) as session:
        found = [session.run(admin.describe_group(session.cluster, name)) for name in groups]
        lags = [_lags(session, each, exact=exact) for each in found]
    if as_json:
        print_json([_details(*each) for each in zip(found, lags, strict=True)])
        return
    for number, each in enumerate(zip(found, lags, strict=True)):
        if number:
            print_text("")
        _print_description(*each)


def _lags(session: Session, found: GroupDescription, *, exact: bool) -> Lags:
    """Of what is committed, where the topic is still there."""
    from onceflow.client import COUNTED
    from onceflow.client.admin import admin

    places = {
        each.partition: each.committed
        for each in found.offsets
        if each.committed is not None and each.range is not None
    }
    limit = None if exact else COUNTED
    return session.run(admin.lag_behind(session.cluster, places, count_up_to=limit))


@app.command("reset-offsets")
def reset_offsets(
    group: GroupName,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC[:0,1,...]",
            help="Only this topic, or these of its partitions. Repeatable. The default is all "
            "for which the group has offsets.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", help="earliest, latest, an offset, or a time (2025-03-01T12:00:00Z)."
        ),
    ] = None,
    shift: Annotated[
        int | None,
        typer.Option(metavar="N", help="Move by this many offsets; a negative number moves back."),
    ] = None,
    execute: Annotated[
        bool,
        typer.Option("--execute", help="Make the change. Without this the command only shows it."),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """Change the committed offsets of a group, which must have no members."""
    from onceflow.cli.common import connected
    from onceflow.client.admin import admin

    if (to is None) == (shift is None):
        raise typer.BadParameter("give either --to or --shift")
    position = parse_position(to) if to is not None else None
    wanted = [parse_topic(text) for text in topic or ()]
    with connected(bootstrap, settings) as session:
        moves = _plan(session, group, wanted, position, shift or 0)
        if execute:
            session.run(admin.require_empty(session.cluster, group))
            offsets = {move.partition: move.new for move in moves}
            session.run(admin.commit_offsets(session.cluster, group, offsets))
    _show_moves(group, moves, is_done=execute, as_json=as_json)


@app.command("delete")
def delete(
    groups: GroupNames,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """Delete groups and their offsets. Asks first, unless --yes is given."""
    from onceflow.client.admin import admin

    kind = Kind("group", "offsets", admin.delete_group)
    delete_each(kind, groups, bootstrap=bootstrap, given=settings, yes=yes, as_json=as_json)


def _plan(
    session: Session,
    group: str,
    wanted: list[tuple[str, list[int]]],
    position: Position | None,
    shift: int,
) -> list[Move]:
    from onceflow.cli.common import resolve, within
    from onceflow.client import GroupNotFound
    from onceflow.client.admin import admin

    committed = session.run(admin.committed_offsets(session.cluster, group))
    if not wanted and not committed:
        raise GroupNotFound(f"group {group!r} has committed no offsets; choose topics with --topic")
    ranges = _ranges(session, wanted, committed)
    if position is not None:
        targets = session.run(resolve(session.cluster, ranges, position))
    else:
        missing = [str(each) for each in ranges if each not in committed]
        if missing:
            raise typer.BadParameter(f"cannot shift: no offset is committed for {missing[0]}")
        targets = {each: within(held, committed[each] + shift) for each, held in ranges.items()}
    return [Move(each, committed.get(each), targets[each]) for each in sorted(ranges)]


def _ranges(
    session: Session, wanted: list[tuple[str, list[int]]], committed: dict[TopicPartition, int]
) -> dict[TopicPartition, OffsetRange]:
    from onceflow.cli.common import partitions_of
    from onceflow.client.admin import admin

    partitions = list(committed)
    if wanted:
        partitions = session.run(partitions_of(session.cluster, wanted))
    return session.run(admin.offset_ranges(session.cluster, partitions))


def _show_moves(group: str, moves: list[Move], *, is_done: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "group": group,
                "executed": is_done,
                "offsets": [
                    {**_place(each.partition), "current": each.current, "new": each.new}
                    for each in moves
                ],
            }
        )
        return
    rows = [
        (*each.partition, each.current, each.new, _change(each.current, each.new)) for each in moves
    ]
    columns = ("TOPIC", "PARTITION", "CURRENT", "NEW", "CHANGE")
    print_table(columns, rows, numbers=columns[1:])
    if is_done:
        print_text(f"done: moved group {group} in {counted(len(moves), 'partition')}")
    else:
        warn("nothing was changed; use --execute to make the change", as_json=False)


def _change(current: int | None, new: int) -> str | None:
    return None if current is None else f"{new - current:+d}"


def _place(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


def _details(found: GroupDescription, lags: Lags) -> dict[str, Any]:
    return {
        "group": found.group_id,
        "state": found.state,
        "protocol": found.protocol,
        "coordinator": found.coordinator,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.group_instance_id,
                "client_id": each.client_id,
                "host": each.host,
                "partitions": [_place(partition) for partition in each.assignment],
            }
            for each in found.members
        ],
        "offsets": [_offset_details(each, lags.get(each.partition)) for each in found.offsets],
    }


def _offset_details(found: GroupOffset, lag: PartitionLag | None) -> dict[str, Any]:
    return {
        **_place(found.partition),
        "committed": found.committed,
        "earliest": found.range.earliest if found.range else None,
        "latest": found.range.latest if found.range else None,
        "lag": lag.records if lag else None,
        "lag_is_exact": lag.is_exact if lag else None,
        "held_back": lag.held_back if lag else None,
        "member_id": found.member.member_id if found.member else None,
    }


def _print_description(found: GroupDescription, lags: Lags) -> None:
    protocol = f", {found.protocol}" if found.protocol else ""
    members = counted(len(found.members), "member")
    print_title(
        found.group_id,
        f"{found.state}{protocol}",
        members,
        f"lag {_total(lags)}" if lags else "nothing committed",
        f"coordinator {found.coordinator}",
    )
    rows = []
    for each in found.offsets:
        latest = each.range.latest if each.range else "deleted"
        client = f"{each.member.client_id}{each.member.host}" if each.member else None
        lag = lags.get(each.partition)
        behind = _lag_text(lag.records, is_exact=lag.is_exact) if lag else None
        held = lag.held_back if lag else None
        rows.append((*each.partition, each.committed, latest, behind, held, client))
    if rows:
        columns = ("TOPIC", "PARTITION", "COMMITTED", "LATEST", "LAG", "HELD", "CLIENT")
        print_table(columns, rows, numbers=columns[1:6])


def _total(lags: Lags) -> str:
    is_exact = all(each.is_exact for each in lags.values())
    return _lag_text(sum(each.records for each in lags.values()), is_exact=is_exact)


def _lag_text(records: int, *, is_exact: bool) -> str:
    return f"{records:,}" if is_exact else f"~{records:,}"

"""`onceflow transactions`: list, describe, find-hanging, abort.

A transaction that nobody will end holds readers of committed records back for good. Its coordinator
ends all others by itself, at the latest when their time is up.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from onceflow.cli.common import (
    APP_SETTINGS,
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ClientSettings,
    Yes,
    confirm,
    counted,
    duration_text,
    note,
    parse_topic,
    print_json,
    print_table,
    print_text,
    print_title,
    progress_bar,
    require_answer,
    time_text,
)
from onceflow.errors import OnceflowError

if TYPE_CHECKING:
    from onceflow.cli.common import Session
    from onceflow.client import PartitionTransaction, TransactionDescription
    from onceflow.types import TopicPartition

app = typer.Typer(
    help="List, describe and abort transactions, and find those that hang.",
    no_args_is_help=True,
    **APP_SETTINGS,
)

ONGOING: Final = "Ongoing"
PORTION: Final = 100
"""Partitions that are asked about at once."""
_LONGEST_TIMEOUT: Final = 900

TransactionalIds = Annotated[list[str], typer.Argument(metavar="ID...", help="Transactional ids.")]


class NotHanging(OnceflowError):
    """A coordinator will end the transaction: to abort a part of it could tear it apart."""


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="Only those in this state, such as Ongoing. Repeatable."
        ),
    ] = None,
    longer_than: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Only transactions that have been open for longer than this.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """List transactional ids and the states of their transactions."""
    from onceflow.cli.common import connected
    from onceflow.client.admin import admin

    # To a broker an id that never had a transaction is open since ever.
    states = state or ([] if longer_than is None else [ONGOING])
    duration = None if longer_than is None else 1000 * longer_than
    with connected(bootstrap, settings) as session:
        found = session.run(
            admin.list_transactions(session.cluster, states=states, open_longer_than_ms=duration)
        )
    if as_json:
        print_json(
            [
                {
                    "transactional_id": each.transactional_id,
                    "state": each.state,
                    "producer_id": each.producer_id,
                }
                for each in found
            ]
        )
    elif found:
        print_table(
            ("TRANSACTIONAL ID", "STATE", "PRODUCER"),
            [(each.transactional_id, each.state, each.producer_id) for each in found],
            numbers=("PRODUCER",),
        )
    elif states:
        print_text("There are no such transactions.")
    else:
        print_text("There are no transactional ids yet; producers that have one make them.")


@app.command("describe")
def describe(
    ids: TransactionalIds,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """Show state, producer, age and partitions of transactions."""
    from onceflow.cli.common import connected
    from onceflow.client.admin import admin

    with connected(bootstrap, settings) as session:
        found = [session.run(admin.describe_transaction(session.cluster, each)) for each in ids]
    if as_json:
        print_json([_details(each) for each in found])
        return
    for number, each in enumerate(found):
        if number:
            print_text("")
        _print_description(each)


@app.command("find-hanging")
def find_hanging(
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC[:0,1,...]",
            help="Only this topic, or these of its partitions. Repeatable. The default is all "
            "topics.",
        ),
    ] = None,
    longest_timeout: Annotated[
        int,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="The broker's transaction.max.timeout.ms: a transaction with a more recent "
            "write is not hanging.",
        ),
    ] = _LONGEST_TIMEOUT,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """Find hanging transactions: open ones that no coordinator will end.

    Readers of committed records cannot read past them.
    """
    from onceflow.cli.common import connected

    wanted = [parse_topic(text) for text in topic or ()]
    with connected(bootstrap, settings) as session:
        partitions = _partitions(session, wanted)
        found = _find_hanging(session, partitions, 1000 * longest_timeout)
    if as_json:
        print_json([_place_details(each) for each in found])
    elif found:
        _print_open(found)
        note(
            "`onceflow transactions abort --topic TOPIC --partition N --start-offset N` ends one "
            "of them."
        )
    else:
        print_text(f"No hanging transactions in {counted(len(partitions), 'partition')}.")


@app.command("abort")
def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            show_default=False,
            help="The transaction to abort. Its producer is fenced.",
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Topic of a hanging transaction.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Its partition.")
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="The offset at which it begins."),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """Abort an open transaction.

    Give its transactional id, or for a hanging transaction the topic, partition and start offset
    that `find-hanging` shows. Readers of committed records will see nothing of it. Asks first.
    """
    from onceflow.types import TopicPartition

    if topic is not None and partition is not None and start_offset is not None:
        if transactional_id is None:
            place = TopicPartition(topic, partition)
            _abort_hanging(place, start_offset, bootstrap, settings, yes=yes, as_json=as_json)
            return
    elif transactional_id is not None and (topic, partition, start_offset) == (None, None, None):
        _abort_whole(transactional_id, bootstrap, settings, yes=yes, as_json=as_json)
        return
    raise typer.BadParameter(
        "give a transactional id, or for a hanging transaction --topic, --partition and "
        "--start-offset"
    )


def _abort_whole(
    transactional_id: str, bootstrap: str, given: list[str] | None, *, yes: bool, as_json: bool
) -> None:
    """As a new producer of that id does before its first transaction."""
    from onceflow.cli.common import all_settings, connected
    from onceflow.client import Producer, TransactionNotFound
    from onceflow.client.admin import admin

    require_answer(f"Abort the transaction of {transactional_id} and fence its producer?", yes=yes)
    with connected(bootstrap, given) as session:
        found = session.run(admin.describe_transaction(session.cluster, transactional_id))
        if found.state != ONGOING:
            raise TransactionNotFound(
                f"transactional id {transactional_id!r} has no transaction that could be aborted: "
                f"it is {found.state}"
            )
        places = counted(len(found.partitions), "partition")
        confirm(
            f"Abort the transaction of {transactional_id} in {places} and fence its producer?",
            yes=yes,
        )
        chosen = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": found.timeout_ms,
        }
        producer = Producer(settings=all_settings(bootstrap, given, chosen))
        with session.entered(producer):
            session.run(producer.init_transactions())
    if as_json:
        print_json({"aborted": _details(found)})
    else:
        print_text(f"aborted the transaction of {transactional_id} in {places}")


def _abort_hanging(
    place: TopicPartition,
    start_offset: int,
    bootstrap: str,
    given: list[str] | None,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    from onceflow.cli.common import connected
    from onceflow.client.admin import admin

    require_answer(
        f"Abort the transaction that begins at offset {start_offset} of partition {place}?", yes=yes
    )
    with connected(bootstrap, given) as session:
        found = session.run(_hanging_at(session, place, start_offset))
        owner = f" of {found.transactional_id}" if found.transactional_id else ""
        confirm(
            f"Abort the transaction{owner} of producer {found.producer.producer_id} that begins "
            f"at offset {start_offset} of partition {place}?",
            yes=yes,
        )
        ending = admin.end_open_transaction(session.cluster, place, start_offset, commit=False)
        session.run(ending)
    if as_json:
        print_json({"aborted": _place_details(found)})
    else:
        print_text(f"aborted the transaction at offset {start_offset} of partition {place}")


async def _hanging_at(
    session: Session, place: TopicPartition, start_offset: int
) -> PartitionTransaction:
    """The open transaction that begins there; raises `NotHanging` when somebody will end it."""
    from onceflow.client.admin import transactions

    await session.cluster.find_topic(place.topic)
    for found in await transactions.open_transactions(session.cluster, [place]):
        if found.start_offset != start_offset:
            continue
        owners = [found.transactional_id] if found.transactional_id else []
        described = await transactions.describe_transactions(session.cluster, owners)
        if transactions.hanging([found], described):
            return found
        raise NotHanging(
            f"the transaction at offset {start_offset} of partition {place} does not hang: its "
            f"coordinator looks after {found.transactional_id!r}"
        )
    raise transactions.TransactionNotFound(
        f"no transaction that begins at offset {start_offset} is open in partition {place}"
    )


def _find_hanging(
    session: Session, partitions: list[TopicPartition], longest_timeout_ms: int
) -> list[PartitionTransaction]:
    from onceflow.client.admin import transactions

    found: list[PartitionTransaction] = []
    with progress_bar("looking", len(partitions)) as bar:
        for start in range(0, len(partitions), PORTION):
            portion = partitions[start : start + PORTION]
            found += session.run(
                transactions.find_hanging(
                    session.cluster,
                    portion,
                    now_ms=_now_ms(),
                    longest_timeout_ms=longest_timeout_ms,
                )
            )
            bar.advance(len(portion))
    return found


def _partitions(session: Session, wanted: list[tuple[str, list[int]]]) -> list[TopicPartition]:
    from onceflow.cli.common import partitions_of
    from onceflow.client.admin import admin

    if not wanted:
        topics = session.run(admin.list_topics(session.cluster))
        wanted = [(each.name, []) for each in topics]
    return session.run(partitions_of(session.cluster, wanted))


def _now_ms() -> int:
    return int(time.time() * 1000)


def _details(found: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator": found.coordinator,
        "timeout_ms": found.timeout_ms,
        "start_timestamp": found.start_ms,
        "partitions": [
            {"topic": topic, "partition": number} for topic, number in sorted(found.partitions)
        ],
    }


def _place_details(found: PartitionTransaction) -> dict[str, Any]:
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "start_offset": found.start_offset,
        "producer_id": found.producer.producer_id,
        "producer_epoch": found.producer.producer_epoch,
        "last_timestamp": found.producer.last_timestamp_ms,
        "transactional_id": found.transactional_id,
    }


def _print_description(found: TransactionDescription) -> None:
    producer = f"producer {found.producer_id} epoch {found.producer_epoch}"
    age = f"timeout {duration_text(found.timeout_ms)}"
    if found.state == ONGOING and found.start_ms is not None:
        age = f"open for {duration_text(_now_ms() - found.start_ms)}, {age}"
    coordinator = f"coordinator {found.coordinator}"
    print_title(found.transactional_id, found.state, age, producer, coordinator)
    if found.partitions:
        print_table(("TOPIC", "PARTITION"), sorted(found.partitions), numbers=("PARTITION",))


def _print_open(found: list[PartitionTransaction]) -> None:
    rows = [
        (
            *each.partition,
            each.start_offset,
            each.producer.producer_id,
            time_text(each.producer.last_timestamp_ms),
            each.transactional_id,
        )
        for each in found
    ]
    columns = ("TOPIC", "PARTITION", "START", "PRODUCER", "LAST WRITTEN", "TRANSACTIONAL ID")
    print_table(columns, rows, numbers=columns[1:4])

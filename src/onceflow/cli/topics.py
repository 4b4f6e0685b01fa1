"""`onceflow topics`: create, list, describe, alter, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceflow.cli.common import (
    APP_SETTINGS,
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ClientSettings,
    Kind,
    TopicName,
    Yes,
    counted,
    delete_each,
    parse_settings,
    print_json,
    print_table,
    print_text,
    print_title,
)
from onceflow.types import topic_id_text

if TYPE_CHECKING:
    from onceflow.client import TopicDescription, TopicMetadata

app = typer.Typer(
    help="Create, list, describe, alter and delete topics.",
    no_args_is_help=True,
    **APP_SETTINGS,
)

Names = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of topics.")]
Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        "-p",
        metavar="N",
        min=1,
        max=1_000_000,
        show_default=False,
        help="Number of partitions.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="A setting, such as retention.ms=60000. Repeatable.",
    ),
]


@app.command("create")
def create(
    topic: TopicName,
    partitions: Partitions = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=32_767, help="Number of copies. The default is the broker's."
        ),
    ] = None,
    config: Settings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists already.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    from onceflow.cli.common import connected
    from onceflow.client import BrokerError
    from onceflow.client.admin import admin

    configs = parse_settings(config or ())
    with connected(bootstrap, settings) as session:
        is_new = True
        try:
            made = session.run(
                admin.create_topic(
                    session.cluster,
                    topic,
                    partitions=partitions or -1,
                    replication_factor=replication_factor or -1,
                    configs=configs,
                )
            )
        except BrokerError as error:
            if not if_not_exists or error.name != "TOPIC_ALREADY_EXISTS":
                raise
            is_new = False
            made = session.run(session.cluster.find_topic(topic))
    if as_json:
        print_json({"created": is_new, **_summary(made)})
    elif is_new:
        print_text(f"created topic {topic} with {_partition_count(made)}")
    else:
        print_text(f"topic {topic} exists already, with {_partition_count(made)}")


@app.command("list")
def list_(
    internal: Annotated[
        bool, typer.Option("--internal", help="Include the broker's internal topics.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """List all topics."""
    from onceflow.cli.common import connected
    from onceflow.client.admin import admin

    with connected(bootstrap, settings) as session:
        topics = session.run(admin.list_topics(session.cluster))
    shown = [topic for topic in topics if internal or not topic.is_internal]
    if as_json:
        print_json([_summary(topic) for topic in shown])
    elif shown:
        rows = [(each.name, len(each.partitions), each.replication_factor) for each in shown]
        columns = ("TOPIC", "PARTITIONS", "REPLICAS")
        print_table(columns, rows, numbers=columns[1:])
    else:
        print_text("There are no topics yet; `onceflow topics create NAME` makes one.")


@app.command("describe")
def describe(
    topics: Names,
    all_configs: Annotated[
        bool, typer.Option("--all-configs", help="Include settings that have their default value.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """Show partitions, offsets and settings of topics."""
    from onceflow.cli.common import connected
    from onceflow.client.admin import admin

    with connected(bootstrap, settings) as session:
        found = [session.run(admin.describe_topic(session.cluster, name)) for name in topics]
    if as_json:
        print_json([_details(each, all_configs) for each in found])
        return
    for number, each in enumerate(found):
        if number:
            print_text("")
        _print_description(each, all_configs)


@app.command("alter")
def alter(
    topic: TopicName,
    partitions: Partitions = None,
    config: Settings = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A setting to reset to the broker's default. Repeatable."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """Add partitions to a topic, or change its settings."""
    from onceflow.cli.common import connected
    from onceflow.client.admin import admin

    changes, removals = parse_settings(config or ()), delete_config or []
    if partitions is None and not changes and not removals:
        raise typer.BadParameter("nothing to do: give --partitions, --config or --delete-config")
    with connected(bootstrap, settings) as session:
        cluster = session.cluster
        if changes or removals:
            session.run(admin.alter_configs(cluster, topic, changes=changes, removals=removals))
        if partitions is not None:
            session.run(admin.add_partitions(cluster, topic, partitions))
        found = session.run(admin.describe_topic(cluster, topic))
    if as_json:
        print_json(_details(found, all_configs=False))
    else:
        _print_description(found, all_configs=False)


@app.command("delete")
def delete(
    topics: Names,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """Delete topics with all their records. Asks first, unless --yes is given."""
    from onceflow.client.admin import admin

    kind = Kind("topic", "records", admin.delete_topic)
    delete_each(kind, topics, bootstrap=bootstrap, given=settings, yes=yes, as_json=as_json)


def _partition_count(topic: TopicMetadata) -> str:
    return counted(len(topic.partitions), "partition")


def _summary(topic: TopicMetadata) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": topic_id_text(topic.topic_id) if topic.topic_id else None,
        "partitions": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "internal": topic.is_internal,
    }


def _details(found: TopicDescription, all_configs: bool) -> dict[str, Any]:
    return {
        **_summary(found.topic),
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "replicas": each.replicas,
                "in_sync": each.in_sync,
                "earliest": found.offsets[each.partition].earliest,
                "latest": found.offsets[each.partition].latest,
            }
            for each in found.topic.partitions
        ],
        "configs": {each.name: each.value for each in found.configs if each.is_set or all_configs},
    }


def _print_description(found: TopicDescription, all_configs: bool) -> None:
    topic = found.topic
    topic_id = [f"id {topic_id_text(topic.topic_id)}"] if topic.topic_id else []
    print_title(topic.name, _partition_count(topic), *topic_id)
    rows = []
    for each in topic.partitions:
        held = found.offsets[each.partition]
        brokers = (_ids(each.replicas), _ids(each.in_sync))
        size = held.latest - held.earliest
        rows.append((each.partition, each.leader, *brokers, held.earliest, held.latest, size))
    columns = ("PARTITION", "LEADER", "REPLICAS", "IN SYNC", "EARLIEST", "LATEST", "OFFSETS")
    print_table(columns, rows, numbers=(*columns[:2], *columns[4:]))
    shown = [each for each in found.configs if each.is_set or all_configs]
    if shown:
        print_text("")
        print_table(
            ("SETTING", "VALUE", "FROM"),
            [(each.name, each.value, "topic" if each.is_set else "default") for each in shown],
        )


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))

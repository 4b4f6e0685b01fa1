"""The options that commands share."""

from __future__ import annotations

from typing import Annotated, Final

import typer

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        envvar="ONCEFLOW_BOOTSTRAP",
        metavar="HOST:PORT[,...]",
        help="Brokers to connect to first, in this order.",
    ),
]
ClientSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A client setting by its Kafka name, such as request.timeout.ms=5000, or @FILE with "
        "one on each line. Repeatable.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Do not ask. Required when standard input is not a terminal."),
]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]

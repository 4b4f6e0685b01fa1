"""Writes docs/reference: a page for each place where something is set, made of the settings
themselves. `make reference`; a test fails when the pages are not what this writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from onceflow.broker.config.config import PREFIX
from onceflow.broker.config.live import ALTERABLE
from onceflow.broker.config.settings import SETTINGS as BROKER_SETTINGS
from onceflow.broker.config.topic_settings import DEFAULTS, SETTINGS as TOPIC_SETTINGS
from onceflow.client.session.settings import SessionSettings
from onceflow.client.settings.clients import ClientSettings, ProducerSettings, ReaderSettings
from onceflow.client.settings.consumer import ConsumerSettings
from onceflow.settings import Page, Section, Setting, render_page, settings_of
from onceflow.spark.pipeline import keys
from onceflow.spark.sink.options import ARGUMENTS
from onceflow.spark.source.options import OPTIONS

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "reference"
COMMAND: Final = "make reference"


def all_pages() -> dict[str, str]:
    """By the names of their files, what stands in them."""
    written = {f"{name}.md": render_page(page, COMMAND) for name, page in PAGES.items()}
    return {"README.md": _contents(), **written}


_ABOUT: Final = """# Settings

<!-- Written by make reference. -->

Every setting, by where it is set: its type, its default, what is allowed and what it means. Kafka's
names have dots, and underscores as keywords of Python. What is wrong is told at once, with the name
that was probably meant.

"""


def _contents() -> str:
    return _ABOUT + "".join(f"- [{page.title}]({name}.md)\n" for name, page in PAGES.items())


def _beside(known: type, base: type | None = None) -> list[Setting]:
    """The settings of a class that the one below it has not."""
    below = settings_of(base) if base is not None else {}
    return [each for name, each in settings_of(known).items() if name not in below]


def _topics(*, takes_effect: bool) -> list[Setting]:
    return [each for each in TOPIC_SETTINGS.values() if each.takes_effect is takes_effect]


_ALTERED: Final = ", ".join(f"`{name}`" for name in sorted(ALTERABLE & BROKER_SETTINGS.keys()))

BROKER: Final = Page(
    "Settings of the broker",
    "Flags (`--data-dir DIR`, or `--set num.partitions=3` for those without one of their own) win "
    f"over the environment (`{PREFIX}NUM_PARTITIONS=3`),\nthat over the file of `onceflow serve "
    "--config FILE`, and that over the defaults. `onceflow serve --example-config`\nprints such a "
    "file. For a broker inside a program they are keywords, `Broker(num_partitions=3)`, or a "
    "mapping;\nthere the environment does not count.",
    [
        Section(
            "The broker's own",
            f"These can be altered while the broker runs: {_ALTERED}.",
            [*BROKER_SETTINGS.values()],
        ),
        Section(
            "Defaults of topics",
            "They hold for topics that do not set it themselves ([TOPIC.md](TOPIC.md)). All but "
            "those in hours and minutes\ncan be altered while the broker runs.",
            [*DEFAULTS.values()],
        ),
    ],
)
TOPIC: Final = Page(
    "Configs of topics",
    "Given when a topic is created, and altered with any admin client: `onceflow topics create "
    "orders --config retention.ms=1000`.\nWhat a topic does not set is the broker's to say "
    "([BROKER.md](BROKER.md#defaults-of-topics)).",
    [
        Section(
            "With an effect", "", [each for each in TOPIC_SETTINGS.values() if each.takes_effect]
        ),
        Section(
            "Without an effect",
            "They are accepted, kept and described, so that a topic can be moved here as it is.",
            _topics(takes_effect=False),
        ),
    ],
)
CLIENT: Final = Page(
    "Settings of clients",
    'In a mapping, `Producer({"linger.ms": 20})`, or as keywords, `Producer(linger_ms=20)`; on '
    "the command line with `--set linger.ms=20`.\nNumbers and booleans may be texts.",
    [
        Section("Every client", "", _beside(ClientSettings)),
        Section("Producers", "", _beside(ProducerSettings, ClientSettings)),
        Section("All that read", "", _beside(ReaderSettings, ClientSettings)),
        Section("Consumers", "", _beside(ConsumerSettings, ReaderSettings)),
    ],
)
SESSION: Final = Page(
    "Settings of sessions",
    "Given as those of clients. A session takes all settings of consumers and producers besides\n"
    "([CLIENT.md](CLIENT.md)), but for `delivery`, `transactional.id` and "
    "`transaction.two.phase.commit.enable`: it is\nexactly-once. `group.id` must be given, and "
    "`auto.offset.reset` is `earliest`.",
    [Section("The session's own", "", _beside(SessionSettings))],
)
SOURCE: Final = Page(
    "Options of the Spark source",
    'For `format("onceflow")`, in `.option(...)`; by Spark\'s names, in small or capital letters. '
    "Settings of clients that\nread ([CLIENT.md](CLIENT.md)) are options, too, with or without "
    "`kafka.` before them; `kafka.bootstrap.servers` must\nbe given, and one of `subscribe`, "
    "`subscribePattern` and `assign`.",
    [Section("The source's own", "", [*OPTIONS.settings.values()])],
)
SINK: Final = Page(
    "Arguments of the Spark sink",
    "For `write_stream` and `write`, as keywords of Python. Settings of producers "
    "([CLIENT.md](CLIENT.md#producers)) may be\ngiven beside them, as keywords or in `settings`.",
    [Section("The sink's own", "", [*ARGUMENTS.settings.values()])],
)
PIPELINE: Final = Page(
    "Keys of a pipeline",
    "In the TOML file of `onceflow run`, or in the mapping of a `Pipeline`. Keys of Onceflow have "
    "underscores, because a dot\nin TOML makes a table; settings of Kafka have dots.",
    [
        Section("[pipeline]", "", [*keys.PIPELINE.values()]),
        Section(
            "[source]",
            "One of `topics` and `pattern` must be given. Of several sources each has its table, "
            "`[source.NAME]`, with these\nkeys but for `bootstrap`.",
            [*keys.ADDRESS.values(), *keys.SOURCE.values()],
        ),
        Section("[source.watermark]", "Both or none.", [*keys.WATERMARK.values()]),
        Section("[transform]", "At most one of them.", [*keys.TRANSFORM.values()]),
        Section("[sink]", "", [*keys.SINK.values()]),
        Section("[dead_letters]", "", [*keys.DEAD_LETTERS.values()]),
        Section("[trigger]", "At most one of them.", [*keys.TRIGGER.values()]),
        Section(
            "[rules], [settings] and [broker]",
            "`[rules]` has conditions by names of your own (of several sources each has its table, "
            "`[rules.NAME]`), `[settings]` has\nsettings of clients ([CLIENT.md](CLIENT.md)) and "
            "of Spark (`spark.`), `[broker]` those of the broker that is started\nwhere there is "
            "no `bootstrap` ([BROKER.md](BROKER.md)).",
            [],
        ),
    ],
)
PAGES: Final[Mapping[str, Page]] = {
    "BROKER": BROKER,
    "TOPIC": TOPIC,
    "CLIENT": CLIENT,
    "SESSION": SESSION,
    "SOURCE": SOURCE,
    "SINK": SINK,
    "PIPELINE": PIPELINE,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in all_pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""The settings of the clients, under Kafka's own names: one frozen value for each kind of client,
read from a mapping or from keyword arguments, and checked as a whole before anything connects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.settings.clients import (
        CODECS as CODECS,
        ClientSettings as ClientSettings,
        ProducerSettings as ProducerSettings,
        ReaderSettings as ReaderSettings,
        catalogue_of as catalogue_of,
    )
    from onceflow.client.settings.consumer import (
        EARLIEST as EARLIEST,
        NONE as NONE,
        RAISE as RAISE,
        ConsumerSettings as ConsumerSettings,
        FetcherSettings as FetcherSettings,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "clients": "CODECS ClientSettings ProducerSettings ReaderSettings catalogue_of",
            "consumer": "ConsumerSettings EARLIEST FetcherSettings NONE RAISE",
        },
    )

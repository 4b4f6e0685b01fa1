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
    )
    from onceflow.client.settings.consumer import (
        EARLIEST as EARLIEST,
        NONE as NONE,
        RAISE as RAISE,
        ConsumerSettings as ConsumerSettings,
        FetcherSettings as FetcherSettings,
    )
    from onceflow.client.settings.values import (
        LARGEST_INT as LARGEST_INT,
        NotAllowed as NotAllowed,
        one_of as one_of,
        secret as secret,
        setting as setting,
        unknown as unknown,
        whole_number as whole_number,
        words as words,
        yes_or_no as yes_or_no,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "clients": "CODECS ClientSettings ProducerSettings ReaderSettings",
            "consumer": "ConsumerSettings EARLIEST FetcherSettings NONE RAISE",
            "values": "LARGEST_INT NotAllowed one_of secret setting unknown "
            "whole_number words yes_or_no",
        },
    )

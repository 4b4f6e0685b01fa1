"""The consumer: fetches records ahead, filters them by isolation level, returns them in order, and
commits their offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.consumer.consumer import Consumer as Consumer
    from onceflow.client.consumer.consumer_work import ConsumerWork as ConsumerWork
    from onceflow.client.consumer.fetch_request import fetch as fetch
    from onceflow.client.consumer.fetched import (
        Columns as Columns,
        Record as Record,
        columns_of as columns_of,
        offset_at as offset_at,
        portions_of as portions_of,
        records_in as records_in,
        records_of as records_of,
        values_of as values_of,
    )
    from onceflow.client.consumer.lag import (
        PartitionLag as PartitionLag,
        count_records as count_records,
    )
    from onceflow.client.consumer.listener_guard import ListenerGuard as ListenerGuard
    from onceflow.client.consumer.metrics import ConsumerMetrics as ConsumerMetrics
    from onceflow.client.consumer.range_reading import RangeReading as RangeReading
    from onceflow.client.consumer.rebalance import RebalanceListener as RebalanceListener
else:
    __getattr__ = door(
        __name__,
        {
            "consumer": "Consumer",
            "consumer_work": "ConsumerWork",
            "fetch_request": "fetch",
            "fetched": "Columns Record columns_of offset_at portions_of records_in "
            "records_of values_of",
            "lag": "PartitionLag count_records",
            "listener_guard": "ListenerGuard",
            "metrics": "ConsumerMetrics",
            "range_reading": "RangeReading",
            "rebalance": "RebalanceListener",
        },
    )

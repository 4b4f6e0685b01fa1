"""The metrics of clients for Prometheus, by its own library (`pip install 'onceflow[console]'`).

Names are Kafka's, as Prometheus writes them: `record-send-total` of a producer is
`onceflow_producer_record_send_total`. What a consumer knows of each partition has the labels
`topic` and `partition`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onceflow.client import metrics

_TOTAL: Final = "-total"


class Measured(Protocol):
    """What a client has counted."""

    kind: str

    @property
    def metrics(self) -> tuple[metrics.Metric, ...]:
        """All of them; those of the same name stand together."""
        ...

    def now(self) -> float:
        """By the clock of the client."""
        ...


class ClientCollector(Collector):
    """Of one client, which the label `client` tells from others. Reads when it is asked.

    >>> from prometheus_client import CollectorRegistry
    >>> from onceflow.blocking import Producer
    >>> registry = CollectorRegistry()
    >>> with Producer(bootstrap) as producer:
    ...     registry.register(ClientCollector("shop", producer.measured))
    ...     _ = producer.send("orders", b"paid").result()
    ...     registry.get_sample_value("onceflow_producer_record_send_total", {"client": "shop"})
    1.0
    """

    def __init__(self, client: str, measured: Measured) -> None:
        self._client = client
        self._measured = measured

    def collect(self) -> Iterator[Metric]:
        now = self._measured.now()
        for name, same in groupby(self._measured.metrics, key=lambda each: each.name):
            first, *others = same
            family = CounterMetricFamily if first.is_total else GaugeMetricFamily
            found = family(
                f"onceflow_{self._measured.kind}_{_snake(name)}",
                first.meaning,
                labels=["client"] if first.of is None else ["client", "topic", "partition"],
            )
            for each in (first, *others):
                place = () if each.of is None else (each.of.topic, str(each.of.partition))
                found.add_metric([self._client, *place], each.read(now))
            yield found


def _snake(name: str) -> str:
    # The library writes the last word of a counter itself.
    return name.removesuffix(_TOTAL).replace("-", "_")

"""The metrics of clients for Prometheus, by its own library (`pip install 'onceflow[console]'`).

    async with Producer(bootstrap) as producer:
        prometheus_client.REGISTRY.register(ClientCollector("shop", producer.measured))

Names are Kafka's, as Prometheus writes them: `record-send-total` of a producer is
`onceflow_producer_record_send_total`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onceflow.client import metrics

_TOTAL: Final = "-total"


class Measured(Protocol):
    """What a client has counted."""

    kind: str
    metrics: tuple[metrics.Metric, ...]

    def now(self) -> float:
        """By the clock of the client."""
        ...


class ClientCollector(Collector):
    """Of one client, which the label `client` tells from others. Reads when it is asked."""

    def __init__(self, client: str, measured: Measured) -> None:
        self._client = client
        self._measured = measured

    def collect(self) -> Iterator[Metric]:
        now = self._measured.now()
        for each in self._measured.metrics:
            name = f"onceflow_{self._measured.kind}_{_snake(each.name)}"
            family = CounterMetricFamily if each.is_total else GaugeMetricFamily
            found = family(name, each.meaning, labels=["client"])
            found.add_metric([self._client], each.read(now))
            yield found


def _snake(name: str) -> str:
    # The library writes the last word of a counter itself.
    return name.removesuffix(_TOTAL).replace("-", "_")

"""A producer id for a producer without a transactional id: any broker gives one."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from onceflow.client.net import Cluster, check
from onceflow.client.producer.batch import ProducerIdAndEpoch
from onceflow.runtime import message_library
from onceflow.wire import ApiKey

_NEWEST: Final = 5
"""The next one is of two-phase commits."""
_NEVER: Final = timedelta(milliseconds=2**31 - 1)


async def new_producer_id(cluster: Cluster) -> ProducerIdAndEpoch:
    """One that nobody has had, in its first epoch. Raises what the broker says."""
    with message_library:
        from kio.schema.init_producer_id.v4.request import InitProducerIdRequest

    connection = await cluster.any_broker()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout=_NEVER)
    answer = await connection.request(ApiKey.INIT_PRODUCER_ID, request, newest=_NEWEST)
    check(ApiKey.INIT_PRODUCER_ID, answer, "a producer id")
    return ProducerIdAndEpoch(int(answer.producer_id), int(answer.producer_epoch))

"""The admin client for programs without asyncio: the same names, and every call blocks."""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.blocking.twin import Twin, blocking
from onceflow.client.admin import admin as twin


class Admin(Twin[twin.Admin]):
    """Describes and changes a cluster; `with` connects it.

    Settings have Kafka's names: with underscores as keywords, with dots in `more`.

    >>> with Admin(bootstrap) as admin:
    ...     _ = admin.create_topic("bills", partitions=3)
    ...     print([topic.name for topic in admin.list_topics()])
    ['bills', 'orders', 'payments']
    """

    def __init__(
        self, bootstrap: str, more: Mapping[str, object] | None = None, /, **settings: object
    ) -> None:
        super().__init__(twin.Admin(bootstrap, {**(more or {}), **settings}))

    list_topics = blocking(twin.Admin.list_topics)
    describe_topic = blocking(twin.Admin.describe_topic)
    create_topic = blocking(twin.Admin.create_topic)
    delete_topic = blocking(twin.Admin.delete_topic)
    add_partitions = blocking(twin.Admin.add_partitions)
    topic_configs = blocking(twin.Admin.topic_configs)
    broker_configs = blocking(twin.Admin.broker_configs)
    alter_configs = blocking(twin.Admin.alter_configs)

    list_offsets = blocking(twin.Admin.list_offsets)
    offset_ranges = blocking(twin.Admin.offset_ranges)
    offsets_at = blocking(twin.Admin.offsets_at)
    delete_records = blocking(twin.Admin.delete_records)

    list_groups = blocking(twin.Admin.list_groups)
    describe_group = blocking(twin.Admin.describe_group)
    lag_behind = blocking(twin.Admin.lag_behind)
    committed_offsets = blocking(twin.Admin.committed_offsets)
    commit_offsets = blocking(twin.Admin.commit_offsets)
    delete_group = blocking(twin.Admin.delete_group)

    list_transactions = blocking(twin.Admin.list_transactions)
    describe_transaction = blocking(twin.Admin.describe_transaction)
    describe_producers = blocking(twin.Admin.describe_producers)
    open_transactions = blocking(twin.Admin.open_transactions)
    find_hanging_transactions = blocking(twin.Admin.find_hanging_transactions)
    abort_open_transaction = blocking(twin.Admin.abort_open_transaction)

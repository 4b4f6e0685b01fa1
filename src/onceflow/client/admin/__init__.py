"""The admin client: describes and changes topics, groups, offsets and transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.admin.admin import Admin as Admin
    from onceflow.client.admin.groups import (
        COUNTED as COUNTED,
        committed_offsets as committed_offsets,
    )
    from onceflow.client.admin.topics import (
        broker_configs as broker_configs,
        create_topic as create_topic,
        list_topics as list_topics,
    )
    from onceflow.client.admin.transactions import (
        TransactionNotFound as TransactionNotFound,
        describe_transaction as describe_transaction,
        end_open_transaction as end_open_transaction,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "admin": "Admin",
            "groups": "COUNTED committed_offsets",
            "topics": "broker_configs create_topic list_topics",
            "transactions": "TransactionNotFound describe_transaction end_open_transaction",
        },
    )

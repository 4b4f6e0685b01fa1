"""The way to a cluster: connections, their security and their sharing, the leaders and
coordinators, and retries within bounds. Knows no records and no transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.net.address import (
        BrokerAddress as BrokerAddress,
        comma_separated as comma_separated,
        parse_addresses as parse_addresses,
    )
    from onceflow.client.net.cluster import (
        Cluster as Cluster,
        CoordinatorOf as CoordinatorOf,
        check as check,
        error_in as error_in,
    )
    from onceflow.client.net.connection import BrokerConnection as BrokerConnection
    from onceflow.client.net.pool import (
        ClusterSettings as ClusterSettings,
        ConnectionLane as ConnectionLane,
    )
    from onceflow.client.net.retry import (
        TRANSACTIONAL as TRANSACTIONAL,
        Backoff as Backoff,
        RetryPolicy as RetryPolicy,
        Trying as Trying,
        retrying_each as retrying_each,
    )
    from onceflow.client.net.scram import Derivation as Derivation
    from onceflow.client.net.security import (
        MECHANISMS as MECHANISMS,
        PLAINTEXT as PLAINTEXT,
        PROTOCOLS as PROTOCOLS,
        Security as Security,
        log_in as log_in,
    )
    from onceflow.client.net.stream import LARGEST_ANSWER as LARGEST_ANSWER
    from onceflow.client.net.versions import (
        NEWEST_WITHOUT_TRANSACTION_V2 as NEWEST_WITHOUT_TRANSACTION_V2,
        SPOKEN as SPOKEN,
        VersionRange as VersionRange,
        choose as choose,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "address": "BrokerAddress comma_separated parse_addresses",
            "cluster": "Cluster CoordinatorOf check error_in",
            "connection": "BrokerConnection",
            "pool": "ClusterSettings ConnectionLane",
            "retry": "Backoff RetryPolicy TRANSACTIONAL Trying retrying_each",
            "scram": "Derivation",
            "security": "MECHANISMS PLAINTEXT PROTOCOLS Security log_in",
            "stream": "LARGEST_ANSWER",
            "versions": "NEWEST_WITHOUT_TRANSACTION_V2 SPOKEN VersionRange choose",
        },
    )

"""The way to a cluster: connections, their security and their sharing, the leaders and
coordinators, and retries within bounds. Knows no records and no transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.net.cluster import (
        Cluster as Cluster,
        CoordinatorOf as CoordinatorOf,
        check as check,
        error_in as error_in,
    )
    from onceflow.client.net.cluster_settings import ClusterSettings as ClusterSettings
    from onceflow.client.net.connection import BrokerConnection as BrokerConnection
    from onceflow.client.net.frames import (
        LARGEST_ANSWER as LARGEST_ANSWER,
        Buffer as Buffer,
        RequestHead as RequestHead,
        body_of as body_of,
        correlation_id_of as correlation_id_of,
        framed as framed,
        login_head as login_head,
        next_correlation_id as next_correlation_id,
        request_head as request_head,
    )
    from onceflow.client.net.opening import (
        SOFTWARE_NAME as SOFTWARE_NAME,
        agree_on_versions as agree_on_versions,
        hangs_up as hangs_up,
        silent as silent,
        tls_failed as tls_failed,
        unreachable as unreachable,
        version_for as version_for,
    )
    from onceflow.client.net.pool import ConnectionLane as ConnectionLane
    from onceflow.client.net.retry import (
        TRANSACTIONAL as TRANSACTIONAL,
        Attempts as Attempts,
        Backoff as Backoff,
        RetryPolicy as RetryPolicy,
        Trying as Trying,
        is_worth_it as is_worth_it,
    )
    from onceflow.client.net.retrying import retrying_each as retrying_each
    from onceflow.client.net.scram import Derivation as Derivation
    from onceflow.client.net.security import (
        MECHANISMS as MECHANISMS,
        PLAINTEXT as PLAINTEXT,
        PROTOCOLS as PROTOCOLS,
        Security as Security,
        log_in as log_in,
    )
    from onceflow.client.net.view import (
        NO_LEADER as NO_LEADER,
        ClusterView as ClusterView,
        no_leader as no_leader,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "cluster": "Cluster CoordinatorOf check error_in",
            "cluster_settings": "ClusterSettings",
            "connection": "BrokerConnection",
            "frames": "Buffer LARGEST_ANSWER RequestHead body_of correlation_id_of framed "
            "login_head next_correlation_id request_head",
            "opening": "SOFTWARE_NAME agree_on_versions hangs_up silent tls_failed "
            "unreachable version_for",
            "pool": "ConnectionLane",
            "retry": "Attempts Backoff RetryPolicy TRANSACTIONAL Trying is_worth_it",
            "retrying": "retrying_each",
            "scram": "Derivation",
            "security": "MECHANISMS PLAINTEXT PROTOCOLS Security log_in",
            "view": "ClusterView NO_LEADER no_leader",
        },
    )

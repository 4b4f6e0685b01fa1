"""What a client knows of its cluster: brokers, leaders, coordinators and feature levels.

A value that responses change and requests are planned by; it opens nothing and waits for nothing.
The asyncio cluster and the blocking one ask, and let it learn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from onceflow.client.address import BrokerAddress
from onceflow.client.codec import (
    GROUP,
    TRANSACTION,
    UNKNOWN_EPOCH,
    BrokerOffer,
    FoundCoordinator,
    MetadataResponse,
)
from onceflow.client.errors import BrokerError, ClientError, ConnectionLost, TopicNameInvalid
from onceflow.client.types import TopicMetadata
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey, ErrorCode

NO_LEADER: Final = -1
NO_SUCH_TOPIC: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_TRANSACTION_VERSION: Final = "transaction.version"
_NO_FEATURES: Final[Mapping[str, int]] = MappingProxyType({})
_SUBJECTS: Final = {GROUP: "group", TRANSACTION: "transactional id"}


class KnownTopic(NamedTuple):
    """A topic's metadata, and when it was learned."""

    topic: TopicMetadata
    since: float


class LearnedTopics(NamedTuple):
    """What one metadata response says of the topics that were asked for."""

    topics: list[TopicMetadata]
    missing: list[str]
    refused: ClientError | None


class ClusterView:
    """Belongs to one client."""

    __slots__ = (
        "_bootstrap",
        "_coordinators",
        "_errors",
        "_topics",
        "brokers",
        "controller",
        "features",
        "features_epoch",
    )

    def __init__(self, bootstrap: Sequence[BrokerAddress]) -> None:
        self._bootstrap = tuple(bootstrap)
        self.brokers: dict[int, BrokerAddress] = {}
        """Those that were alive in the latest metadata, and coordinators found since."""
        self.controller = -1
        self.features = _NO_FEATURES
        """The newest finalized levels that a broker has reported."""
        self.features_epoch = UNKNOWN_EPOCH
        self._topics: dict[str, KnownTopic] = {}
        self._errors: dict[str, int] = {}
        self._coordinators: dict[tuple[int, str], FoundCoordinator] = {}

    # --- learning -------------------------------------------------------------------------------

    def learn(self, response: MetadataResponse, now: float) -> LearnedTopics:
        """Takes in a metadata response; forgets topics that it reports with an error."""
        self.brokers = dict(response.brokers)
        self.controller = response.controller
        self._errors = {}
        learned = LearnedTopics([], [], None)
        for error, topic in response.topics:
            name = topic.name
            if not error:
                learned.topics.append(topic)
                self._topics[name] = KnownTopic(topic, now)
                continue
            self.forget_topic(name)
            self._errors[name] = error
            if error in NO_SUCH_TOPIC:
                learned.missing.append(name)
            elif error == ErrorCode.INVALID_TOPIC_EXCEPTION:
                learned = learned._replace(refused=TopicNameInvalid(name))
            else:
                refusal = BrokerError(error, ApiKey.METADATA.name, f"topic {name!r}")
                learned = learned._replace(refused=refusal)
        return learned

    def learn_features(self, offer: BrokerOffer) -> None:
        """Never goes back to an older epoch: a broker that is behind would undo
        `transaction.version`."""
        if offer.features_epoch >= self.features_epoch:
            self.features = MappingProxyType(offer.features)
            self.features_epoch = offer.features_epoch

    def learn_coordinator(self, kind: int, name: str, found: FoundCoordinator) -> int:
        """Takes in who coordinates a group or a transactional id; raises the broker's error."""
        if found.error:
            subject = f"{_SUBJECTS[kind]} {name!r}"
            key = ApiKey.FIND_COORDINATOR.name
            raise BrokerError(found.error, key, subject, found.message)
        self.brokers[found.node_id] = found.address
        self._coordinators[kind, name] = found
        return found.node_id

    def forget_topic(self, name: str) -> None:
        """Drops the metadata of a topic that is gone."""
        self._topics.pop(name, None)

    def forget_coordinator(self, kind: int, name: str) -> None:
        """Drops a coordinator that has moved."""
        self._coordinators.pop((kind, name), None)

    def forget_coordinators(self) -> None:
        self._coordinators.clear()

    # --- brokers --------------------------------------------------------------------------------

    def addresses(self) -> Iterator[BrokerAddress]:
        """Where a broker may be found: as configured, then as learned."""
        return iter(dict.fromkeys((*self._bootstrap, *self.brokers.values())))

    def address(self, node_id: int) -> BrokerAddress:
        """Raises `ConnectionLost` for a broker that is not alive."""
        address = self.brokers.get(node_id)
        if address is None:
            raise ConnectionLost(
                f"broker {node_id} is not among the cluster's live brokers", outcome="not applied"
            )
        return address

    def coordinator(self, kind: int, name: str) -> int | None:
        """The broker that coordinates; None when it has to be looked up."""
        found = self._coordinators.get((kind, name))
        return None if found is None else found.node_id

    def coordinator_address(self, kind: int, name: str) -> BrokerAddress | None:
        """Where it was found. It counts also when the latest metadata leaves that broker out, as
        those of a broker that is behind may."""
        found = self._coordinators.get((kind, name))
        return None if found is None else found.address

    @property
    def transaction_version(self) -> int:
        """The finalized level of `transaction.version`; 0 when no broker reports one. Partitions
        may join a transaction implicitly only at level 2, whatever versions the broker offers."""
        return self.features.get(_TRANSACTION_VERSION, 0)

    # --- topics ---------------------------------------------------------------------------------

    @property
    def topics(self) -> Iterable[str]:
        """The names of all known ones."""
        return self._topics.keys()

    def topic(self, name: str) -> KnownTopic | None:
        return self._topics.get(name)

    def error_of(self, name: str) -> int:
        """The error with which the latest metadata reported a topic; 0 without one."""
        return self._errors.get(name, 0)

    def leader(self, partition: TopicPartition) -> int | None:
        """The leader, -1 when the partition has none now; None when it is not known."""
        known = self._topics.get(partition.topic)
        return None if known is None else leader_in(known.topic, partition.partition)


def leader_in(topic: TopicMetadata, number: int) -> int | None:
    """The leader of one of a topic's partitions; None when there is no such partition."""
    partitions = topic.partitions
    if 0 <= number < len(partitions) and partitions[number].partition == number:  # as always
        return partitions[number].leader
    return next((each.leader for each in partitions if each.partition == number), None)


def no_leader(partition: TopicPartition) -> BrokerError:
    """A partition without a leader: the error to raise."""
    code = ErrorCode.LEADER_NOT_AVAILABLE
    return BrokerError(code, ApiKey.METADATA.name, f"partition {partition}")

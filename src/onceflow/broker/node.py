"""This broker as its handlers see it: the one node of a cluster of one.

All its services are made here, and whatever one of them tells another goes from here: which topic
is deleted, which marker decides about offsets, which settings were altered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final

from onceflow.broker.config import BrokerConfig, BrokerSettings, ListenAddress
from onceflow.broker.group import GroupService, OffsetsTopic
from onceflow.broker.produce import BatchChecks, ProducerExpiry
from onceflow.broker.requests import CallLater, Slices
from onceflow.broker.topics import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    InternalTopic,
    Steps,
    Topics,
    Turns,
    Unapplied,
)
from onceflow.broker.txn import (
    Markers,
    ProducerIds,
    TransactionDependencies,
    TransactionService,
    TransactionStateStore,
    TransactionsTopic,
    repair,
)
from onceflow.group import GroupDependencies
from onceflow.log import LogStore, Ticket
from onceflow.runtime import Background, Clock, Rand, SteadyClock

_ABSURD_PRODUCER_ID: Final = 2**62


@dataclass(frozen=True, slots=True)
class NodeSurroundings:
    """What the services of a broker need of the world."""

    clock: Clock
    rand: Rand
    call_later: CallLater
    background: Background


class Node:
    """All state and all services; belongs to the broker's loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: LogStore,
        surroundings: NodeSurroundings,
        on_altered: Callable[[BrokerConfig], None],
    ) -> None:
        """`on_altered` gets the former settings after they have been altered."""
        clock, call_later = surroundings.clock, surroundings.call_later
        self.settings = BrokerSettings(config)
        self.config = config
        self.store = store
        self.clock = clock
        self.call_later = call_later
        self.listening = config.listen
        """Where the broker really listens, once it does."""
        self.address = config.advertise or config.listen
        """The address that clients get from Metadata and FindCoordinator."""
        self.served: Counter[int] = Counter()
        """How many requests of each API, by its number."""
        self.checks = BatchChecks(surroundings.background)
        self.slices = Slices(
            call_later,
            lambda name, error: store.quarantine.report(name, "the broker", "", error),
        )
        self.turns = Turns(clock, self.slices)
        self.topics = Topics(
            store,
            clock,
            surroundings.rand,
            self.settings,
            self.slices,
            self._topic_deleted,
        )
        # From here on the settings are those that hold, and not only those of this start.
        self.config = config = self.settings.config
        self.settings.on_altered = self._settings_altered
        self._on_altered = on_altered
        self._expiry = ProducerExpiry(
            self.topics, store.quarantine, clock, config.producer_id_expiration_ms
        )
        if store.report.may_have_lost:
            self.topics.begin_epochs()
        self._offsets = OffsetsTopic(self.topics, clock, config.offsets_topic_num_partitions)
        self._transactions_topic = TransactionsTopic(
            self.topics, clock, config.transaction_state_log_num_partitions
        )
        self.own_topics: Mapping[str, InternalTopic] = {
            OFFSETS_TOPIC: self._offsets,
            TRANSACTIONS_TOPIC: self._transactions_topic,
        }
        self.groups = self._make_groups(surroundings.rand)
        self.markers = Markers(self.topics, clock, self.groups)
        self.transactions = self._make_transactions()

    def _make_groups(self, rand: Rand) -> GroupService:
        partitions = self._offsets.partition_count
        groups = GroupService(
            replace(self.config.to_group_config(), offsets_topic_num_partitions=partitions),
            GroupDependencies(
                SteadyClock(self.clock),
                rand,
                self.call_later,
                self._offsets,
                self._topic_exists,
                partial(self.store.quarantine.attempt, "expiry of a group's offsets"),
            ),
        )
        self._offsets.replay(groups.replay, self._unapplied(OFFSETS_TOPIC))
        groups.loaded()
        return groups

    def _topic_deleted(self, name: str) -> None:
        self.groups.topic_deleted(name)

    def _settings_altered(self) -> None:
        before, self.config = self.config, self.settings.config
        self._expiry.silent_ms = self.config.producer_id_expiration_ms
        self._on_altered(before)

    def _make_transactions(self) -> TransactionService:
        ids = ProducerIds(self.topics)
        dependencies = TransactionDependencies(
            SteadyClock(self.clock),
            self.call_later,
            self.topics,
            self._transactions_topic,
            self._offsets.ensure_partition,
            self.markers,
            ids,
            self.store.quarantine,
        )
        store = TransactionStateStore(dependencies)
        unapplied = self._unapplied(TRANSACTIONS_TOPIC)
        store.load(unapplied)
        # Before `repair`, which may take new producer ids: none of them may be in a log already.
        self.topics.note_producer_ids_in_use(self._highest_producer_id(store))
        if self.store.report.may_have_lost or unapplied.skipped:
            repair(self.topics, store, self.markers, self.clock.wall_ms(), ids.take)
        return TransactionService(self.config, dependencies, store)

    def _unapplied(self, topic: str) -> Unapplied:
        return Unapplied(topic, skip_unknown=self.config.skip_unknown_records)

    def _highest_producer_id(self, store: TransactionStateStore) -> int:
        """The highest producer id in the logs; -1 if there is none. Absurdly high ones do not
        count: a client may write under an id that no broker gave it."""
        of_transactions = (each.producer_id for each in store.all())
        of_partitions = (
            producer_id
            for topic in self.topics.by_name.values()
            for partition in topic.partitions
            for producer_id, _ in partition.producers.producers()
        )
        seen = chain(of_transactions, of_partitions)
        return max((each for each in seen if each < _ABSURD_PRODUCER_ID), default=-1)

    def _topic_exists(self, topic: str, partition: int) -> bool:
        return self.topics.partition(topic, partition) is not None

    def expire_producers(self) -> None:
        """Begins to forget producers that have expired."""
        self.slices.run("forgetting producers", self._expiry.run())

    def expire_transactional_ids(self) -> None:
        """Begins to forget transactional ids that have expired."""
        self.slices.run("forgetting transactional ids", self.transactions.expire())

    def listens_on(self, address: ListenAddress) -> None:
        """Sets where the broker really listens, after it has chosen a port itself."""
        self.listening = address
        if self.config.advertise is None:
            self.address = address

    def auto_create(self, name: str) -> Steps[Ticket]:
        """Creates a topic that a client asked for, with the broker's defaults."""
        own = self.own_topics.get(name)
        if own is not None:
            return own.make()[0]
        return (yield from self.topics.make(name, self.config.num_partitions, {}))[1]

    def make_offsets_topic(self) -> list[Ticket]:
        """What an answer about groups has to await: the topic that keeps them."""
        return self._offsets.make()

    def make_transactions_topic(self) -> list[Ticket]:
        """What an answer about transactional ids has to await: the topic that keeps them."""
        return self._transactions_topic.make()

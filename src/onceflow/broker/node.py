"""This broker as its handlers see it: the one node of a cluster of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from onceflow.broker.config import BrokerConfig
from onceflow.broker.config_settings import Address
from onceflow.broker.group_service import GroupService
from onceflow.broker.offsets_topic import OffsetsTopic
from onceflow.broker.topics import OFFSETS_TOPIC, Topics
from onceflow.log.journal import Ticket
from onceflow.log.store import LogStore
from onceflow.runtime.clock import Clock
from onceflow.runtime.rand import Rand


class Timer(Protocol):
    """Something that will happen unless it is cancelled."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class Node:
    """All state and all services; belongs to the broker's loop."""

    def __init__(
        self,
        config: BrokerConfig,
        store: LogStore,
        clock: Clock,
        rand: Rand,
        call_later: CallLater,
    ) -> None:
        self.config = config
        self.store = store
        self.clock = clock
        self.call_later = call_later
        self.address = config.advertise or config.listen
        self.topics = Topics(store, clock, rand, config.topic_defaults)
        if store.report.may_have_lost:
            self.topics.begin_epochs()
        self._offsets = OffsetsTopic(self.topics, clock, config.offsets_topic_num_partitions)
        self.groups = GroupService(
            config.to_group_config(), clock, rand, call_later, self._offsets, self._topic_exists
        )
        self._offsets.replay(self.groups.replay)
        self.groups.loaded()
        self.topics.on_delete = self.groups.topic_deleted

    def _topic_exists(self, topic: str, partition: int) -> bool:
        return self.topics.partition(topic, partition) is not None

    def listens_on(self, address: Address) -> None:
        """Tells where the broker really listens, when it was to choose the port itself."""
        if self.config.advertise is None:
            self.address = address

    def auto_create(self, name: str) -> Ticket:
        """Makes a topic that a client asked for, with the broker's defaults."""
        if name == OFFSETS_TOPIC:
            return self._offsets.make()[0]
        return self.topics.create(name, self.config.num_partitions, {})[1]

    def make_offsets_topic(self) -> list[Ticket]:
        """What an answer about groups has to await: the topic that keeps them."""
        return self._offsets.make()

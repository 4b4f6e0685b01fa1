"""The topics of this broker, by name and by id, and every change of them.

The metadata log is the truth. A topic is created by making its logs and then saying so there; it is
deleted by saying so and then removing its logs. Whatever a crash leaves between the two is a log
that no record names, and goes at the next start if that explains it (`unknown_logs.py`). So a
change is either whole or was never answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeAlias
from uuid import UUID

from onceflow.broker.config import BrokerSettings, TopicConfig, usable_config
from onceflow.broker.requests import Slices
from onceflow.broker.topics.internal_logs import METADATA_POLICY, POLICIES
from onceflow.broker.topics.metadata_log import (
    FIRST_EPOCH,
    METADATA_LOG,
    METADATA_TOPIC,
    MetadataImage,
    TopicRecord,
    broker_record,
    cluster_record,
    log_records,
    producer_ids_record,
    topic_gone,
)
from onceflow.broker.topics.partition import HostedPartition, next_epochs
from onceflow.broker.topics.rules import folded
from onceflow.broker.topics.turns import A_TURN, Steps
from onceflow.broker.topics.unknown_logs import adopted, refusal, sort_unknown, topic_names
from onceflow.errors import OnceflowError
from onceflow.log import LogStore, PartitionLog, Purpose, Ticket
from onceflow.producers import Block
from onceflow.records import PlainRecord, write_records
from onceflow.runtime import Clock, Rand
from onceflow.types import LogId, topic_id_text
from onceflow.wire import TopicRef

_MADE_TOGETHER = 4
"""Logs; a directory and a file of each."""
_DELETED_TOGETHER = 256
"""Logs; it takes no files to delete one, only a few bytes in the journal."""

_log = logging.getLogger(__name__)


class TopicNames(Protocol):
    """Finds the name of a topic by its id, and nothing more."""

    def name_of(self, topic_id: UUID | None) -> str | None:
        """The topic's name; None if there is no such topic."""
        ...


class HostedTopic:
    """A topic and its partitions."""

    __slots__ = ("config", "is_internal", "partitions", "record")

    def __init__(self, record: TopicRecord, config: TopicConfig, partitions: list[HostedPartition]):
        self.record = record
        self.config = config
        self.partitions = partitions
        self.is_internal = record.name in POLICIES

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def topic_id(self) -> UUID:
        return self.record.topic_id


class TopicMaking:
    """A topic in the making, or one that is given more partitions: a state of its own between not
    being there and being there.

    Logs are made some at a time, in as many turns of the loop as it takes. Meanwhile the name is
    taken, but nobody finds the topic by it. When all logs are there the record is written, and with
    it the topic is there, whole.
    """

    __slots__ = ("config", "error", "first", "made", "partitions", "record")

    def __init__(self, record: TopicRecord, config: TopicConfig, first: int = 0) -> None:
        self.record = record
        self.config = config
        self.first = first
        """The index of the first partition that is to be made."""
        self.partitions: list[HostedPartition] = []
        """Those that have been made."""
        self.made: MadeTopic | None = None
        self.error: Exception | None = None
        """Why it never will be."""

    @property
    def has_all_logs(self) -> bool:
        return self.first + len(self.partitions) == self.record.partitions


MadeTopic: TypeAlias = tuple[HostedTopic, Ticket]


class Topics:
    """Belongs to the broker's loop."""

    def __init__(
        self,
        store: LogStore,
        clock: Clock,
        rand: Rand,
        settings: BrokerSettings,
        slices: Slices,
        on_delete: Callable[[str], None],
    ) -> None:
        """`on_delete` gets the name of each topic that is deleted, in the same step."""
        self._store = store
        self._clock = clock
        self._rand = rand
        self._settings = settings
        self._slices = slices
        self.by_name: dict[str, HostedTopic] = {}
        self.by_id: dict[UUID, HostedTopic] = {}
        self._making: dict[str, TopicMaking] = {}
        self._names: dict[str, set[str]] = {}  # all that are taken, by what their metrics go by
        self._on_delete = on_delete
        is_new = METADATA_LOG not in store.logs
        if is_new:
            store.create(METADATA_TOPIC, [METADATA_LOG])
        self._log = store.logs[METADATA_LOG]
        store.configure(self._log, METADATA_POLICY)
        # A directory from before there was a metadata log has no topic record at all.
        image = self._load(adopt=is_new or settings.started_with.adopt_unknown_logs)
        self._producer_ids = image.producer_ids
        self.cluster_id = image.cluster_id or topic_id_text(rand.uuid4())
        if image.cluster_id is None or self._has_lost_its_beginning(image):
            self._write(cluster_record(self.cluster_id, self._log.start_offset))

    # --- start --------------------------------------------------------------------------------

    def _load(self, *, adopt: bool) -> MetadataImage:
        image = MetadataImage()
        for each in log_records(self._log):
            image.apply(each)
        self._settings.restore(image.brokers)
        self._settle_unknown_logs(image, adopt=adopt)
        for record in image.topics.values():
            self._make_missing(record)
            self._put(record)
        return image

    def _settle_unknown_logs(self, image: MetadataImage, *, adopt: bool) -> None:
        """Removes the logs that an interrupted change explains; refuses or adopts any other."""
        unknown = sort_unknown(
            self._store.logs.values(),
            image,
            beginning_is_lost=self._has_lost_its_beginning(image),
        )
        if unknown.unexplained:
            if not adopt:
                raise refusal(unknown.unexplained)
            self._adopt(unknown.unexplained, image)
        if unknown.never_used:
            _log.warning(
                "removing %d empty logs: the creation of %s was cut off",
                len(unknown.never_used),
                topic_names(unknown.never_used),
            )
        if unknown.deleted:
            _log.warning(
                "removing %d logs: the deletion of %s was cut off",
                len(unknown.deleted),
                topic_names(unknown.deleted),
            )
        if gone := unknown.never_used + unknown.deleted:
            self._store.delete(gone)

    def _has_lost_its_beginning(self, image: MetadataImage) -> bool:
        return self._log.start_offset > image.known_from

    def _adopt(self, logs: list[PartitionLog], image: MetadataImage) -> None:
        for record in adopted(logs, image.topics.values()):
            _log.warning(
                "adopted the logs of topic %s (%d partitions), which had no topic record",
                record.name,
                record.partitions,
            )
            self._write(record.to_record())
            image.apply(record.to_record())

    def _make_missing(self, record: TopicRecord) -> None:
        log_ids = (LogId(record.topic_id, index) for index in range(record.partitions))
        missing = [log_id for log_id in log_ids if log_id not in self._store.logs]
        if missing:
            _log.warning("%s lacks %d of its logs; made empty ones", record.name, len(missing))
            self._store.create(record.name, missing)

    def _write(self, *records: PlainRecord) -> Ticket:
        batch = write_records(records, self._clock.wall_ms()).assign(self._log.end_offset, 0)
        return self._store.append(self._log, batch, purpose=Purpose.METADATA)

    def _put(self, record: TopicRecord) -> HostedTopic:
        config = self._config_of(record)
        partitions = [self._partition(record, index) for index in range(record.partitions)]
        topic = HostedTopic(record, config, partitions)
        self._configure(topic)
        self.by_name[record.name] = self.by_id[record.topic_id] = topic
        self._take_name(record.name)
        return topic

    def _config_of(self, record: TopicRecord) -> TopicConfig:
        policy = POLICIES.get(record.name)
        if policy is not None:  # whatever the record says: a client may have written it once
            return TopicConfig.parse(policy, {})
        config, problem = usable_config(record.configs, self._settings.defaults)
        if problem is not None:
            _log.error("the config of topic %s cannot be used as it is: %s", record.name, problem)
        return config

    def _partition(self, record: TopicRecord, index: int) -> HostedPartition:
        log = self._store.logs[LogId(record.topic_id, index)]
        epochs = record.epochs.get(index, FIRST_EPOCH)
        return HostedPartition(self._store, log, epochs, self._slices)

    def _configure(self, topic: HostedTopic) -> None:
        config = topic.config.to_log_config()
        for partition in topic.partitions:
            self._store.configure(partition.log, config)

    # --- looking up ---------------------------------------------------------------------------

    def find(self, topic: TopicRef) -> HostedTopic | None:
        """By name or by id."""
        return self.by_name.get(topic) if isinstance(topic, str) else self.by_id.get(topic)

    def name_of(self, topic_id: UUID | None) -> str | None:
        """What an id stands for, if there is such a topic."""
        found = None if topic_id is None else self.by_id.get(topic_id)
        return None if found is None else found.name

    def partition(self, topic: TopicRef, index: int) -> HostedPartition | None:
        """One partition, if there is such."""
        found = self.find(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def new_id(self) -> UUID:
        """An id that no topic has had."""
        return self._rand.uuid4()

    def names_like(self, name: str) -> Collection[str]:
        """Topics, there or in the making, whose names are the same or differ in '.' and '_' only:
        among many topics a name is found quickly to be free."""
        return self._names.get(folded(name), ())

    def _take_name(self, name: str) -> None:
        self._names.setdefault(folded(name), set()).add(name)

    def _free_name(self, name: str) -> None:
        alike = self._names[folded(name)]
        alike.discard(name)
        if not alike:
            del self._names[folded(name)]

    # --- changes ------------------------------------------------------------------------------

    def make(self, name: str, partitions: int, configs: dict[str, str]) -> Steps[MadeTopic]:
        """Makes a topic, some logs at a time; the ticket completes when it is there for good.
        Names, counts and configs have been checked. Raises `DiskFull` and the like with nothing
        changed."""
        making = self._begin(name, partitions, configs)
        while making.made is None:
            if making.error is not None:  # met by a caller that could not wait for the next turn
                raise making.error
            yield self._go_on(making)
        return making.made

    def create(self, name: str, partitions: int, configs: dict[str, str]) -> MadeTopic:
        """As `make`, in one go: for a topic of few partitions that is needed now."""
        making = self._making.get(name) or self._begin(name, partitions, configs)
        while making.made is None:
            self._go_on(making)
        return making.made

    def _begin(self, name: str, partitions: int, configs: dict[str, str]) -> TopicMaking:
        record = TopicRecord(
            topic_id=self.new_id(), name=name, partitions=partitions, configs=configs
        )
        making = self._making[name] = TopicMaking(record, self._config_of(record))
        self._take_name(name)
        return making

    def _go_on(self, making: TopicMaking) -> int:
        """The next slice; how many logs were made in it."""
        try:
            if not making.has_all_logs:
                return self._make_logs(making)
            making.made = self._finish(making)
        except Exception as error:
            making.error = error
            del self._making[making.record.name]
            self._free_name(making.record.name)
            self._remove_made(making)
            raise
        return 1

    def _make_logs(self, making: TopicMaking) -> int:
        record, start = making.record, making.first + len(making.partitions)
        stop = min(start + _MADE_TOGETHER, record.partitions)
        log_ids = [LogId(record.topic_id, index) for index in range(start, stop)]
        # An attempt to add partitions that failed has left empty logs.
        self._store.create(record.name, [each for each in log_ids if each not in self._store.logs])
        config = making.config.to_log_config()
        for index in range(start, stop):
            partition = self._partition(record, index)
            self._store.configure(partition.log, config)
            making.partitions.append(partition)
        return stop - start

    def _finish(self, making: TopicMaking) -> MadeTopic:
        record = making.record
        # The record last: whatever a crash leaves before it are empty logs, which a start removes.
        ticket = self._write(record.to_record())
        topic = HostedTopic(record, making.config, making.partitions)
        del self._making[record.name]
        self.by_name[record.name] = self.by_id[record.topic_id] = topic
        return topic, ticket

    def _remove_made(self, making: TopicMaking) -> None:
        with suppress(OnceflowError):  # then the next start removes them
            self._store.delete([partition.log for partition in making.partitions])

    def delete(self, topic: HostedTopic) -> Steps[Ticket]:
        """Removes a topic, and then its records, those of some partitions at a time. A start
        removes what a crash has left of them."""
        # The record first: it is the evidence by which a start may remove the logs behind a crash.
        # The other way round, a start would bring the topic back with part of its records.
        ticket = self._write(topic_gone(topic.topic_id))
        del self.by_name[topic.name], self.by_id[topic.topic_id]
        self._free_name(topic.name)
        # In this step: a crash between the two would leave offsets to the next topic of that name.
        self._on_delete(topic.name)
        for start in range(0, len(topic.partitions), _DELETED_TOGETHER):
            some = topic.partitions[start : start + _DELETED_TOGETHER]
            ticket = self._store.delete([partition.log for partition in some])
            for partition in some:
                partition.wake()
            yield A_TURN
        return ticket

    def add_partitions(self, topic: HostedTopic, total: int) -> Steps[Ticket]:
        """Gives a topic more partitions, up to `total`, all at the same moment; their logs are made
        some at a time before. If that fails they stay, empty, for the next attempt."""
        record = replace(topic.record, partitions=total)
        making = TopicMaking(record, topic.config, first=len(topic.partitions))
        while not making.has_all_logs:
            yield self._make_logs(making)
        record = replace(topic.record, partitions=total)  # its config may be another by now
        ticket = self._write(record.to_record())
        topic.record = record
        topic.partitions += making.partitions
        self._configure(topic)
        return ticket

    def alter(self, topic: HostedTopic, config: TopicConfig) -> Ticket:
        """Gives a topic another config."""
        record = replace(topic.record, configs={**config.overrides, **config.unusable})
        ticket = self._write(record.to_record())
        topic.record = record
        # By the defaults that hold now: while one of them did not go with the topic, it worked
        # without that one.
        topic.config = self._config_of(record)
        self._configure(topic)
        return ticket

    def alter_broker(self, broker: str, configs: Mapping[str, str]) -> Ticket:
        """Gives the broker other settings. Topics follow by `take_over_defaults`."""
        ticket = self._write(broker_record(broker, configs))
        self._settings.apply(broker, configs)
        return ticket

    def take_over_defaults(self) -> Steps[None]:
        """What topics do not set themselves is as the broker's settings are by now, of some topics
        at a time. Those that are made meanwhile know it already."""
        for making in self._making.values():
            making.config = self._config_of(making.record)
            for partition in making.partitions:
                self._store.configure(partition.log, making.config.to_log_config())
        for topic in list(self.by_name.values()):
            if self.by_id.get(topic.topic_id) is topic:  # and was not deleted meanwhile
                topic.config = self._config_of(topic.record)
                self._configure(topic)
            yield len(topic.partitions)

    def claim_producer_ids(self) -> tuple[Block, Ticket]:
        """A block of producer ids; no client may see one of them before the claim is durable."""
        block = self._producer_ids.claim(self._producer_ids.next_unclaimed)
        ticket = self._write(producer_ids_record(block))
        self._producer_ids.apply(block)
        return block, ticket

    def note_producer_ids_in_use(self, highest: int) -> None:
        """Ids up to `highest` are in the logs: they are not handed out again, also if the record
        of their claim was lost, as a power cut may lose it with `durability=os`."""
        if highest >= self._producer_ids.next_unclaimed:
            _log.warning(
                "producer ids up to %d are in use, though claims are known only up to %d",
                highest,
                self._producer_ids.next_unclaimed - 1,
            )
            self._producer_ids.skip_to(highest + 1)

    def begin_epochs(self) -> None:
        """Says that the end of any partition may have been lost: what readers remember of it may
        not be so any more. By the epoch they find out (OffsetForLeaderEpoch)."""
        changed = []
        for topic in self.by_name.values():
            epochs = {
                partition.index: next_epochs(
                    partition.epochs, partition.log.start_offset, partition.log.end_offset
                )
                for partition in topic.partitions
            }
            changed.append((topic, replace(topic.record, epochs=epochs)))
        if changed:
            self._write(*(record.to_record() for _, record in changed))
        for topic, record in changed:
            topic.record = record
            for partition in topic.partitions:
                partition.epochs = record.epochs[partition.index]

"""Clients that work on some days, over years, and note in the model what they were told.

Each asks until it is answered, whatever happens to the broker meanwhile: so when its work is done,
everything is known to have happened or not to have.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from onceflow.records.plain import PlainRecord, write_records
from onceflow.testing.rand import SimRand
from onceflow.wire.api import ApiKey
from tests.sim.txn.client import AGAIN, END, OFFSETS, PRODUCE, Requests
from tests.sim.txn.history import NEW, OLD, Identity, Place, PromiseBroken
from tests.sim.years.machine import DAY_MS, INT_MAX, Machine
from tests.sim.years.model import (
    Committed,
    Fate,
    Group,
    Model,
    Record,
    Repeatable,
    Topic,
    TopicRules,
)
from tests.unit.broker.broker_under_test import RawClient

TIMEOUT_MS: Final = 5_000
"""Of transactions: one that is left open is over soon."""
MOST_TRIES: Final = 300
INPUT: Final = Place("week", 0)
"""Groups say how far they have come in this partition."""
SESSION_MS: Final = 20 * DAY_MS
FOREVER: Final = 2**63 - 1

_SMALL: Final = {"internal.segment.bytes": "2500"}
_DAY: Final = str(DAY_MS)
TOPICS: Final = (
    Topic(
        "keep",
        1,
        {"retention.ms": "-1", "message.timestamp.after.max.ms": str(FOREVER), **_SMALL},
        TopicRules(retention_ms=-1),
    ),
    Topic("week", 2, {}, TopicRules()),
    Topic(
        "days",
        1,
        {"retention.ms": str(2 * DAY_MS), "segment.ms": _DAY},
        TopicRules(retention_ms=2 * DAY_MS, segment_ms=DAY_MS),
    ),
    Topic(
        "table",
        1,
        {"cleanup.policy": "compact", **_SMALL},
        TopicRules(compacts=True, deletes=False),
    ),
    Topic(
        "lately",
        1,
        {"cleanup.policy": "compact,delete", "retention.ms": str(3 * DAY_MS), "segment.ms": _DAY},
        TopicRules(retention_ms=3 * DAY_MS, segment_ms=DAY_MS, compacts=True),
    ),
    Topic(
        "size",
        1,
        {"retention.ms": "-1", "retention.bytes": "6000", **_SMALL},
        TopicRules(retention_ms=-1, is_sized=True),
    ),
    Topic(
        "untimed",
        1,
        {"retention.ms": str(3 * DAY_MS), "segment.ms": _DAY, "internal.segment.bytes": "1000"},
        TopicRules(retention_ms=3 * DAY_MS, segment_ms=DAY_MS, is_timed=False),
    ),
    Topic("unread", 1, {"retention.ms": _DAY, "segment.ms": _DAY}, TopicRules(), is_read=False),
)
PLAIN: Final = ("week", "week", "days", "size", "untimed", "keep")
TRANSACTIONAL: Final = (Place("week", 0), Place("week", 1), Place("table", 0), Place("unread", 0))
KEYED: Final = ("table", "lately")
KEYS: Final = 9


class Caller:
    """One client's connection, made anew when it is lost."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.name = name
        self.rand = machine.world.rand.fork(name)
        self._machine = machine
        self._client: RawClient | None = None

    async def ask(self, key: ApiKey, version: int, fields: Any) -> Any:
        """The answer, however often it has to be asked for."""
        for _ in range(MOST_TRIES):
            try:
                if self._client is None or self._client.is_lost:
                    self._client = await self._machine.connect(self.name)
                return await self._client.ask(key, version, fields)
            except (OSError, TimeoutError):
                self.hang_up()
                self._machine.check_alive()
                await asyncio.sleep(self.rand.uniform(0.02, 0.3))
            except asyncio.CancelledError:
                self.hang_up()
                raise
        raise PromiseBroken(f"{self.name}: {key.name} is never answered")

    async def settled(self, ask: Callable[[], Awaitable[tuple[str, Any]]]) -> tuple[str, Any]:
        """Code and answer of a request, asked again for as long as the code says so."""
        for _ in range(MOST_TRIES):
            code, answer = await ask()
            if code not in AGAIN:
                return code, answer
            await asyncio.sleep(self.rand.uniform(0.02, 0.2))
        raise PromiseBroken(f"{self.name} is told {code} for ever")

    def hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None


class Client:
    """What all clients share."""

    def __init__(self, machine: Machine, model: Model, name: str) -> None:
        self.name = name
        self.machine = machine
        self.model = model
        self.caller = Caller(machine, name)
        self.rand: SimRand = self.caller.rand
        self._count = 0

    def chance(self, one_in: int) -> bool:
        return self.rand.randrange(one_in) == 0

    def new_value(self) -> bytes:
        self._count += 1
        filling = b"." * self.rand.randrange(120)
        return b"%s/%d/%s" % (self.name.encode(), self._count, filling)

    async def init(self, transactional_id: str | None, **more: Any) -> Identity:
        """A new identity."""
        fields = {**Requests.init(transactional_id, TIMEOUT_MS, None), **more}

        async def ask() -> tuple[str, Any]:
            answer = await self.caller.ask(ApiKey.INIT_PRODUCER_ID, 6, fields)
            return answer["error_code"], answer

        code, answer = await self.caller.settled(ask)
        if code != "NONE":
            raise PromiseBroken(f"{self.name} gets no producer id: {code}")
        return Identity(answer["producer_id"], answer["producer_epoch"])

    async def produce(
        self, place: Place, data: bytes, transactional_id: str | None = None, version: int = 9
    ) -> tuple[str, int]:
        """Code and offset."""
        fields = Requests.produce(transactional_id, [(place, data)])

        async def ask() -> tuple[str, Any]:
            answer = await self.caller.ask(ApiKey.PRODUCE, version, fields)
            row = answer["responses"][0]["partition_responses"][0]
            return row["error_code"], row

        code, row = await self.caller.settled(ask)
        return code, row["base_offset"]


def make_batch(
    identity: Identity,
    sequence: int,
    records: Sequence[tuple[bytes, bytes | None]],
    timestamp: int,
    *,
    transactional: bool = False,
) -> bytes:
    made = write_records(
        [PlainRecord(*each) for each in records],
        timestamp,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return bytes(made.buffer)


class Writer(Client):
    """An idempotent producer that goes on under one producer id, also after weeks."""

    def __init__(self, machine: Machine, model: Model, name: str) -> None:
        super().__init__(machine, model, name)
        self._identity: Identity | None = None
        self._sequences: dict[Place, int] = {}

    def start_again(self) -> None:
        """The next batch is that of a new producer."""
        self._identity = None

    async def work(self) -> None:
        if self._identity is None or self.chance(40):
            self._identity = await self.init(None)
            self.model.given_producer_id(self._identity.producer_id)
            self._sequences = {}
        for _ in range(1 + self.rand.randrange(2)):
            await self._write_plain()
        await self._write_keyed()

    async def _write_plain(self) -> None:
        topic = PLAIN[self.rand.randrange(len(PLAIN))]
        partition = self.rand.randrange(self.model.topics[topic].partitions)
        timestamp = self.model.clocks.wall() if topic != "untimed" else -1
        records = [(b"k", self.new_value()) for _ in range(1 + self.rand.randrange(3))]
        await self.write(Place(topic, partition), records, timestamp)

    async def _write_keyed(self) -> None:
        topic = KEYED[self.rand.randrange(len(KEYED))]
        records: list[tuple[bytes, bytes | None]] = []
        for _ in range(1 + self.rand.randrange(4)):
            key = b"key %d" % self.rand.randrange(KEYS)
            records.append((key, None if self.chance(6) else self.new_value()))
        await self.write(Place(topic, 0), records, self.model.clocks.wall())

    async def write(
        self, place: Place, records: Sequence[tuple[bytes, bytes | None]], timestamp: int
    ) -> None:
        if self._identity is None:
            raise PromiseBroken("a batch without an identity")
        sequence = self._sequences.get(place, 0)
        data = make_batch(self._identity, sequence, records, timestamp)
        code, offset = await self.produce(place, data)
        if code != "NONE":
            raise PromiseBroken(f"{self.name}: a good batch to {place} was refused: {code}")
        self._sequences[place] = sequence + len(records)
        told = self.model.appended(place, offset, list(records), timestamp, Fate.COMMITTED)
        now = self.model.clocks.wall(), self.model.clocks.now()
        self.model.repeatable.append(Repeatable(told[0], data, *now))


class Backfill(Client):
    """Brings records of other days, sent twice when an answer seems to be late."""

    async def work(self) -> None:
        identity = await self.init(None)
        self.model.given_producer_id(identity.producer_id)
        place = Place("keep", 0)
        days = (-400, -40, -8, -2, -1, 1, 40)[self.rand.randrange(7)]
        timestamp = self.model.clocks.wall() + days * DAY_MS
        records: list[tuple[bytes, bytes | None]] = [(b"old", self.new_value())]
        data = make_batch(identity, 0, records, timestamp)
        code, offset = await self.produce(place, data)
        if code != "NONE":
            raise PromiseBroken(f"a batch of {days} days was refused: {code}")
        (told,) = self.model.appended(place, offset, records, timestamp, Fate.COMMITTED)
        now = self.model.clocks.wall(), self.model.clocks.now()
        self.model.repeatable.append(Repeatable(told, data, *now))

    async def repeat(self) -> None:
        """What was sent before is sent again, and is known."""
        candidates = list(self.model.repeats())
        # Of each producer and partition the newest five are remembered; the newest one will do.
        newest = {(each.data[43:51], each.record.place): each for each in candidates}
        chosen = list(newest.values())
        self.rand.shuffle(chosen)
        for each in chosen[:4]:
            code, offset = await self.produce(each.record.place, each.data)
            if (code, offset) != ("NONE", each.record.offset):
                raise PromiseBroken(
                    f"the repeat of a batch at {each.record.place} {each.record.offset}, stamped "
                    f"{each.record.timestamp} and sent at {each.wall_ms}, was answered at "
                    f"{self.model.clocks.wall()} with {code}, {offset}"
                )


class Transactor(Client):
    """A client with a transactional id."""

    def __init__(self, machine: Machine, model: Model, name: str, generation: int) -> None:
        super().__init__(machine, model, name)
        self.group = f"group of {name}"
        self._generation = generation
        self._identity: Identity | None = None
        self._sequences: dict[Place, int] = {}
        self._records: list[Record] = []
        self._offset: Committed | None = None
        self._next_offset = 0

    def start_again(self) -> None:
        self._identity = None

    async def work(self) -> None:
        for _ in range(1 + self.rand.randrange(2)):
            if self._identity is None or self.chance(3):
                await self._begin_again()
            fate = ("commit", "commit", "commit", "abort", "leave")[self.rand.randrange(5)]
            if not await self._filled():
                self._put_out()
            elif fate == "leave":
                await asyncio.sleep(2 * TIMEOUT_MS / 1000)
                await self.caller.ask(ApiKey.LIST_TRANSACTIONS, 0, {})  # a broker is there
                await asyncio.sleep(2 * TIMEOUT_MS / 1000)
                self._put_out()
            else:
                await self._end(commit=fate == "commit")

    async def _filled(self) -> bool:
        """False when time has put the client out; nothing else may."""
        began = self.model.clocks.now()
        known = self.model.ids[self.name]
        is_kept = self.model.is_id_kept(known) and known.is_sure
        filled = await self._fill()
        if not filled and is_kept and self.machine.clocks.ordinary_since < began:
            raise PromiseBroken(f"{self.name} was put out as {self._identity} by nobody")
        return filled

    def _put_out(self) -> None:
        """Its transaction is over, and not by its own will."""
        self._decided(Fate.ABORTED)
        self.model.put_out(self.name)
        self._identity = None

    async def _begin_again(self) -> None:
        """Checks what the broker still knows of the id."""
        known = self.model.ids.get(self.name)
        is_kept = None if known is None else self.model.is_id_kept(known)
        identity = await self.init(self.name)
        if known is not None and identity.producer_id == known.identity.producer_id:
            if is_kept is False:
                raise PromiseBroken(f"{self.name} should be forgotten, and is {identity}")
            if known.is_sure and identity.epoch <= known.identity.epoch:
                raise PromiseBroken(f"{self.name} was {known.identity}, and is {identity}")
        else:
            if is_kept and known is not None and known.is_sure:
                raise PromiseBroken(f"{self.name} was {known.identity}, and is now {identity}")
            self.model.given_producer_id(identity.producer_id)
        self._take(identity)

    def _take(self, identity: Identity) -> None:
        self._identity, self._sequences = identity, {}
        self.model.used_id(self.name, identity)

    async def _fill(self) -> bool:
        """Batches and perhaps an offset; False when the client was put out by time."""
        for _ in range(1 + self.rand.randrange(3)):
            place = TRANSACTIONAL[self.rand.randrange(len(TRANSACTIONAL))]
            if not await self._produce(place):
                return False
        self._offset = None
        return not self.chance(2) or await self._commit_offset()

    async def _produce(self, place: Place) -> bool:
        identity = self._identity
        if identity is None or (self._generation == OLD and not await self._add(place)):
            return False
        key = b"key %d" % self.rand.randrange(KEYS)
        records: list[tuple[bytes, bytes | None]] = [(key, self.new_value())]
        sequence = self._sequences.get(place, 0)
        timestamp = self.model.clocks.wall()
        data = make_batch(identity, sequence, records, timestamp, transactional=True)
        version = PRODUCE[self._generation]
        code, offset = await self.produce(place, data, self.name, version)
        if code == "NONE":
            self._sequences[place] = sequence + 1
            self._records += self.model.appended(place, offset, records, timestamp, Fate.OPEN)
            self.model.used_id(self.name, identity)
        return code == "NONE"

    async def _add(self, place: Place) -> bool:
        if self._identity is None:
            return False
        fields = Requests.add(self.name, self._identity, place)

        async def ask() -> tuple[str, Any]:
            answer = await self.caller.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields)
            (topic,) = answer["results_by_topic_v3_and_below"]
            return topic["results_by_partition"][0]["partition_error_code"], None

        return (await self.caller.settled(ask))[0] == "NONE"

    async def _commit_offset(self) -> bool:
        if self._identity is None:
            return False
        self._next_offset += 1
        who = self.name, self._identity, self.group
        wanted = Requests.offsets(*who, self._next_offset)
        wanted["topics"][0]["name"] = INPUT.topic

        async def add() -> tuple[str, Any]:
            answer = await self.caller.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, Requests.add_offsets(*who))
            return answer["error_code"], None

        async def commit() -> tuple[str, Any]:
            version = OFFSETS[self._generation]
            answer = await self.caller.ask(ApiKey.TXN_OFFSET_COMMIT, version, wanted)
            return answer["topics"][0]["partitions"][0]["error_code"], None

        if self._generation == OLD and (await self.caller.settled(add))[0] != "NONE":
            return False
        if (await self.caller.settled(commit))[0] != "NONE":
            return False
        # What is committed by the transaction's end is as old as the request that asked for it.
        now = self.model.clocks.stamp(), self.model.clocks.now()
        self._offset = Committed(self._next_offset, *now)
        self.model.groups.setdefault(self.group, Group()).is_pending = True
        return True

    async def _end(self, *, commit: bool) -> None:
        identity = self._identity
        if identity is None:
            return
        fields = Requests.end(self.name, identity, commit=commit)

        async def ask() -> tuple[str, Any]:
            answer = await self.caller.ask(ApiKey.END_TXN, END[self._generation], fields)
            return answer["error_code"], answer

        code, answer = await self.caller.settled(ask)
        if code != "NONE":
            self._put_out()
            return
        self._decided(Fate.COMMITTED if commit else Fate.ABORTED)
        if self._generation == NEW:
            self._take_after_end(Identity(answer["producer_id"], answer["producer_epoch"]))
        else:
            self.model.used_id(self.name, identity)

    def _take_after_end(self, identity: Identity) -> None:
        if identity.producer_id not in self.model.handed_out:
            self.model.given_producer_id(identity.producer_id)
        self._take(identity)

    def _decided(self, fate: Fate) -> None:
        self.model.decided(self._records, fate)
        if fate is Fate.COMMITTED and self._offset is not None:
            self.model.committed(self.group, self._offset)
        self.model.groups.setdefault(self.group, Group()).is_pending = False
        self._records, self._offset = [], None


class TwoPhase(Transactor):
    """Leaves its transaction open, for days: only it may end that, and no time."""

    def __init__(self, machine: Machine, model: Model, name: str) -> None:
        super().__init__(machine, model, name, NEW)
        self._is_open = False

    async def init(self, transactional_id: str | None, **more: Any) -> Identity:
        return await super().init(transactional_id, enable2_pc=True, **more)

    async def work(self) -> None:
        if self._is_open:
            await self._end(commit=not self.chance(3))
            if self._identity is None:
                raise PromiseBroken(f"{self.name} was put out, and nobody may do that")
            self._is_open = False
            return
        if self._identity is None or self.model.is_id_kept(self.model.ids[self.name]) is not True:
            await self._begin_again()
        if not await self._fill() or self._identity is None:
            raise PromiseBroken(f"{self.name} was put out, and nobody may do that")
        self._is_open = True
        self.model.used_id(self.name, self._identity, is_open=True)

    async def give_up(self) -> None:
        """Aborts what it may have left open."""
        self._is_open = False
        self._put_out() if self.name in self.model.ids else None
        await self._begin_again()


class Committer(Client):
    """Commits offsets of groups without members, of which some are never heard of again."""

    async def work(self) -> None:
        group = f"simple-{self.rand.randrange(6)}"
        if self.chance(4):
            self._count += 1
            group = f"once-{self._count}"
        known = self.model.groups.get(group, Group())
        offset = 1 + max((each.offset for each in known.history), default=0)
        await self.commit(group, offset, -1, "")
        self.model.committed(group, self.model.commit_of(offset))

    async def commit(self, group: str, offset: int, generation: int, member: str) -> None:
        part = {
            "partition_index": INPUT.partition,
            "committed_offset": offset,
            "committed_metadata": "",
        }
        fields = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "topics": [{"name": INPUT.topic, "partitions": [part]}],
        }

        async def ask() -> tuple[str, Any]:
            answer = await self.caller.ask(ApiKey.OFFSET_COMMIT, 8, fields)
            return answer["topics"][0]["partitions"][0]["error_code"], None

        code, _ = await self.caller.settled(ask)
        if code != "NONE":
            raise PromiseBroken(f"a commit of {group} was refused: {code}")


class Member(Committer):
    """The only member of a group: there for some weeks, then not, then there again."""

    def __init__(self, machine: Machine, model: Model, name: str) -> None:
        super().__init__(machine, model, name)
        self._member: tuple[str, int] | None = None
        self._offset = 0

    async def work(self) -> None:
        before = self._member
        if before is None:
            await self._join()
        elif self.chance(12) and self.model.clocks.now() < self.model.groups[self.name].live_until:
            await self._leave()
            return
        else:
            await self._show()
        # One that was away may find that its offset has expired meanwhile.
        if self._member is not None and (self._member != before or self.chance(3)):
            self._offset += 1
            member, generation = self._member
            await self.commit(self.name, self._offset, generation, member)
            self.model.committed(self.name, self.model.commit_of(self._offset))

    async def _show(self) -> None:
        """A heartbeat; after weeks without one the group has gone on without it."""
        if self._member is None:
            return
        member, generation = self._member
        fields = {"group_id": self.name, "generation_id": generation, "member_id": member}

        async def ask() -> tuple[str, Any]:
            answer = await self.caller.ask(ApiKey.HEARTBEAT, 4, fields)
            return answer["error_code"], answer

        code, _ = await self.caller.settled(ask)
        group = self.model.groups[self.name]
        if code == "NONE":
            self._is_heard(group)
        elif self.model.clocks.now() < group.live_until:
            raise PromiseBroken(f"{self.name} was put out before its time: {code}")
        else:
            await self._join()

    def _is_heard(self, group: Group) -> None:
        group.live_until = self.model.clocks.now() + SESSION_MS / 1000 - 60
        group.emptied = None

    def start_again(self) -> None:
        self._member = None

    async def _join(self) -> None:
        metadata = struct.pack(">hih", 0, 1, len(INPUT.topic)) + INPUT.topic.encode()
        protocol = {"name": "range", "metadata": metadata + struct.pack(">i", -1)}
        fields = {
            "group_id": self.name,
            "session_timeout": min(SESSION_MS, INT_MAX),
            "rebalance_timeout": 1_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [protocol],
        }

        async def join() -> tuple[str, Any]:
            answer = await self.caller.ask(ApiKey.JOIN_GROUP, 5, fields)
            if answer["error_code"] == "MEMBER_ID_REQUIRED":
                fields["member_id"] = answer["member_id"]
                answer = await self.caller.ask(ApiKey.JOIN_GROUP, 5, fields)
            if answer["error_code"] == "UNKNOWN_MEMBER_ID":
                fields["member_id"] = ""
                return "NOT_COORDINATOR", None
            return answer["error_code"], answer

        code, joined = await self.caller.settled(join)
        if code != "NONE":
            raise PromiseBroken(f"{self.name} cannot join: {code}")
        self._member = joined["member_id"], joined["generation_id"]
        await self._sync()

    async def _sync(self) -> None:
        if self._member is None:
            return
        member, generation = self._member
        fields = {
            "group_id": self.name,
            "generation_id": generation,
            "member_id": member,
            "assignments": [{"member_id": member, "assignment": b""}],
        }

        async def ask() -> tuple[str, Any]:
            answer = await self.caller.ask(ApiKey.SYNC_GROUP, 3, fields)
            return answer["error_code"], answer

        code, _ = await self.caller.settled(ask)
        if code != "NONE":  # a start came between: what is not stored is not known
            await self._join()
            return
        self._is_heard(self.model.groups.setdefault(self.name, Group()))

    async def _leave(self) -> None:
        if self._member is None:
            return
        rows = [{"member_id": self._member[0], "group_instance_id": None}]

        async def ask() -> tuple[str, Any]:
            fields = {"group_id": self.name, "members": rows}
            answer = await self.caller.ask(ApiKey.LEAVE_GROUP, 4, fields)
            return answer["error_code"], answer

        code, _ = await self.caller.settled(ask)
        if code != "NONE":
            raise PromiseBroken(f"{self.name} cannot leave: {code}")
        self._member = None
        group = self.model.groups[self.name]
        group.live_until = 0.0
        group.emptied = self.model.clocks.stamp(), self.model.clocks.now()


class Operator(Client):
    """Makes topics and removes them, and changes what they are like."""

    async def prepare(self) -> None:
        for topic in TOPICS:
            await self._create(
                Topic(topic.name, topic.partitions, dict(topic.configs), topic.rules, topic.is_read)
            )

    async def work(self) -> None:
        brief = [name for name in self.model.topics if name.startswith("brief")]
        if len(brief) > 2 or (brief and self.chance(3)):
            await self._delete(brief[self.rand.randrange(len(brief))])
        elif self.chance(3) and self.model.topics["week"].partitions < 4:
            await self._add_partition("week")
        elif self.chance(2):
            await self._alter()
        else:
            name = f"brief-{self.rand.randrange(4)}"
            if name not in self.model.topics:
                rules = TopicRules(retention_ms=-1)
                await self._create(Topic(name, 2, {"retention.ms": "-1"}, rules))

    async def _create(self, topic: Topic) -> None:
        row = {
            "name": topic.name,
            "num_partitions": topic.partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in topic.configs.items()],
        }
        fields = {"topics": [row], "timeout": 1000}
        self.model.changing.add(topic.name)
        answer = (await self.caller.ask(ApiKey.CREATE_TOPICS, 7, fields))["topics"][0]
        self.model.changing.discard(topic.name)
        if answer["error_code"] not in ("NONE", "TOPIC_ALREADY_EXISTS"):
            raise PromiseBroken(f"{topic.name} could not be made: {answer}")
        self.model.topic_made(topic)

    async def _delete(self, name: str) -> None:
        fields = {"topics": [{"name": name, "topic_id": None}], "timeout": 1000}
        self.model.changing.add(name)
        answer = (await self.caller.ask(ApiKey.DELETE_TOPICS, 6, fields))["responses"][0]
        self.model.changing.discard(name)
        if answer["error_code"] not in ("NONE", "UNKNOWN_TOPIC_OR_PARTITION"):
            raise PromiseBroken(f"{name} could not be deleted: {answer}")
        self.model.topic_deleted(name)

    async def _add_partition(self, name: str) -> None:
        total = self.model.topics[name].partitions + 1
        row = {"name": name, "count": total, "assignments": None}
        fields = {"topics": [row], "timeout": 1000, "validate_only": False}
        self.model.changing.add(name)
        answer = (await self.caller.ask(ApiKey.CREATE_PARTITIONS, 3, fields))["results"][0]
        self.model.changing.discard(name)
        if answer["error_code"] not in ("NONE", "INVALID_PARTITIONS"):
            raise PromiseBroken(f"{name} gets no partition: {answer}")
        self.model.partitions_added(name, total)

    async def _alter(self) -> None:
        """Of a config that changes nothing else."""
        names = sorted(self.model.topics)
        topic = self.model.topics[names[self.rand.randrange(len(names))]]
        value = str(1_000_000 + self.rand.randrange(1000))
        change = {"name": "max.message.bytes", "config_operation": 0, "value": value}
        row = {"resource_type": 2, "resource_name": topic.name, "configs": [change]}
        fields = {"resources": [row], "validate_only": False}
        answer = await self.caller.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)
        if answer["responses"][0]["error_code"] != "NONE":
            raise PromiseBroken(f"{topic.name} could not be altered: {answer}")
        topic.configs["max.message.bytes"] = value

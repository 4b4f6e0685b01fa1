"""Starts a broker on what a power cut left, looks, lets all time run out, looks again, and asks.

What is asked: is a repeat known as one, is a zombie still out, does a repeated InitProducerId or
EndTxn get the same answer, can an open transaction still be committed, is a new producer id new,
and does the broker still work. `Examiner.check` raises `PromiseBroken`.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Any

from onceflow.errors import OnceflowError
from onceflow.testing.crash import Image
from onceflow.testing.disk import ROOT, SimDisk
from onceflow.testing.loop import SimulationError
from onceflow.testing.world import World, run
from onceflow.wire.api import ApiKey
from tests.sim.txn import judge
from tests.sim.txn.client import END, INIT, PLACES, PRODUCE, TIMEOUT_MS, Requests, make_batch
from tests.sim.txn.history import NEW, OLD, History, Identity, Place, PromiseBroken, Transaction
from tests.sim.txn.observe import ABORTED, Seen, ask, look
from tests.sim.txn.workload import Shape
from tests.unit.broker.broker_under_test import RawClient, simulated_broker

HOUR_MS = 3_600_000
_CLOCK_JUMPED, _LOOK_ONLY, _ONCE_MORE = 1, 2, 12
_STARTED_S = 0.05
"""What a start has to write is written; nothing has run out of time yet."""
WINDOW = 5


def fingerprint(disk: SimDisk) -> bytes:
    """Of all that can be found on a disk."""
    digest = hashlib.blake2b(digest_size=16)
    names = disk.tree.names
    waiting = [("", ROOT)]
    while waiting:
        path, node = waiting.pop()
        digest.update(path.encode())
        if node in names:
            waiting += [(f"{path}/{name}", each) for name, each in sorted(names[node].items())]
        else:
            digest.update(disk.tree.files[node])
    return digest.digest()


class Examiner:
    """Judges the images of one history, in the order of their boundaries."""

    def __init__(self, history: History, shape: Shape, *, thorough: bool = True) -> None:
        self.history = history
        self.shape = shape
        self._thorough = thorough
        self.images = 0
        self.brokers = 0
        """How many of the images differed from all before, so that a broker was started."""
        self._known: set[tuple[object, ...]] = set()
        self._decisions = judge.Decisions()

    def check(self, image: Image, *, nested: bool = False) -> None:
        """Raises `PromiseBroken`. A `nested` image is of a second cut, while a broker recovered
        from a first one at that boundary. Unless thorough, every second broker is looked at only
        and asked nothing."""
        self.images += 1
        # Without syncs a power cut may take what was acknowledged; a killed process may not.
        strict = self.shape.durability == "fsync" or image.kind == "all unsynced"
        last_kept = "nothing unsynced" if self.shape.durability == "fsync" else "all unsynced"
        durable = image.kind == last_kept and not nested
        mark = fingerprint(image.disk)
        key = mark, self.history.facts(image.boundary), strict, durable
        if key in self._known:
            return
        self._known.add(key)
        self.brokers += 1
        examination = _Examination(
            self.history, self.shape, image, mark[0], self._decisions, strict, durable
        )
        if self._thorough:
            examination.choice &= ~_LOOK_ONLY
        try:
            run(mark[1], examination.main)
        except (PromiseBroken, OnceflowError, SimulationError, TimeoutError, OSError) as error:
            raise PromiseBroken(
                f"boundary {image.boundary}, image {image.kind!r}: {type(error).__name__}: {error}"
            ) from error


@dataclass(slots=True)
class _Examination:
    history: History
    shape: Shape
    image: Image
    choice: int
    """Decides what is done with one image and not with another."""
    decisions: judge.Decisions
    strict: bool
    durable: bool

    @property
    def _boundary(self) -> int:
        return self.image.boundary

    async def main(self, world: World) -> None:
        jumped = bool(self.choice & _CLOCK_JUMPED)
        if jumped:  # the machine was off for an hour; else its clock has gone back
            world.clock.jump_wall(HOUR_MS)
        settings = self.shape.settings | {"journal_gathered_bytes": 1 << 20}
        settings |= {"disk": self.image.disk}
        async with simulated_broker(world, host="recovered", **settings) as running:
            client = await running.client("examiner")
            await asyncio.sleep(_STARTED_S)
            seen = await self._look(client)
            if self.strict:
                last = await self._check_promises(client, seen, resume=not jumped)
            else:
                await asyncio.sleep(TIMEOUT_MS / 1000 + 1)
                later = await self._look(client)
                judge.check_nothing_hangs(later)
                last = await self._check_alive(client, later)
        if not self.choice & (_LOOK_ONLY | _ONCE_MORE):
            async with simulated_broker(world, host="started again", **settings) as running:
                again = await self._look(await running.client("examiner"))
                judge.check_never_back(last, again)
                judge.check_nothing_hangs(again)
                if again.offsets != last.offsets:
                    raise PromiseBroken("offsets differ after a clean stop")

    async def _look(self, client: RawClient) -> Seen:
        answer = await ask(client, ApiKey.METADATA, 12, {"topics": None})
        found = {topic["name"] for topic in answer["topics"]}
        if self.history.made <= self._boundary and not found >= {"a", "b"}:
            raise PromiseBroken(f"topics are gone: there is {sorted(found)}")
        places = [place for place in PLACES if place.topic in found]
        groups = [f"group-{number}" for number in range(len(self.shape.clients))]
        seen = await look(client, places, groups if "a" in found else [])
        judge.check_reads(seen)
        return seen

    # --- what was promised ------------------------------------------------------------------------

    async def _check_promises(self, client: RawClient, seen: Seen, *, resume: bool) -> Seen:
        history, boundary = self.history, self._boundary
        judge.check_ends(seen, history, boundary)
        judge.check_plain(seen, history, boundary, repeated=False)
        outcomes = judge.check_atomic(seen, history, boundary, {})
        judge.check_offsets(seen, history, outcomes, boundary, pending=True)
        self.decisions.check(outcomes, durable=self.durable)
        resumed = await self._resume(client, seen, outcomes) if resume else {}
        await asyncio.sleep(TIMEOUT_MS / 1000 + 1)
        later = await self._look(client)
        judge.check_nothing_hangs(later)
        self._compare(seen, later, outcomes, resumed)
        if self.choice & _LOOK_ONLY:
            return later
        await self._ask_again(client, later, resumed)
        await self._check_zombies(client)
        last = await self._check_alive(client, later)
        judge.check_plain(last, history, boundary, repeated=True)
        self._compare(later, last, outcomes, resumed)
        return last

    def _compare(
        self, before: Seen, after: Seen, outcomes: judge.Outcomes, resumed: dict[int, bool]
    ) -> None:
        judge.check_never_back(before, after)
        now = judge.check_atomic(after, self.history, self._boundary, resumed)
        judge.check_offsets(after, self.history, now, self._boundary, pending=False)
        for number, outcome in outcomes.items():
            if now.get(number, ABORTED) != outcome:
                raise PromiseBroken(f"transaction {number} was {outcome} after the start, now not")

    def _last_of(self, transactional_id: str) -> Transaction | None:
        """The last transaction of an id before the cut, if all that was asked about the id before
        had been answered."""
        if not self.history.is_quiet(transactional_id, self._boundary):
            return None
        mine = [
            each
            for each in self.history.transactions
            if each.transactional_id == transactional_id
            and each.batches
            and each.batches[0].asked_at <= self._boundary
        ]
        return mine[-1] if mine else None

    @property
    def _ids(self) -> list[str]:
        return sorted(self.history.busy)

    async def _resume(
        self, client: RawClient, seen: Seen, outcomes: judge.Outcomes
    ) -> dict[int, bool]:
        """Clients go on where they were: a repeat of the last batch, and the commit."""
        resumed: dict[int, bool] = {}
        for transactional_id in self._ids:
            each = self._last_of(transactional_id)
            if each is None or (each.end is not None and each.end.asked_at <= self._boundary):
                continue
            number = self.history.transactions.index(each)
            acked = [sent for sent in each.batches if sent.acked_at <= self._boundary]
            is_open = [judge.is_open(seen, sent) for sent in acked]  # compaction takes aborted ones
            if number in outcomes or not acked or not all(is_open):
                continue
            row = await self._produce(client, transactional_id, each.generation, acked[-1])
            if (row["error_code"], row["base_offset"]) != ("NONE", acked[-1].offset):
                raise PromiseBroken(f"a repeat in an open transaction was answered with {row}")
            code = (await self._end(client, each, commit=True))["error_code"]
            if code != "NONE":
                raise PromiseBroken(f"an open transaction cannot be committed: {code}")
            resumed[number] = True
        return resumed

    # --- requests again ---------------------------------------------------------------------------

    async def _ask_again(self, client: RawClient, seen: Seen, resumed: dict[int, bool]) -> None:
        await self._repeat_plain(client)
        for transactional_id in self._ids:
            await self._repeat_init(client, transactional_id)
        for number, each in enumerate(self.history.transactions):
            end = each.end
            if end is None or end.asked_at > self._boundary or number in resumed:
                continue
            if not self._is_last_request(each.transactional_id, end.asked_at):
                continue
            visible = any(judge.is_visible(seen, sent) for sent in each.acked)
            await self._repeat_end(client, each, visible=visible)

    def _is_last_request(self, transactional_id: str, asked_at: int) -> bool:
        asked = [at for at, _ in self.history.busy[transactional_id] if at <= self._boundary]
        return asked.count(asked_at) == 1 and max(asked) == asked_at

    async def _repeat_plain(self, client: RawClient) -> None:
        """The last five batches in each partition are known; one that was not answered is now."""
        for place in PLACES:
            sent = [
                each
                for each in self.history.plain
                if each.place == place and each.asked_at <= self._boundary
            ]
            for each in sent[-WINDOW:]:
                if self.history.made > self._boundary:
                    continue
                row = await self._produce(client, None, OLD, each)
                is_acked = each.acked_at <= self._boundary
                if row["error_code"] != "NONE" or (is_acked and row["base_offset"] != each.offset):
                    raise PromiseBroken(f"the repeat of a batch at {each.offset} gets {row}")

    async def _repeat_init(self, client: RawClient, transactional_id: str) -> None:
        for each in self.history.inits:
            if (
                each.transactional_id == transactional_id
                and each.expected is not None
                and each.acked_at <= self._boundary
                and self._is_last_request(transactional_id, each.asked_at)
            ):
                fields = Requests.init(transactional_id, each.timeout_ms, each.expected)
                answer = await ask(client, ApiKey.INIT_PRODUCER_ID, INIT, fields)
                got = Identity(answer["producer_id"], answer["producer_epoch"])
                if answer["error_code"] != "NONE" or got != each.identity:
                    raise PromiseBroken(f"InitProducerId again gives {answer}: {each.identity}")

    async def _repeat_end(self, client: RawClient, each: Transaction, *, visible: bool) -> None:
        end = each.end
        if end is None:
            return
        answer = await self._end(client, each, commit=end.commit)
        code = answer["error_code"]
        got = (answer.get("producer_id"), answer.get("producer_epoch"))  # none from old versions
        if end.is_acked(self._boundary):
            same = each.generation == OLD or got == end.identity
            if code != "NONE" or not same:
                raise PromiseBroken(f"EndTxn again gives {code}, {got}: not {end.identity}")
        elif end.commit and (code == "NONE") != visible:
            raise PromiseBroken(f"EndTxn again gives {code}, but visible is {visible}")
        if end.is_acked(self._boundary) or visible:
            other = (await self._end(client, each, commit=not end.commit))["error_code"]
            if other == "NONE":
                raise PromiseBroken(f"the opposite of a decision was answered with {other}")

    async def _check_zombies(self, client: RawClient) -> None:
        for transactional_id in self._ids:
            mine = [
                each
                for each in self.history.fenced
                if each.at <= self._boundary and each.transactional_id == transactional_id
            ]
            for each in mine[-2:]:
                data = make_batch(each.identity, 0, [b"zombie"], transactional=True)
                fields = Requests.produce(transactional_id, [(PLACES[1], data)])
                answer = await ask(client, ApiKey.PRODUCE, PRODUCE[each.generation], fields)
                code = answer["responses"][0]["partition_responses"][0]["error_code"]
                if code == "NONE":
                    raise PromiseBroken(f"{each.identity} is out, and can write again")
                if each.by_init:
                    end = Requests.end(transactional_id, each.identity, commit=True)
                    answer = await ask(client, ApiKey.END_TXN, END[each.generation], end)
                    if answer["error_code"] == "NONE":
                        raise PromiseBroken(f"{each.identity} is out, and can commit again")

    async def _produce(
        self, client: RawClient, transactional_id: str | None, generation: int, sent: Any
    ) -> Any:
        fields = Requests.produce(transactional_id, [(sent.place, sent.data)])
        answer = await ask(client, ApiKey.PRODUCE, PRODUCE[generation], fields)
        return answer["responses"][0]["partition_responses"][0]

    async def _end(self, client: RawClient, each: Transaction, *, commit: bool) -> Any:
        fields = Requests.end(each.transactional_id, each.identity, commit=commit)
        return await ask(client, ApiKey.END_TXN, END[each.generation], fields)

    # --- and it goes on ---------------------------------------------------------------------------

    async def _check_alive(self, client: RawClient, seen: Seen) -> Seen:
        """New producers are new, and a transaction over all partitions works."""
        given = await self._new_identity(client, None)
        used = {each.producer_id for each in self._handed_out()}
        used |= {producer_id for log in seen.logs.values() for producer_id in log.epochs}
        if given.producer_id in used:
            raise PromiseBroken(f"producer id {given.producer_id} was handed out before")
        for transactional_id in self._ids:
            given = await self._new_identity(client, transactional_id)
            if self.strict and any(_is_up_to(each, given) for each in self._handed_out()):
                raise PromiseBroken(f"{given} was handed out before, or a later one was")
            for place, log in seen.logs.items():
                if given.epoch <= log.epochs.get(given.producer_id, -1):
                    raise PromiseBroken(f"{given} is handed out, but {place} has seen it")
        if not seen.logs:
            return seen
        return await self._transaction(client, list(seen.logs), self._ids[-1], given)

    def _handed_out(self) -> list[Identity]:
        """All identities that clients were told."""
        told = [each.identity for each in self.history.inits if each.acked_at <= self._boundary]
        ends = [each.end for each in self.history.transactions if each.end is not None]
        told += [
            end.identity
            for end in ends
            if end.identity is not None and end.answered_at <= self._boundary
        ]
        return told

    async def _transaction(
        self, client: RawClient, places: list[Place], name: str, identity: Identity
    ) -> Seen:
        data = make_batch(identity, 0, [b"still alive"], transactional=True)
        for place in places:
            fields = Requests.produce(name, [(place, data)])
            answer = await ask(client, ApiKey.PRODUCE, PRODUCE[NEW], fields)
            row = answer["responses"][0]["partition_responses"][0]
            if row["error_code"] != "NONE":
                raise PromiseBroken(f"a new transaction ends with {row['error_code']}")
        end = Requests.end(name, identity, commit=True)
        answer = await ask(client, ApiKey.END_TXN, END[NEW], end)
        last = await self._look(client)
        judge.check_nothing_hangs(last)
        alive = [b"still alive" in log.visible.values() for log in last.logs.values()]
        if answer["error_code"] != "NONE" or not all(alive):
            raise PromiseBroken(f"a new transaction is visible where {alive}")
        return last

    async def _new_identity(self, client: RawClient, transactional_id: str | None) -> Identity:
        fields = Requests.init(transactional_id, TIMEOUT_MS, None)
        answer = await ask(client, ApiKey.INIT_PRODUCER_ID, INIT, fields)
        if answer["error_code"] != "NONE":
            raise PromiseBroken(f"no identity for {transactional_id}: {answer['error_code']}")
        return Identity(answer["producer_id"], answer["producer_epoch"])


def _is_up_to(told: Identity, given: Identity) -> bool:
    return told.producer_id == given.producer_id and told.epoch >= given.epoch


def recovering(image: Image, shape: Shape) -> SimDisk:
    """The image's disk, with all that a broker did to it that started there."""
    done: list[int] = []

    async def main(world: World) -> None:
        settings = shape.settings | {"disk": image.disk}
        async with simulated_broker(world, host="cut off again", **settings):
            await asyncio.sleep(_STARTED_S)
            done.append(len(image.disk.ops))

    run(0, main)
    del image.disk.ops[done[0] :]
    return image.disk

"""The end of a day: what a stranger finds by asking the broker, held against the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from onceflow.records.batch import StoredBatch, iter_stored
from onceflow.records.control import MarkerType, parse_marker
from onceflow.records.plain import PlainRecord, read_placed
from onceflow.wire.api import ApiKey
from tests.sim.txn.history import Place, PromiseBroken
from tests.sim.years.clients import INPUT, Client
from tests.sim.years.model import Fate, Group, Log, Record

TOPIC_RESOURCE: Final = 2
SET_BY_TOPIC: Final = 1
LATELY: Final = 100
"""So many offsets of a long log are read on most days, and all of them on some."""


@dataclass(slots=True)
class Seen:
    """One partition, as a reader of committed records sees it."""

    start: int
    read_from: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    batches: list[StoredBatch] = field(default_factory=list)
    aborted: set[tuple[int, int]] = field(default_factory=set)

    def held(self) -> set[int]:
        """The offsets of all records that are there, also of markers and of what was aborted."""
        return {offset for batch in self.batches for offset, _ in read_placed(batch)}

    def take_in(self, row: Any) -> None:
        """What a fetch brought of it."""
        self.high_watermark = row["high_watermark"]
        self.last_stable_offset = row["last_stable_offset"]
        self.batches += iter_stored(row["records"] or b"")
        listed = row["aborted_transactions"] or []
        self.aborted |= {(each["producer_id"], each["first_offset"]) for each in listed}

    def visible(self) -> Iterator[tuple[int, PlainRecord]]:
        """By the rules of the protocol: what the list of aborted transactions leaves."""
        waiting = sorted(self.aborted, key=lambda each: each[1])
        out: set[int] = set()
        for batch in self.batches:
            header = batch.header
            while waiting and waiting[0][1] <= header.last_offset:
                out.add(waiting.pop(0)[0])
            if header.is_control:
                decision = parse_marker(batch) if header.record_count else None
                if decision is not None and decision.type is MarkerType.ABORT:
                    out.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in out):
                yield from read_placed(batch)


class Judge(Client):
    """Asks for everything; raises `PromiseBroken`."""

    async def day(self, *, whole: bool = False) -> None:
        """All that can be asked for; `whole` reads all of the longest logs, too."""
        self.machine.check_alive()
        await self.topics()
        await self._configs()
        for place, seen in (await self._read(whole)).items():
            self._judge_log(place, seen)
        self._forget_unread()
        await self._judge_offsets()
        await self._judge_ids()

    # --- topics ---------------------------------------------------------------------------------

    async def topics(self) -> None:
        answer = await self.caller.ask(ApiKey.METADATA, 12, {"topics": None})
        found = {
            row["name"]: len(row["partitions"])
            for row in answer["topics"]
            if not row["is_internal"] and row["name"] not in self.model.changing
        }
        expected = {
            topic.name: topic.partitions
            for topic in self.model.topics.values()
            if topic.name not in self.model.changing
        }
        if found != expected:
            gone = sorted(expected.items() - found.items())
            extra = sorted(found.items() - expected.items())
            raise PromiseBroken(f"topics: {gone} are gone, {extra} should not be there")

    async def _configs(self) -> None:
        rows = [
            {
                "resource_type": TOPIC_RESOURCE,
                "resource_name": each.name,
                "configuration_keys": [*each.configs],
            }
            for each in self.model.topics.values()
            if each.configs
        ]
        answer = await self.caller.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": rows})
        for row in answer["results"]:
            found = {
                each["name"]: each["value"]
                for each in row["configs"]
                if each["config_source"] == SET_BY_TOPIC
            }
            expected = self.model.topics[row["resource_name"]].configs
            if found != expected:
                raise PromiseBroken(f"{row['resource_name']} has {found}, not {expected}")

    # --- records --------------------------------------------------------------------------------

    def _places(self) -> list[Place]:
        return [place for place in self.model.logs if self.model.topics[place.topic].is_read]

    def _forget_unread(self) -> None:
        """Of topics that nobody reads only their size is looked at."""
        for place in self.model.logs.keys() - set(self._places()):
            self.model.logs[place].records.clear()

    async def _read(self, whole: bool) -> dict[Place, Seen]:
        places = self._places()
        starts = await self._list_offsets(places, -2)
        ends = await self._list_offsets(places, -1)
        seen = {}
        for place in places:
            is_long = ends[place] - starts[place] > 2 * LATELY
            first = starts[place] if whole or not is_long else ends[place] - LATELY
            seen[place] = Seen(starts[place], first)
        waiting = {place: each.read_from for place, each in seen.items()}
        while waiting:
            for place, row in await self._fetch(waiting):
                seen[place].take_in(row)
                batches = seen[place].batches
                if batches:
                    waiting[place] = batches[-1].header.next_offset
                if not row["records"] or waiting[place] >= row["last_stable_offset"]:
                    del waiting[place]
        return seen

    async def _list_offsets(self, places: Sequence[Place], timestamp: int) -> dict[Place, int]:
        row = {"timestamp": timestamp, "current_leader_epoch": -1}
        topics = [
            {"name": name, "partitions": [{"partition_index": number, **row} for number in numbers]}
            for name, numbers in _by_topic(places).items()
        ]
        fields = {"replica_id": -1, "isolation_level": 0, "topics": topics}
        answer = await self.caller.ask(ApiKey.LIST_OFFSETS, 7, fields)
        return {
            Place(topic["name"], each["partition_index"]): each["offset"]
            for topic in answer["topics"]
            for each in topic["partitions"]
        }

    async def _fetch(self, positions: dict[Place, int]) -> list[tuple[Place, Any]]:
        topics = [
            {
                "topic": name,
                "partitions": [
                    {
                        "partition": number,
                        "fetch_offset": positions[Place(name, number)],
                        "partition_max_bytes": 1 << 20,
                        "current_leader_epoch": -1,
                    }
                    for number in numbers
                ],
            }
            for name, numbers in _by_topic(list(positions)).items()
        ]
        fields: dict[str, Any] = {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 24,
        }
        fields |= {"isolation_level": 1, "topics": topics}
        answer = await self.caller.ask(ApiKey.FETCH, 12, fields)
        found = []
        for topic in answer["responses"]:
            for row in topic["partitions"]:
                place = Place(topic["topic"], row["partition_index"])
                if row["error_code"] != "NONE":
                    raise PromiseBroken(f"{place}: a fetch ends with {row['error_code']}")
                found.append((place, row))
        return found

    def _judge_log(self, place: Place, seen: Seen) -> None:
        log = self.model.logs[place]
        visible = dict(seen.visible())
        self._check_stable(place, log, seen)
        for offset, record in visible.items():
            if offset < seen.read_from:
                continue  # of a batch that begins before
            known = log.records.get(offset)
            if known is None or (known.key, known.value) != (record.key, record.value):
                told = "nothing" if known is None else f"{known.value!r}"
                raise PromiseBroken(f"{place} {offset}: {record.value!r} is there, not {told}")
            self._check_there(known)
        latest = self.model.latest_by_key(place)
        oldest = _oldest_by_key(visible)
        for offset in [offset for offset in log.records if offset not in visible]:
            gone = log.records[offset]
            if seen.read_from <= offset < seen.last_stable_offset or offset < seen.start:
                self._check_gone(gone, latest, oldest, seen)

    def _check_stable(self, place: Place, log: Log, seen: Seen) -> None:
        opened = [each.offset for each in log.records.values() if each.fate is Fate.OPEN]
        expected = max(min(opened, default=seen.high_watermark), seen.start)
        if seen.last_stable_offset != expected:
            raise PromiseBroken(
                f"{place}: the last stable offset hangs at {seen.last_stable_offset}, and should "
                f"be {expected}; the high watermark is {seen.high_watermark}"
            )

    def _check_there(self, record: Record) -> None:
        if record.fate is not Fate.COMMITTED:
            raise PromiseBroken(f"{record.place} {record.offset} is visible, and was {record.fate}")
        if self.model.must_be_gone(record):
            raise PromiseBroken(
                f"{record.place} {record.offset} of {record.timestamp} is still there at "
                f"{self.model.clocks.wall()}"
            )

    def _check_gone(
        self, record: Record, latest: dict[bytes, Record], oldest: dict[bytes, int], seen: Seen
    ) -> None:
        if record.fate is Fate.OPEN:
            return  # it still holds the readers back
        if record.fate is Fate.COMMITTED and self.model.must_stay(record, latest):
            raise PromiseBroken(
                f"{record.place} {record.offset} of {record.timestamp}, {record.value!r}, is gone "
                f"at {self.model.clocks.wall()}; the log starts at {seen.start}"
            )
        if record.fate is Fate.COMMITTED and record.value is None:
            before = oldest.get(record.key, record.offset)
            if before < record.offset:  # a tombstone goes after all that it displaces
                raise PromiseBroken(
                    f"{record.place} {before}: {record.key!r} is back, as its tombstone at "
                    f"{record.offset} is gone"
                )
            if seen.start <= record.offset and seen.start < seen.read_from:
                # Of its key there may be older ones in what was not read: only this one says that
                # they are not missed, and that they must not come back.
                return
        del self.model.logs[record.place].records[record.offset]

    # --- groups and transactional ids -----------------------------------------------------------

    async def offsets(self, groups: Sequence[str]) -> dict[str, int]:
        topics = [{"name": INPUT.topic, "partition_indexes": [INPUT.partition]}]
        asked = [{"group_id": group, "topics": topics} for group in groups]
        fields = {"groups": asked, "require_stable": False}
        answer = await self.caller.ask(ApiKey.OFFSET_FETCH, 8, fields)
        return {
            row["group_id"]: row["topics"][0]["partitions"][0]["committed_offset"]
            for row in answer["groups"]
        }

    async def _judge_offsets(self) -> None:
        groups = {name: group for name, group in self.model.groups.items() if group.history}
        found = await self.offsets(list(groups))
        for name, group in groups.items():
            expected = self.model.expected_offset(group)
            if found[name] not in expected:
                since = group.since()[0]
                raise PromiseBroken(
                    f"{name} is at {found[name]} at {self.model.clocks.wall()}, not at one of "
                    f"{expected}, which it is since {since}"
                )
            if expected == {-1} and name.startswith("once"):
                del self.model.groups[name]

    async def _judge_ids(self) -> None:
        answer = await self.caller.ask(ApiKey.LIST_TRANSACTIONS, 0, {})
        found = {row["transactional_id"]: row for row in answer["transaction_states"]}
        for name, known in self.model.ids.items():
            is_kept = self.model.is_id_kept(known)
            if is_kept is False and name in found:
                raise PromiseBroken(f"{name}, last used at {known.wall_ms}, is still known")
            if is_kept and known.is_sure:
                row = found.get(name)
                if row is None or row["producer_id"] != known.identity.producer_id:
                    raise PromiseBroken(f"{name} is {row}, and was {known.identity}")
        unknown = found.keys() - self.model.ids.keys()
        if unknown:
            raise PromiseBroken(f"transactional ids that nobody used: {sorted(unknown)}")

    # --- after a power cut that may lose what was acknowledged ----------------------------------

    async def take_stock(self, sure_until: float) -> None:
        """What is there now is what counts; what was told before `sure_until` has to be."""
        await self.topics()
        self._forget_unread()
        for place, seen in (await self._read(whole=True)).items():
            self._take_records(self.model.logs[place], seen, sure_until)
        groups = {name: group for name, group in self.model.groups.items() if group.history}
        for name, offset in (await self.offsets(list(groups))).items():
            self._take_offset(name, groups[name], offset, sure_until)

    def _take_records(self, log: Log, seen: Seen, sure_until: float) -> None:
        """Lost is what lay behind the end of the log, where there may be something else now, and
        what is there without the end of its transaction. Where the log goes on and holds nothing,
        it was age or compaction that took a record: that is judged as on every day, for what it
        displaced is gone with it."""
        visible, held = dict(seen.visible()), seen.held()
        for offset, record in sorted(log.records.items()):
            if record.told_at < sure_until:
                continue
            found = visible.get(offset)
            if found is not None and found.value == record.value:
                record.fate = Fate.COMMITTED if record.fate is Fate.OPEN else record.fate
            elif record.fate is Fate.OPEN or offset in held or offset >= seen.high_watermark:
                del log.records[offset]

    def _take_offset(self, name: str, group: Group, offset: int, sure_until: float) -> None:
        sure = [each for each in group.history if each.told_at < sure_until]
        unsure = [each for each in group.history if each.told_at >= sure_until]
        possible = {each.offset: each for each in (*sure[-1:], *unsure)}
        if offset in possible:
            group.history = [possible[offset]]
        elif offset != -1:
            raise PromiseBroken(f"{name} is at {offset} after a power cut, not in {set(possible)}")
        else:  # what is sure may have expired before the rest was committed
            group.history = sure[-1:]
            if sure and -1 in self.model.expected_offset(group):
                group.history = []


def _oldest_by_key(visible: dict[int, PlainRecord]) -> dict[bytes, int]:
    return {record.key or b"": offset for offset, record in sorted(visible.items(), reverse=True)}


def _by_topic(places: Sequence[Place]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(place.partition)
    return topics

"""What was committed and what a reader saw of it: each record once, in order, nothing that was
aborted. It keeps only what is still open, so that it does not grow with the run.
"""

from __future__ import annotations

from collections import Counter


class RecordName:
    """Of a record: who wrote it, in which of its transactions, and as which of its records."""

    @staticmethod
    def encode(who: str, number: int, index: int) -> bytes:
        return b"%s %d %d" % (who.encode(), number, index)

    @staticmethod
    def decode(value: bytes) -> tuple[str, int, int]:
        who, number, index = value.decode().rsplit(" ", 2)
        return who, int(number), int(index)


class Ledger:
    """Of some topics to which the same transactions come. Belongs to one thread."""

    def __init__(self, *topics: str) -> None:
        self._topics = topics
        self._numbers: Counter[str] = Counter()
        self._missing: dict[str, Counter[tuple[str, int]]] = {each: Counter() for each in topics}
        self._aborted: set[tuple[str, int]] = set()
        self._last: dict[tuple[str, str, int], tuple[int, int]] = {}
        self.broken: list[str] = []
        self.counts: Counter[str] = Counter()

    def begin(self, who: str) -> int:
        """The number of a new transaction."""
        self._numbers[who] += 1
        return self._numbers[who]

    def committed(self, who: str, number: int, records: int) -> None:
        """The answer was yes."""
        self.counts["transactions committed"] += 1
        self.counts["records committed"] += records
        for topic in self._topics:
            self._note(topic, who, number, records)

    def aborted(self, who: str, number: int) -> None:
        self.counts["transactions aborted"] += 1
        self._aborted.add((who, number))
        for topic in self._topics:
            if (who, number) in self._missing[topic]:
                self.broken.append(
                    f"{topic} shows transaction {number} of {who}, which was aborted"
                )

    def seen(self, topic: str, partition: int, value: bytes) -> None:
        """A reader of committed records got this one."""
        who, number, index = RecordName.decode(value)
        self.counts[f"records seen in {topic}"] += 1
        place = (topic, who, partition)
        last = self._last.get(place, (0, -1))
        if (number, index) <= last:
            self.broken.append(
                f"{topic}-{partition} shows record {index} of transaction {number} of {who} "
                f"behind record {last[1]} of transaction {last[0]}: twice, or out of order"
            )
        self._last[place] = max(last, (number, index))
        if (who, number) in self._aborted:
            self.broken.append(f"{topic} shows transaction {number} of {who}, which was aborted")
        self._note(topic, who, number, -1)

    def _note(self, topic: str, who: str, number: int, records: int) -> None:
        """What is seen before its commit is answered counts below zero until then."""
        missing = self._missing[topic]
        missing[who, number] += records
        if not missing[who, number]:
            del missing[who, number]

    @property
    def is_settled(self) -> bool:
        """Whether all that was committed was seen, everywhere."""
        return not any(self._missing.values())

    def problems(self) -> list[str]:
        """To be asked at the end."""
        left = [
            f"{topic}: {records} records of transaction {number} of {who} are "
            f"{'missing' if records > 0 else 'there though it was never committed'}"
            for topic, missing in self._missing.items()
            for (who, number), records in missing.items()
        ]
        return self.broken + left

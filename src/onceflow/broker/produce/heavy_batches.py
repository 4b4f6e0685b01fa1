"""Batches that take long to check or to compress: a background thread does it, not the loop.

Only the client that sends them waits, with its next requests, and other clients that send such
batches too. How much one request may decompress is bounded, and so is how much may wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onceflow.broker.produce.batch import Effort, HeavyBatch, checked_batch
from onceflow.broker.requests import RequestRefused
from onceflow.broker.topics import HostedTopic
from onceflow.records import NewBatch, Room
from onceflow.runtime import Background, Job, JobLane
from onceflow.wire import ErrorCode

REQUEST_BYTES = 256 << 20
"""The most that the batches of a request may decompress, and the most they may compress."""
WAITING_BYTES = 64 << 20
"""The most bytes of batches that may wait, as the clients sent them."""

_DECOMPRESSED_PIECE = 16 << 10
_COMPRESSED_PIECE = 1 << 10
"""What takes about as long as another request, when it is done on the loop."""

# To clients this code means: certainly not written, and worth another try.
_AGAIN = ErrorCode.NOT_ENOUGH_REPLICAS


class HeavyRecords:
    """Records for one partition that are to be checked; then `outcome` is the batch to append, or
    why there is none."""

    __slots__ = ("config", "now_ms", "outcome", "records", "topic", "version")

    def __init__(self, topic: HostedTopic, records: memoryview, version: int, now_ms: int) -> None:
        self.topic = topic
        self.config = topic.config
        self.records = memoryview(bytearray(records))  # a frame's memory is used again
        self.version = version
        self.now_ms = now_ms
        self.outcome: NewBatch | Exception = _unchecked()


def _unchecked() -> RequestRefused:
    return RequestRefused(
        _AGAIN, "large compressed batches of others are being checked; send it again"
    )


def altered_meanwhile(topic: str) -> RequestRefused:
    return RequestRefused(
        _AGAIN,
        f"the config of topic {topic} was altered while the batch was checked; send it again",
    )


class BatchChecks:
    """Belongs to the broker's loop."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self.room = Room()
        """For what is decompressed on the loop; a broker in another thread has its own."""
        self._waiting_bytes = 0
        self.pieces = 0
        """How many requests the work on the loop counts as, since the last `take_pieces`."""

    def note_done_here(self, effort: Effort) -> None:
        """Notes work that was done on the loop, while all other clients waited."""
        self.pieces += effort.decompressed // _DECOMPRESSED_PIECE
        self.pieces += effort.compressed // _COMPRESSED_PIECE

    def take_pieces(self) -> int:
        """Returns the pieces, and counts from zero again."""
        pieces, self.pieces = self.pieces, 0
        return pieces

    def submit(self, batches: Sequence[HeavyRecords], done: Callable[[], None]) -> None:
        """Calls back when all have their outcome, on the loop."""
        size = sum(len(each.records) for each in batches)
        if self._waiting_bytes and self._waiting_bytes + size > WAITING_BYTES:
            done()
            return
        self._waiting_bytes += size

        def ended(error: Exception | None) -> None:
            self._waiting_bytes -= size
            done()

        self._background.submit(JobLane.CHECK, _check(batches), ended)


def _check(batches: Sequence[HeavyRecords]) -> Job:
    effort = Effort(REQUEST_BYTES, REQUEST_BYTES)
    for each in batches:
        try:
            each.outcome = checked_batch(
                each.topic.name, each.config, each.records, each.version, each.now_ms, effort
            )
        except HeavyBatch:
            each.outcome = RequestRefused(
                _AGAIN,
                f"the batches of one request have more than {REQUEST_BYTES} bytes to decompress or "
                "to compress; send this one again, with less beside it",
            )
        except Exception as error:  # of this batch alone: the owner tells the client
            each.outcome = error
        yield

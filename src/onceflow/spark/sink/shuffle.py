"""What goes through the shuffle: not each row by itself, but rows that have the same way together,
as a stream of bytes that is cut into parts.

A task before the shuffle finds the target of every row, orders rows by it, and packs those of each
writing task; Spark moves bytes then, and looks at no row again. Rows of a target keep their order.
Parts are small, as Spark gathers thousands of values before it hands them on; each says how much is
still to come, so that a stream that does not come as it was sent is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from onceflow.spark.errors import RowRefused, SinkError
from onceflow.spark.sink.claims import ClaimClient, Epoch
from onceflow.spark.sink.job_context import REPORT
from onceflow.spark.sink.routing import (
    TARGET,
    TopicLayout,
    placed_by_row,
    portions,
    runs,
    unknown_topics,
)

if TYPE_CHECKING:
    import pyarrow as pa

WAY: Final = "way"
"""The number of the task that writes the rows."""
_LEFT: Final = "left"
"""How many bytes of the packet there are from this part on."""
PART: Final = "part"
PACKED: Final = f"{WAY} int, {_LEFT} int, {PART} binary"
PACKED_NAMES: Final = (WAY, _LEFT, PART)
PACKET_BYTES: Final = 4 << 20
"""Of so many bytes of rows the packets are made, one for each way."""
PART_BYTES: Final = 4 << 10
_END_OF_STREAM: Final = 64
"""More than what ends a stream, and what its parts are padded with."""


class PacketsBroken(SinkError):
    """What came out of a shuffle is not what went in."""


def pack(
    layout: TopicLayout | None,
    claims: ClaimClient,
    epoch: Epoch,
    tasks: int,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """`layout` is None when only the rows know their topics: then the driver is asked."""
    for batch in portions((each for each in batches if each.num_rows), PACKET_BYTES):
        known = layout or _asked(claims, epoch, batch.column("topic"))
        yield from _packed(placed_by_row(known, batch), tasks)


def report_as_packet(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What a task reports, in a frame of packets: where nothing is shuffled, the parts are that."""
    import pyarrow as pa

    zero = pa.array([0], pa.int32())
    return pa.record_batch({WAY: zero, _LEFT: zero, PART: batch.column(REPORT)})


def _packed(batch: pa.RecordBatch, tasks: int) -> Iterator[pa.RecordBatch]:
    targets: Any = batch.column(TARGET).to_numpy()
    order, ways = _by_way(targets, tasks)
    for way, rows in runs(batch.take(order), ways):
        yield _parts(way, _packet(rows))


def _by_way(targets: Any, tasks: int) -> tuple[Any, Any]:
    """The order of rows by their ways and, of one way, by their targets, and the way of each row in
    that order; rows of one target keep theirs."""
    import numpy as np

    largest = int(targets.max())
    if largest + tasks > np.iinfo(np.uint16).max:
        ways = targets % tasks
        order: Any = np.lexsort((targets, ways))
        return order, ways[order]
    # Small numbers are sorted ten times as fast: each target has one, by its place in the order.
    numbers: Any = np.arange(largest + 1)
    way_of = (numbers % tasks).astype(np.int32)
    place_of = way_of * (largest // tasks + 1) + numbers // tasks
    order = np.argsort(place_of.astype(np.uint16)[targets], kind="stable")
    return order, way_of[targets[order]]


def _packet(rows: pa.RecordBatch) -> Any:
    """In room of the right size: a stream that grows is copied, and takes new memory each time."""
    import pyarrow as pa

    schema = rows.schema
    room = pa.allocate_buffer(
        pa.ipc.get_record_batch_size(rows) + schema.serialize().size + _END_OF_STREAM
    )
    made = pa.FixedSizeBufferWriter(room)
    with pa.ipc.new_stream(made, schema) as stream:
        stream.write_batch(rows)
    return room.slice(0, made.tell())


def _parts(way: int, packet: Any) -> pa.RecordBatch:
    """The packet itself, seen as the values of a column."""
    import numpy as np
    import pyarrow as pa

    starts: Any = np.arange(0, packet.size, PART_BYTES, dtype=np.int32)
    borders: Any = np.append(starts, np.int32(packet.size))
    columns: dict[str, Any] = {
        WAY: np.full(len(starts), way, np.int32),
        _LEFT: np.int32(packet.size) - starts,
        PART: pa.Array.from_buffers(
            pa.binary(), len(starts), [None, pa.py_buffer(borders), packet]
        ),
    }
    return pa.record_batch(columns)


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of all packets, with their targets; raises `PacketsBroken`."""
    begun: list[Any] = []
    missing = 0
    for batch in batches:
        left: Any = batch.column(_LEFT).to_numpy()
        data, borders = _values(batch.column(PART))
        at = 0
        while at < len(left):
            expected = missing or int(left[at])
            ends = _length_of_run(left[at:], borders[at:], expected)
            begun.append(data[borders[at] : borders[at + ends]])
            missing = expected - len(begun[-1])
            at += ends
            if not missing:
                yield from _rows(begun)
                begun = []
    if missing:
        raise PacketsBroken("only a part of the rows came out of the shuffle")


def _values(column: Any) -> tuple[memoryview, Any]:
    """All bytes of a column, and where each value begins and ends."""
    import numpy as np

    _, offsets, data = column.buffers()
    borders = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return memoryview(data), borders


def _length_of_run(left: Any, borders: Any, expected: int) -> int:
    """How many parts go on with the packet of which so many bytes are missing."""
    import numpy as np

    sizes = np.diff(borders)
    count = int(np.searchsorted(np.cumsum(sizes), expected)) + 1
    count = min(count, len(sizes))
    wanted = expected - (borders[:count] - borders[0])
    if not np.array_equal(left[:count], wanted) or wanted[-1] < sizes[count - 1]:
        raise PacketsBroken("rows have come out of the shuffle in another order than they went in")
    return count


def _rows(parts: list[Any]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    packet = parts[0] if len(parts) == 1 else b"".join(parts)
    try:
        with pa.ipc.open_stream(pa.py_buffer(packet)) as stream:
            yield from stream
    except pa.ArrowException as error:
        raise PacketsBroken(f"what came out of the shuffle is not rows: {error}") from error


# --- topics that only rows know -----------------------------------------------------------------

_known: dict[tuple[ClaimClient, Epoch], TopicLayout] = {}
"""What the driver answered, by query and epoch: numbers are valid for one epoch only."""


def _asked(claims: ClaimClient, epoch: Epoch, topics: Any) -> TopicLayout:
    """A layout that has all these topics; the driver numbers those that are new."""
    layout = _known.get((claims, epoch), TopicLayout())
    if unknown := unknown_topics(layout, topics):
        layout = TopicLayout(tuple(claims.layout(unknown)))
        _known.clear()
        _known[claims, epoch] = layout
    if missing := unknown_topics(layout, topics):
        raise RowRefused(f"there is no topic {missing[0]!r}")
    return layout

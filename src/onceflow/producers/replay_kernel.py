"""The compiled loop of `replay`: which batches of a log make a difference to a producer table.

The batches that are taken are applied in order. Taking one too many is safe on one condition: a
transactional batch opens a transaction in the fold, so the marker that ended it must be taken too.
Otherwise the partition would hold back readers for ever. Leaving a batch out is safe when the fold
of the others reaches the same state. Left out are:
- batches without a producer;
- a batch that five later ones of the same producer and epoch push out of the window, or that a
  higher epoch clears out of it. An epoch that goes back, which no broker writes, is not lost on the
  fold: the batches on both sides of it are kept, and so is a producer's first one;
- where a transaction begins and the marker that ends it, if that is a commit, no abort came in
  between (an abort notes what was open then), and the producer was known to have nothing open. Of
  such markers a producer's latest stays, for its coordinator epoch.

Each producer of the chunk has a slot of int64; what waits in it is dropped or noted as found when
more is known. The loop ends before a batch that is not whole or not sound, and when the slots or
the room for what was found run out: the caller applies what was found and calls again.
"""

from __future__ import annotations

from onceflow.records import (
    as_i64,
    helper,
    kernel,
    load_big_i16,
    load_big_i32,
    load_big_i64,
    load_i64,
    load_u8,
    prefetch,
    store_i64,
)
from onceflow.wire import MAX_IN_FLIGHT

_HEADER_SIZE = 61
_LENGTH_PREFIX = 12
_LENGTH_AT = 8
_MAGIC_AT = 16
_MAGIC = 2
_ATTRIBUTES_AT = 21
_LAST_OFFSET_DELTA_AT = 23
_PRODUCER_ID_AT = 43
_PRODUCER_EPOCH_AT = 51
_BASE_SEQUENCE_AT = 53
_RECORD_COUNT_AT = 57
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_KNOWN_ATTRIBUTES = 0x7F
_CODEC_MASK = 0x07
_LAST_CODEC = 4
_MAX_OFFSET = (1 << 63) - 1
_AHEAD = 4

# A marker as every broker writes it: one record of 17 bytes, lengths as zigzag varints.
_MARKER_SIZE = 78
_BEFORE_KEY = 0x20000000  # 16 bytes follow, no attributes, both deltas 0
_KEY_SIZE_AT, _KEY_SIZE = 65, 8
_TYPE_AT = 68
_ABORT, _COMMIT = 0, 1
_VALUE_SIZE_AT, _VALUE_SIZE = 70, 12
_HEADERS_AT = 77

_WINDOW = MAX_IN_FLIGHT
_PLACES = 4096
_MOST_PRODUCERS = 2048
_MOST_FOUND = 65536
_MOST_WAITING = 2 * _WINDOW + 2  # the ring, a marker, where a transaction begins

# A slot, in bytes: id + 1 (0: free), epoch, state, where a transaction begins and how many aborts
# there were before, the latest marker that waits (its place + 1; 0: none), how many batches went
# into the ring, and the ring: of the latest five the place, and the first marker behind it (its
# place + 1).
_EPOCH, _STATE, _BEGIN, _ABORTS, _MARKER, _RING_COUNT, _RING = range(8, 64, 8)
_ENTRY, _ENTRY_MARKER = 16, 8
_SLOT = _RING + _ENTRY * _WINDOW
# States. Fresh: nothing of it was seen; unknown: of a transaction; open: its begin is found;
# closed: nothing is open; begun: its begin waits.
_FRESH, _UNKNOWN, _OPEN, _CLOSED, _BEGUN = range(5)

SLOTS = _PLACES * _SLOT // 8
"""int64 that the caller must give for slots, all 0."""
FOUND = _MOST_FOUND + _MOST_WAITING + 1 + _MOST_PRODUCERS * _MOST_WAITING
"""int64 that the caller must give for what is found: places of batches, in no order; some twice."""
RESULT = 3
"""int64 for the result: bytes consumed, how many found, and aborts (for the loop itself)."""
_CONSUMED_AT, _COUNT_AT, _ABORTS_AT = 0, 8, 16


@helper
def _is_sound(at: int, left: int) -> bool:
    """Whether the batch is whole, and `read_header` would take it."""
    if left < _HEADER_SIZE:
        return False
    length = int(load_big_i32(at + _LENGTH_AT))
    attributes = int(load_big_i16(at + _ATTRIBUTES_AT))
    delta = int(load_big_i32(at + _LAST_OFFSET_DELTA_AT))
    count = int(load_big_i32(at + _RECORD_COUNT_AT))
    base = load_big_i64(at)
    return (
        int(load_u8(at + _MAGIC_AT)) == _MAGIC
        and _HEADER_SIZE - _LENGTH_PREFIX <= length <= left - _LENGTH_PREFIX
        and attributes & ~_KNOWN_ATTRIBUTES == 0
        and attributes & _CODEC_MASK <= _LAST_CODEC
        and 0 <= count <= delta + 1
        and base >= 0
        and 0 <= delta <= _MAX_OFFSET - base
    )


@helper
def _is_marker(at: int) -> bool:
    """Whether a control batch is a marker as every broker writes it."""
    return (
        int(load_big_i32(at + _LENGTH_AT)) == _MARKER_SIZE - _LENGTH_PREFIX
        and int(load_big_i16(at + _ATTRIBUTES_AT)) & _CODEC_MASK == 0
        and int(load_big_i32(at + _RECORD_COUNT_AT)) == 1
        and int(load_big_i32(at + _HEADER_SIZE)) == _BEFORE_KEY
        and int(load_u8(at + _KEY_SIZE_AT)) == _KEY_SIZE
        and _ABORT <= int(load_big_i16(at + _TYPE_AT)) <= _COMMIT
        and int(load_u8(at + _VALUE_SIZE_AT)) == _VALUE_SIZE
        and int(load_u8(at + _HEADERS_AT)) == 0
    )


@helper
def _slot_of(slots: int, producer_id: int) -> int:
    """The producer's slot, or the free one that will be. There always is a free one."""
    place = (producer_id ^ (producer_id >> 12)) & (_PLACES - 1)
    slot = slots + _SLOT * place
    while load_i64(slot) != 0 and load_i64(slot) != as_i64(producer_id + 1):
        place = (place + 1) & (_PLACES - 1)
        slot = slots + _SLOT * place
    return slot


@helper
def _note(found: int, count: int, place: int) -> int:
    store_i64(found + 8 * count, place)
    return count + 1


@helper
def _note_ring(slot: int, most: int, found: int, count: int) -> int:
    """Empty the ring; its `most` latest are found, and the markers behind them."""
    ring_count = load_i64(slot + _RING_COUNT)
    for back in range(1, min(ring_count, most) + 1):
        entry = slot + _RING + _ENTRY * ((ring_count - back) % _WINDOW)
        count = _note(found, count, load_i64(entry))
        if load_i64(entry + _ENTRY_MARKER) != 0:
            count = _note(found, count, load_i64(entry + _ENTRY_MARKER) - 1)
    store_i64(slot + _RING_COUNT, 0)
    return count


@helper
def _mark_ring(slot: int, place: int) -> None:
    """A marker came: it is the first one behind those in the ring that have none yet."""
    for index in range(min(load_i64(slot + _RING_COUNT), _WINDOW)):
        entry = slot + _RING + _ENTRY * index
        if load_i64(entry + _ENTRY_MARKER) == 0:
            store_i64(entry + _ENTRY_MARKER, place + 1)


@helper
def _note_marker(slot: int, found: int, count: int) -> int:
    """The marker that waits, if one does, is found."""
    waiting = load_i64(slot + _MARKER)
    store_i64(slot + _MARKER, 0)
    return _note(found, count, waiting - 1) if waiting != 0 else count


@helper
def _note_begin(slot: int, found: int, count: int) -> int:
    """Where a transaction begins, if that waits, is found; so its marker will be."""
    if load_i64(slot + _STATE) != _BEGUN:
        return count
    store_i64(slot + _STATE, _OPEN)
    return _note(found, count, load_i64(slot + _BEGIN))


@helper
def _note_all(slot: int, found: int, count: int) -> int:
    """All that waits is found; the slot is as if nothing of the producer was seen."""
    count = _note_begin(slot, found, count)
    store_i64(slot + _STATE, _FRESH)
    return _note_marker(slot, found, _note_ring(slot, _WINDOW, found, count))


@helper
def _take_marker(at: int, place: int, slot: int, must: bool, found: int, result: int) -> int:
    """A marker, or one that compaction has emptied."""
    count: int = load_i64(result + _COUNT_AT)
    state, aborts = load_i64(slot + _STATE), load_i64(result + _ABORTS_AT)
    is_empty = int(load_big_i32(at + _RECORD_COUNT_AT)) == 0
    is_abort = not is_empty and int(load_big_i16(at + _TYPE_AT)) == _ABORT
    unseen = state == _CLOSED or (
        state == _BEGUN and not is_abort and load_i64(slot + _ABORTS) == aborts
    )
    if not unseen:
        count = _note_begin(slot, found, count)
        store_i64(result + _ABORTS_AT, aborts + is_abort)
    store_i64(slot + _STATE, _CLOSED)
    _mark_ring(slot, place)
    if is_empty:  # it has no coordinator epoch, so that of the one before stays
        return _note(found, _note_marker(slot, found, count), place)
    waits = unseen and not must
    store_i64(slot + _MARKER, place + 1 if waits else 0)
    return count if waits else _note(found, count, place)


@helper
def _take_data(at: int, place: int, slot: int, must: bool, found: int, result: int) -> int:
    count: int = load_i64(result + _COUNT_AT)
    if (
        int(load_big_i16(at + _ATTRIBUTES_AT)) & _TRANSACTIONAL != 0
        and int(load_big_i32(at + _RECORD_COUNT_AT)) > 0
    ):
        state = load_i64(slot + _STATE)
        if state == _UNKNOWN:
            store_i64(slot + _STATE, _OPEN)
            must = True
        elif state == _CLOSED:
            store_i64(slot + _STATE, _BEGUN)
            store_i64(slot + _BEGIN, place)
            store_i64(slot + _ABORTS, load_i64(result + _ABORTS_AT))
    if must or int(load_big_i32(at + _BASE_SEQUENCE_AT)) < 0:
        return _note(found, _note_begin(slot, found, count), place)
    ring_count = load_i64(slot + _RING_COUNT)
    entry = slot + _RING + _ENTRY * (ring_count % _WINDOW)
    store_i64(entry, place)
    store_i64(entry + _ENTRY_MARKER, 0)
    store_i64(slot + _RING_COUNT, ring_count + 1)
    return count


@helper
def _take(at: int, place: int, slot: int, found: int, result: int) -> int:
    """Note the batch as found, or let it wait, or drop it; how many are found now."""
    count = load_i64(result + _COUNT_AT)
    is_control = int(load_big_i16(at + _ATTRIBUTES_AT)) & _CONTROL != 0
    if is_control and not (_is_marker(at) or int(load_big_i32(at + _RECORD_COUNT_AT)) == 0):
        # It may be a marker in another form, an abort even.
        store_i64(result + _ABORTS_AT, load_i64(result + _ABORTS_AT) + 1)
        return _note(found, _note_all(slot, found, count), place)
    epoch, before = int(load_big_i16(at + _PRODUCER_EPOCH_AT)), load_i64(slot + _EPOCH)
    must = load_i64(slot + _STATE) == _FRESH
    store_i64(slot + _EPOCH, epoch)
    if must:
        store_i64(slot + _STATE, _UNKNOWN)
    elif epoch < before:
        must = True
        count = _note_marker(slot, found, _note_ring(slot, 1, found, count))
        store_i64(result + _COUNT_AT, count)
    elif epoch > before:
        store_i64(slot + _RING_COUNT, 0)
    if is_control:
        return _take_marker(at, place, slot, must, found, result)
    return _take_data(at, place, slot, must, found, result)


@kernel("void(int64, int64, int64, int64, int64)")
def find(data: int, size: int, slots: int, found: int, result: int) -> None:
    """`data` has `size` readable bytes; the other three have the room that is said above."""
    at, end = data, data + size
    producers = 0
    count = 0
    store_i64(result + _ABORTS_AT, 0)
    while count < _MOST_FOUND and _is_sound(at, end - at):
        length = _LENGTH_PREFIX + int(load_big_i32(at + _LENGTH_AT))
        prefetch(at + _AHEAD * length)
        producer_id = load_big_i64(at + _PRODUCER_ID_AT)
        if producer_id >= 0:
            slot = _slot_of(slots, producer_id)
            if load_i64(slot) == 0:
                if producers == _MOST_PRODUCERS:
                    break
                producers += 1
                store_i64(slot, producer_id + 1)
            store_i64(result + _COUNT_AT, count)
            count = _take(at, at - data, slot, found, result)
        at += length
    for place in range(_PLACES):
        count = _note_all(slots + _SLOT * place, found, count)
    store_i64(result + _CONSUMED_AT, at - data)
    store_i64(result + _COUNT_AT, count)

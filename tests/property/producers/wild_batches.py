"""Batches as no producer writes them, for whoever reads a log."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from onceflow.records.batch import CONTROL_BIT, HEADER_SIZE, TRANSACTIONAL_BIT, NewBatch, seal
from onceflow.records.control import marker
from tests.unit.producers.handmade_log import data_batch


class Shape(NamedTuple):
    """One batch of a log; nothing says that it follows from those before it."""

    producer_id: int
    epoch: int
    sequence: int
    records: int
    kind: str


KINDS = [
    "plain",
    "transactional",
    "transactional",
    "commit",
    "commit",
    "abort",
    "emptied",
    "emptied transactional",
    "emptied marker",
    "long commit",
    "long abort",
    "unknown control",
]


def control(shape: Shape, control_type: int) -> NewBatch:
    """A control record in a way that is allowed but not the usual one: its value is longer."""
    record = (
        bytes((36, 0, 0, 0, 8))
        + bytes((0, 0, 0, control_type))
        + bytes((16, 0, 1, 0, 0, 0, shape.records, 0, 0, 0))
    )
    return seal(
        bytearray(HEADER_SIZE) + record,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp=shape.records,
        max_timestamp=shape.records,
        producer_id=shape.producer_id,
        producer_epoch=shape.epoch,
        base_sequence=-1,
        record_count=1,
    )


def batch(shape: Shape) -> NewBatch:
    producer_id, epoch, sequence, records, kind = shape
    if kind in ("commit", "abort"):
        return marker(
            producer_id,
            epoch,
            commit=kind == "commit",
            coordinator_epoch=records,
            timestamp_ms=sequence,
        )
    special = {"long abort": 0, "long commit": 1, "unknown control": 5}
    if kind in special:
        return control(shape, special[kind])
    return data_batch(
        producer_id,
        sequence,
        records,
        epoch=epoch,
        timestamp=records * 10,
        transactional="transactional" in kind or "marker" in kind,
        emptied="emptied" in kind,
        control="marker" in kind,
    )


CONTROLS = [
    "transactional",
    "commit",
    "abort",
    "long commit",
    "long abort",
    "emptied marker",
    "emptied transactional",
    "unknown control",
]


def wild(rand: Random, kinds: list[str]) -> list[Shape]:
    """Epochs that only grow with markers, or that go up and down as they never should."""
    producers = rand.choice([[1], [1, 2], [1, 2, 3], [1, 2, 3, -1, 2**63 - 1]])
    epochs = rand.choice([[0], [0, 1], [0, 0, 0, 1, 2], None])
    grown = dict.fromkeys(producers, 0)
    log: list[Shape] = []
    for number in range(rand.randint(1, rand.choice([6, 12, 25, 60]))):
        producer_id, kind = rand.choice(producers), rand.choice(kinds)
        grown[producer_id] += kind in ("commit", "abort") and rand.random() < 0.6
        epoch = grown[producer_id] if epochs is None else rand.choice(epochs)
        sequence = -1 if rand.random() < 0.05 else number
        log.append(Shape(producer_id, epoch, sequence, rand.randint(1, 3), kind))
    return log

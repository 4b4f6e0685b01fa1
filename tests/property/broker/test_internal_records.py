"""Any bytes in the place of the broker's own records: told apart by name, and what is believed of
them can be carried on. A start that meets them goes on in any case."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count

from hypothesis import given, settings, strategies as st

from onceflow.errors import InvariantViolated, RecordError
from onceflow.group import records as group_records
from onceflow.group.events import MemberIdentity as Member
from onceflow.group.records import GroupKey, GroupValue, MemberValue, OffsetKey, OffsetValue
from onceflow.records.plain import PlainRecord, write_records
from onceflow.txn import machine, records as transaction_records
from onceflow.txn.machine import Decision, Finish, Persist, ProducerIdRequest, TransactionLimits
from onceflow.txn.state import TransactionMetadata, TransactionState, check_successor
from onceflow.types import TopicPartition, TopicPartition as Place
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.doses import examples
from tests.unit.group.coordinator_under_test import Asked, Bench, check_invariants

# --- bytes ---------------------------------------------------------------------------------------

MEMBER = MemberValue("m", "i", "c", "/h", 60_000, 10_000, b"\x01\x02", b"\x03")
GROUP = GroupValue(
    "consumer", 7, "range", "m", 5, (MEMBER, MEMBER._replace(member_id="n", group_instance_id="j"))
)
OPEN = TransactionMetadata(
    "t",
    5,
    3,
    60_000,
    TransactionState.ONGOING,
    2_000,
    partitions=frozenset({TopicPartition("orders", 0), TopicPartition("orders", 1)}),
    started_ms=1_000,
    client_version=2,
)
STATES = [
    OPEN,
    replace(OPEN, next_producer_id=9, next_producer_epoch=4, last_epoch=3),
    replace(OPEN, state=TransactionState.PREPARE_COMMIT, epoch=4, last_epoch=3),
    replace(
        OPEN, state=TransactionState.COMPLETE_ABORT, partitions=frozenset(), previous_producer_id=2
    ),
    replace(OPEN, state=TransactionState.EMPTY, partitions=frozenset(), epoch=32_766),
]
OFFSET_VALUE = group_records.encode_offset(OffsetValue(5, 1, "note", 3))
GROUP_VALUE = group_records.encode_group(GROUP)
OFFSET_KEY = group_records.encode_key(OffsetKey("g", "orders", 0))
GROUP_KEY = group_records.encode_key(GroupKey("g"))


@st.composite
def spoilt(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """A record of which some bytes are others, or are missing, or are too many; seldom none."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        new = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        data[at : at + draw(st.integers(0, 2))] = bytes([new] * draw(st.integers(0, 2)))
    return bytes(data)


members = st.builds(
    MemberValue,
    member_id=st.sampled_from("mno"),
    group_instance_id=st.none() | st.sampled_from("ij"),
    client_id=st.just("c"),
    client_host=st.just("/h"),
    rebalance_timeout_ms=st.sampled_from([-1, 0, 60_000, 2**31 - 1]),
    session_timeout_ms=st.sampled_from([-1, 0, 10_000, 2**31 - 1]),
    subscription=st.binary(max_size=9),
    assignment=st.binary(max_size=3),
)
groups = st.builds(
    GroupValue,
    protocol_type=st.sampled_from(["consumer", "connect", ""]),
    generation=st.sampled_from([-(2**31), -1, 0, 1, 7]),
    protocol=st.none() | st.sampled_from(["range", ""]),
    leader=st.none() | st.sampled_from("mz"),
    state_timestamp_ms=st.sampled_from([-(2**63), -1, 0, 2**63 - 1]),
    members=st.lists(members, max_size=3).map(tuple),
)
identities = st.sampled_from([-(2**15), -1, 0, 3, 4, 2**15 - 2, 2**15 - 1])
transactions = st.builds(
    TransactionMetadata,
    transactional_id=st.just("t"),
    producer_id=st.sampled_from([-(2**63), -1, 0, 5, 2**63 - 1]),
    epoch=identities,
    timeout_ms=st.sampled_from([-(2**31), 0, 60_000, 2**31 - 1]),
    state=st.sampled_from(
        [each for each in TransactionState if each.value < TransactionState.DEAD.value]
    ),
    updated_ms=st.sampled_from([-(2**63), 0, 2**63 - 1]),
    previous_producer_id=st.sampled_from([-9, -1, 5]),
    next_producer_id=st.sampled_from([-9, -1, -1, 5, 9]),
    next_producer_epoch=identities,
    last_epoch=identities,
    partitions=st.sampled_from([frozenset(), OPEN.partitions]),
    started_ms=st.sampled_from([-(2**63), -1, 2**63 - 1]),
    client_version=st.sampled_from([-1, 0, 2, 9]),
)


def written(transaction: TransactionMetadata) -> bytes:
    """Also one that the coordinator would not write."""
    data = bytearray(
        transaction_records.encode_value(replace(transaction, state=TransactionState.ONGOING))
    )
    data[STATE_AT] = transaction.state.value
    return bytes(data)


STATE_AT = 16
anything = st.binary(max_size=60)
offset_values = spoilt(st.just(OFFSET_VALUE)) | anything
group_values = groups.map(group_records.encode_group) | spoilt(st.just(GROUP_VALUE)) | anything
keys = st.sampled_from([OFFSET_KEY, GROUP_KEY]) | spoilt(st.sampled_from([OFFSET_KEY, GROUP_KEY]))
states = transactions.map(written) | spoilt(st.sampled_from(STATES).map(written)) | anything


@given(data=keys | offset_values | group_values | states)
def test_any_bytes_are_a_record_or_refused_by_name(data: bytes) -> None:
    readers: list[Callable[[bytes], object]] = [
        group_records.decode_key,
        group_records.decode_offset,
        group_records.decode_group,
        transaction_records.decode_key,
        lambda value: transaction_records.decode_value("t", value),
    ]
    for read in readers:
        with suppress(RecordError):
            read(data)


# --- groups --------------------------------------------------------------------------------------

group_rows = st.tuples(st.just(GROUP_KEY), group_values)
other_rows = st.tuples(keys | anything, st.none() | offset_values | group_values)
rows = st.lists(group_rows | other_rows, min_size=1, max_size=6)


@settings(max_examples=examples(200), deadline=None)
@given(rows=rows)
def test_groups_go_on_behind_any_records(rows: list[tuple[bytes, bytes | None]]) -> None:
    bench = Bench()
    batch = write_records([PlainRecord(*row) for row in rows], 0)
    bench.groups.replay(bench.groups.partition_for("g"), batch.assign(0, 0))
    bench.groups.loaded()
    for group in list(bench.groups.all_groups()):
        check_invariants(group)
    bench.commit(5)
    bench.join(version=3)
    bench.join(instance="i", version=5)
    for group in list(bench.groups.all_groups()):
        for member in list(group.members):
            bench.groups.heartbeat(group.group_id, Member(member, None), group.generation)
    bench.advance(700)
    bench.groups.topic_deleted("orders")
    bench.groups.delete_offsets("g", [Place("orders", 0)])
    bench.advance(8 * 24 * 3_600)
    after = Bench(bench.log.copy())
    assert Asked(after.groups.delete_groups(["g"])).answers
    bench.groups.close()


# --- transactions --------------------------------------------------------------------------------


def decisions(transaction: TransactionMetadata) -> list[Callable[[], Decision | None]]:
    """Whatever may come next."""
    ids = count(1_000)

    def new_producer_id() -> int:
        return next(ids)

    client = transaction.client
    found: list[Callable[[], Decision | None]] = [
        lambda: machine.resume(transaction, 9),
        lambda: machine.time_out(transaction, 9, new_producer_id=new_producer_id),
        lambda: machine.add_partitions(
            transaction, client, [TopicPartition("more", 0)], now_ms=9, limits=TransactionLimits()
        ),
    ]
    for expected in (ProducerIdAndEpoch(-1, -1), client, ProducerIdAndEpoch(5, 3)):
        for keeps in (False, True):
            request = ProducerIdRequest("t", 60_000, *expected, keep_prepared_txn=keeps)
            found.append(
                lambda request=request: machine.init_producer_id(  # type: ignore[misc]
                    transaction,
                    request,
                    now_ms=9,
                    limits=TransactionLimits(two_phase_commit_enabled=True),
                    new_producer_id=new_producer_id,
                )
            )
    for version in (4, 5):
        for commit in (False, True):
            found.append(
                lambda version=version, commit=commit: machine.end(  # type: ignore[misc]
                    transaction,
                    client,
                    commit,
                    version=version,
                    now_ms=9,
                    new_producer_id=new_producer_id,
                )
            )
    return found


@settings(max_examples=examples(500), deadline=None)
@given(data=states, before=st.none() | st.sampled_from(STATES))
def test_what_a_start_believes_can_be_carried_on(
    data: bytes, before: TransactionMetadata | None
) -> None:
    try:
        transaction = transaction_records.decode_value("t", data)
        check_successor(before, transaction)
    except (RecordError, InvariantViolated):
        return
    for decide in decisions(transaction):
        decision = decide()
        written = []
        if isinstance(decision, Persist):
            written = [decision.transaction]
        elif isinstance(decision, Finish):
            written = [decision.prepare, decision.complete]
        previous = transaction
        for each in written:
            check_successor(previous, each)
            value = transaction_records.encode_value(each)
            assert transaction_records.decode_value("t", value) == each
            previous = each

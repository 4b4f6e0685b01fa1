"""Bugs to plant in the client that show when an answer is late, when a caller goes away, or when
one partition, member or topic is in trouble; and where each of them is found, within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest

from onceflow.client.assignors.member_subscription import MemberSubscription
from onceflow.client.codec.consumer_protocol import read_subscription
from onceflow.client.codec.transactions import GroupMember
from onceflow.client.consumer.commits import Commits
from onceflow.client.consumer.consumer_work import ConsumerWork
from onceflow.client.consumer.fetch_state import FetchCore
from onceflow.client.consumer.fetcher import Fetcher
from onceflow.client.consumer.positions import Positions
from onceflow.client.consumer.rebalance import Rebalancer
from onceflow.client.errors.requests import ClientError, TransactionAborted
from onceflow.client.group import requests as group_requests
from onceflow.client.group.loop import GroupLoop, MemberAssignment
from onceflow.client.group.requests import Committed
from onceflow.client.net.cluster import Cluster
from onceflow.client.offsets import list_offsets
from onceflow.client.producer.sender import Sender
from onceflow.client.session.clients import SessionConsumer
from onceflow.client.session.session_work import SessionWork
from onceflow.client.transactions import machine as txn_machine
from onceflow.client.transactions.ending import TransactionEnds
from onceflow.client.transactions.states import TransactionEvent
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from tests.sim.sweeps.consumers import sweep_cuts, sweep_polls
from tests.sim.sweeps.cutting import When
from tests.sim.sweeps.sessions import (
    ONE,
    TROUBLES,
    WAYS,
    copy_by_two,
    nothing_happens,
    sweep_sessions,
)
from tests.sim.years import ledger
from tests.unit.client.consumer import (
    test_committed_offsets as committed_offsets,
    test_positions as positions,
    test_stuck as stuck,
)
from tests.unit.client.producer import test_changing_topics as places
from tests.unit.client.request_taps import Late, once
from tests.unit.client.session import test_cut as session_cut, test_sleeps as sleeps
from tests.unit.client.transactions import test_ends_closed as ends_closed

Plant = Callable[[pytest.MonkeyPatch], None]


class Bug(NamedTuple):
    """What is wrong, and what finds it."""

    plant: Plant
    hunt: Callable[[], object]


def never(*_: Any, **__: Any) -> None:
    """What was to be done is not."""


async def nothing(*_: Any, **__: Any) -> None:
    """The same, for who waits for it."""


# --- answers that outlive their question ---------------------------------------------------------


def answers_have_no_token(patch: pytest.MonkeyPatch) -> None:
    """Whatever is answered for a partition counts as long as it is assigned, be it again."""
    patch.setattr(
        Positions,
        "_current",
        lambda ours, tokens: {each for each in tokens if each in ours._places},
    )


def seeks_have_no_token(patch: pytest.MonkeyPatch) -> None:
    """An answer counts also when the user has gone elsewhere since."""

    def current(ours: Positions, tokens: Mapping[TopicPartition, Any]) -> set[TopicPartition]:
        return {each for each, token in tokens.items() if ours._places.get(each) is token.place}

    patch.setattr(Positions, "_current", current)


def whoever_it_is_by_then_commits(patch: pytest.MonkeyPatch) -> None:
    """A commit goes by the membership of the moment at which it is sent."""
    honest = Commits._send

    async def send(ours: Commits, _: GroupMember, left: Any, *, passes_over_gone: bool) -> None:
        await honest(ours, ours.member, left, passes_over_gone=passes_over_gone)

    patch.setattr(Commits, "_send", send)


def errors_are_no_offsets(patch: pytest.MonkeyPatch) -> None:
    """A partition of which the coordinator cannot tell is one without a commit."""
    honest = Commits.ask_committed

    async def ask(
        ours: Commits, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Committed]:
        answers = await honest(ours, list(partitions))
        return {
            each: None if isinstance(found, ClientError) else found
            for each, found in answers.items()
        }

    patch.setattr(Commits, "ask_committed", ask)


def groups_that_change_have_no_offsets(patch: pytest.MonkeyPatch) -> None:
    """The same for all partitions of a group."""
    honest = Commits.ask_committed

    async def ask(
        ours: Commits, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Committed]:
        try:
            return await honest(ours, list(partitions))
        except ClientError:
            return dict.fromkeys(partitions)

    patch.setattr(Commits, "ask_committed", ask)


# --- sessions -------------------------------------------------------------------------------------


def sessions_do_not_listen(patch: pytest.MonkeyPatch) -> None:
    """Partitions that were lost are nothing to them."""
    patch.setattr(SessionWork, "on_partitions_lost", nothing)


def sessions_do_not_go_back(patch: pytest.MonkeyPatch) -> None:
    """What was aborted is not read again."""
    patch.setattr(SessionConsumer, "go_back", never)


def sessions_give_up_without_a_commit(patch: pytest.MonkeyPatch) -> None:
    """What was read of revoked partitions is committed later, when others have them."""
    patch.setattr(SessionWork, "on_partitions_revoked", nothing)


def ends_run_beside_each_other(patch: pytest.MonkeyPatch) -> None:
    """Each in the task of whoever wants it, as it comes: a rebalance commits while a close aborts.
    The producer has an owner of its ends, a state for each of them, and a transaction that can only
    be aborted when something of it was given up: each of these alone would keep it whole."""
    honest = Sender.fail_waiting

    async def uncut(work: SessionWork, end: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        return await end()

    async def run(ends: TransactionEnds, event: TransactionEvent) -> None:
        ends._machine._after(event)
        if event is TransactionEvent.COMMIT:
            await ends._ways.flush()
            await ends._ways.ask(ends._machine.commit())
        else:
            await ends._ways.drop(TransactionAborted("aborted"))
            await ends._ways.ask(ends._machine.abort())

    def fail_waiting(sender: Sender, error: ClientError) -> None:
        machine, sender._machine = sender._machine, None
        honest(sender, error)
        sender._machine = machine
        sender.unheard.take()  # which a flush would tell

    patch.setattr(SessionWork, "_uncut", uncut)
    patch.setattr(TransactionEnds, "run", run)
    patch.setattr(Sender, "fail_waiting", fail_waiting)


# --- what was not received is not taken ----------------------------------------------------------


def what_is_left_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Records that were fetched to be taken one by one come also when the reader is elsewhere."""
    patch.setattr(ConsumerWork, "give_back", never)


def what_is_left_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """And is not fetched again."""
    patch.setattr(ConsumerWork, "give_back", lambda work: work.rest.drop())


def giving_back_moves_the_beginning(patch: pytest.MonkeyPatch) -> None:
    """To which `rewind` goes."""

    def go_back(ours: Positions, offsets: Mapping[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            ours.seek(partition, offset)

    patch.setattr(Positions, "go_back", go_back)


def rows_leave_before_the_last_wait(patch: pytest.MonkeyPatch) -> None:
    """Whoever is cut in it has taken them, and does not have them."""

    async def next_records(
        fetcher: Fetcher, timeout_s: float, *, max_records: int = 500
    ) -> list[Any]:
        if not await fetcher._ready(timeout_s, max_records):
            return []
        found = fetcher.buffer.records(max_records)
        await asyncio.sleep(0)
        return found

    patch.setattr(Fetcher, "next_records", next_records)


def rebalances_are_cut_with_polls(patch: pytest.MonkeyPatch) -> None:
    """What a join has brought is gone when whoever polls goes in the midst of it."""

    async def attend(work: ConsumerWork, now: float) -> None:
        if work.rebalancer is not None:
            work.rebalancer.loop.polling()
            await work.rebalancer.attend()
        work.positions.check()

    patch.setattr(ConsumerWork, "_attend", attend)


# --- one in trouble -------------------------------------------------------------------------------


def all_are_placed_or_none(patch: pytest.MonkeyPatch) -> None:
    """One without a leader keeps the others waiting."""

    async def ends(
        cluster: Cluster,
        partitions: Collection[TopicPartition],
        time: int,
        found: Callable[[Mapping[TopicPartition, int]], None],
        *,
        read_committed: bool,
    ) -> Mapping[TopicPartition, ClientError]:
        answers = await list_offsets(
            cluster, dict.fromkeys(partitions, time), read_committed=read_committed
        )
        found({each: at.offset for each, at in answers.items()})
        return {}

    patch.setattr("onceflow.client.consumer.positions.try_ends", ends)
    patch.setattr(Cluster, "known_leader", lambda cluster, partition: None)


def one_offset_that_is_not_known_hides_the_others(patch: pytest.MonkeyPatch) -> None:
    honest = Commits.ask_committed

    async def ask(
        ours: Commits, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Committed]:
        answers = await honest(ours, list(partitions))
        for each in answers.values():
            if isinstance(each, ClientError):
                raise each
        return answers

    patch.setattr(Commits, "ask_committed", ask)


def paused_partitions_fill_the_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FetchCore, "make_room", never)


def deleted_topics_are_waited_for(patch: pytest.MonkeyPatch) -> None:
    honest = Commits._send

    async def send(ours: Commits, member: Any, left: Any, *, passes_over_gone: bool) -> None:
        await honest(ours, member, left, passes_over_gone=False)

    patch.setattr(Commits, "_send", send)


def listeners_are_not_known(patch: pytest.MonkeyPatch) -> None:
    """So one that unsubscribes waits for the rebalance that waits for it."""
    patch.setattr(Rebalancer, "is_listening", False)


def an_unreadable_subscription_ends_the_join(patch: pytest.MonkeyPatch) -> None:
    def want(found: Any) -> MemberSubscription:
        subscription = read_subscription(found.metadata)
        return MemberSubscription(
            found.member_id, frozenset(subscription.topics), owned=subscription.owned
        )

    patch.setattr(group_requests, "_want", want)


def everything_given_is_taken(patch: pytest.MonkeyPatch) -> None:
    """An assignment is not compared with the subscription."""

    def wanted(rebalancer: Rebalancer, given: MemberAssignment) -> MemberAssignment:
        return given

    patch.setattr(Rebalancer, "_wanted", wanted)


def refusals_are_kept_to_oneself(patch: pytest.MonkeyPatch) -> None:
    """What is not subscribed to is not read, and the group never hears of it."""

    def wanted(rebalancer: Rebalancer, given: MemberAssignment) -> MemberAssignment:
        subscription = rebalancer.loop.subscription
        meant = frozenset(each for each in given.partitions if subscription.means(each.topic))
        return given._replace(partitions=meant)

    patch.setattr(Rebalancer, "_wanted", wanted)


# --- closing --------------------------------------------------------------------------------------


def tasks_are_not_told_to_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerWork, "_stop", never)


def hearts_go_on_beating(patch: pytest.MonkeyPatch) -> None:
    """Of a consumer that was closed, or whose close was cut short."""

    async def leave(loop: GroupLoop, why: str) -> None:
        await loop._say_goodbye(why)

    patch.setattr(GroupLoop, "stop", never)
    patch.setattr(GroupLoop, "leave", leave)


def closing_waits_for_the_group_first(patch: pytest.MonkeyPatch) -> None:
    """Who is cut in that leaves everything running."""

    async def close(work: ConsumerWork, *, commit: bool, timeout_s: float) -> None:
        if work._is_open:
            await work.leave("the consumer was closed", commit=commit)
            work._is_open = False
            work._stop()
            await work._ended()

    patch.setattr(ConsumerWork, "close", close)


def ends_outlive_a_close(patch: pytest.MonkeyPatch) -> None:
    """And are asked for when the producer is started again."""
    patch.setattr(TransactionEnds, "close", never)


# --- what grows old -------------------------------------------------------------------------------


def topics_never_grow_old(patch: pytest.MonkeyPatch) -> None:
    """Records of one key go to where it belonged."""
    patch.setattr(Cluster, "is_old", lambda cluster, topic: False)


def a_topic_that_is_gone_is_told_to_all(patch: pytest.MonkeyPatch) -> None:
    async def ask(cluster: Cluster) -> None:
        await cluster.metadata(list(cluster._view.topics))

    patch.setattr(Cluster, "_ask_known", ask)


def ids_are_not_kept_in_use(patch: pytest.MonkeyPatch) -> None:
    """Nor asked for anew before they are used again."""
    patch.setattr(txn_machine, "RENEWED_AFTER_S", 1e12)


def forgotten_ids_are_not_renewed(patch: pytest.MonkeyPatch) -> None:
    """Neither before they are used again, nor when brokers say that they do not know them."""
    ids_are_not_kept_in_use(patch)
    patch.setattr(txn_machine.TransactionMachine, "_is_unknown", lambda *_: False)


# --- where they are found -------------------------------------------------------------------------


def cuts(name: str) -> Callable[[], None]:
    """A call of a consumer, cut everywhere."""

    def hunt() -> None:
        for when in When:
            sweep_cuts(name, when)

    return hunt


def troubles(name: str, word: str, step: int = 7) -> Callable[[], None]:
    """Two sessions, of whose requests some go wrong."""
    return lambda: sweep_sessions(WAYS[name], TROUBLES[word], range(0, 100, step))


def late_beginning() -> None:
    """An answer to where to begin is held back beyond a rebalance."""
    copy_by_two(WAYS["cooperative"], once(ApiKey.LIST_OFFSETS, Late(8), host=ONE))


def late_seek() -> None:
    hunt = positions.test_a_seek_that_is_answered_late_does_not_undo_a_later_one
    hunt(ApiKey.LIST_OFFSETS, positions._seeks)


def unknown_offsets(word: str) -> Callable[[], None]:
    hunt = committed_offsets.test_what_is_not_known_yet_is_asked_for_again
    return partial(hunt, committed_offsets.NOT_YET[word])


def cut_in_a_rebalance() -> None:
    hunt = session_cut.test_a_session_that_is_cancelled_in_a_rebalance_commits_all_or_nothing
    for moment in range(22, 42, 4):
        hunt(moment, "range")


one_in_trouble = stuck.test_one_partition_that_cannot_be_placed_keeps_no_other_waiting
another_wish = stuck.test_what_is_not_subscribed_to_any_more_is_not_handed_out
static_wish = stuck.test_a_static_member_comes_back_with_another_subscription

BUGS = (
    Bug(answers_have_no_token, late_beginning),
    Bug(seeks_have_no_token, late_seek),
    Bug(
        whoever_it_is_by_then_commits,
        positions.test_an_offset_that_waits_for_its_turn_is_committed_as_the_member_that_read_it,
    ),
    Bug(errors_are_no_offsets, unknown_offsets("a transaction of one")),
    Bug(errors_are_no_offsets, unknown_offsets("an epoch of one")),
    Bug(groups_that_change_have_no_offsets, unknown_offsets("an epoch")),
    Bug(sessions_do_not_listen, troubles("eager, shared", "away")),
    Bug(sessions_do_not_listen, troubles("cooperative, shared", "away")),
    Bug(sessions_do_not_go_back, troubles("eager, hasty", "away")),
    Bug(
        sessions_give_up_without_a_commit,
        lambda: copy_by_two(WAYS["eager, shared"], nothing_happens),
    ),
    Bug(ends_run_beside_each_other, cut_in_a_rebalance),
    Bug(what_is_left_is_kept, cuts("rewind")),
    Bug(what_is_left_is_kept, cuts("seek_to_end")),
    Bug(what_is_left_is_dropped, cuts("close")),
    Bug(giving_back_moves_the_beginning, cuts("rewind")),
    Bug(rows_leave_before_the_last_wait, cuts("poll")),
    Bug(rebalances_are_cut_with_polls, lambda: sweep_polls("cooperative-sticky")),
    Bug(all_are_placed_or_none, partial(one_in_trouble, {0: 1, 1: -1}, stuck.NOTHING)),
    Bug(
        one_offset_that_is_not_known_hides_the_others,
        partial(one_in_trouble, {0: 1, 1: 1}, stuck.WAITS),
    ),
    Bug(paused_partitions_fill_the_queue, stuck.test_a_paused_partition_does_not_starve_the_others),
    Bug(deleted_topics_are_waited_for, stuck.test_a_deleted_topic_does_not_hold_up_a_rebalance),
    Bug(listeners_are_not_known, stuck.test_a_listener_may_unsubscribe),
    Bug(
        an_unreadable_subscription_ends_the_join,
        stuck.test_a_member_with_an_unreadable_subscription_is_given_nothing,
    ),
    Bug(everything_given_is_taken, partial(another_wish, "range")),
    Bug(everything_given_is_taken, partial(static_wish, "range")),
    Bug(refusals_are_kept_to_oneself, partial(another_wish, "range")),
    Bug(tasks_are_not_told_to_end, cuts("close")),
    Bug(hearts_go_on_beating, cuts("close")),
    Bug(closing_waits_for_the_group_first, cuts("close")),
    Bug(
        ends_outlive_a_close,
        partial(ends_closed.test_half_a_transaction_is_not_committed_in_the_next_life, False),
    ),
    Bug(
        topics_never_grow_old,
        places.test_keys_go_where_they_belong_when_what_is_known_is_too_old,
    ),
    Bug(
        a_topic_that_is_gone_is_told_to_all,
        places.test_a_topic_that_is_gone_is_told_and_troubles_no_other,
    ),
    Bug(
        forgotten_ids_are_not_renewed,
        sleeps.test_an_idle_session_goes_on_though_its_transactional_id_was_forgotten,
    ),
    Bug(
        ids_are_not_kept_in_use,
        sleeps.test_an_idle_producer_goes_on_though_its_transactional_id_was_forgotten,
    ),
    Bug(ids_are_not_kept_in_use, lambda: ledger.idle(2, 4)),
)

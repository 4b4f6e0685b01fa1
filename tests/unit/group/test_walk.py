"""Members join, sync, leave and die in any order, the log stalls, fails and the broker restarts.

Whatever happens: a request that is not answered is one that some member waits for; generations
grow; nobody is told two assignments for the same generation; the log gives back what was seen.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from onceflow.errors import StoreBusy
from onceflow.group.events import JoinResult, SyncResult
from onceflow.group.records import GroupKey, decode_group, decode_key
from onceflow.group.state import GroupState, Protocol
from onceflow.wire.error_codes import ErrorCode
from tests.doses import examples
from tests.unit.group.coordinator_under_test import Asked, Bench, check_invariants, subscription

NEVER_MS = 10**12
PROTOCOLS = (
    (Protocol("range", subscription("orders")),),
    (Protocol("range", subscription("clicks")), Protocol("sticky", b"")),
    (Protocol("sticky", b""), Protocol("range", subscription("orders"))),
)

which = st.integers(0, 5)
instances = st.sampled_from([None, None, "i0", "i1"])
protocols = st.sampled_from(PROTOCOLS)


class Walk(RuleBasedStateMachine):
    """One group, and clients that do as they like."""

    @initialize()
    def start(self) -> None:
        self.bench = Bench(offsets_retention_check_interval_ms=NEVER_MS)
        self.asked: list[tuple[str, Asked[Any]]] = []
        self.known: list[tuple[str, str | None]] = []
        self.generation = 0
        self.told: dict[tuple[int, str], bytes] = {}

    def pick(self, at: int) -> tuple[str, str | None]:
        """One of the last clients, or somebody nobody knows."""
        return self.known[-1 - at] if at < len(self.known) else ("stranger", None)

    def send(self, member_id: str, asked: Asked[Any]) -> None:
        self.asked.append((member_id, asked))

    # --- what happens -------------------------------------------------------------------------

    @rule(instance=instances, protocols=protocols, version=st.sampled_from([3, 5, 9]))
    def a_client_comes(
        self, instance: str | None, protocols: tuple[Protocol, ...], version: int
    ) -> None:
        options: dict[str, Any] = {"version": version, "protocols": protocols}
        asked = self.bench.join(instance=instance, **options)
        self.send("", asked)
        if asked.answers and asked.answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.known.append((asked.answer.member_id, None))
            self.send(asked.answer.member_id, self.bench.join(asked.answer.member_id, **options))

    @rule(at=which, protocols=protocols)
    def a_client_joins_again(self, at: int, protocols: tuple[Protocol, ...]) -> None:
        member_id, instance = self.pick(at)
        self.send(member_id, self.bench.join(member_id, instance=instance, protocols=protocols))

    @rule()
    def everybody_joins(self) -> None:
        group = self.bench.groups.find("g")
        for member in list(group.members.values()) if group else []:
            asked = self.bench.join(
                member.member_id, instance=member.group_instance_id, protocols=member.protocols
            )
            self.send(member.member_id, asked)

    @rule()
    def everybody_syncs(self) -> None:
        group = self.bench.groups.find("g")
        for member in list(group.members.values()) if group else []:
            self.sync(member.member_id, member.group_instance_id)

    @rule(at=which)
    def a_client_syncs(self, at: int) -> None:
        self.sync(*self.pick(at))

    def sync(self, member_id: str, instance: str | None) -> None:
        group = self.bench.groups.find("g")
        generation = group.generation if group else 1
        plan = {each: f"{generation} {len(self.asked)}".encode() for each, _ in self.known}
        asked = self.bench.sync(member_id, generation, plan, instance=instance)
        self.send(member_id, asked)

    @rule(at=which)
    def a_client_leaves(self, at: int) -> None:
        member_id, instance = self.pick(at)
        if not self.bench.log.is_holding:
            self.bench.leave((member_id, instance))

    @rule(at=which)
    def a_heartbeat(self, at: int) -> None:
        member_id, instance = self.pick(at)
        self.bench.heartbeat(member_id, self.generation, instance)

    @rule(at=which, offset=st.integers(0, 9))
    def a_commit(self, at: int, offset: int) -> None:
        member_id, instance = self.pick(at)
        self.bench.commit(
            offset, member_id=member_id, instance=instance, generation=self.generation
        )

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.advance(seconds)

    @rule(is_holding=st.booleans())
    def the_log_stalls_or_goes_on(self, is_holding: bool) -> None:
        self.bench.log.is_holding = is_holding
        if not is_holding:
            self.bench.log.release()

    @rule(fails=st.booleans())
    def the_log_fails_or_recovers(self, fails: bool) -> None:
        self.bench.log.failure = StoreBusy("full") if fails else None

    @rule()
    def the_broker_restarts(self) -> None:
        """What was not durable is gone."""
        before = self.bench
        before.groups.close()
        self.learn()
        assert all(asked.answers for _, asked in self.asked)
        log = before.log
        log.failure = None
        self.bench = Bench(log.copy(), offsets_retention_check_interval_ms=NEVER_MS)
        assert self.bench.fetch_all() == before.fetch_all()
        self.asked.clear()
        self.generation = 0

    # --- what always holds --------------------------------------------------------------------

    def learn(self) -> None:
        """Looks at the answers that have come."""
        for _, asked in self.asked:
            for answer in asked.answers:
                if isinstance(answer, JoinResult) and answer.error is ErrorCode.NONE:
                    self.learn_join(answer)
        for member_id, asked in self.asked:
            for answer in asked.answers:
                if isinstance(answer, SyncResult) and answer.error is ErrorCode.NONE:
                    # The plan says for which generation it was made.
                    generation = int(answer.assignment.split()[0]) if answer.assignment else -1
                    key = (generation, member_id)
                    assert self.told.setdefault(key, answer.assignment) == answer.assignment
        self.asked = [(member_id, each) for member_id, each in self.asked if each.waits]

    def learn_join(self, answer: JoinResult) -> None:
        name = answer.member_id.split("-")[0]
        identity = (answer.member_id, name if name.startswith("i") else None)
        if identity not in self.known:
            self.known.append(identity)
        if answer.members:
            assert answer.leader == answer.member_id
            assert answer.member_id in {each.member_id for each in answer.members}

    @invariant()
    def requests_wait_only_for_members(self) -> None:
        self.learn()
        group = self.bench.groups.find("g")
        members = group.members.values() if group else ()
        tickets = sum(
            (each.join_ticket is not None) + (each.sync_ticket is not None) for each in members
        )
        assert tickets == len(self.asked)

    @invariant()
    def the_group_is_sound(self) -> None:
        group = self.bench.groups.find("g")
        if group is not None:
            check_invariants(group)
            assert group.generation >= self.generation
            self.generation = group.generation

    @invariant()
    def a_stable_group_is_what_the_log_says(self) -> None:
        group = self.bench.groups.find("g")
        if group is None or group.state is not GroupState.STABLE or self.bench.log.held:
            return
        values = [
            record.value
            for record in self.bench.log.records()
            if decode_key(record.key or b"") == GroupKey("g")
        ]
        assert values[-1] is not None
        logged = decode_group(values[-1])
        assert logged.generation == group.generation
        assert logged.leader == group.leader
        assert {each.member_id: each.assignment for each in logged.members} == {
            each.member_id: each.assignment for each in group.members.values()
        }

    def teardown(self) -> None:
        """If everybody falls silent, everybody is answered and nobody is left."""
        self.bench.log.failure = None
        self.bench.log.is_holding = False
        self.bench.log.release()
        self.bench.advance(1_000)
        self.learn()
        assert not self.asked
        group = self.bench.groups.find("g")
        assert group is None or (group.state is GroupState.EMPTY and not group.pending)


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=examples(120), stateful_step_count=50, deadline=None)

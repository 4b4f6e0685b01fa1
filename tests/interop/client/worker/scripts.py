"""What is asked of transactions that other processes take part in: the scripts themselves."""

from __future__ import annotations

from functools import partial

from onceflow.client.codec.transactions import OffsetToCommit
from onceflow.client.errors.requests import UnknownOutcome
from onceflow.client.net.retry import RetryPolicy
from onceflow.client.transactions.states import ProducerState
from onceflow.client.worker.transaction_client import TransactionClient
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from tests.interop.client.worker.worker_process import result, start
from tests.interop.client.worker.workers import (
    BOTH,
    driver,
    epoch_of,
    going_on,
    lose,
    outcome,
    reader,
    settings,
    settled,
    topic,
    visible,
    write,
)
from tests.interop.harness import Names, Transcript, eventually

LEDGER = "query 7, batch {}"


SHORT = RetryPolicy(total_s=0.5, first_pause_s=0.005, longest_pause_s=0.1)


def entry(place: TopicPartition, batch: int) -> dict[TopicPartition, OffsetToCommit]:
    return {place: OffsetToCommit(batch, LEDGER.format(batch))}


def two_processes(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Two transactions, each written by two processes and ended by a third party."""
    for version in BOTH:
        places = topic(names, f"out-{version}", partitions=4)
        ledger = topic(names, f"ledger-{version}")[0]
        group = names(f"group-{version}")
        with driver(names, version, f"id-{version}") as finisher:
            finisher.init()
            for batch, end in enumerate(("abort", "commit")):
                opened = finisher.begin(places)
                halves = (places[:2], places[2:])
                rows = [
                    {
                        place: [f"{place.partition}:{batch}:{n}" for n in range(300)]
                        for place in half
                    }
                    for half in halves
                ]
                processes = [start(opened, each) for each in rows]
                transcript.note(f"TV{version} {end} written", [result(each) for each in processes])
                finisher.commit_offsets(group, entry(ledger, batch))
                finisher.commit() if end == "commit" else finisher.abort()
                settled(names, places)
                seen = visible(names, places)
                counts = {place: len(values) for place, values in seen.items()}
                transcript.note(f"TV{version} {end} visible", counts)
                found = finisher.committed_offsets(group, [ledger])[ledger]
                transcript.note(f"TV{version} {end} ledger", found and found.metadata)
            for place in places:
                expected = [f"{place.partition}:{batch}:{n}" for n in range(300)]
                assert seen[str(place)] == expected
            transcript.note(f"TV{version} epoch", epoch_of(finisher))


def handed_over(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Begun by one, written by a second and a third one after the other, finished by a fourth."""
    for version in BOTH:
        place = topic(names, f"out-{version}")[0]
        with driver(names, version, f"id-{version}") as first:
            first.init()
            opened = first.begin([place])
        written = write(opened, place, "a", "b")
        later = going_on(opened, place, written.last_sequence + 1)
        transcript.note("second", list(write(later, place, "c")))
        with TransactionClient.of(later, settings(names)) as last:
            last.commit()
            transcript.note("state", last.state.name)
        settled(names, [place])
        transcript.note("visible", visible(names, [place]))
        with TransactionClient.of(later, settings(names)) as again:
            transcript.note("again", outcome(again.commit))
        with TransactionClient.of(later, settings(names)) as against:
            transcript.note("abort after that", outcome(against.abort))
        transcript.note("still visible", visible(names, [place]))


def zombies(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """A driver and its writer, after another driver has taken the transactional id over."""
    for version in BOTH:
        place, other, ledger = topic(names, f"out-{version}", partitions=3)
        group = names(f"group-{version}")
        with (
            driver(names, version, f"id-{version}") as old,
            driver(names, version, f"id-{version}") as new,
        ):
            old.init()
            opened = old.begin([place, other])
            write(opened, place, "of the zombie")
            new.init()
            transcript.note("epochs", epoch_of(new) - epoch_of(old))
            fresh = new.begin([place])
            went_on = going_on(opened, place, 1)
            transcript.note("goes on", outcome(write, went_on, place, "late"))
            transcript.note("elsewhere", outcome(write, opened, other, "late"))
            write(fresh, place, "of the new one")
            transcript.note("meanwhile", outcome(write, went_on, place, "late"))
            offsets = entry(ledger, 1)
            transcript.note("offsets", outcome(old.commit_offsets, group, offsets))
            transcript.note("commit", outcome(old.commit))
            transcript.note("abort", outcome(old.abort))
            transcript.note("state", old.state.name)
            new.commit_offsets(group, entry(ledger, 2))
            new.commit()
            settled(names, [place, other])
            transcript.note("visible", visible(names, [place, other]))
            found = new.committed_offsets(group, [ledger])[ledger]
            transcript.note("ledger", found and found.metadata)


def fenced_commit(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """The first that a zombie hears of it is the answer to its commit."""
    for version in BOTH:
        place = topic(names, f"out-{version}")[0]
        with (
            driver(names, version, f"id-{version}") as old,
            driver(names, version, f"id-{version}") as new,
        ):
            old.init()
            write(old.begin([place]), place, "of the zombie")
            new.init()
            transcript.note("commit", outcome(old.commit))
            if old.state is ProducerState.ABORTABLE_ERROR:
                transcript.note("abort", outcome(old.abort))
            transcript.note("state", old.state.name)
            write(new.begin([place]), place, "of the new one")
            new.commit()
        settled(names, [place])
        transcript.note("visible", visible(names, [place]))


def lost_ends(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """EndTxn or its answer is lost, once or twice: it is resent, and the output is exact."""
    for version in BOTH:
        place = topic(names, f"out-{version}")[0]
        with driver(names, version, f"id-{version}") as finisher:
            finisher.init()
            first = epoch_of(finisher)
            for number in range(4):
                write(finisher.begin([place]), place, f"value {number}")
                lose(finisher, ApiKey.END_TXN, 1 + number % 2, answers=number < 2)
                finisher.commit()
                epochs = epoch_of(finisher) - first
                transcript.note(f"TV{version} {number}", [epochs, finisher.state.name])
        settled(names, [place])
        transcript.note("visible", visible(names, [place]))


def unclear_commit(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """No answer within the time that there is; then it is asked about again."""
    for version in BOTH:
        for answers in (True, False):
            label = f"{version}-{answers}".lower()
            place = topic(names, f"out-{label}")[0]
            with driver(names, version, f"id-{label}", delivery_timeout_ms=6000) as finisher:
                finisher.init()
                write(finisher.begin([place]), place, "value")
                lose(finisher, ApiKey.END_TXN, 1_000_000, answers=answers)
                finisher._machine._asker._policy = SHORT
                transcript.note("commit", outcome(finisher.commit))
                transcript.note("abort", outcome(finisher.abort))
                transcript.note("begin", outcome(finisher.begin))  # called now
                del finisher._perform
                transcript.note("resolve", outcome(finisher.resolve))
                # Whether there was time for its next epoch is the machine's affair.
                is_over = finisher.state in (ProducerState.READY, ProducerState.USED_UP)
                transcript.note("is over", is_over)
            settled(names, [place])
            transcript.note("visible", visible(names, [place]))


def doubt_settled_by_ledger(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """A driver dies at its commit; the next one finds out by the ledger, after its Init."""
    for version in BOTH:
        place, ledger = topic(names, f"out-{version}", partitions=2)
        group = names(f"group-{version}")
        for number, answers in enumerate((True, False)):
            with driver(names, version, f"id-{version}") as dying:
                dying.init()
                write(dying.begin([place]), place, f"value {number}")
                dying.commit_offsets(group, entry(ledger, number))
                lose(dying, ApiKey.END_TXN, 1_000_000, answers=answers)
                dying._machine._asker._policy = SHORT
                try:
                    dying.commit()
                except UnknownOutcome as error:
                    transcript.note("dies", error.outcome)
            with driver(names, version, f"id-{version}") as next_one:
                next_one.init()
                found = next_one.committed_offsets(group, [ledger])[ledger]
                transcript.note("ledger", found and found.metadata)
        settled(names, [place])
        transcript.note("visible", visible(names, [place]))


def two_attempts(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Two writers of one partition in one epoch: the broker does not tell them apart, which is why
    a partition is claimed by one."""
    for version in BOTH:
        place = topic(names, f"out-{version}")[0]
        with driver(names, version, f"id-{version}") as finisher:
            finisher.init()
            opened = finisher.begin([place])
            transcript.note("first", list(write(opened, place, "a", "b", "c")))
            transcript.note("same size", list(write(opened, place, "x", "y", "z")))
            transcript.note("other size", outcome(write, opened, place, "x", "y"))
            finisher.abort()
            # A new epoch, and everything again.
            opened = finisher.begin([place])
            transcript.note("again", list(write(opened, place, "x", "y")))
            finisher.commit()
        settled(names, [place])
        transcript.note("visible", visible(names, [place]))
        transcript.note("all", visible(names, [place], "read_uncommitted"))


def timeout(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """The coordinator aborts a transaction that takes too long; its batch is done again."""
    for version in BOTH:
        place = topic(names, f"out-{version}")[0]
        with driver(names, version, f"id-{version}", transaction_timeout_ms=2000) as finisher:
            finisher.init()
            opened = finisher.begin([place])
            written = write(opened, place, "a")
            with reader(names) as reading:
                eventually(partial(reading.ends, *place), lambda ends: ends[1] == 2)
            late = going_on(opened, place, 1)
            transcript.note("late", outcome(write, late, place, "b"))
            transcript.note("commit", outcome(finisher.commit))
            if version == 2:
                transcript.note("abort", outcome(finisher.abort))
                transcript.note("epochs", epoch_of(finisher) - opened.producer_epoch)
        with driver(names, version, f"id-{version}") as again:
            again.init()
            assert write(again.begin([place]), place, "a").records == written.records
            again.commit()
        settled(names, [place])
        transcript.note("visible", visible(names, [place]))

"""What a session can raise besides what reading and sending can. Whatever it is, nothing was done
by halves: a batch is committed with its offsets, or will be read again."""

from __future__ import annotations

from onceflow.client.errors import ClientError


class SessionError(ClientError):
    """Root of what sessions raise."""


class SessionFenced(SessionError):
    """Another session with the same group and instance has taken over; what this one had not
    committed is the other one's to do."""

    advice = (
        "stop: the other one does the work now. If both are meant to run, give each its own "
        "instance"
    )


class SessionFailed(SessionError):
    """The broker refuses this session for good."""

    advice = "correct what the message says, then start the session again: it goes on where it was"


class SessionForgotten(SessionFailed):
    """The broker has forgotten the session's transactional id: the session stood still for longer
    than `transactional.id.expiration.ms`, in the midst of a batch. Nothing of that batch was
    committed by it."""

    advice = (
        "look whether the group still has its offsets (`onceflow groups describe`) before the "
        "session is started again. If they are gone, commit those behind the last records of the "
        "output first: with auto.offset.reset=earliest it would begin at the first record"
    )


class OffsetsForgotten(SessionError):
    """The group has no offset of a partition of which this session knows that it had one: the group
    was empty for longer than the broker's `offsets.retention.minutes`, or its offsets, the
    group or the topic were deleted. `auto.offset.reset` is for what no session has read yet; here
    it would repeat all records, or pass over some."""

    advice = (
        "commit the offsets behind the last records of the output (`Admin.commit_offsets`, "
        "`onceflow groups reset`), then start the session again"
    )


class BatchRefused(SessionError):
    """A batch was aborted for a reason that is the same however often it is repeated: no right to
    write to a topic, a record that is too large."""

    advice = (
        "correct what the message says, or send such records to dead letters; then start the "
        "session again: it goes on with this batch"
    )


class NoProgress(SessionError):
    """A batch was aborted again and again."""

    advice = (
        "look at the brokers; if the work on a batch takes longer than transaction.timeout.ms, "
        "allow more time or take fewer records at once (max.poll.records). Then start the session "
        "again: it goes on with this batch"
    )


class BatchUndone(SessionError):
    """The last batch before the end of the session could not be committed, and was aborted."""

    advice = "nothing, if the session is started again: whoever has its partitions reads it again"

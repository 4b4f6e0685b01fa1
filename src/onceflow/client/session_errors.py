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

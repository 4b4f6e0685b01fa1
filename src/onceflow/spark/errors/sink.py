"""What the sink raises, besides the errors of the client."""

from __future__ import annotations

from collections.abc import Sequence

from onceflow.errors import InvalidSetting, OnceflowError


class SinkRefused(InvalidSetting):
    """A write that cannot be started as it is; the text lists all that is wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"this cannot be written exactly once:{listed}")
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[SinkRefused], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class SinkError(OnceflowError):
    """Root of what goes wrong while a batch is written."""


class LedgerConflict(SinkError):
    """What the ledger says was committed does not fit what Spark wants to write: writing it
    could lose rows or write them twice."""


class LedgerMalformed(SinkError):
    """The ledger holds something that this release did not write."""


class IdentityChanged(SinkError):
    """A checkpoint is used under another name, group or ledger than it was begun with."""


class SinkFenced(SinkError):
    """Another driver writes under the same name now. This one has stopped; nothing is lost."""


class BatchFailed(SinkError):
    """A batch could not be written; nothing of it is visible."""


class BatchTimedOut(BatchFailed):
    """A batch took longer than its transaction may last, twice."""


class CommitUnclear(SinkError):
    """No answer came to a commit. The next start asks the ledger whether it was done."""


class EndUnknown(SinkError):
    """A broker has ended an earlier batch without its markers, and nothing tells whether it was
    committed: writing on could lose its rows, or show those that were aborted."""


class ReportsWrong(SinkError):
    """Tasks report something else than what a batch should have written."""


class AttemptRefused(SinkError):
    """This task attempt must not write: another attempt has, or its epoch is over."""


class LaterAttempt(AttemptRefused):
    """Another attempt of the same task came before this one. How that ended is the reason for what
    follows."""


class RowRefused(SinkError):
    """A row that cannot be written as it is; trying again would not help."""


class ClaimsUnreachable(SinkError):
    """A task cannot reach the driver, which has to allow it to write."""

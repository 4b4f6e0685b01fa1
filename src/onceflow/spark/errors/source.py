"""What the source raises, besides the errors of the client."""

from __future__ import annotations

from collections.abc import Sequence

from onceflow.errors import InvalidSetting, OnceflowError


class InvalidOptions(InvalidSetting):
    """Options of a source that cannot be used; the text lists all that is wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"the options of format 'onceflow' cannot be used:{listed}")
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[InvalidOptions], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class SourceError(OnceflowError):
    """Root of what goes wrong while a source is read."""


class DataLost(SourceError):
    """Records that a query has to read are gone, and `failOnDataLoss` is true."""


class NoOffsetAtTime(SourceError):
    """No record is as late as a query wants to start."""


class PartitionsDiffer(SourceError):
    """Offsets were given for other partitions than there are to be read."""


class OffsetsUnreadable(SourceError):
    """A checkpoint holds offsets that are not those of this source."""


class TopicRecreated(SourceError):
    """A topic was deleted and recreated while a task was reading it: what it has read may be of
    either. The batch is to be read again."""


class TopicsUnsettled(SourceError):
    """Topics do not stay the same for as long as it takes to plan a batch."""

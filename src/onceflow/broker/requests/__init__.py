"""What all handlers need: who asks, answers that come later, refusals, and long work in slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.broker.requests.answers import (
        Answer as Answer,
        AnswerPromise as AnswerPromise,
        OrderedPromise as OrderedPromise,
        once_durable as once_durable,
        or_hang_up as or_hang_up,
        then as then,
    )
    from onceflow.broker.requests.client import (
        NO_ANSWER as NO_ANSWER,
        Hangup as Hangup,
        RequestContext as RequestContext,
        once_each as once_each,
    )
    from onceflow.broker.requests.refusal import (
        RequestRefusal as RequestRefusal,
        RequestRefused as RequestRefused,
        refusal_of as refusal_of,
        shortened as shortened,
        was_examined as was_examined,
    )
    from onceflow.broker.requests.slices import CallLater as CallLater, Slices as Slices
else:
    __getattr__ = door(
        __name__,
        {
            "answers": "Answer AnswerPromise OrderedPromise once_durable or_hang_up then",
            "client": "Hangup NO_ANSWER RequestContext once_each",
            "refusal": "RequestRefusal RequestRefused refusal_of shortened was_examined",
            "slices": "CallLater Slices",
        },
    )

"""What all handlers need: who asks, answers that come later, refusals, and long work in slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.broker.requests.answers import (
        Answer as Answer,
        OrderedPromise as OrderedPromise,
        Promise as Promise,
        once_durable as once_durable,
        or_hang_up as or_hang_up,
        then as then,
    )
    from onceflow.broker.requests.client import (
        NO_ANSWER as NO_ANSWER,
        Client as Client,
        Hangup as Hangup,
        once_each as once_each,
    )
    from onceflow.broker.requests.refusal import (
        Refusal as Refusal,
        Refused as Refused,
        refusal_of as refusal_of,
        shortened as shortened,
        was_examined as was_examined,
    )
    from onceflow.broker.requests.slices import (
        CallLater as CallLater,
        Slices as Slices,
        Timer as Timer,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "answers": "Answer OrderedPromise Promise once_durable or_hang_up then",
            "client": "Client Hangup NO_ANSWER once_each",
            "refusal": "Refusal Refused refusal_of shortened was_examined",
            "slices": "CallLater Slices Timer",
        },
    )

"""A session as a process of its own, to be killed and stopped: copies a topic, partition by
partition, and says where it is, a line of JSON each. Ends when its input does."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from onceflow.client.errors.consumer import FencedMember
from onceflow.client.session.clients import SessionProducer
from onceflow.client.session.errors import SessionFenced
from onceflow.client.session.session import Session
from tests.interop.client.consumer.member_process import ended, say

FENCED = 3
"""The status of one that another has taken the place of."""


def telling(name: str, before: str, after: str) -> None:
    """The producer says when it begins to do that, and when it is done."""
    call: Callable[..., Any] = getattr(SessionProducer, name)

    async def told(self: SessionProducer, *args: Any) -> None:
        say(before)
        await call(self, *args)
        say(after)

    setattr(SessionProducer, name, told)


async def main(settings: dict[str, Any]) -> None:
    out = settings.pop("out")
    over = asyncio.create_task(ended())
    async with Session(None, settings) as session:
        over.add_done_callback(lambda _: session.stop())
        say("ready")
        async for batch, txn in session:
            say("given")
            for number, record in enumerate(batch):
                await txn.send(out, record.value, partition=record.partition)
                if number == len(batch) // 2:
                    say("half")
                    await asyncio.sleep(0)
            say("sent")
    say("closed")


if __name__ == "__main__":
    telling("commit_with", "offsets", "offsets sent")
    telling("commit_transaction", "commit", "committed")
    try:
        asyncio.run(main(json.loads(sys.argv[1])))
    except (SessionFenced, FencedMember) as error:
        say("fenced", error=str(error))
        sys.exit(FENCED)

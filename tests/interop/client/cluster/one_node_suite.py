"""What the client is checked for on one node, to be run elsewhere, too: the scripts themselves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.interop.client import reading_scripts
from tests.interop.client.worker import reader_scripts, scripts
from tests.interop.harness import Script, differences, heard, run

SCRIPTS: Final[tuple[Script, ...]] = (
    *map(
        reading_scripts.script,
        (
            reading_scripts.many_codecs,
            reading_scripts.transactions,
            reading_scripts.operators,
            reading_scripts.places_and_deletion,
        ),
    ),
    scripts.two_processes,
    scripts.handed_over,
    scripts.zombies,
    scripts.fenced_commit,
    scripts.lost_ends,
    scripts.unclear_commit,
    scripts.doubt_settled_by_ledger,
    scripts.two_attempts,
    scripts.timeout,
)
IN_THE_NEWER_PROTOCOL: Final[tuple[Script, ...]] = (
    reader_scripts.ranges,
    reader_scripts.not_there,
)


def answered_differently(script: Script, one: str, other: str) -> list[str]:
    """What a script hears from one Apache Kafka and not from another; on the first it is not run
    again where it has been."""
    with ThreadPoolExecutor(2) as pool:
        from_one = pool.submit(heard, script, one)
        from_other = pool.submit(run, script, other)
    return differences(script.__name__, from_one.result(), from_other.result(), ())

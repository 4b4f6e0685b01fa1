"""What the client is checked for on one node, to be run elsewhere, too: the scripts themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.interop.client import test_producer, test_reading
from tests.interop.client.worker import test_reader, test_worker
from tests.interop.harness import Script, differences, heard, run

SCRIPTS: Final[tuple[Script, ...]] = (
    *map(
        test_reading.script,
        (
            test_reading.many_codecs,
            test_reading.transactions,
            test_reading.operators,
            test_reading.places_and_deletion,
        ),
    ),
    test_worker.two_processes,
    test_worker.handed_over,
    test_worker.zombies,
    test_worker.fenced_commit,
    test_worker.lost_ends,
    test_worker.unclear_commit,
    test_worker.doubt_settled_by_ledger,
    test_worker.two_attempts,
    test_worker.timeout,
)
IN_THE_NEWER_PROTOCOL: Final[tuple[Script, ...]] = (
    test_reader.ranges,
    test_reader.not_there,
)
PRODUCER_TESTS: Final[Mapping[str, Callable[..., None]]] = {
    name: each for name, each in vars(test_producer).items() if name.startswith("test_")
}
"""By name, as a module has them; they take a fixture `names` from wherever they are run."""


def answered_differently(script: Script, one: str, other: str) -> list[str]:
    """What a script hears from one Apache Kafka and not from another; on the first it is not run
    again where it has been."""
    with ThreadPoolExecutor(2) as pool:
        from_one = pool.submit(heard, script, one)
        from_other = pool.submit(run, script, other)
    return differences(script.__name__, from_one.result(), from_other.result(), ())

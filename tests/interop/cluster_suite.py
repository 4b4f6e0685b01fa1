"""What the client is checked for on one node, to be run elsewhere, too: the scripts themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.interop import (
    test_client_producer,
    test_client_reading,
    test_client_worker,
    test_client_worker_reader,
)
from tests.interop.harness import Script, differences, heard, run

SCRIPTS: Final[tuple[Script, ...]] = (
    *map(
        test_client_reading.script,
        (
            test_client_reading.many_codecs,
            test_client_reading.transactions,
            test_client_reading.operators,
            test_client_reading.places_and_deletion,
        ),
    ),
    test_client_worker.two_processes,
    test_client_worker.handed_over,
    test_client_worker.zombies,
    test_client_worker.fenced_commit,
    test_client_worker.lost_ends,
    test_client_worker.unclear_commit,
    test_client_worker.doubt_settled_by_ledger,
    test_client_worker.two_attempts,
    test_client_worker.timeout,
)
IN_THE_NEWER_PROTOCOL: Final[tuple[Script, ...]] = (
    test_client_worker_reader.ranges,
    test_client_worker_reader.not_there,
)
PRODUCER_TESTS: Final[Mapping[str, Callable[..., None]]] = {
    name: each for name, each in vars(test_client_producer).items() if name.startswith("test_")
}
"""By name, as a module has them; they take a fixture `names` from wherever they are run."""


def answered_differently(script: Script, one: str, other: str) -> list[str]:
    """What a script hears from one Apache Kafka and not from another; on the first it is not run
    again where it has been."""
    with ThreadPoolExecutor(2) as pool:
        from_one = pool.submit(heard, script, one)
        from_other = pool.submit(run, script, other)
    return differences(script.__name__, from_one.result(), from_other.result(), ())

"""Our fetcher and our admin on both brokers: records that others wrote, transactions that others
left open or aborted, and what operators are told; answers compared."""

from __future__ import annotations

import pytest

from tests.interop.client.reading_scripts import (
    Script,
    many_codecs,
    operators,
    places_and_deletion,
    script,
    transactions,
)
from tests.interop.harness import Compare

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("work", [many_codecs, transactions, operators, places_and_deletion])
def test_reading_and_operating(compare: Compare, work: Script) -> None:
    compare(script(work))

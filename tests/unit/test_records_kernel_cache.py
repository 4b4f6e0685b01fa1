"""Compiled kernels are kept on disk, but never for other sources than those they came from."""

from __future__ import annotations

import pytest
from numba.core.registry import cpu_target

from onceflow.records import kernels, raw_memory, write_kernels


@pytest.mark.parametrize("kernel", [kernels.walk, kernels.fill, write_kernels.write])
def test_a_change_of_the_helpers_misses_the_cache(
    kernel: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = kernel._cache  # type: ignore[attr-defined]  # of numba's dispatcher
    codegen = cpu_target.target_context.codegen()
    key = cache._index_key((), codegen)
    assert key == cache._index_key((), codegen)
    monkeypatch.setattr(raw_memory, "_compiled_in", lambda: "of other helpers")
    assert key != cache._index_key((), codegen)

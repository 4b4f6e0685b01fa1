"""Kernels that run as plain Python until they are compiled.

A kernel is written once. numba compiles it; until then its own source runs here, in a twin of its
module whose loads and stores are plain functions over this process's memory. Both forms give the
same answers and write the same bytes. Python's integers do not wrap around, so a kernel calls
`as_i64` where a sum may exceed 64 bits and is not stored at once.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final

from onceflow.records.kernel_cache import find_cache, load_kept
from onceflow.runtime import Code, Compiling

# One view of all memory: to index it takes half the time of a ctypes object for each address.
_MEMORY: Final = memoryview((ctypes.c_ubyte * sys.maxsize).from_address(0)).cast("B")
_LOW_64_BITS: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63

_stand_ins: Final[dict[int, Callable[..., Any]]] = {}
"""The plain function for each intrinsic, by the id of the intrinsic, which lives for ever."""
_twins: Final[dict[str, dict[str, Any]]] = {}
"""By the name of a module: the globals of its functions as plain Python."""

compiling: Final = Compiling(find_cache)
"""Of all kernels of this process."""


def stand_in(names: Mapping[str, Any]) -> None:
    """`names` are the globals of `raw_memory`."""
    _stand_ins.update({id(names[name]): plain for name, plain in PLAIN.items()})


class InterpretedKernel(Code):
    """A kernel that is not compiled yet. Once it is, its module holds the compiled function, which
    callers then reach directly; a caller that kept this object reaches it through this one."""

    def __init__(self, function: Any, compiled: Any, signature: str) -> None:
        self.name = f"{function.__module__}:{function.__qualname__}"
        self._function = function
        self._dispatcher = compiled
        self._signature = signature
        self._plain: Callable[..., Any] | None = None
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self._compiled is not None:
            return self._compiled(*arguments)
        if self._plain is None:
            self._plain = plain_form(self._function)
        return compiling.run(self, self._plain, arguments)

    def load(self) -> bool:
        if self._compiled is None and load_kept(self._dispatcher, self._signature):
            self._exchange()
        return self._compiled is not None

    def compile(self) -> None:
        if self._compiled is None:
            self._dispatcher.compile(self._signature)
            self._exchange()

    def _exchange(self) -> None:
        self._dispatcher.disable_compile()
        self._compiled = self._dispatcher
        module = self._function.__globals__
        if module.get(self._function.__name__) is self:
            module[self._function.__name__] = self._dispatcher


def plain_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as plain Python, with all functions that it calls. Not for a module that is
    still being loaded: a function may call one that is defined below it."""
    twins = dict(_twins)
    found = _in_twin(function, twins)
    _twins.update(twins)  # whole ones only: another thread may be about to call
    return found


def _in_twin(function: Any, twins: dict[str, dict[str, Any]]) -> Callable[..., Any]:
    names = function.__globals__
    module = names["__name__"]
    if module not in twins:
        twin = twins[module] = {}
        twin.update({name: _plain_global(each, twins) for name, each in list(names.items())})
    return FunctionType(function.__code__, twins[module], function.__name__, function.__defaults__)


def _plain_global(value: Any, twins: dict[str, dict[str, Any]]) -> Any:
    if id(value) in _stand_ins:
        return _stand_ins[id(value)]
    written = getattr(value, "py_func", None)  # of what numba would compile
    return value if written is None else _in_twin(written, twins)


# --- what stands for the intrinsics of `raw_memory` ----------------------------------------------


def _as_i64(number: int) -> int:
    """As 64 bits hold it."""
    return ((number + _SIGN) & _LOW_64_BITS) - _SIGN


def _loads(form: str) -> Callable[[int], int]:
    unpack = struct.Struct(form).unpack_from

    def load(address: int) -> int:
        number: int = unpack(_MEMORY, address)[0]
        return number

    return load


def _stores(bits: int) -> Callable[[int, int], None]:
    """Cuts a number to its lowest bits, as the machine does."""
    pack = struct.Struct({16: "=H", 32: "=I", 64: "=Q"}[bits]).pack_into
    mask = (1 << bits) - 1

    def store(address: int, number: int) -> None:
        pack(_MEMORY, address, number & mask)

    return store


def _store_u8(address: int, number: int) -> None:
    _MEMORY[address] = number & 0xFF


def _copy(target: int, source: int, size: int, _source_end: int = 0) -> None:
    ctypes.memmove(target, source, size)


PLAIN: Final[dict[str, Callable[..., Any]]] = {
    "load_u8": _MEMORY.__getitem__,
    "load_i32": _loads("=i"),
    "load_i64": _loads("=q"),
    "load_big_i16": _loads(">h"),
    "load_big_i32": _loads(">i"),
    "load_big_i64": _loads(">q"),
    "store_u8": _store_u8,
    "store_i16": _stores(16),
    "store_i32": _stores(32),
    "store_i64": _stores(64),
    "as_i64": _as_i64,
    "copy_exact": _copy,
    "copy_wide": _copy,
    "prefetch": lambda _address: None,
    "leading_zeros": lambda number: 64 - (number & _LOW_64_BITS).bit_length(),
}
"""By the name in `raw_memory`. Unlike `copy_wide`, these copies write nothing behind the target;
no kernel may depend on either."""

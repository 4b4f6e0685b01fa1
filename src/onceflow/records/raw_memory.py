"""Loads, stores and copies at plain addresses, for the kernels only; and what makes a kernel.

A fetch brings many batches in many buffers. Handing numba one array of addresses costs a
microsecond; handing it the buffers themselves costs one each. Nothing here checks bounds: a kernel
proves every address before it comes here, and says so where it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numba.extending
from llvmlite import ir  # type: ignore[import-untyped]  # it has neither stubs nor annotations
from numba.core import types

from onceflow.records.interpreted import InterpretedKernel, stand_in
from onceflow.records.kernel_cache import cache_of
from onceflow.records.layout import SPILL
from onceflow.runtime import at_import

_F = TypeVar("_F", bound=Callable[..., Any])

# numba's own types describe Python callables; what it compiles is called with other arguments.
_njit: Any = numba.njit
_intrinsic: Callable[[Callable[..., Any]], Any] = numba.extending.intrinsic


def kernel(signature: str) -> Callable[[_F], _F]:
    """Load what was compiled for exactly `signature`; it runs without the GIL. Where that is not
    kept, the kernel runs as plain Python until it is compiled (`interpreted`)."""

    def prepared(function: _F) -> _F:
        dispatcher = _njit(nogil=True, boundscheck=False, error_model="numpy")(function)
        dispatcher._cache = cache_of(function)
        slow = InterpretedKernel(function, dispatcher, signature)
        if at_import.is_set():
            slow.compile()
        best: Any = dispatcher if slow.load() else slow
        chosen: _F = best
        return chosen

    return prepared


def helper(function: _F) -> _F:
    """A part of a kernel that runs for every record: always compiled into those that call it."""
    inlined: _F = _njit(nogil=True, boundscheck=False, error_model="numpy", forceinline=True)(
        function
    )
    return inlined


def rare(function: _F) -> _F:
    """A part of a kernel that few records need: kept out of the way of the others."""
    outlined: _F = _njit(nogil=True, boundscheck=False, error_model="numpy")(function)
    return outlined


def _pointer(builder: Any, address: Any, pointee: ir.Type) -> Any:
    return builder.inttoptr(address, pointee.as_pointer())


def _load(result: types.Type, bits: int, swapped: bool) -> Any:
    def typed(_context: Any, _address: Any) -> Any:
        def generate(_ctx: Any, builder: Any, _signature: Any, args: Any) -> Any:
            value = builder.load(_pointer(builder, args[0], ir.IntType(bits)))
            value.align = 1
            return builder.bswap(value) if swapped else value

        return result(types.int64), generate

    return _intrinsic(typed)


def _store(argument: types.Type, bits: int, swapped: bool) -> Any:
    def typed(_context: Any, _address: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            value = builder.bswap(args[1]) if swapped else args[1]
            stored = builder.store(value, _pointer(builder, args[0], ir.IntType(bits)))
            stored.align = 1
            return context.get_dummy_value()

        return types.void(types.int64, argument), generate

    return _intrinsic(typed)


load_u8 = _load(types.uint8, 8, swapped=False)
load_i32 = _load(types.int32, 32, swapped=False)
load_i64 = _load(types.int64, 64, swapped=False)
load_big_i16 = _load(types.int16, 16, swapped=True)
load_big_i32 = _load(types.int32, 32, swapped=True)
load_big_i64 = _load(types.int64, 64, swapped=True)
store_u8 = _store(types.uint8, 8, swapped=False)
store_i16 = _store(types.int16, 16, swapped=False)
store_i32 = _store(types.int32, 32, swapped=False)
store_i64 = _store(types.int64, 64, swapped=False)


@_intrinsic
def _move_wide(_context: Any, _target: Any, _source: Any) -> Any:
    """Copy 32 bytes."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        wide = ir.VectorType(ir.IntType(64), 4)
        value = builder.load(_pointer(builder, args[1], wide))
        value.align = 1
        builder.store(value, _pointer(builder, args[0], wide)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def prefetch(_context: Any, _address: Any) -> Any:
    """Ask for a cache line that will be read soon. Any address will do: this never faults."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        )
        # for reading, to be kept in all levels, data
        builder.call(function, [builder.inttoptr(args[0], byte), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_intrinsic
def leading_zeros(_context: Any, _value: Any) -> Any:
    """How many of the 64 bits come before the first one set; not for 0."""

    def generate(_ctx: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate


@_intrinsic
def copy_exact(_context: Any, _target: Any, _source: Any, _size: Any) -> Any:
    """memcpy."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target = builder.inttoptr(args[0], byte)
        source = builder.inttoptr(args[1], byte)
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, ir.IntType(64)])
        builder.call(memcpy, [target, source, args[2], ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@helper
def as_i64(value: int) -> int:
    """The same number. Where nothing is compiled, a sum is cut to 64 bits here: it wraps around as
    compiled ones do by themselves."""
    return value


@helper
def copy_wide(target: int, source: int, size: int, source_end: int) -> None:
    """Copy `size` bytes; up to 128 in a few wide moves when the source has the room behind it.

    The target must always have `SPILL` spare bytes behind it.
    """
    if size > 128 or source + size + SPILL > source_end:
        copy_exact(target, source, size)
        return
    _move_wide(target, source)
    if size > 32:
        _move_wide(target + 32, source + 32)
        if size > 64:
            _move_wide(target + 64, source + 64)
            _move_wide(target + 96, source + 96)


stand_in(globals())

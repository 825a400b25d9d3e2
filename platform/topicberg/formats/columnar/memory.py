"""Reads and writes at addresses, for code that Numba compiles.

Numba has no list of arrays of different types; a table of addresses is one array of numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


def compiled(function: Callable[..., Any]) -> Any:
    """Return a function that is compiled when it is first called, and kept on disk if possible."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder for it can be written
        return njit(nogil=True)(function)


def _load(bits: int, result: Any) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=1)

        return result(types.int64), generate

    return load


def _store(bits: int, value: Any) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            builder.store(arguments[1], pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, value), generate

    return store


load_int64: Any = _load(64, types.int64)
load_int32: Any = _load(32, types.int32)
store_int64: Any = _store(64, types.int64)
store_int32: Any = _store(32, types.int32)
store_byte: Any = _store(8, types.uint8)


def _copy(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy bytes from one address to another."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, of = (builder.inttoptr(one, cgutils.voidptr_t) for one in arguments[:2])
        cgutils.raw_memcpy(builder, to, of, arguments[2], ir.Constant(ir.IntType(64), 1))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _pointer(typing_context: Any, address: Any) -> Any:
    """Return an address as C's ``void *``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


copy: Any = intrinsic(_copy)
pointer: Any = intrinsic(_pointer)

"""Reads and writes at addresses, for code that Numba compiles.

Numba has no list of arrays of different types; a table of addresses is one array of numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
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


def forget_stale(folder: Path) -> None:
    """Delete the stored code of a folder that is older than one of its sources. Numba looks only at
    the file of a function, not at those of the functions that it calls."""
    changed = max(path.stat().st_mtime for path in folder.glob("*.py"))
    for stored in (folder / "__pycache__").glob("*.nbi"):
        with suppress(OSError):  # another process deletes it, or the folder cannot be written
            if stored.stat().st_mtime < changed:
                stored.unlink()


forget_stale(Path(__file__).parent)


def _load(kind: Any, result: Any) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)

        return result(types.int64), generate

    return load


def _store(kind: Any, value: Any) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store(arguments[1], builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, value), generate

    return store


WORD = 8  # Bytes that are read at once.
_BYTE, _INT32, _INT64, _INT128 = map(ir.IntType, (8, 32, 64, 128))
load_int64: Any = _load(_INT64, types.int64)
load_int32: Any = _load(_INT32, types.int32)
load_word: Any = _load(_INT64, types.uint64)
load_byte: Any = _load(_BYTE, types.uint8)
load_float: Any = _load(ir.FloatType(), types.float32)
store_int64: Any = _store(_INT64, types.int64)
store_int32: Any = _store(_INT32, types.int32)
store_word: Any = _store(_INT64, types.uint64)
store_byte: Any = _store(_BYTE, types.uint8)
store_double: Any = _store(ir.DoubleType(), types.float64)
store_float: Any = _store(ir.FloatType(), types.float32)


def _copy(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy bytes from one address to another."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, of = (builder.inttoptr(argument, cgutils.voidptr_t) for argument in arguments[:2])
        cgutils.raw_memcpy(builder, to, of, arguments[2], ir.Constant(ir.IntType(64), 1))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _pointer(typing_context: Any, address: Any) -> Any:
    """Return an address as C's ``void *``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def _zeros(is_leading: bool) -> Any:
    def zeros(typing_context: Any, word: Any) -> Any:
        """Return how many bits of a word before its highest, or below its lowest one, are zero."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            count = builder.ctlz if is_leading else builder.cttz
            return count(arguments[0], ir.Constant(ir.IntType(1), 0))

        return types.int64(types.uint64), generate

    return intrinsic(zeros)


def _multiply_high(typing_context: Any, factor: Any, other: Any) -> Any:
    """Return the upper 64 of the 128 bits of a product."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        product = builder.mul(*(builder.zext(argument, _INT128) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(_INT128, 64)), _INT64)

    return types.uint64(types.uint64, types.uint64), generate


copy: Any = intrinsic(_copy)
pointer: Any = intrinsic(_pointer)
leading_zeros: Any = _zeros(True)
trailing_zeros: Any = _zeros(False)
multiply_high: Any = intrinsic(_multiply_high)


@compiled
def address(array):  # type: ignore[no-untyped-def]
    """Return where an array is; a number with a sign, as all other ones."""
    return np.int64(array.ctypes.data)


@compiled
def get(table, index):  # type: ignore[no-untyped-def]
    """Return a number of 64 bits by its index: counting references to arrays in loops is slow."""
    return load_int64(table + 8 * index)


@compiled
def put(table, index, number):  # type: ignore[no-untyped-def]
    """Write a number of an array of 64 bits at an address."""
    store_int64(table + 8 * index, number)

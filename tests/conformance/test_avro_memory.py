"""Damaged records of Avro between guard pages: no byte beyond the record is read, none is written
beyond the room of the buffers.
"""

from __future__ import annotations

import random

from fuzz_process import fuzz_all, fuzz_some, main, millions

_TABLES = 100


def test_damaged_records_touch_no_other_memory() -> None:
    fuzz_some(__file__)


@millions
def test_millions_of_damaged_records_touch_no_other_memory() -> None:
    fuzz_all(__file__)


def _number(value: int) -> bytes:
    bits, data = (value << 1) ^ (value >> 63), bytearray()
    while bits > 0x7F:
        data.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes([*data, bits])


_NUMBERS = [
    *map(_number, (-1, 1, 15, 16, 17, 63, 64, 65, 2**31, -(2**31) - 1, 2**62, 2**63 - 1)),
    _number(-(2**63)),
    b"\x80\x00",
    b"\xff" * 10,
    b"\xff" * 9 + b"\x01",
]


def decode(number: int, rng: random.Random, count: int) -> int:
    """Decode damaged records of one program; return how many were accepted."""
    from guards import fuzz, guard
    from test_avro_programs import CONNECT, Compiled, compiled, connect_record
    from test_avro_records import histories

    from topicberg.formats.columnar.columns import Buffers
    from topicberg.formats.framing import wire_prefix

    if number % 10:
        (table,) = histories(number, 1)
        it = compiled(table)
        pool = [
            wire_prefix(writer) + version.encode(rng, 0.1)
            for writer, version in enumerate(table.versions)
            for _ in range(20)
        ]
    else:
        it = Compiled.of_one_version(CONNECT)
        pool = [wire_prefix(1) + connect_record(rng) for _ in range(20)]
    buffers = guard(Buffers(it.shape, 4, rng.choice((48, 200, 1_000))))
    accepted: int = fuzz(it.programs, buffers, pool, _NUMBERS, count, number)
    return accepted


if __name__ == "__main__":
    main(_TABLES, decode)

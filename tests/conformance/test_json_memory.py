"""Damaged records of JSON between guard pages: no byte beyond the record is read, none is written
beyond the room of the buffers.
"""

from __future__ import annotations

import json
import random
from typing import Any

from fuzz_process import fuzz_all, fuzz_some, main, millions

_SCHEMAS = 100


def test_damaged_records_touch_no_other_memory() -> None:
    fuzz_some(__file__)


@millions
def test_millions_of_damaged_records_touch_no_other_memory() -> None:
    fuzz_all(__file__)


WORDS = [
    *(b'"', b"\\", b"\\u00e9", b"\\ud83d\\ude00", b"\\ud83d", b'\\"', b"\xf0\x9f\x98\x80", b"\xff"),
    *(b"{", b"}", b"[", b"]", b",", b":", b'{"":', b'"a":1,', b" \t\n", b"\0", b"null", b"true"),
    *(b"1e3", b"1.0", b"-0", b"1e999", b"123456789012345678901234567890", b"0.0000000001", b"-"),
    *(b'"QUI="', b'"QR=="', b"QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=", b"2024-02-29T23:59:59.5Z"),
    *(b'{"key":1}', b'{"key":"a","value":null},', b"x" * 40, b"[[[[[[[[", b'{"a":{"a":{"a":'),
]


def _covered(rng: random.Random) -> tuple[Any, Any]:
    """A schema and its program."""
    from fuzz_json import random_schema
    from test_json_programs import TIME, Decoder

    from topicberg.errors import TableflowError
    from topicberg.formats.columnar.program import NotCoveredError

    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {"time": TIME}
    for number in range(8):
        name = rng.choice((f"p{number}", f'"{number}\\', f"é{number}" * 20))
        schema = random_schema(rng, 1, definitions)
        try:
            Decoder({"properties": {name: schema}, "definitions": definitions})
        except (NotCoveredError, TableflowError):
            continue
        properties[name] = schema
    root = {"type": "object", "properties": properties, "definitions": definitions}
    return root, Decoder(root)


def decode(number: int, rng: random.Random, count: int) -> int:
    """Decode damaged records of one program; return how many were accepted."""
    import guards
    from fuzz_json import random_value
    from hostile_json import hostile
    from program_runner import PREFIX

    from topicberg.formats.columnar.columns import Buffers

    root, decoder = _covered(rng)
    values = [random_value(rng, root, root) for _ in range(20)]
    texts = [json.dumps(one, ensure_ascii=rng.random() < 0.5).encode() for one in values]
    texts += [text for _ in range(5) for text in hostile(rng, root)]
    # Strings are copied, and base64 decoded, in words: see topicberg.formats.columnar.columns.
    size = rng.choice((48, 400, 4_000))
    buffers = guards.guard(Buffers(decoder.shape, 4, size), slack=16)
    accepted: int = guards.fuzz(
        decoder._programs, buffers, [PREFIX + text for text in texts], WORDS, count, number
    )
    return accepted


if __name__ == "__main__":
    main(_SCHEMAS, decode)

"""JSON records that producers do not write, and what becomes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from fuzz_json import random_value
from shapes import Malformed
from versions import Version

TOKENS = (
    *("-0", "-0.0", "1.0", "1e3", "1E+2", "01", "1.", "+1", ".5", "1e", "-", "1e400", "5e-324"),
    *("2147483648", "-9223372036854775808", "9223372036854775808", "12345678901234567890"),
    *("NaN", "Infinity", "0.1", "16777217", "9007199254740993", "0.30000000000000004"),
    *('"a"', '"5"', '""', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\u12g4"', '"\\x41"', '"a\tb"'),
    *('"QUI="', '"QR=="', '"Q"', "'a'", "true", "nul", "[]", "[1,]", "{}", '{"a":1,}', "[[", ""),
)
"""Values, and what looks like one."""


def expected(oracle: Version, payload: bytes) -> Any:
    """The reference's row; None: the record is malformed."""
    try:
        return oracle.decode(payload).value
    except Malformed:
        return None


def hostile(rng: random.Random, schema: Any) -> Iterator[bytes]:
    """Records whose properties are repeated, unlike the schema, in another order, or damaged."""
    value = random_value(rng, schema, schema)
    items = [(name, json.dumps(one)) for name, one in value.items() if rng.random() < 0.9]
    for _ in range(rng.randint(0, 2)):
        items.append((rng.choice((*schema["properties"], "other")), rng.choice(TOKENS)))
    rng.shuffle(items)
    ensure = rng.random() < 0.3
    inner = ",".join(f"{json.dumps(name, ensure_ascii=ensure)}: {one}" for name, one in items)
    text = f"{{{inner}}}".encode()
    yield text
    yield text + rng.choice((b" ", b"x", b"}", b",{}", b"\0"))
    changed = bytearray(text)
    place = rng.randrange(len(changed))
    match rng.randrange(4):
        case 0:
            changed[place] ^= 1 << rng.randrange(8)
        case 1:
            del changed[place:]
        case 2:
            changed[place:place] = rng.choice(TOKENS).encode()
        case 3:
            changed[place] = rng.choice(b'{}[]",:\\0-. \n\x80\xc3\xed\xf4')
    yield bytes(changed)

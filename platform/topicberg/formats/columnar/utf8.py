"""Whether bytes are UTF-8, for compiled code that executes programs."""

from __future__ import annotations

import numpy as np

from topicberg.formats.columnar.memory import WORD, compiled, load_byte, load_word

_TOPS = np.uint64(0x8080808080808080)
"""The highest bit of each byte: ASCII has none."""


@compiled
def is_utf8(position, end):  # type: ignore[no-untyped-def]
    """Return whether the bytes between two addresses are UTF-8.

    Source: table 3-7 of the Unicode standard.
    """
    while position < end:
        if position + WORD <= end and load_word(position) & _TOPS == 0:
            position += WORD
            continue
        byte = load_byte(position)
        position += 1
        if byte < 0x80:
            continue
        low, high = 0x80, 0xBF  # these are the bounds of the second byte
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = 0xA0
            elif byte == 0xED:
                high = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return False
        if end - position < more or not low <= load_byte(position) <= high:
            return False
        for place in range(position + 1, position + more):
            if not 0x80 <= load_byte(place) <= 0xBF:
                return False
        position += more
    return True

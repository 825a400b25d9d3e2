"""Strings of JSON text, and values that are skipped: strictly by RFC 8259, in valid UTF-8.

The functions take the address of a byte, and that of the record's end, beyond which they read
nothing. They inspect eight bytes at once; see "Bit Twiddling Hacks" by Sean Eron Anderson,
"Determine if a word has a byte less than n".
"""

from __future__ import annotations

from collections.abc import Iterable
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
from numpy.typing import NDArray

from topicberg.formats.columnar import json_numbers
from topicberg.formats.columnar.memory import (
    WORD,
    compiled,
    copy,
    load_byte,
    load_word,
    store_byte,
    store_word,
    trailing_zeros,
)
from topicberg.formats.columnar.records import is_utf8
from topicberg.formats.columnar.times import Moment, moment

MAX_SKIPPED = 60  # Arrays and objects in each other in a value that is skipped.
_EACH, _TOPS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_ONE = np.uint64(1)
_QUOTES, _BACKSLASHES, _SPACES = (_EACH * np.uint64(byte) for byte in b'"\\ ')


def byte_values(characters: bytes, values: Iterable[int], other: int) -> NDArray[np.uint8]:
    """Return the value of each byte: some characters have these, all others another one."""
    table = np.full(256, other, np.uint8)
    table[list(characters)] = list(values)
    return table


_DIGIT = byte_values(f"{ascii_uppercase}{ascii_lowercase}{digits}+/".encode(), range(64), 255)
"""The values of base64's characters; 255: it is none."""
_HEXADECIMAL = byte_values(b"0123456789abcdefABCDEF", (*range(16), *range(10, 16)), 255)
_ESCAPES = byte_values(b'"\\/nrtbf', b'"\\/\n\r\t\b\f', 0)
"""What stands for a character after a backslash; 0: it stands for none."""
_RFC_3339 = int(Moment.RFC_3339)


@compiled
def space(position, end):  # type: ignore[no-untyped-def]
    """Return the address of what follows white space."""
    while position < end and load_byte(position) <= 32:
        byte = load_byte(position)
        if byte != 32 and byte != 10 and byte != 13 and byte != 9:
            break
        position += 1
    return position


@compiled
def at_byte(position, end):  # type: ignore[no-untyped-def]
    """Return the byte at an address, or 0: the record ends before it."""
    return load_byte(position) if position < end else np.uint8(0)


@compiled
def token(position, end):  # type: ignore[no-untyped-def]
    """Return the address of what follows white space, and the byte there; see :func:`at_byte`."""
    position = space(position, end)
    return position, at_byte(position, end)


@compiled
def word_at(position, end):  # type: ignore[no-untyped-def]
    """Return the eight bytes at an address; those beyond the record's end are 0."""
    if end - position >= WORD:
        return load_word(position)
    word = np.uint64(0)
    for place in range(end - position):
        word |= np.uint64(load_byte(position + place)) << np.uint64(8 * place)
    return word


@compiled
def is_word(position, end, text):  # type: ignore[no-untyped-def]
    """Return whether a text is at an address."""
    if end - position < len(text):
        return False
    is_same = True
    for place in range(len(text)):
        is_same = is_same and load_byte(position + place) == text[place]
    return is_same


@compiled
def constant(position, end):  # type: ignore[no-untyped-def]
    """Return the address after ``true``, ``false`` or ``null``, or -1."""
    if is_word(position, end, b"true") or is_word(position, end, b"null"):
        return position + 4
    return position + 5 if is_word(position, end, b"false") else -1


@compiled
def colon(position, end):  # type: ignore[no-untyped-def]
    """Return the address after the colon that follows a name at an address, or -1."""
    position, byte = token(position, end) if position >= 0 else (position, np.uint8(0))
    return position + 1 if byte == 58 else -1


@compiled
def _special(word):  # type: ignore[no-untyped-def]
    """Return a word whose lowest bit is in the first quotation mark, backslash or control code."""
    quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
    flags = (word - _SPACES) & ~word
    flags |= (quotes - _EACH) & ~quotes
    flags |= (backslashes - _EACH) & ~backslashes
    return flags & _TOPS


@compiled
def text(position, end, target):  # type: ignore[no-untyped-def]
    """Copy a string, without its escapes, to an address, and up to eight bytes behind it.

    :returns: the addresses after the copy and after the string, or -1: it is none, or not UTF-8
    """
    if at_byte(position, end) != 34:
        return target, -1
    position += 1
    begin, tops = target, np.uint64(0)
    while True:
        while position < end:
            word = word_at(position, end)
            store_word(target, word)
            special = _special(word)
            tops |= word & (special - _ONE)  # of no special byte: all bits
            step = WORD if special == 0 else trailing_zeros(special) >> 3
            position += step
            target += step
            if special:
                break
        byte = at_byte(position, end)
        if byte == 34:
            return target, position + 1 if tops & _TOPS == 0 or is_utf8(begin, target) else -1
        if byte != 92:
            return target, -1
        code, position = _escaped(position, end)
        if position < 0:
            return target, -1
        target = _encoded(code, target)


@compiled
def _escaped(position, end):  # type: ignore[no-untyped-def]
    """Return the character of an escape, and the address after it, or -1."""
    byte = at_byte(position + 1, end)
    if byte == 117:
        code = _hexadecimal(position + 2, end)
        if 0xD800 <= code < 0xDC00:
            if at_byte(position + 6, end) != 92 or at_byte(position + 7, end) != 117:
                return 0, -1
            low = _hexadecimal(position + 8, end)
            if not 0xDC00 <= low < 0xE000:
                return 0, -1
            return 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00, position + 12
        return code, -1 if code < 0 or 0xDC00 <= code < 0xE000 else position + 6
    code = np.int64(_ESCAPES[byte])
    return code, position + 2 if code else -1


@compiled
def _hexadecimal(position, end):  # type: ignore[no-untyped-def]
    """Return the value of four hexadecimal digits, or -1."""
    if end - position < 4:
        return -1
    code = np.int64(0)
    for place in range(position, position + 4):
        digit = np.int64(_HEXADECIMAL[load_byte(place)])
        if digit == 255:
            return -1
        code = code << 4 | digit
    return code


@compiled
def _encoded(code, target):  # type: ignore[no-untyped-def]
    """Write a character in UTF-8; return the address after it."""
    if code < 0x80:
        store_byte(target, np.uint8(code))
        return target + 1
    if code < 0x800:
        store_byte(target, np.uint8(0xC0 | code >> 6))
    elif code < 0x10000:
        store_byte(target, np.uint8(0xE0 | code >> 12))
        target += 1
        store_byte(target, np.uint8(0x80 | code >> 6 & 0x3F))
    else:
        store_byte(target, np.uint8(0xF0 | code >> 18))
        store_byte(target + 1, np.uint8(0x80 | code >> 12 & 0x3F))
        store_byte(target + 2, np.uint8(0x80 | code >> 6 & 0x3F))
        target += 2
    store_byte(target + 1, np.uint8(0x80 | code & 0x3F))
    return target + 2


@compiled
def passed(position, end, has_escapes):  # type: ignore[no-untyped-def]
    """Return the address after a string that is not used, or -1, from its first character on."""
    begin, tops = position, np.uint64(0)
    while True:
        while position < end:
            word = word_at(position, end)
            special = _special(word)
            tops |= word
            position += WORD if special == 0 else trailing_zeros(special) >> 3
            if special:
                break
        byte = at_byte(position, end)
        if byte == 34:
            return position + 1 if tops & _TOPS == 0 or is_utf8(begin, position) else -1
        if byte != 92 or not has_escapes:
            return -1
        _, position = _escaped(position, end)
        if position < 0:
            return -1


@compiled
def skipped(position, end):  # type: ignore[no-untyped-def]
    """Return the address after a value of any type, or -1."""
    depth, kinds = 0, np.uint64(0)  # the lowest bit: whether the innermost one is an object
    while True:
        position, byte = token(position, end)
        if byte == 123 or byte == 91:
            if depth == MAX_SKIPPED:
                return -1
            depth += 1
            kinds = kinds << np.uint64(1) | np.uint64(byte == 123)
            position = space(position + 1, end)
            if at_byte(position, end) != byte + 2:  # the object is not empty
                position = _name_skipped(position, end) if byte == 123 else position
                if position < 0:
                    return -1
                continue
            position += 1
            depth -= 1
            kinds >>= np.uint64(1)
        elif byte == 34:
            position = passed(position + 1, end, True)
        elif byte == 116 or byte == 102 or byte == 110:
            position = constant(position, end)
        else:
            _, _, _, _, position = json_numbers.number(position, end)
        if position < 0:
            return -1
        while depth > 0:
            position, byte = token(position, end)
            is_object = kinds & np.uint64(1) == 1
            if byte == 44:
                position = space(position + 1, end)
                position = _name_skipped(position, end) if is_object else position
                if position < 0:
                    return -1
                break
            if byte != (125 if is_object else 93):
                return -1
            position += 1
            depth -= 1
            kinds >>= np.uint64(1)
        else:
            return position


@compiled
def as_it_stands(position, end, target):  # type: ignore[no-untyped-def]
    """Copy the text of any value; return the address after the copy, and after the value, or -1."""
    after = skipped(position, end)
    if after < 0:
        return target, after
    copy(target, position, after - position)
    return target + after - position, after


@compiled
def _name_skipped(position, end):  # type: ignore[no-untyped-def]
    """Return the address after a name and its colon, or -1."""
    return colon(passed(position + 1, end, True), end) if at_byte(position, end) == 34 else -1


@compiled
def base64(position, end, target):  # type: ignore[no-untyped-def]
    """Decode a string of base64, as encoders write it; return the addresses after both, or -1."""
    if at_byte(position, end) != 34:
        return target, -1
    position += 1
    while at_byte(position, end) != 34:
        if end - position < 4:
            return target, -1
        padding, bits = 0, np.int64(0)
        if load_byte(position + 3) == 61:
            padding = 2 if load_byte(position + 2) == 61 else 1
        for place in range(4 - padding):
            digit = np.int64(_DIGIT[load_byte(position + place)])
            if digit == 255:
                return target, -1
            bits |= digit << (18 - 6 * place)
        has_rest = bits & ((1 << 8 * padding) - 1) != 0
        position += 4
        if has_rest or (padding and at_byte(position, end) != 34):
            return target, -1
        for place in range(3):
            store_byte(target + place, np.uint8(bits >> (16 - 8 * place) & 255))
        target += 3 - padding
    return target, position + 1


@compiled
def time(position, end):  # type: ignore[no-untyped-def]
    """Return a time of RFC 3339 in microseconds, and the address after the string, or -1."""
    if at_byte(position, end) != 34:
        return np.int64(0), -1
    micros, position = moment(position + 1, end, _RFC_3339)
    return micros, position + 1 if position >= 0 and at_byte(position, end) == 34 else -1

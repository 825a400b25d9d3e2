"""What others wrote is shown in each place, and does nothing there."""

from __future__ import annotations

import logging
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_reader import shown
from security.corpus import TEXTS

from topicberg.security import text
from topicberg.security.redaction import SafeFormatter

ACTIVE = "ab 01`|\\\n\r\t<>[]()!*_~&#;:/.@\"'-=+$^\x1b\x07\x00\x9b\u202e\u2028"
ANY = st.text(ACTIVE, max_size=40) | st.text(max_size=40) | st.sampled_from(TEXTS)


@given(ANY)
@example("` [x](javascript:alert(1)) `")
@example("`a`[x](http://evil)`b`")
@example("\\`[x](y)`")
@example("`a``[x](y)``b`")
def test_markdown_line_shows_any_text_and_no_more(value: str) -> None:
    line, found = text.one_line(value), shown(text.markdown_line(value))
    # A word that begins or ends with a backtick is padded, and commands lose their backticks.
    assert re.sub("[` ]", "", found) == re.sub("[` ]", "", line)


def test_markdown_line_keeps_commands() -> None:
    line = "run `topicberg tableflow resume orders` (`--once` is enough), then wait."
    assert text.markdown_line(line) == line


@pytest.mark.parametrize("value", TEXTS)
def test_terminal_text_of_the_corpus_has_no_control(value: str) -> None:
    assert text.terminal(value).encode()  # no half of a surrogate pair
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text.terminal(value))


@given(ANY)
def test_terminal_text_does_nothing(value: str) -> None:
    for character in text.terminal(value):
        assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")
        assert unicodedata.bidirectional(character) not in (
            *("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"),
        )


@given(st.text(st.characters(exclude_categories=["C", "Z"]), max_size=40))
def test_terminal_harmless_text_stays(value: str) -> None:
    assert text.terminal(value) == value


@given(ANY)
def test_slack_text_has_no_markup(value: str) -> None:
    escaped = text.slack(value)
    assert not re.search(r"[<>]|&(?!(amp|lt|gt);)", escaped)
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        escaped = escaped.replace(entity, character)
    assert escaped == text.terminal(value)


@given(ANY)
def test_one_line_is_one_line(value: str) -> None:
    assert len(text.one_line(value).splitlines()) <= 1


@given(ANY)
def test_log_entry_cannot_be_forged(value: str) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s", (value,), None)
    first, *rest = SafeFormatter("ENTRY %(message)s").format(record).split("\n")
    assert first.startswith("ENTRY ")
    assert all(line.startswith("    ") for line in rest)
    assert len("\n".join([first, *rest]).splitlines()) == 1 + len(rest)


def test_log_entry_of_an_error_is_indented() -> None:
    try:
        raise ValueError("first\nENTRY forged")
    except ValueError as error:
        found = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.INFO, "", 0, "it failed", (), found)
    lines = SafeFormatter("ENTRY %(message)s").format(record).split("\n")
    assert [line for line in lines if line.startswith("ENTRY")] == ["ENTRY it failed"]


@given(ANY)
def test_dot_string_is_one_string(value: str) -> None:
    assert re.fullmatch(r'"(?:[^"\\]|\\.)*"', text.dot(value))

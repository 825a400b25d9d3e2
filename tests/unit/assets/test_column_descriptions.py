"""Descriptions of the columns of derived tables, as their functions' docstrings have them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from topicberg.orchestration.assets.derived import (
    derived_table,
    described_columns,
    sections_as_lists,
)
from topicberg.security.text import markdown_lines

words = st.text("abcdefghij -()'", min_size=1).map(lambda text: " ".join(text.split())).filter(bool)


def test_section_of_the_docstring_describes_columns() -> None:
    @derived_table(source="orders", time_column="at")
    def large(orders: Any) -> Any:
        """Orders of at least 100 dollars.

        Columns:
            at: when the order was sent, by Kafka's time: milliseconds
                of the broker
            `dollars`: the amount

            customer: its number

        What follows is no column: it is text.
        """
        return orders

    assert described_columns(large.description) == {
        "at": "when the order was sent, by Kafka's time: milliseconds of the broker",
        "dollars": "the amount",
        "customer": "its number",
    }


@pytest.mark.parametrize(
    "text", ["", "No section: none.", "Columns: of a sentence.", "Columns:\n", "Columns:\n\n  x\n"]
)
def test_docstring_without_columns_describes_none(text: str) -> None:
    assert described_columns(text) == {}


@given(
    st.dictionaries(st.from_regex("[a-z_$][a-z0-9_.$]*", fullmatch=True), words),
    words,
    st.integers(1, 8),
)
def test_any_description_is_read_as_it_was_written(
    columns: dict[str, str], first: str, indent: int
) -> None:
    lines = [f"{' ' * indent}{name}: {text}" for name, text in columns.items()]
    docstring = inspect.cleandoc("\n".join([first, "", "Columns:", *lines, "", "End: here."]))
    assert described_columns(docstring) == columns


BEDS = """Beds by the hour.

Columns:
    state: how the bed is used,
        by the ward:

        - free: nobody has it
        - dirty: it is to be
          cleaned

        Others are errors.
    ward: its *name*

More text."""


def test_description_of_a_column_keeps_its_lists_and_paragraphs() -> None:
    columns = described_columns(BEDS)
    assert columns["state"].splitlines() == [
        "how the bed is used, by the ward:",
        "- free: nobody has it",
        "- dirty: it is to be cleaned",
        "Others are errors.",
    ]
    assert markdown_lines(columns["state"]).split("\n\n") == [
        "how the bed is used, by the ward:",
        "• free: nobody has it",
        "• dirty: it is to be cleaned",
        "Others are errors.",
    ]
    assert columns["ward"] == "its *name*"


def test_section_of_a_docstring_is_a_list_in_markdown() -> None:
    html = MarkdownIt("commonmark").render(sections_as_lists(BEDS))
    assert html.count("<ul>") == 2
    assert "<p>Columns:</p>\n<ul>" in html
    for item in ("free: nobody has it", "ward: its <em>name</em>"):
        assert f"<li>{item}" in html or f"<li>\n<p>{item}" in html
    assert html.endswith("<p>More text.</p>\n")
    assert sections_as_lists("One line.\n\nA: b\n  c") == "One line.\n\nA: b\n  c"


def test_demo_describes_a_column_that_it_computes() -> None:
    from assets.pipelines.stock_trades import stock_total_trades

    assert [*described_columns(stock_total_trades.description)] == ["total_price"]

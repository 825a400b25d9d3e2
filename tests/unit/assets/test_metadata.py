"""What the Dagster UI shows of a table's rows is text, whatever a producer wrote into them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType
from specs import Project, minimal

from topicberg.charts import markdown_table
from topicberg.orchestration.assets.metadata import column_schema
from topicberg.orchestration.assets.topics import kafka_spec
from topicberg.tableflow.layout.layout import METADATA_COLUMNS
from topicberg.topics import load_topic


@pytest.mark.parametrize("name", [*METADATA_COLUMNS, "headers"])
@pytest.mark.parametrize("scheme", ["$${}", "cflt_metadata_{}"])
def test_metadata_columns_have_descriptions(name: str, scheme: str) -> None:
    column = scheme.format(name if "$" in scheme else name.replace("-", "_"))
    own = NestedField(2, name, StringType(), required=False)
    schema = Schema(NestedField(1, column, StringType(), required=False), own)
    metadata_column, own_column = column_schema(schema).columns
    assert metadata_column.description
    assert own_column.description is None


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"format": "none"}, "1 partition, values: raw bytes."),
        ({"format": "bytes"}, "1 partition, values: raw bytes."),
        ({"format": "text"}, "1 partition, values: text."),
        (
            {"format": "avro", "file": "trades.avsc"},
            "1 partition, values: avro (subject `trades-value`).",
        ),
        (
            {"format": "avro", "file": "trades.avsc", "framing": "none"},
            "1 partition, values: avro (schema file `trades.avsc`).",
        ),
    ],
)
def test_topic_description_says_what_the_values_are(
    tmp_path: Path, schema: dict[str, str], values: str
) -> None:
    project = Project(tmp_path)
    project.topic(minimal(schema=schema, partitions=1))
    described = kafka_spec(load_topic("trades", project.config)).description or ""
    assert described.startswith(f"Kafka topic `trades`, {values}")


def cells(text: str) -> list[str]:
    """What a reader of Markdown shows in each cell; there is nothing but text and code."""
    shown = []
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(text):
        if token.type == "inline":
            assert {child.type for child in token.children or []} <= {
                "text", "text_special", "code_inline",
            }, text  # fmt: skip
            shown.append("".join(child.content for child in token.children or []))
    return shown


@pytest.mark.parametrize(
    "value",
    [
        "![x](http://attacker/p.png)",
        "<img src=//a/b onerror=alert(1)>",
        "<script>alert(1)</script>",
        "[click](javascript:alert(1))",
        "`code` ``more`",
        "**bold** _it_ ~~no~~",
        "a|b\\|c\\\\||",
        "&lt;b&gt; &#42;",
        "{'a': [1, None]}",
    ],
)
def test_values_and_names_are_shown_as_they_are(value: str) -> None:
    assert cells(markdown_table(pa.table({value: [value]}))) == [value, value]


@pytest.mark.parametrize("value", ["http://attacker/x", "www.attacker.org", "me@attacker.org"])
def test_addresses_do_not_become_links(value: str) -> None:
    """The UI makes links of them, but for those in code."""
    assert markdown_table(pa.table({"a": [value]})).endswith(f"| `{value}` |")


def test_words_numbers_and_times_are_plain() -> None:
    rows = pa.table({"symbol": ["ZTEST"], "price": [12.5], "at": ["2026-01-02 03:04:05.678+00:00"]})
    assert markdown_table(rows).splitlines() == [
        "| symbol | price | at |",
        "|---|---|---|",
        "| ZTEST | 12.5 | 2026-01-02 03:04:05.678+00:00 |",
    ]


@given(st.text("ab `|\\\n\r<>[]()!*_~&#;:/.@\"'-", max_size=40) | st.text(max_size=40))
@example("` `")
@example("\\|`")
def test_any_text_is_shown_as_it_is(value: str) -> None:
    expected = value.replace("\r", " ").replace("\n", " ").replace("\0", "\ufffd")
    name, shown = cells(markdown_table(pa.table({"a": [value]})))
    assert name == "a"
    assert shown.strip() == expected.strip()


def test_what_is_long_is_cut_before_it_is_quoted() -> None:
    assert cells(markdown_table(pa.table({"a": ["|" * 100]}))) == ["a", "|" * 39 + "…"]

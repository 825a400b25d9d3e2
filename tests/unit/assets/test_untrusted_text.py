"""Pictures, tables and commands show what others wrote as it is."""

from __future__ import annotations

import csv
import io
import re
import sys
from datetime import UTC, datetime
from typing import get_args

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_reader import shown
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType
from security.corpus import TEXTS

from topicberg import charts
from topicberg.checks.finding import Finding
from topicberg.cli.output import cell, echo
from topicberg.cli.query import OutputFormat, query
from topicberg.orchestration.assets.metadata import column_schema
from topicberg.orchestration.checks.adapter import result
from topicberg.query import QueryResult
from topicberg_deploy.draw import lines

KEY = dg.AssetKey(["iceberg", "orders"])


@given(st.sampled_from(TEXTS) | st.text(max_size=60))
def test_check_description_of_any_text_only_shows_it(what: str) -> None:
    found = result(KEY, "tableflow", Finding(passed=False, what=what, remediation=what), None)
    assert found.description
    for line in found.description.split("  \n"):
        shown(line)
    if what:
        shown(str(found.metadata["remediation"].value))


@pytest.mark.parametrize("doc", TEXTS)
def test_column_description_of_any_doc_only_shows_it(doc: str) -> None:
    (column,) = column_schema(Schema(NestedField(1, "a", StringType(), doc=doc))).columns
    if doc.strip():
        shown(column.description or "")


def test_chart_with_any_series_is_drawn() -> None:
    figure, drawn = charts.axes("title", "x", "y")
    charts.minute_bars(drawn, [(name, datetime(2026, 1, 1, tzinfo=UTC), 1.0) for name in TEXTS])
    charts.legend(drawn)
    assert charts.png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("text", TEXTS)
def test_command_output_has_no_control(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    echo(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", capsys.readouterr().out)
    assert "\x1b" not in cell(text).plain
    assert not cell(text).spans  # of markup


def answer_queries(
    patch: pytest.MonkeyPatch, columns: tuple[str, ...], rows: list[tuple[str, ...]]
) -> None:
    patch.setattr("topicberg.query.run_query", lambda *_, **__: QueryResult(columns, rows))


@pytest.mark.parametrize("form", get_args(OutputFormat))
def test_query_of_any_text_does_nothing_on_a_terminal(
    form: OutputFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    rows: list[tuple[str, ...]] = [(text,) for text in TEXTS]
    answer_queries(monkeypatch, ("a\x1b",), rows)
    monkeypatch.setattr(sys, "stdout", out := Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    query("SELECT 1", "duckdb", form, None)
    found = out.getvalue()
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", found)
    assert "erased" in found


def test_query_csv_in_a_pipe_has_the_values_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[tuple[str, ...]] = [("\x1b[1m",), ("=1+1",)]
    answer_queries(monkeypatch, ("a",), rows)
    query("SELECT 1", "duckdb", "csv", None)
    assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [["a"], *map(list, rows)]


@pytest.mark.parametrize("name", TEXTS)
def test_graph_of_any_resource_has_one_node(name: str) -> None:
    graph = [Named(f"aws/{name}", name)]
    nodes = [line for line in lines(graph) if " [label=" in line]  # type: ignore[arg-type]
    assert len(nodes) == 1
    assert len("\n".join(lines(graph)).splitlines()) == len(list(lines([]))) + 1  # type: ignore[arg-type]


class Named:
    """As much of a resource as is drawn."""

    needs: tuple[str, ...] = ()

    def __init__(self, key: str, title: str) -> None:
        self.key, self.title = key, title

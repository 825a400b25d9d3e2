"""Modules of a project that are wrong: the message names file, line and reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from topicberg import derived_table
from topicberg.errors import SpecError
from topicberg.orchestration.assets.lake import find_derived
from topicberg.settings import settings

Write = Callable[..., None]
TABLE = """\
from topicberg import derived_table

@derived_table(source="orders", time_column="at")
def tea(orders):
    return orders
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write the modules of a project."""
    folder = tmp_path / "stalls" / "pipelines"
    folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.topicberg]\npipelines = ["stalls.pipelines"]\n')
    monkeypatch.setenv("TOPICBERG_PROJECT_ROOT", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    settings.cache_clear()

    def modules(**texts: str) -> None:
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text)

    yield modules
    for name in [name for name in sys.modules if name.partition(".")[0] == "stalls"]:
        del sys.modules[name]
    settings.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\nimport no_such_module\n", "line 2: ModuleNotFoundError: No module named"),
        ("a = (\n", "line 1: SyntaxError: '(' was never closed"),
        ("def f():\n    return x\n\nf()\n", "line 2: NameError: name 'x' is not defined"),
    ],
)
def test_module_that_fails_is_named_with_the_line(write: Write, text: str, expected: str) -> None:
    write(shop=text)
    with pytest.raises(SpecError) as caught:
        find_derived()
    assert caught.value.message.startswith(f"stalls/pipelines/shop.py, {expected}")
    assert "topicberg pipelines check" in str(caught.value.hint)


def test_table_of_two_modules_is_refused(write: Write) -> None:
    write(shop=TABLE, store=TABLE)
    with pytest.raises(SpecError, match=r"pipelines/store\.py: .*tea is also in .*shop\.py"):
        find_derived()


def test_table_that_a_module_imports_is_one_table(write: Write) -> None:
    write(shop=TABLE, store="from stalls.pipelines.shop import tea\n")
    assert [table.name for table in find_derived()] == ["tea"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"lookback": 5}, "lookback is 5"),
        ({"lookahead": "1h"}, "lookahead is '1h'"),
        ({"parameters": {"least": 1}}, "parameters is {'least': 1}"),
        ({"rules": {"not_null": ["a"]}}, "rules is {'not_null': ['a']}"),
        ({"checks": ("fresh",)}, "checks is ('fresh',)"),
        ({"chart": "bars"}, "chart is 'bars'"),
    ],
)
def test_argument_of_a_wrong_type_is_refused(arguments: dict[str, Any], expected: str) -> None:
    def tea(orders: Any) -> Any:
        return orders

    with pytest.raises(SpecError) as caught:
        derived_table(source="orders", time_column="at", **arguments)(tea)
    assert f"derived table tea: {expected}" in caught.value.message
    derived_table(source="orders", time_column="at", lookback=timedelta(hours=1))(tea)


def test_name_that_glue_cannot_have_is_refused() -> None:
    def TeaTable(orders: Any) -> Any:
        return orders

    with pytest.raises(SpecError, match="TeaTable: the name has other characters"):
        derived_table(source="orders", time_column="at")(TeaTable)

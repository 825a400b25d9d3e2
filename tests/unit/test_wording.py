"""Numbers in messages agree with their nouns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from topicberg.settings import settings
from topicberg.wording import count, listed, suggestion

ROOT = settings().project_root
FOLDERS = ("assets", "platform/topicberg/checks", "platform/topicberg/topics", "resources")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
PLURAL = re.compile(r"\{[^{}]*\} (?:rows|records|files|mistakes|snapshots|partitions)\b")


def test_count_of_one_is_singular() -> None:
    assert [count(n, "row") for n in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]


def test_listed_says_how_many_names_it_leaves_out() -> None:
    names = ["a", "b", "c"]
    assert [listed(names, most) for most in (3, 2)] == ["a, b, c", "a, b and 1 more"]
    assert listed([], 2) == ""


def test_names_of_a_set_are_suggested_in_order_others_in_theirs() -> None:
    names = ["zeta", "alpha", "mid"]
    assert suggestion("x", names) == "; there are zeta, alpha, mid"
    assert suggestion("x", set(names)) == "; there are alpha, mid, zeta"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_with_numbers_use_count(path: Path) -> None:
    assert not PLURAL.findall(path.read_text()), "say {count(number, 'row')}"

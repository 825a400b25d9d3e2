"""Which column of a derived table has the key of a topic."""

from __future__ import annotations

import pytest

from topicberg.cli.forget import _carried

KEY = {"symbol": "symbol"}


@pytest.mark.parametrize(
    ("lineage", "column"),
    [
        ({}, "symbol"),
        ({"symbol": ("symbol",)}, "symbol"),
        ({"ticker": ("symbol",)}, "ticker"),
        ({"ticker": ("trades.symbol",)}, "ticker"),
        ({"ticker": ("other.symbol",)}, "symbol"),
        ({"name": ("symbol", "side")}, "symbol"),
    ],
)
def test_carried_key_column_follows_the_lineage(
    lineage: dict[str, tuple[str, ...]], column: str
) -> None:
    assert _carried(KEY, "trades", lineage) == {"symbol": column}


def test_column_that_comes_from_another_one_is_not_the_key() -> None:
    """Else a key 3 erases the rows of which another column, of the key's name, is 3."""
    assert _carried(KEY, "trades", {"symbol": ("exchange",)}) is None
    assert _carried(KEY, "trades", {"symbol": ("symbol", "exchange")}) is None

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

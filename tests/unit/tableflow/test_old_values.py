"""Keys in the headers of changes, as any producer may write them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from topicberg.tableflow.old_values import OldValues

TARGET = SimpleNamespace(keys=["id"], types=lambda _: [pa.int64()])


@pytest.mark.parametrize("text", ['{"id": 7}', '{"schema": {}, "payload": {"id": 7}}'])
def test_key_of_a_header_is_read(text: str) -> None:
    assert OldValues._parsed(cast(Any, SimpleNamespace(target=TARGET)), text) == (7,)


@pytest.mark.parametrize(
    "text",
    ["", "7", "{}", '{"id": "x"}', '{"id": {}}', f'{{"id": {10**30}}}', "[" * 10_000],
    ids=["empty", "number", "no key", "text", "object", "large", "deep"],
)
def test_key_of_a_header_that_cannot_be_read_is_none(text: str) -> None:
    assert OldValues._parsed(cast(Any, SimpleNamespace(target=TARGET)), text) is None

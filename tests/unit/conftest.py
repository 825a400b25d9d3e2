"""What several unit tests need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    """A real Iceberg catalog in a file, with the namespace ``shop``."""
    catalog = SqlCatalog("unit", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("shop")
    yield catalog
    catalog.close()

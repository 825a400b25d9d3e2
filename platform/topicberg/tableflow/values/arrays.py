"""Small steps between Arrow's columns and NumPy's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def flags(column: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return truth values; null is false."""
    return np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def whole(column: Any) -> pa.Array:
    """Return a column, or its chunks, as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

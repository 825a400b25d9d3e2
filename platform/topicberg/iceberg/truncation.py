"""Which values ``truncate`` can partition by.

It rounds down, so a value near the lowest one of its type becomes a value that the type does not
have. Iceberg's Java library fails at such a decimal when it writes the manifest, and stores a
positive number for such an integer, by which later queries skip the file.

Source: Iceberg spec, "Truncate Transform Details".
"""

from __future__ import annotations

from decimal import Decimal

from pyiceberg.types import DecimalType, IcebergType, IntegerType, LongType


def lowest_truncated(kind: IcebergType, width: int) -> Decimal | int | None:
    """Return the lowest value whose truncation is a value of the type; None: all are."""
    if isinstance(kind, DecimalType):
        lowest = (10**kind.precision - 1) // width * -width
        return Decimal(f"{lowest}E-{kind.scale}")  # exact, as no arithmetic of decimals is
    if isinstance(kind, IntegerType | LongType):
        return -kind.min // width * -width
    return None

"""What the columns of all formats can hold."""

from __future__ import annotations

MAX_PRECISION = 38
DAYS = -719_162, 2_932_896  # 0001-01-01 to 9999-12-31, since 1970.
MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
INT = -(2**31), 2**31 - 1
LONG = -(2**63), 2**63 - 1

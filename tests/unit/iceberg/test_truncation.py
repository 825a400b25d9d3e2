"""Values near the lowest one of a type, which ``truncate`` rounds out of the type."""

from __future__ import annotations

from decimal import Decimal, localcontext

from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import DecimalType, IntegerType, LongType

from topicberg.iceberg.data_files import lowest_truncated

WIDTHS = st.integers(1, 2**31 - 1) | st.sampled_from([1, 2, 7, 10, 100])


def truncated(
    kind: DecimalType | IntegerType | LongType, width: int, value: Decimal | int
) -> Decimal | int:
    """Return what PyIceberg's transform returns, which has no limits."""
    transform: TruncateTransform[Decimal | int] = TruncateTransform(width)
    with localcontext() as context:
        context.prec = 60
        result = transform.transform(kind)(value)
    assert isinstance(result, Decimal | int)
    return result


@given(WIDTHS, st.integers(1, 38), st.integers(0, 10), st.data())
def test_lowest_truncated_decimal_is_the_first_that_fits(
    width: int, precision: int, scale: int, data: st.DataObject
) -> None:
    kind, most = DecimalType(precision, min(scale, precision)), 10**precision - 1
    unscaled = data.draw(st.integers(-most, most) | st.integers(-most, min(0, width - most)))
    value, lowest = Decimal(f"{unscaled}E-{kind.scale}"), lowest_truncated(kind, width)
    assert isinstance(lowest, Decimal)
    fits = truncated(kind, width, value) >= Decimal(f"-{most}E-{kind.scale}")
    assert (value >= lowest) == fits


@given(WIDTHS, st.sampled_from([IntegerType(), LongType()]), st.data())
def test_lowest_truncated_integer_is_the_first_that_fits(
    width: int, kind: IntegerType | LongType, data: st.DataObject
) -> None:
    low, high = kind.min, kind.max
    value = data.draw(st.integers(low, high) | st.integers(low, low + width))
    lowest = lowest_truncated(kind, width)
    assert isinstance(lowest, int)
    assert (value >= lowest) == (truncated(kind, width, value) >= low)

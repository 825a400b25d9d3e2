"""Pictures of derived tables, as the Dagster UI shows them: PNGs inside of Markdown metadata."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import UTC, datetime
from io import BytesIO
from typing import TYPE_CHECKING

from dagster import MarkdownMetadataValue, MetadataValue

from topicberg.extensions import of_extra
from topicberg.security.text import markdown_cell, one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT, DPI = 8.0, 3.2, 80
"""Inches, and dots per inch: about 20 kB, since every event of the asset stores it."""

_CELL = 40
"""Characters of a cell."""
_MINUTE = 1 / (24 * 60)
"""In days, as matplotlib counts."""


def axes(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    """Return an empty chart. It is not part of pyplot's global state, so any thread may draw it."""
    with of_extra("charts"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
    drawn: Axes = figure.add_subplot(title=title, xlabel=x, ylabel=y)
    drawn.grid(visible=True, alpha=0.3)
    return figure, drawn


def times(drawn: Axes) -> None:
    """Short labels for an x axis of times in UTC."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz=UTC)
    drawn.xaxis.set_major_locator(locator)
    drawn.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))


def minute_bars(drawn: Axes, points: Iterable[tuple[str, datetime, float]]) -> None:
    """Bars of a minute, stacked: (series, minute, height)."""
    from matplotlib.dates import date2num

    bottom: dict[datetime, float] = {}
    series: dict[str, list[tuple[datetime, float]]] = {}
    for name, minute, height in points:
        series.setdefault(name, []).append((minute, height))
    for name, bars in sorted(series.items()):
        days = [float(date2num(minute)) for minute, _ in bars]
        heights = [height for _, height in bars]
        below = [bottom.get(minute, 0.0) for minute, _ in bars]
        drawn.bar(days, heights, _MINUTE, below, align="edge", label=one_line(name))
        bottom |= {minute: bottom.get(minute, 0.0) + height for minute, height in bars}
    times(drawn)


def legend(drawn: Axes) -> None:
    """Beside the chart, if there is anything in it."""
    if drawn.get_legend_handles_labels()[0]:
        shown = drawn.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
        for text in shown.get_texts():
            text.set_parse_math(False)  # a name from a record may hold a "$"


def png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def markdown(figure: Figure) -> MarkdownMetadataValue:
    """The picture as metadata."""
    picture = base64.b64encode(png(figure)).decode()
    return MetadataValue.md(f"![chart](data:image/png;base64,{picture})")


def markdown_table(rows: pa.Table) -> str:
    """Return rows as a Markdown table, in which names and values are plain text."""
    lines = [_row(map(markdown_cell, rows.column_names)), "|" + "---|" * rows.num_columns]
    lines += [
        _row(_cell(column[number]) for column in rows.columns) for number in range(rows.num_rows)
    ]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(scalar: pa.Scalar) -> str:
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError):  # Python has no such time
        value = "beyond the year 9999"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    shown = "" if value is None else str(value)
    return markdown_cell(shown if len(shown) <= _CELL else shown[: _CELL - 1] + "…")

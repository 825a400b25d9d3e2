"""Pictures of derived tables, as the Dagster UI shows them: PNGs inside of Markdown metadata."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import TYPE_CHECKING

from dagster import MarkdownMetadataValue, MetadataValue

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT, DPI = 8.0, 3.2, 80
"""Inches, and dots per inch: about 20 kB, since every event of the asset stores it."""


def axes(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    """An empty chart. It is no part of pyplot's global state, so any thread may draw it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
    drawn: Axes = figure.add_subplot()
    drawn.set_title(title)
    drawn.set_xlabel(x)
    drawn.set_ylabel(y)
    drawn.grid(visible=True, alpha=0.3)
    return figure, drawn


def legend(drawn: Axes) -> None:
    """Beside the chart, if there is anything in it."""
    if drawn.get_legend_handles_labels()[0]:
        drawn.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")


def png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def markdown(figure: Figure) -> MarkdownMetadataValue:
    """The picture as metadata."""
    picture = base64.b64encode(png(figure)).decode()
    return MetadataValue.md(f"![chart](data:image/png;base64,{picture})")

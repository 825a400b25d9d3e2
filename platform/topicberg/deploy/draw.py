"""A picture of the resource graph: SVG and PNG, or Graphviz's own language.

Resources are placed in columns by how much comes before them, and coloured by their vendor. SVG is
written directly; PNG is drawn with the same places by Pillow, which brings a font of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from topicberg.deploy.engine import in_order
from topicberg.deploy.resource import Resource
from topicberg.errors import TopicbergError
from topicberg.security.text import dot, one_line

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 250, 26, 90, 10, 20
COLORS = {"confluent": "#d9e8fb", "key": "#fdf0c8", "aws": "#fde3cf", "snowflake": "#d5f3f6"}
_LINE = "#8b95a5"


@dataclass(frozen=True)
class Box:
    """A resource's place, in pixels."""

    resource: Resource
    x: int
    y: int

    @property
    def color(self) -> str:
        return COLORS[self.resource.key.partition("/")[0]]


def draw(graph: list[Resource], output: Path) -> None:
    """Write the picture.

    :raises TopicbergError: the file's ending says no format
    """
    makers = {".svg": _svg, ".png": _png, ".dot": _dot}
    make = makers.get(output.suffix.lower())
    if make is None:
        raise TopicbergError(
            f"{output}: unknown kind of picture",
            hint="use the ending .svg, .png or .dot",
        )
    output.write_bytes(make(graph))


def places(graph: list[Resource]) -> dict[str, Box]:
    """Key → place. Within a column each is near what it needs."""
    depth: dict[str, int] = {}
    for resource in in_order(graph):
        depth[resource.key] = max((depth[need] + 1 for need in resource.needs), default=0)
    columns: dict[int, list[Resource]] = {}
    for resource in graph:
        columns.setdefault(depth[resource.key], []).append(resource)
    found: dict[str, Box] = {}
    for column in sorted(columns):

        def middle(resource: Resource) -> float:
            needs = [found[need].y for need in resource.needs]
            return sum(needs) / len(needs) if needs else 0.0

        for row, resource in enumerate(sorted(columns[column], key=middle)):
            x = MARGIN + column * (WIDTH + GAP_X)
            found[resource.key] = Box(resource, x, MARGIN + row * (HEIGHT + GAP_Y))
    return found


def _size(boxes: dict[str, Box]) -> tuple[int, int]:
    right = max(box.x for box in boxes.values()) + WIDTH + MARGIN
    return right, max(box.y for box in boxes.values()) + HEIGHT + MARGIN


def _edges(boxes: dict[str, Box]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """From the right of what is needed to the left of what needs it."""
    return [
        (
            (boxes[need].x + WIDTH, boxes[need].y + HEIGHT // 2),
            (box.x, box.y + HEIGHT // 2),
        )
        for box in boxes.values()
        for need in box.resource.needs
    ]


def _svg(graph: list[Resource]) -> bytes:
    boxes = places(graph)
    width, height = _size(boxes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<g fill="none" stroke="{_LINE}">',
    ]
    for (x1, y1), (x2, y2) in _edges(boxes):
        bend = (x1 + x2) // 2
        parts.append(f'<path d="M{x1} {y1} C{bend} {y1} {bend} {y2} {x2} {y2}"/>')
    parts.append("</g>")
    for box in boxes.values():
        title = escape(one_line(box.resource.title))
        key = escape(_short(one_line(box.resource.key)))
        parts.append(
            f'<g><title>{title}</title><rect x="{box.x}" y="{box.y}" width="{WIDTH}" '
            f'height="{HEIGHT}" rx="4" fill="{box.color}" stroke="{_LINE}"/>'
            f'<text x="{box.x + 8}" y="{box.y + 17}">{key}</text></g>'
        )
    parts.append("</svg>\n")
    return "\n".join(parts).encode()


def _png(graph: list[Resource]) -> bytes:
    import io

    from PIL import Image, ImageDraw, ImageFont

    boxes = places(graph)
    image = Image.new("RGB", _size(boxes), "white")
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=11)
    for start, end in _edges(boxes):
        pen.line([start, end], fill=_LINE)
    for box in boxes.values():
        corners = (box.x, box.y, box.x + WIDTH, box.y + HEIGHT)
        pen.rounded_rectangle(corners, radius=4, fill=box.color, outline=_LINE)
        pen.text((box.x + 8, box.y + 6), _short(box.resource.key), fill="black", font=font)
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


def _short(key: str) -> str:
    return key if len(key) <= 40 else f"{key[:39]}…"


def _dot(graph: list[Resource]) -> bytes:
    lines = ["digraph platform {", "  rankdir=LR; node [shape=box, style=filled];"]
    for box in places(graph).values():
        name = dot(box.resource.key)
        lines.append(f'  {name} [fillcolor="{box.color}", tooltip={dot(box.resource.title)}];')
        lines += [f"  {dot(need)} -> {name};" for need in box.resource.needs]
    return "\n".join([*lines, "}", ""]).encode()

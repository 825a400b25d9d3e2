"""A picture of the resource graph: SVG and PNG, or Graphviz's own language."""

from __future__ import annotations

from pathlib import Path

from topicberg.deploy.resource import Resource


def draw(graph: list[Resource], output: Path) -> None: ...

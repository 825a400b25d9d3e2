"""The resource graph in Graphviz's language, grouped by vendor; as a picture where Graphviz is.

https://graphviz.org/doc/info/lang.html
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from topicberg.errors import TopicbergError
from topicberg.security.text import dot
from topicberg_deploy.engine import in_order
from topicberg_deploy.resource import Resource

VENDORS = {
    "Confluent Cloud": {"confluent": "#d9e8fb", "key": "#fdf0c8"},
    "AWS": {"aws": "#fde3cf"},
    "Snowflake": {"snowflake": "#d5f3f6"},
}
"""First parts of the keys of a vendor's resources, with their colours."""
PICTURES = (".svg", ".png", ".pdf")


def draw(graph: list[Resource], output: Path) -> None:
    """Write the graph: ``.dot`` as text, ``.svg``, ``.png`` and ``.pdf`` by Graphviz's ``dot``.

    :raises TopicbergError: the file's ending says no format, or Graphviz is absent or fails
    """
    ending, text = output.suffix.lower(), "\n".join(lines(graph)) + "\n"
    if ending == ".dot":
        output.write_text(text, encoding="utf-8")
        return
    if ending not in PICTURES:
        raise TopicbergError(
            f"{output}: unknown kind of picture",
            hint=f"use the ending .dot, {', '.join(PICTURES[:-1])} or {PICTURES[-1]}",
        )
    program = shutil.which("dot")
    if program is None:
        raise TopicbergError(
            f"{output} needs Graphviz, whose program dot is not installed",
            hint=f"install the package graphviz, or write {output.with_suffix('.dot')}",
        )
    made = subprocess.run(
        [program, f"-T{ending[1:]}"], input=text.encode(), capture_output=True, check=False
    )
    if made.returncode:
        raise TopicbergError(f"dot: {made.stderr.decode(errors='replace').strip()}")
    output.write_bytes(made.stdout)


def lines(graph: list[Resource]) -> Iterator[str]:
    """Yield the lines of the graph. An arrow points from what is needed to what needs it."""
    yield "digraph platform {"
    yield '  rankdir=LR; ranksep=1.2; nodesep=0.12; fontname="sans-serif"; fontsize=20;'
    yield '  node [shape=box, style="filled,rounded", height=0.3, fontname="sans-serif"];'
    yield '  edge [color="#8b95a5", arrowsize=0.6];'
    for vendor, colors in VENDORS.items():
        yield f"  subgraph {dot(f'cluster_{vendor}')} {{"
        yield f'    label={dot(vendor)}; style=rounded; color="#8b95a5";'
        for resource in graph:
            first, _, rest = resource.key.partition("/")
            if first in colors:
                label = resource.key if first == "key" else rest
                yield (
                    f"    {dot(resource.key)} [label={dot(label)}, "
                    f'fillcolor="{colors[first]}", tooltip={dot(resource.title)}];'
                )
        yield "  }"
    for key, need in _edges(graph):
        yield f"  {dot(need)} -> {dot(key)};"
    yield "}"


def _edges(graph: list[Resource]) -> Iterator[tuple[str, str]]:
    """Yield (key, key of what it needs), without what it needs through another need anyway.

    A resource may need one that this graph leaves out because the settings do not ask for it.
    """
    before: dict[str, set[str]] = {}
    for resource in in_order(graph):
        needs = [need for need in dict.fromkeys(resource.needs) if need in before]
        through = set().union(*(before[need] for need in needs))
        before[resource.key] = through | set(needs)
        yield from ((resource.key, need) for need in needs if need not in through)

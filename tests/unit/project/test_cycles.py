"""Modules import each other in one direction."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_modules_import_each_other() -> None:
    """Nor in functions; a type that is only named is no import."""
    graph = grimp.build_graph("topicberg", "topicberg_local", exclude_type_checking_imports=True)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imports) > 400
    TopologicalSorter(imports).prepare()  # raises CycleError with the cycle

"""Errors come from processes that decode, and from tasks of Spark: nothing of one may be lost."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from importlib import import_module

from repository import PROJECT_ROOT

from topicberg.errors import TopicbergError

CLASS = re.compile(r"^class \w+\([\w.]*Error\):", re.MULTILINE)


def subclasses(kind: type[TopicbergError]) -> Iterator[type[TopicbergError]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


def test_every_error_keeps_its_attributes_when_it_is_pickled() -> None:
    root = PROJECT_ROOT / "platform"
    for path in sorted((root / "topicberg").rglob("*.py")):
        if CLASS.search(path.read_text(encoding="utf-8")):
            import_module(".".join(path.relative_to(root).with_suffix("").parts))
    kinds = {*subclasses(TopicbergError)}
    assert len(kinds) > 25
    for kind in kinds:
        error = kind.__new__(kind, "no")
        TopicbergError.__init__(error, "no", hint="do it")
        error.of_its_own = 1, "two"  # type: ignore[attr-defined]
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), vars(again), again.args) == (kind, vars(error), error.args)

"""What counts as a change of a derived table's function, and what does not."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest
from python_project import write_project

from topicberg.errors import TopicbergError
from topicberg.orchestration.assets.derived import code_version
from topicberg.orchestration.assets.lake import Lake, find_derived
from topicberg.settings import settings
from topicberg.topics import load_topics
from topicberg.transforms import code

FILES = {
    "pipes/__init__.py": "",
    "pipes/numbers.py": "SCALE = 10\n\ndef scaled(x):\n    return x * SCALE\n\n"
    "def other(x):\n    return x\n",
    "pipes/texts.py": "from pipes.numbers import scaled as by\n\nclass Names:\n    first = 'a'\n\n"
    "    def joined(self):\n        return by(2)\n",
    "shared_helpers.py": "LIMIT = 3\n\ndef limited(x):\n    return min(x, LIMIT)\n",
    "pipes/orders.py": '''"""Orders."""
import datetime
import shared_helpers
from pipes import numbers as n
from pipes.texts import Names
from topicberg.orchestration.assets.derived import derived_table

ZONE = datetime.timedelta(hours=1)
COLUMNS = ("a", "b")
UNUSED = 1


def chart(rows):
    return rows


def add(x):
    return x + 1


@derived_table(source="orders", time_column="at", chart=chart)
def totals(rows):
    """Totals."""
    # a comment
    if not rows:
        return None
    return n.scaled(shared_helpers.limited(add(len(COLUMNS)))), ZONE, Names().joined()
''',
}
numbers = count()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Writes the files, with some text replaced, and returns the version of ``totals``."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def version(file: str = "", old: str = "", new: str = "", settings: str = "") -> str:
        folder = tmp_path / f"v{next(numbers)}"
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            assert name != file or old in text
            path.write_text(text.replace(old, new) if name == file else text)
        for name in set(sys.modules) - before:
            del sys.modules[name]
        monkeypatch.syspath_prepend(folder)
        importlib.invalidate_caches()
        module: ModuleType = importlib.import_module("pipes.orders")
        return code.code_version(module.totals.transform, settings)

    yield version
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("pipes/orders.py", "# a comment", "# another one\n\n"),
        ("pipes/orders.py", '"""Totals."""', '"""The totals,\n    of all."""'),
        ("pipes/orders.py", '"""Orders."""', '"""Orders."""\n\n\n'),
        ("pipes/orders.py", "UNUSED = 1", "UNUSED = 2"),
        ("pipes/orders.py", "return rows\n", "return rows + 1\n"),
        ("pipes/orders.py", "chart=chart)", "chart=None)"),
        ("pipes/orders.py", "def totals(rows):", "def totals(rows: object) -> object:"),
        ("pipes/orders.py", 'COLUMNS = ("a", "b")', "COLUMNS = (\n    'a',\n    'b',\n)"),
        ("pipes/numbers.py", "def other(x):\n    return x\n", "def other(x):\n    return 2 * x\n"),
    ],
)
def test_code_version_without_a_change_of_meaning_stays(
    project: Callable[..., str], file: str, old: str, new: str
) -> None:
    assert project(file, old, new) == project()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("pipes/orders.py", "if not rows", "if rows"),
        ("pipes/orders.py", "x + 1", "x + 2"),
        ("pipes/orders.py", '("a", "b")', '("a", "c")'),
        ("pipes/orders.py", "hours=1", "hours=2"),
        ("pipes/orders.py", "from pipes import numbers as n", "from pipes import texts as n"),
        ("pipes/numbers.py", "SCALE = 10", "SCALE = 11"),
        ("pipes/numbers.py", "x * SCALE", "x + SCALE"),
        ("pipes/texts.py", "by(2)", "by(3)"),
        ("pipes/texts.py", "first = 'a'", "first = 'b'"),
        ("pipes/texts.py", "import scaled as by", "import other as by"),
        ("shared_helpers.py", "LIMIT = 3", "LIMIT = 4"),
    ],
)
def test_code_version_with_a_changed_helper_is_another_one(
    project: Callable[..., str], file: str, old: str, new: str
) -> None:
    assert project(file, old, new) != project()


HEAD = "from topicberg import derived_table\n"
TOTALS = """
@derived_table(source="orders", time_column="at")
def totals(rows):
    return rows, X
"""
FACTORY = """
def make(name, rates):
    def totals_of(rows):
        return rows, rates
    totals_of.__name__ = name
    return derived_table(source="orders", time_column="at")(totals_of)
"""
LOOP = (
    HEAD
    + FACTORY.replace("rates):", "rates=2):")
    + "for rates in (1, 2):\n    globals()[f'n{rates}'] = make(f'n{rates}', rates)\n"
    + "totals = make('totals')\n"
)


@pytest.fixture
def version_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Returns the version of ``totals`` in a module of a text."""

    def version(text: str) -> str:
        folder = tmp_path / f"m{next(numbers)}"
        folder.mkdir()
        (folder / "pipes_alone.py").write_text(text)
        sys.modules.pop("pipes_alone", None)
        monkeypatch.syspath_prepend(folder)
        importlib.invalidate_caches()
        return code.code_version(importlib.import_module("pipes_alone").totals.transform, "")

    yield version
    sys.modules.pop("pipes_alone", None)


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("N = False\nif N:\n    X = 2\nelse:\n    X = 1\n" + TOTALS, "= False", "= True"),
        ("X = {}\nX['usd'] = 1.0\n" + TOTALS, "1.0", "2.0"),
        ("X = {'a': 1, 'b': 2}\ndel X['a']\n" + TOTALS, "del X['a']", "del X['b']"),
        ("X = ['a']\nX.append('b')\n" + TOTALS, "'b'", "'c'"),
        ("X = {}\nX.setdefault('a', []).append('b')\n" + TOTALS, "'b'", "'c'"),
        ("class X:\n    a = 1\nsetattr(X, 'a', 2)\n" + TOTALS, "2)", "3)"),
        ("class C:\n    a = 1\nC.a = 2\nX = C\n" + TOTALS, "= 2", "= 3"),
        ("X = {}\nfor n, r in [('u', 1.0)]:\n    X[n] = r\n" + TOTALS, "1.0", "2.0"),
        ("for X in (1, 2):\n    pass\n" + TOTALS, "(1, 2)", "(1, 3)"),
        ("X = 0\nwhile X < 3:\n    X += 1\n" + TOTALS, "< 3", "< 4"),
        ("if (X := 1) > 2:\n    pass\n" + TOTALS, "X := 1", "X := 3"),
        ("def X(a):\n    return a\nsetattr(X, 'rate', 2)\n" + TOTALS, "2)", "3)"),
        ("import logging\nX = {}\nX.update(a=logging.INFO)\n" + TOTALS, "INFO", "DEBUG"),
        ("X = []\nadd = list.extend\nadd(X, [1])\n" + TOTALS, "[1]", "[2]"),
        ("X = 0\ndef put(n):\n    global X\n    X = n + 1\nput(2)\n" + TOTALS, "n + 1", "n + 2"),
        (
            "try:\n    X = int('1')\n    int('a')\nexcept ValueError:\n    X = 3\n" + TOTALS,
            "'a'",
            "'2'",
        ),
        (FACTORY + "totals = make('totals', {'usd': 1.0})\n", "1.0", "2.0"),
        (FACTORY + "totals = make('totals', lambda x: x + 1)\n", "x + 1", "x + 2"),
        (
            FACTORY + "def add(x):\n    return x + 1\ntotals = make('totals', [add])\n",
            "x + 1",
            "x + 2",
        ),
        (
            "from datetime import date\n" + FACTORY + "totals = make('totals', date(2026, 1, 1))\n",
            "1, 1",
            "2, 1",
        ),
        (FACTORY + "totals = make('totals', {1, 2})\n", "{1, 2}", "{1, 3}"),
        (
            FACTORY.replace("totals_of(rows)", "totals_of(rows, rates=rates)")
            + "totals = make('totals', 1)\n",
            "'totals', 1",
            "'totals', 2",
        ),
        (
            FACTORY.replace("totals_of(rows)", "totals_of(rows, rate=0)").replace(
                "__name__ = name", "__defaults__ = (eval(name),)"
            )
            + "totals = make('1', 2)\n",
            "'1', 2",
            "'3', 2",
        ),
        (
            FACTORY.replace("totals_of(rows)", "totals_of(rows, *, rate=1.0)")
            + "totals = make('totals', 1)\n",
            "1.0",
            "2.0",
        ),
    ],
)
def test_code_version_with_a_changed_value_is_another_one(
    version_of: Callable[[str], str], text: str, old: str, new: str
) -> None:
    assert old in text
    assert version_of(HEAD + text) != version_of(HEAD + text.replace(old, new))


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (LOOP, "(1, 2)", "(1, 2, 3)"),  # `rates` is a variable of the function, too
        (
            HEAD + "X = [1]\nif __name__ == '__main__':\n    X.append(2)\n" + TOTALS,
            "append(2)",
            "append(3)",
        ),
        (HEAD + "X = 1\nY = []\nY.append(X + 1)\n" + TOTALS, "X + 1", "X + 2"),
        (
            HEAD
            + "ALL = []\ndef register(f):\n    ALL.append(f)\ndef X():\n    pass\n#\n"
            + TOTALS,
            "#",
            "register(X)",
        ),
        (HEAD + "ALL = []\n" + TOTALS + "#\n", "#", "ALL.append(totals)"),
        (HEAD + FACTORY + "totals = make('totals', {'b', 'a'})\n", "{'b', 'a'}", "{'a', 'b'}"),
        (HEAD + FACTORY + "totals = make('totals', object())\n", "object()", " object()"),
    ],
)
def test_code_version_without_a_changed_value_stays(
    version_of: Callable[[str], str], text: str, old: str, new: str
) -> None:
    assert old in text
    assert version_of(text) == version_of(text.replace(old, new))


def test_code_version_with_other_settings_is_another_one(project: Callable[..., str]) -> None:
    assert project(settings="a") != project(settings="b")


def test_code_version_that_is_given_stands_for_the_code() -> None:
    lake = Lake(settings(), tuple(load_topics(settings())), tuple(find_derived()))
    totals, other = lake.derived[:2]
    said = replace(totals, code_version="1")
    assert code_version(replace(said, transform=other.transform), lake) == code_version(said, lake)
    assert code_version(replace(said, code_version="2"), lake) != code_version(said, lake)


def test_code_version_of_a_function_without_source_is_refused() -> None:
    space: dict[str, Callable[[], None]] = {}
    exec("def made(): pass", space)  # noqa: S102
    with pytest.raises(TopicbergError, match="its source cannot be read"):
        code.code_version(space["made"], "")


def test_code_version_in_another_version_of_python_is_the_same(
    project: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser of a later version adds fields, and leaves out empty ones."""
    before, parse = project(), ast.parse

    def later(text: bytes) -> ast.Module:
        tree = parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                node.type_params = []
                node._fields = (*node._fields, "type_params")  # type: ignore[misc]
        return tree

    monkeypatch.setattr(ast, "parse", later)
    assert project() == before


def test_code_version_of_each_derived_table_differs_and_repeats() -> None:
    lake = Lake(settings(), tuple(load_topics(settings())), tuple(find_derived()))
    found = {derived.name: code_version(derived, lake) for derived in lake.derived}
    assert len({*found.values()}) == len(found)
    assert found == {derived.name: code_version(derived, lake) for derived in lake.derived}


VERSIONS = """
import json
from topicberg.orchestration.assets.derived import code_version
from topicberg.orchestration.assets.lake import Lake, find_derived
from topicberg.settings import settings
from topicberg.topics import load_topics

lake = Lake(settings(), tuple(load_topics(settings())), tuple(find_derived()))
print(json.dumps({one.name: code_version(one, lake) for one in lake.derived}))
"""


def _versions(root: Path, *path: Path) -> dict[str, str]:
    """Return the versions of the tables of a project, as another process computes them."""
    done = subprocess.run(
        [sys.executable, "-c", VERSIONS],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, [*path, os.environ["PYTHONPATH"]])),
            "TOPICBERG_PROJECT_ROOT": str(root),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_code_version_with_spark_in_another_folder_is_the_same(tmp_path: Path) -> None:
    """In the image of EMR Serverless, PySpark is below /usr/lib/spark."""
    lake = Lake(settings(), tuple(load_topics(settings())), tuple(find_derived()))
    expected = {derived.name: code_version(derived, lake) for derived in lake.derived}
    for name in ("pyspark", "py4j"):
        spec = importlib.util.find_spec(name)
        assert spec.origin is not None
        (tmp_path / name).symlink_to(Path(spec.origin).parent)
    assert _versions(settings().project_root, tmp_path) == expected


def test_code_version_of_an_installed_project_is_that_of_its_source(tmp_path: Path) -> None:
    """With helpers in other modules and in another top-level package of the project."""
    root = write_project(tmp_path / "project")
    source, site = _versions(root), tmp_path / "site-packages"
    (root / "src").rename(site)
    metadata = site / "parcels-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: parcels\nVersion: 1\n")
    (metadata / "RECORD").write_text("parcels/__init__.py,,\nrates.py,,\n")
    assert _versions(root, site) == source
    (site / "rates.py").write_text("FACTOR = 3\n")
    assert _versions(root, site) != source

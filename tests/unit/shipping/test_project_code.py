"""Which code belongs to a project, and what of it leaves this machine."""

from __future__ import annotations

import importlib
import io
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.connect.session import SparkSession as ConnectSession
from python_project import write_project

from topicberg.errors import TopicbergError
from topicberg.shipping import project
from topicberg.shipping.files import pack, version
from topicberg.shipping.project import files_of, libraries, packages, pickle_by_value, send

LIMIT = 1000


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path / "src")
    yield write_project(tmp_path)
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("parcels", "rates"):
            del sys.modules[name]
    cloudpickle.cloudpickle._PICKLE_BY_VALUE_MODULES.clear()


def test_packages_are_those_of_pipelines_and_what_these_import(root: Path) -> None:
    assert packages(root) == {"parcels": root / "src/parcels", "rates": root / "src/rates.py"}
    assert libraries(root) == {"pandas", "pyspark", "topicberg"}


def test_packages_in_the_root_leave_out_other_folders(root: Path) -> None:
    (root / "src").rename(root / "code")
    for path in (root / "code").iterdir():
        path.rename(root / path.name)
    (root / "data").mkdir()
    (root / "data" / "rows.csv").write_text("1")
    assert packages(root) == {"parcels": root / "parcels", "rates": root / "rates.py"}


def test_packages_of_the_installed_project_are_found(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image, where the project is a wheel and the root has only specs."""
    site = root / "lib" / "site-packages"
    (root / "src").rename(root / "elsewhere")
    site.mkdir(parents=True)
    for path in (root / "elsewhere").iterdir():
        path.rename(site / path.name)
    metadata = site / "parcels-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: parcels\nVersion: 1\n")
    (metadata / "RECORD").write_text("parcels/__init__.py,,\nrates.py,,\n")
    monkeypatch.syspath_prepend(site)
    assert packages(root) == {"parcels": site / "parcels", "rates": site / "rates.py"}


def test_package_that_is_missing_is_named(root: Path) -> None:
    file = root / "pyproject.toml"
    file.write_text(file.read_text().replace("parcels.pipelines", "letters.pipelines"))
    with pytest.raises(TopicbergError, match=r"no package letters, which .* names"):
        packages(root)


def test_files_leave_out_tests_secrets_and_large_files(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(project, "MAX_FILE_BYTES", LIMIT)
    (root / "src/parcels/model.bin").write_bytes(b"0" * (LIMIT + 1))
    (root / "src/parcels/__pycache__").mkdir()
    (root / "src/parcels/__pycache__/x.pyc").touch()
    names = [name for name, _ in files_of(root / "src/parcels")]
    assert names == ["__init__.py", "pipelines.py", "prices.py", "zones.json"]
    assert "model.bin" in caplog.text


def test_archive_is_the_same_for_the_same_content(root: Path) -> None:
    first, named = archive(root / "src/parcels"), version(dict(files_of(root / "src/parcels")))
    for path in (root / "src/parcels").rglob("*"):
        path.touch()
        path.chmod(0o700)
    assert archive(root / "src/parcels") == first
    assert version(dict(files_of(root / "src/parcels"))) == named
    (root / "src/parcels/zones.json").write_text("{}")
    assert archive(root / "src/parcels") != first
    assert version(dict(files_of(root / "src/parcels"))) != named


def archive(package: Path) -> bytes:
    target = io.BytesIO()
    pack(dict(files_of(package)), target)
    return target.getvalue()


def test_modules_that_import_topicberg_are_sent_by_value(root: Path) -> None:
    assert project._of_driver(packages(root)) == {"parcels.pipelines"}
    (root / "src/parcels/more.py").write_text("def f():\n    from parcels import pipelines\n")
    (root / "src/parcels/other.py").write_text("from .pipelines import described\n")
    (root / "src/parcels/typed.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import pyspark\n"
    )
    assert project._of_driver(packages(root)) == {"parcels.pipelines", "parcels.other"}
    (root / "src/parcels/__init__.py").write_text("from parcels.pipelines import labels\n")
    assert "parcels.prices" in project._of_driver(packages(root))


def test_pickled_function_of_a_pipeline_imports_no_topicberg(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    # A function asks this process's session, which another test may have stopped.
    monkeypatch.setattr(ConnectSession, "_default_session", None)
    monkeypatch.setattr(ConnectSession, "_active_session", threading.local())
    pipelines = importlib.import_module("parcels.pipelines")
    pickle_by_value(packages(root))
    pickled = cloudpickle.dumps(pipelines.described)  # type: ignore[no-untyped-call]
    assert b"parcels.prices" in pickled
    # The path of this checkout may have the name.
    assert not re.search(rb"topicberg[.\x94]", pickled)


class Session:
    """A session of Spark that keeps what it is sent."""

    def __init__(self, error: Exception | None = None) -> None:
        self.sent: list[tuple[str, dict[str, bool]]] = []
        self.error = error

    def addArtifacts(self, path: str, **kinds: bool) -> None:
        if self.error:
            raise self.error
        assert Path(path.partition("#")[0]).is_file()
        self.sent.append((Path(path).name, kinds))


def test_send_names_archives_by_their_content(root: Path) -> None:
    sessions: list[Any] = [Session(), Session(), Session()]
    for session in sessions[:2]:
        send(session, root)
    (root / "src/parcels/zones.json").write_text("{}")
    send(sessions[2], root)
    (package, kinds), module = sessions[0].sent
    assert package.endswith(".tar.gz#parcels")
    assert kinds == {"archive": True}
    assert module == ("rates.py", {"pyfile": True})
    assert sessions[1].sent == sessions[0].sent
    assert sessions[2].sent[0] != sessions[0].sent[0]


def test_send_to_a_spark_that_refuses_warns(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    refusing: Any = Session(RuntimeError("artifacts are not allowed"))
    send(refusing, root)
    assert "does not accept the package parcels" in caplog.text
    assert "artifacts are not allowed" in caplog.text

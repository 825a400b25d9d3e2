"""Projects that `topicberg init` writes, and where topicberg looks for one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click.testing
import pytest
import yaml
from dagster_dg_cli.cli import cli as dg
from repository import PROJECT_ROOT
from typer.testing import CliRunner

from topicberg.cli import app
from topicberg.cli.ui import workspace_file
from topicberg.dagster.home import dagster_home
from topicberg.errors import TopicbergError
from topicberg.project import env_file, location_options, project_root, read_project
from topicberg.scaffolding.project import existing_project, new_project
from topicberg.settings import Settings, settings
from topicberg.topics import check_topics

PROGRAMS = Path(sys.executable).parent
COMPONENT = "src/shop_data/defs/returns/defs.yaml"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new project, in which the process is."""
    root = new_project("shop-data", tmp_path, "topicberg[local]").root
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the project's packages are appended
    settings.cache_clear()
    yield root
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop_data"]:
        del sys.modules[name]
    settings.cache_clear()


def run(
    root: Path, program: str, *arguments: str, source: str = "src"
) -> subprocess.CompletedProcess[str]:
    """Run a program in the project, whose package is found as if it were installed."""
    path = f"{root / source}{os.pathsep}{os.environ['PYTHONPATH']}"
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    return subprocess.run(
        [str(PROGRAMS / program), *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def dg_here(*arguments: str) -> click.testing.Result:
    """Run ``dg`` in this process: another one imports Dagster again."""
    return click.testing.CliRunner().invoke(dg, [*arguments])


def test_new_project_has_everything_that_it_names(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Settings()
    assert config.project_root == project
    monkeypatch.delenv("TOPICBERG_STATE_DIR")
    assert Settings().state_dir == project / ".topicberg"
    specs, problems = check_topics(config)
    assert problems == []
    assert [spec.name for spec in specs] == ["orders"]
    assert env_file() == Path(os.environ["TOPICBERG_ENV_FILE"])
    assert "$" not in (project / "pyproject.toml").read_text()
    assert (project / "dagster.yaml").read_text() == (PROJECT_ROOT / "dagster.yaml").read_text()


def test_new_project_is_one_of_dagsters(project: Path) -> None:
    assets = loaded(project, "shop_data.definitions")
    assert {f"{kind}/orders" for kind in ("kafka", "iceberg", "glue", "snowflake")} <= assets
    assert {f"{kind}/large_orders" for kind in ("iceberg", "glue", "snowflake")} <= assets
    assert not [key for key in assets if "trade" in key or "airline" in key or "flight" in key]


def test_topic_of_a_new_project_is_scaffolded_and_checked_by_dagster(project: Path) -> None:
    done = dg_here("scaffold", "defs", "topicberg.Topic", "returns")
    assert done.exit_code == 0, done.output
    assert {spec.name for spec in check_topics(Settings())[0]} == {"orders", "returns"}
    done = dg_here("check", "yaml")
    assert done.exit_code == 0, done.output
    text = (project / COMPONENT).read_text()
    (project / COMPONENT).write_text(text.replace("partitions: 3", "partitons: 3"))
    done = dg_here("check", "yaml")
    assert done.exit_code == 1
    assert "partitons" in done.output


def test_spec_of_a_component_is_checked_as_others_are(project: Path) -> None:
    file = project / COMPONENT
    file.parent.mkdir(parents=True)
    document = {
        "type": "topicberg.Topic",
        "attributes": {"pipeline": "shop", "schema": {"format": "avro", "file": "orders.avsc"}},
    }
    file.write_text(yaml.safe_dump(document))
    assert [spec.name for spec in check_topics(Settings())[0]] == ["orders", "returns"]
    document["attributes"]["partitons"] = 3  # type: ignore[index]
    file.write_text(yaml.safe_dump(document))
    specs, problems = check_topics(Settings())
    assert [spec.name for spec in specs] == ["orders"]
    assert [problem.names for problem in problems] == [{"returns"}]
    assert [str(one) for one in problems] == [
        f"{COMPONENT}: partitons: unknown field; did you mean partitions?"
    ]
    document["attributes"] = {"name": "orders", "schema": {"format": "none"}, "pipeline": "shop"}
    file.write_text(yaml.safe_dump(document))
    reasons = [str(one) for one in check_topics(Settings())[1]]
    assert reasons == [f"{COMPONENT}: name: orders is also the topic of topics/orders.yaml"]


@pytest.mark.parametrize("name", ["Shop", "1st", "shop.data", "../shop", "shop--data", ""])
def test_name_of_a_project_is_checked(tmp_path: Path, name: str) -> None:
    with pytest.raises(TopicbergError, match="is not a valid name of a project"):
        new_project(name, tmp_path, "topicberg")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["topicberg", "platform", "class", "dagster"])
def test_name_that_hides_a_module_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TopicbergError, match="Python has a module"):
        new_project(name, tmp_path, "topicberg")


@pytest.mark.parametrize("text", ["", "telemetry: {enabled: true}\n", None])
def test_home_of_dagster_has_what_the_project_does_not_say(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "dagster.yaml").write_text(text)
    config = Settings(project_root=tmp_path, state_dir=tmp_path / "state")
    written = yaml.safe_load((dagster_home(config) / "dagster.yaml").read_text())
    assert written["storage"]["custom"]["config"]["base_dir"] == str(dagster_home(config))
    assert written["telemetry"] == {"enabled": bool(text)}


def test_component_is_read_beside_others_of_its_file_only_alone(project: Path) -> None:
    file = project / COMPONENT
    file.parent.mkdir(parents=True)
    file.write_text("type: topicberg.Topics\n---\ntype: shop.Report\n")
    assert check_topics(Settings())[1] == []
    file.write_text("type: topicberg.Topic\nattributes: {}\n---\ntype: shop.Report\n")
    (problem,) = check_topics(Settings())[1]
    assert "needs a file of its own" in problem.reason
    assert problem.names == {"returns"}


def test_folder_with_files_is_no_new_project(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    new_project("shop", tmp_path, "topicberg")
    with pytest.raises(TopicbergError, match="exists already"):
        new_project("shop", tmp_path, "topicberg")


DG = '[tool.dg]\ndirectory_type = "project"\n\n[tool.dg.project]\nroot_module = "{}"\n'
FOLDER = """from pathlib import Path

from dagster import Definitions, definitions, load_from_defs_folder


@definitions
def defs() -> Definitions:
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


def package(root: Path, *files: str) -> None:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FOLDER if path.name == "definitions.py" else "")


def code_location_of_dg(root: Path, name: str = "sales", source: str = "src") -> None:
    """Write what ``create-dagster project`` writes."""
    (root / "pyproject.toml").write_text(f'[project]\nname = "sales"\n\n{DG.format(name)}')
    folder = "/".join([part for part in (source, name.replace(".", "/")) if part])
    package(root, *(f"{folder}/{file}" for file in ("__init__.py", "definitions.py")))
    package(root, f"{folder}/defs/__init__.py")


LOADED = """
import sys
from importlib import import_module

from dagster import Definitions

found = [*vars(import_module(sys.argv[1])).values()]
(defs,) = (each() for each in found if type(each).__name__ == "LazyDefinitions")
assert "snowflake.core" not in sys.modules, "it costs seconds in each process"
print(*(key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()))
"""


def loaded(root: Path, module: str, source: str = "src") -> set[str]:
    """Return the assets of a code location, as a process of its own loads them. ``dg list defs``
    takes much longer: it is run for one of these projects."""
    done = run(root, "python", "-c", LOADED, module, source=source)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.split())


def test_project_with_a_code_location_gets_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code_location_of_dg(tmp_path)
    text = (tmp_path / "pyproject.toml").read_text()
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    written = existing_project(tmp_path, "topicberg")
    assert written.kept == ("dagster.yaml",)
    assert written.merge_into is None
    assert (tmp_path / "dagster.yaml").read_text() == "telemetry: {enabled: false}\n"
    assert (tmp_path / "pyproject.toml").read_text().startswith(text)
    monkeypatch.chdir(tmp_path)
    assert Settings().prefix == "sales"
    specs, problems = check_topics(Settings())
    assert problems == []
    assert [spec.name for spec in specs] == ["orders"]
    assert read_project(tmp_path).pipelines == ("sales.pipelines",)
    with pytest.raises(TopicbergError, match=r"has a table \[tool.topicberg\] already"):
        existing_project(tmp_path, "topicberg")


def test_code_location_with_a_name_of_its_own_for_components(tmp_path: Path) -> None:
    """``dg.toml`` counts before ``pyproject.toml``, which may be missing."""
    (tmp_path / "dg.toml").write_text(
        'directory_type = "project"\n\n[project]\nroot_module = "sales"\n'
        'defs_module = "sales.parts"\n'
    )
    files = ("__init__.py", "definitions.py", "parts/__init__.py")
    package(tmp_path, *(f"src/sales/{file}" for file in files))
    assert "src/sales/parts/topicberg/defs.yaml" in existing_project(tmp_path, "topicberg").files
    assert read_project(tmp_path).defs == "src/sales/parts"
    assert {"kafka/orders", "iceberg/large_orders"} <= loaded(tmp_path, "sales.definitions")


def test_definitions_in_python_are_to_be_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster would not find a component."""
    text = '[tool.dagster]\nmodule_name = "sales.orders.definitions"\n'
    (tmp_path / "pyproject.toml").write_text(text)
    package(tmp_path, "sales/__init__.py", "sales/orders/__init__.py")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["init", "--existing"])
    assert result.exception is None
    assert "merge the definitions of topicberg into those of sales.orders.defini" in result.output
    assert "added [tool.topicberg] to" in result.output
    assert not list(tmp_path.rglob("defs.yaml"))
    assert read_project(tmp_path).defs is None
    assert read_project(tmp_path).pipelines == ("sales.orders.pipelines",)
    assert location_options(tmp_path) == "-m sales.orders.definitions"


def test_package_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(DG.format("sales"))
    package(tmp_path, "sales.py")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TopicbergError, match="has no package sales"):
        existing_project(tmp_path, "topicberg")
    assert sorted(tmp_path.rglob("*")) == before


def test_table_that_cannot_be_added_is_refused(tmp_path: Path) -> None:
    text = 'tool = {dagster = {module_name = "sales.definitions"}}\n'
    (tmp_path / "pyproject.toml").write_text(text)
    package(tmp_path, "sales/__init__.py")
    with pytest.raises(TopicbergError, match="cannot be added"):
        existing_project(tmp_path, "topicberg")
    assert (tmp_path / "pyproject.toml").read_text() == text


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("shop-data", "shop_data"),
        ("Acme.Shop", "acme_shop"),
        ("hr", "hr_data"),
        ("1st", "project_1st"),
        ("x" * 35 + "-data", "x" * 35),
    ],
)
def test_project_has_a_prefix_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, prefix: str
) -> None:
    monkeypatch.delenv("TOPICBERG_PREFIX", raising=False)
    file = tmp_path / "pyproject.toml"
    file.write_text(f'[project]\nname = "{name}"\n\n[tool.topicberg]\n')
    config = Settings(project_root=tmp_path)
    assert (config.prefix, config.bucket) == (prefix, prefix.replace("_", "-"))
    file.write_text(f'[project]\nname = "{name}"\n\n[tool.topicberg]\nprefix = "own"\n')
    os.utime(file, ns=(1, 1))
    assert Settings(project_root=tmp_path).prefix == "own"
    assert Settings(project_root=tmp_path, prefix="given").prefix == "given"


def test_ui_loads_a_project_of_dg_under_its_name(tmp_path: Path) -> None:
    """``dagster dev`` does not look for [tool.dg]."""
    root = tmp_path / "sales"
    root.mkdir()
    code_location_of_dg(root)
    config = Settings(project_root=root, state_dir=tmp_path / "state")
    dagster_home(config)
    file = workspace_file(config)
    assert file
    (location,) = json.loads(Path(file).read_text())["load_from"]
    assert location["python_module"]["module_name"] == "sales.definitions"
    assert location["python_module"]["location_name"] == "sales"
    existing_project(root, "topicberg")
    done = run(root, "dagster", "definitions", "validate", "--workspace", file)
    assert done.returncode == 0, done.stderr
    assert "Validation successful for code location sales" in done.stdout + done.stderr
    assert workspace_file(Settings(project_root=PROJECT_ROOT)) == "workspace.yaml"
    (root / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "sales.definitions"\n')
    assert workspace_file(config) is None


def test_reference_project_keeps_its_prefix_and_folders() -> None:
    config = Settings(project_root=PROJECT_ROOT)
    assert config.prefix == "tableflow_kickstarter"
    assert config.topics_dir == PROJECT_ROOT / "platform/topics"
    assert read_project(Path("/nowhere")).topics == "topics"
    assert location_options(PROJECT_ROOT) == "-f definitions.py"


@pytest.mark.slow
def test_reference_project_is_one_of_dagsters() -> None:
    done = run(PROJECT_ROOT, "dg", "check", "defs")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "No such file"),
        ("[project", "is invalid"),
        ('[project]\nname = "sales"\n', "names no code location"),
    ],
)
def test_what_is_no_code_location_is_said(tmp_path: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(TopicbergError, match=expected):
        existing_project(tmp_path, "topicberg")


def test_command_needs_a_name_or_a_project() -> None:
    result = CliRunner().invoke(app, ["init"])
    assert isinstance(result.exception, TopicbergError)
    assert "topicberg init NAME" in str(result.exception)


def test_nearest_project_counts_and_the_variable_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = new_project("outer", tmp_path, "topicberg").root
    inner = new_project("inner", outer, "topicberg").root
    (inner / "deep" / "er").mkdir(parents=True)
    (inner / "deep" / "pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir(inner / "deep" / "er")
    assert project_root() == inner
    monkeypatch.setenv("TOPICBERG_PROJECT_ROOT", str(outer))
    assert project_root() == outer
    assert Settings().topics_dir == outer / "topics"


def test_no_project_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")  # other folders of tests are below this repository
    with pytest.raises(TopicbergError, match="is not in a project of topicberg") as caught:
        Settings()
    assert "topicberg init" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('topic = "topics"', "topic: Extra inputs are not permitted"),
        ('topics = "/etc"', "topics: should be a folder of the project"),
        ('schemas = "../schemas"', "schemas: should be a folder of the project"),
        ('pipelines = "shop"', "pipelines: Input should be a valid tuple"),
    ],
)
def test_wrong_key_is_named(tmp_path: Path, table: str, expected: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.topicberg]\n{table}\n")
    with pytest.raises(TopicbergError, match=expected) as caught:
        read_project(tmp_path)
    assert str(tmp_path / "pyproject.toml") in caught.value.message

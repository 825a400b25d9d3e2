"""What the documents say can be done: commands exist, links lead somewhere, examples are right.

Every command is parsed by the program that it names. They also run: in tests/e2e those that need a
stack, the ``bash`` blocks of some pages as they stand; that of docs/checks.md here.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import typer
import yaml
from dagster._cli import create_dagster_cli
from dagster_webserver.cli import create_dagster_webserver_cli
from documents import DOCUMENTS, RUN, blocks, commands, run_block
from repository import PROJECT_ROOT

from topicberg.cli import app
from topicberg.endpoints import Endpoints, SnowflakeEndpoint
from topicberg.settings import Settings
from topicberg.topics import TopicSpec
from topicberg_local.state import save_endpoints

COMMAND_LINES: dict[str, Any] = {
    "topicberg": cache(lambda: typer.main.get_command(app)),
    "dagster": cache(create_dagster_cli),
    "dagster-webserver": cache(create_dagster_webserver_cli),
}
FOREIGN = {
    "cosign",
    "gh",
    "git",
    "jq",
    "cd",
    "cp",
    "chmod",
    "export",
    "docker",
    "kubectl",
    "helm",
    "aws",
    "dagster-cloud",
    "confluent",
    "pip",
    "unzip",
}
"""Not ours to check."""
EXAMPLES = re.compile(r"orders|shop\b|test_shop|\.\.\.|…|[<>*{]")
"""In paths: files that a page tells the reader to make, and patterns."""


def ids(path: Path) -> str:
    return path.name


def parse(command: Any, words: list[str]) -> None:
    """:raises click.UsageError: there is no such command or option, or there is a word too many"""
    context = typer.Context(command)
    while hasattr(command, "get_command") and words:
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]}"
        command, words = found, words[1:]
        context = typer.Context(command, parent=context)
    _, left, _ = command.make_parser(context).parse_args(list(words))
    assert not left, f"{left} too many"


def check(words: list[str]) -> None:
    if ">" in words:
        words = words[: words.index(">")]
    while re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    name = Path(words[0]).name
    if name in COMMAND_LINES:
        parse(COMMAND_LINES[name](), words[1:])
        if words[:2] == ["dagster", "asset"]:  # it does not look at workspace.yaml
            assert "-f" in words, "dagster asset wants -f definitions.py"
    elif name == "make":
        targets = re.findall(r"^([a-z-]+):", (PROJECT_ROOT / "Makefile").read_text(), re.MULTILINE)
        for word in words[1:]:
            assert "=" in word or word in targets, f"no target {word}"
    elif name in ("python", "pytest"):
        for word in words[1:]:
            file = word.partition("::")[0]
            if "/" in file and not EXAMPLES.search(file):
                assert (PROJECT_ROOT / file).exists(), file
        script = next((PROJECT_ROOT / word for word in words if word.endswith(".py")), None)
        if name == "python" and script:
            for option in (word for word in words if word.startswith("--")):
                assert f'"{option}"' in script.read_text(), f"{script.name} has no {option}"
    else:
        assert name in FOREIGN or name in (".", "eval"), f"unknown program {name}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_commands(path: Path) -> None:
    for words in commands(path):
        try:
            check(words)
        except Exception as error:
            raise AssertionError(f"{path.name}: {shlex.join(words)}: {error}") from error


def anchors(path: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    bare = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.strip().replace(" ", "-") for text in bare}


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_links(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_files_that_are_named(path: Path) -> None:
    folders = "docs|tests|platform|assets|jobs|resources"
    for name in re.findall(rf"`((?:{folders})/[^`\s]*)`", path.read_text()):
        if not EXAMPLES.search(name):
            assert (PROJECT_ROOT / name).exists(), name


def test_files_that_the_architecture_names_exist() -> None:
    """Without a folder in front, they are in the library, or in a folder that the text is about."""
    text = (PROJECT_ROOT / "ARCHITECTURE.md").read_text().replace("FORMAT/", "avro/")
    platform, library = PROJECT_ROOT / "platform", PROJECT_ROOT / "platform" / "topicberg"
    folders = [PROJECT_ROOT, library, library / "tableflow", library / "orchestration"]
    folders += [platform / part / f"topicberg_{part}" for part in ("deploy", "local")]
    folders += [platform / "deploy", platform / "local", library / "orchestration" / "jobs"]
    named = set(re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", text))
    assert len(named) > 50
    alone = {path.name for path in platform.rglob("*.py")}
    named -= {name for name in named if any((at / name).exists() for at in folders)}
    assert named | set(re.findall(r"`([a-z_]+\.py)`", text)) - alone == set()


def test_reference_is_what_the_code_says() -> None:
    spec = spec_from_file_location("reference", PROJECT_ROOT / "docs" / "reference.py")
    assert spec
    assert spec.loader
    spec.loader.exec_module(reference := module_from_spec(spec))
    for path, text in reference.pages():
        assert path.read_text() == text, f"{path.name}: run `make docs`"


def test_pages_for_users_have_at_most_260_kb() -> None:
    pages = (PROJECT_ROOT / "docs").glob("*.md")
    assert sum(path.stat().st_size for path in pages) <= 260_000


def test_pages_that_messages_name_exist() -> None:
    for folder in ("platform", "assets", "jobs", "resources"):
        for path in (PROJECT_ROOT / folder).rglob("*.py"):
            for page in re.findall(r"\bdocs/[a-z-]+\.md\b", path.read_text()):
                assert (PROJECT_ROOT / page).exists(), f"{path.name}: {page}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_examples(path: Path) -> None:
    """Python compiles, and a topic spec is one."""
    for language, text in blocks(path):
        if language == "python":
            compile(text, path.name, "exec")
        if language == "yaml":
            document = yaml.safe_load(text)
            if isinstance(document, dict) and {"name", "pipeline"} <= document.keys():
                TopicSpec.model_validate(document)


def test_sensor_of_ones_own_sees_all_hours_of_a_run() -> None:
    page = PROJECT_ROOT / "docs" / "checks.md"
    (example,) = (text for _, text in blocks(page) if "after_large_orders" in text)
    names: dict[str, Any] = {"dg": dg}
    exec(example, names)  # noqa: S102  it is the page of this repository
    key, hours = (
        dg.AssetKey(["iceberg", "large_orders"]),
        [f"2026-01-0{n}-05:00" for n in (3, 1, 2)],
    )
    with dg.DagsterInstance.ephemeral() as instance:
        for hour in hours:
            instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=hour))
        context = dg.build_sensor_context(instance)
        (request,) = (tick := names["after_large_orders"](context)).run_requests
        assert request.run_config["ops"]["sales_report"]["config"] == {"hours": sorted(hours)}
        later = dg.build_sensor_context(instance, cursor=tick.cursor)
        assert isinstance(names["after_large_orders"](later), dg.SkipReason)


def test_every_page_is_in_the_index() -> None:
    index = PROJECT_ROOT / "docs" / "README.md"
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", index.read_text()))
    pages = {path.relative_to(index.parent).as_posix() for path in index.parent.rglob("*.md")}
    assert pages - {"README.md"} <= linked
    assert "docs/README.md" in (PROJECT_ROOT / "README.md").read_text()


def test_pages_whose_blocks_run_are_named_in_the_index() -> None:
    with_blocks = {path.name for path in DOCUMENTS if "bash" in dict(blocks(path))}
    _, _, named = (PROJECT_ROOT / "docs" / "README.md").read_text().partition("A test reads")
    assert with_blocks == set(re.findall(r"\]\(([\w-]+\.md)\)", named)) == RUN


def test_the_commands_that_change_a_pool(tmp_path: Path) -> None:
    """They ask for addresses, but no service."""
    url = "http://127.0.0.1:9"
    endpoints = Endpoints(
        kafka_bootstrap="127.0.0.1:9",
        schema_registry=url,
        iceberg_rest=url,
        spark_connect="sc://127.0.0.1:9",
        snowflake=SnowflakeEndpoint(account="a", user="u"),
    )
    save_endpoints(Settings(state_dir=tmp_path), {}, endpoints)
    (commands,) = [
        text for language, text in blocks(PROJECT_ROOT / "docs" / "checks.md") if language == "bash"
    ]
    assert "spark" in run_block(commands, PROJECT_ROOT, {"TOPICBERG_STATE_DIR": str(tmp_path)})
    with dg.DagsterInstance.from_config(str(tmp_path / "dagster")) as instance:
        limits = instance.event_log_storage.get_pool_limits()
        assert {limit.name: limit.limit for limit in limits} == {"spark": 4}

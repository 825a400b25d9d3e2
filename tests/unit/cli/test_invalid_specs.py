"""Commands while the spec of one topic is invalid, or a topic of a pattern is left out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from repository import PROJECT_ROOT
from typer.testing import CliRunner, Result

from topicberg.cli import app, output
from topicberg.cli.output import load_lake
from topicberg.errors import SpecError, StackError
from topicberg.settings import Settings
from topicberg.topics import load_topic, load_topics
from topicberg.topics.discovery import Discovery, FoundSchema, FoundTopic, write_discovery

GOOD = "name: {name}\npipeline: shop\nschema: {{format: none}}\n"


@pytest.fixture
def config(new_project: Settings) -> Settings:
    """A project with the topics ``orders``, which is valid, and ``wrong``, which is not."""
    output.warn_once.cache_clear()
    (new_project.topics_dir / "orders.yaml").write_text(GOOD.format(name="orders"))
    (new_project.topics_dir / "wrong.yaml").write_text("name: wrong\npartitions: many\n")
    return new_project


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def left_out(config: Settings) -> None:
    """Let a topic of a pattern be left out, and no file be invalid."""
    (config.topics_dir / "wrong.yaml").unlink()
    (config.topics_dir / "web.yaml").write_text("topics: {match: 'web.*'}\n")
    topic = FoundTopic(partitions=1, is_compacted=False)
    write_discovery(config, Discovery(topics={"web.raw": topic}))


def test_load_topic_with_invalid_neighbour_returns_the_topic(config: Settings) -> None:
    assert load_topic("orders", config).name == "orders"
    with pytest.raises(SpecError, match=r"wrong\.yaml: partitions"):
        load_topic("wrong", config)
    with pytest.raises(SpecError, match=r"no topic 'order'.*did you mean orders\?"):
        load_topic("order", config)


def test_load_topics_refuses_files_and_not_topics_that_are_left_out(config: Settings) -> None:
    with pytest.raises(SpecError, match=r"wrong\.yaml"):
        load_topics(config)
    left_out(config)
    assert [spec.name for spec in load_topics(config)] == ["orders"]


def test_list_shows_valid_topics_and_reports_the_others_once(config: Settings) -> None:
    result = run("topics", "list")
    assert result.exit_code == 0
    assert "orders" in result.output
    assert result.output.count("`topicberg topics validate`") == 1


def test_validate_reports_mistakes_and_checks_the_valid_specs(config: Settings) -> None:
    result = run("topics", "validate")
    assert result.exit_code == 2
    assert "1 topic specs are valid: orders" in result.output
    assert "topics/wrong.yaml: partitions" in result.output


def test_validate_of_a_topic_needs_only_its_spec(config: Settings) -> None:
    result = run("topics", "validate", "orders")
    assert result.exit_code == 0, result.output
    assert "wrong" not in result.output
    assert run("topics", "validate", "wrong").exit_code == 2
    result = run("topics", "validate", "order")
    assert "did you mean orders?" in str(result.exception)


def test_validate_with_topic_left_out_reports_it_and_succeeds(config: Settings) -> None:
    left_out(config)
    result = run("topics", "validate")
    assert result.exit_code == 0, result.output
    assert "topic web.raw: the registry has no subject web.raw-value" in result.output
    assert "1 topic of patterns left out" in result.output
    assert run("topics", "validate", "web.raw").exit_code == 2


def test_validate_without_services_says_which_columns_it_could_not_check(config: Settings) -> None:
    """As in CI: the partition column may well exist."""
    (config.topics_dir / "wrong.yaml").unlink()
    (config.topics_dir / "orders.yaml").write_text(
        "{name: orders, pipeline: shop, external: true, schema: {format: avro}, "
        "table: {partitioning: [region]}}"
    )
    result = run("topics", "validate")
    assert result.exit_code == 0, result.output
    assert "no column region" not in result.output
    assert "orders: names of columns are not checked" in result.output
    assert "orders-value" in result.output
    schema = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}'
    from topicberg.topics.discovery import schema_file

    known = FoundTopic(
        partitions=1, is_compacted=False, value=FoundSchema(format="avro", version=1)
    )
    write_discovery(config, Discovery(topics={"orders": known}))
    schema_file(config, "orders", "value", "avro").write_text(schema)
    result = run("topics", "validate")
    assert result.exit_code == 2
    assert "the table has no column region" in result.output


@pytest.fixture
def lake_config(tmp_path: Path) -> Settings:
    """The project of the repository with one invalid spec, from which tables are derived."""
    root = tmp_path / "copy"
    for name in ("topics", "schemas"):
        shutil.copytree(PROJECT_ROOT / "platform" / name, root / "platform" / name)
    shutil.copy(PROJECT_ROOT / "pyproject.toml", root)
    (root / "platform" / "topics" / "stock_trades.yaml").write_text("name: stock_trades\n")
    output.warn_once.cache_clear()
    return Settings(project_root=root, state_dir=tmp_path / "state")


def test_lake_of_a_source_that_nobody_wrote_is_refused(lake_config: Settings) -> None:
    """Only an invalid spec excuses it."""
    (lake_config.topics_dir / "stock_trades.yaml").unlink()
    with pytest.raises(SpecError, match="there is no table 'stock_trades' to derive it from"):
        load_lake(lake_config)


@pytest.mark.parametrize("error", [StackError("Kafka does not run"), OSError("no disk")])
def test_validate_goes_on_without_services(
    config: Settings, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("topicberg.kafka.discovery.discover", fail)
    left_out(config)
    result = run("topics", "validate")
    assert result.exit_code == 0, result.output
    assert "topics of patterns are those that were found last" in result.output


def test_validate_reports_a_topic_that_publishes_a_missing_table(config: Settings) -> None:
    schema = '{"type": "record", "name": "A", "fields": [{"name": "a", "type": "long"}]}'
    (config.topics_dir.parent / "schemas/a.avsc").write_text(schema)
    text = GOOD.format(name="wrong").replace("none", "avro, file: a.avsc")
    text += "publishes: gone\ntableflow: {enabled: false}\n"
    (config.topics_dir / "wrong.yaml").write_text(text)
    result = run("topics", "validate")
    assert result.exit_code == 2
    assert "topic wrong publishes 'gone', which is not a derived table" in result.output


def test_drop_of_a_table_that_others_read_is_refused() -> None:
    result = run("pipelines", "drop", "flyer_stats", "--yes")
    assert "derived table flyer_stats is read by flyer_totals" in str(result.exception)

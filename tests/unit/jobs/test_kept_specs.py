"""One wrong topic spec: Dagster continues with the last good ones, and one alert quotes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from memory_instance import memory_instance

from topicberg.alerts.alert import Alert, AlertState
from topicberg.alerts.evaluation import evaluate
from topicberg.errors import SpecError
from topicberg.orchestration.jobs.observation import observe
from topicberg.settings import Settings
from topicberg.tableflow.service import control
from topicberg.topics.kept import KnownSpecs, SpecsInUse, build_with_kept, spec_files

SPEC = "name: {name}\npipeline: shop\nschema: {{format: none}}\npartitions: {partitions}\n"


def write(config: Settings, name: str, partitions: int | str) -> None:
    (config.topics_dir / f"{name}.yaml").write_text(SPEC.format(name=name, partitions=partitions))


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    config = Settings(project_root=tmp_path, state_dir=tmp_path / "state")
    config.topics_dir.mkdir(parents=True)
    for name in ("orders", "clicks"):
        write(config, name, 1)
    return config


def built(config: Settings) -> tuple[dict[str, int], str | None]:
    """The partitions of each topic, and what is wrong."""
    return build_with_kept(
        config, lambda known: ({s.name: s.partitions for s in known.specs}, known.problem)
    )


def test_invalid_spec_after_a_valid_one_keeps_the_last(config: Settings) -> None:
    assert built(config) == ({"clicks": 1, "orders": 1}, None)
    write(config, "orders", "many")
    write(config, "clicks", 2)
    write(config, "new", "none")
    specs, wrong = built(config)
    assert specs == {"clicks": 2, "orders": 1}, "and another one that changed is taken over"
    assert "orders.yaml: partitions" in (wrong or "")
    write(config, "orders", 3)
    (config.topics_dir / "new.yaml").unlink()
    assert built(config) == ({"clicks": 2, "orders": 3}, None)


def test_valid_specs_are_kept_while_another_is_invalid(config: Settings) -> None:
    """A topic of a pattern may be left out for good."""
    write(config, "new", "none")
    write(config, "clicks", 2)
    assert built(config)[0] == {"clicks": 2, "orders": 1}
    write(config, "clicks", "many")
    assert built(config)[0] == {"clicks": 2, "orders": 1}


def test_last_spec_of_a_topic_whose_table_another_has_is_left_out(config: Settings) -> None:
    """The tables have different names in Snowflake only."""
    write(config, "shop.orders", 1)
    assert "shop.orders" in built(config)[0]
    config.schemas_dir.mkdir()
    fields = '[{"name": "id", "type": "int"}]'
    schema = f'{{"type": "record", "name": "order", "fields": {fields}}}'
    (config.schemas_dir / "o.avsc").write_text(schema)
    published = SPEC.replace("none", "avro, file: o.avsc").format(name="shop-orders", partitions=1)
    (config.topics_dir / "shop-orders.yaml").write_text(
        published + "publishes: totals\nkey: {format: none}\n"
    )
    assert built(config)[0] == {"clicks": 1, "orders": 1, "shop-orders": 1}


def test_invalid_spec_without_a_valid_one_is_left_out(config: Settings) -> None:
    write(config, "orders", "many")
    assert built(config)[0] == {"clicks": 1}


def test_many_invalid_specs_are_named_in_part(config: Settings) -> None:
    for number in range(9):
        write(config, f"t{number}", "many")
    reason = built(config)[1] or ""
    assert reason.count("must be a valid integer") == 5
    assert reason.endswith("and 4 more: run `topicberg topics validate`")
    message = SpecsInUse().read(config)[1] or ""
    assert message.startswith(f"{reason}; left out, as they were never valid:")


def test_project_without_files_has_no_folder_of_specs(tmp_path: Path) -> None:
    nothing = Settings(project_root=tmp_path, state_dir=tmp_path / "state")
    assert "is not a folder" in (SpecsInUse().read(nothing)[1] or "")


def test_invalid_spec_that_was_never_valid_does_not_stay_in_use(config: Settings) -> None:
    """The message says of each topic what becomes of it."""
    reports: list[str] = []
    write(config, "new", "none")

    def report() -> str:
        build_with_kept(config, lambda known: known, report=reports.append)
        return reports[-1]

    assert "stay in use" not in report()
    assert report().endswith("; left out, as they were never valid: new")
    write(config, "orders", "many")
    assert report().endswith(
        "; the last valid specs stay in use of orders; left out, as they were never valid: new"
    )
    assert SpecsInUse().read(config)[1] == report()


def test_changed_schema_in_a_folder_is_read_again(config: Settings) -> None:
    (folder := config.schemas_dir / "shop").mkdir(parents=True)
    states = [(folder / "o.avsc").write_text(text) and spec_files(config) for text in ("1", "22")]
    assert states[0] != states[1] == spec_files(config)


def test_specs_that_do_not_fit_keep_all_the_last(config: Settings) -> None:
    """What only the asset graph knows: parameters of a derived table, say."""

    def build(known: KnownSpecs) -> tuple[list[int], str | None]:
        if any(spec.partitions == 7 for spec in known.specs):
            raise SpecError("parameters.totals: unknown field")
        return [spec.partitions for spec in known.specs], known.problem

    write(config, "orders", 7)
    with pytest.raises(SpecError, match="unknown field"):
        build_with_kept(config, build)
    write(config, "orders", 1)
    build_with_kept(config, build)
    write(config, "orders", 7)
    assert build_with_kept(config, build) == ([1, 1], "parameters.totals: unknown field")


def alerts(
    instance: dg.DagsterInstance, repository: dg.RepositoryDefinition, wrong: str | None = None
) -> list[Alert]:
    state = AlertState()
    seen = observe(instance, repository, state, wrong)
    return list(evaluate(state, seen, "http://ui")[1].values())


def test_invalid_spec_is_one_alert_that_quotes_it(
    config: Settings, as_settings: Callable[[Settings], None]
) -> None:
    as_settings(config)
    repository = dg.Definitions().get_repository_def()
    with memory_instance() as instance:
        assert not alerts(instance, repository)
        write(config, "orders", "many")
        write(config, "clicks", "few")
        (alert,) = alerts(instance, repository)
        assert "orders.yaml: partitions: must be a valid integer" in alert.what
        assert "clicks.yaml" in alert.what
        assert "`topicberg topics validate`" in (alert.remediation or "")
        for name in ("orders", "clicks"):
            write(config, name, 1)
        (alert,) = alerts(instance, repository, "orders.yaml: it was wrong")
        assert "reload the code location" in (alert.remediation or "")


def test_invalid_spec_of_another_topic_stops_no_command(config: Settings) -> None:
    write(config, "orders", "many")
    control.enable(config, "clicks", {"error_handling": {"mode": "SKIP"}}, command=True)
    control.resume(config, "clicks")
    assert control.find_topic(config, "clicks").tableflow.error_handling.mode == "SKIP"
    assert control.known_topics(config) == {"orders", "clicks"}
    for command in (control.enable, control.resume, control.find_topic):
        with pytest.raises(SpecError, match=r"orders\.yaml: partitions"):
            command(config, "orders")

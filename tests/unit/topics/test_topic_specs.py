"""Right specs are read as they are written; a wrong one is refused by file, field and reason."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import Project, documents, minimal

from topicberg.errors import SpecError
from topicberg.topics import TopicSpec, check_topics, load_topic, load_topics
from topicberg.topics.rules import partition_cost
from topicberg.topics.spec import TRANSFORMS, parse_partition_field


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def problems(project: Project) -> list[str]:
    return [str(problem) for problem in check_topics(project.config)[1]]


def reasons(document: dict[str, Any]) -> dict[str, str]:
    """Field → reason, of a spec in a project of its own."""
    with TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.topic(document)
        return {p.field: p.reason for p in check_topics(project.config)[1]}


@settings(max_examples=40)
@given(documents)
def test_right_specs_round_trip(document: dict[str, Any]) -> None:
    with TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.topic(document)
        assert problems(project) == []
        spec = load_topic(document["name"], project.config)
        again = yaml.safe_load(yaml.safe_dump(spec.model_dump(mode="json", by_alias=True)))
        assert TopicSpec.model_validate(again) == spec
        project.topic(again)
        brought = {spec.tableflow.error_handling.target}
        assert [s for s in load_topics(project.config) if s.name not in brought] == [spec]


@settings(max_examples=40)
@given(documents)
def test_names_fit_every_catalog(document: dict[str, Any]) -> None:
    spec = TopicSpec.model_validate(document)
    assert spec.glue_name == spec.glue_name.lower()
    assert spec.asset_name.isidentifier()
    assert spec.snowflake_name.isidentifier()
    assert spec.snowflake_name == spec.snowflake_name.upper()


@pytest.mark.parametrize(
    ("tableflow", "reason"),
    [
        ({"table_formats": ["DELTA"]}, "needs ICEBERG as well"),
        ({"table_formats": ["ICEBERG", "DELTA"], "storage": "managed"}, "Iceberg tables only"),
        ({"table_formats": ["ICEBERG", "DELTA"]}, None),
        ({"storage": "managed"}, None),
    ],
)
def test_delta_tables_of_confluents_tableflow(
    project: Project, tableflow: dict[str, Any], reason: str | None
) -> None:
    """topicberg's own engine writes all of these, to the bucket."""
    project.topic(minimal(tableflow=tableflow))
    assert check_topics(project.config)[1] == []
    config = project.config.model_copy(update={"deployment": "cloud", "tableflow": "confluent"})
    found = check_topics(config)[1]
    assert [one.field for one in found] == (["tableflow.table_formats"] if reason else [])
    assert all(reason in one.reason for one in found if reason)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (
            {"tableflow": {"error_handling": {"mode": "LOG", "target": "orders.errors"}}},
            "tableflow.error_handling.target",
        ),
        ({"table": {"headers": "list"}}, "table.headers"),
    ],
)
def test_spec_of_the_own_engine_only_is_refused_for_confluents_tableflow(
    project: Project, fields: dict[str, Any], field: str
) -> None:
    project.topic(minimal(**fields))
    assert check_topics(project.config)[1] == []
    config = project.config.model_copy(update={"deployment": "cloud", "tableflow": "confluent"})
    (found,) = check_topics(config)[1]
    assert found.field == field


@pytest.mark.parametrize("kind", ["map", "list"])
def test_columns_have_headers_of_the_kind_that_the_spec_says(project: Project, kind: str) -> None:
    project.topic(minimal(table={"headers": kind}, checks={"unique": ["$$headers"]}))
    assert (
        f"$$headers is a {kind}, which cannot be a key" in check_topics(project.config)[1][0].reason
    )


def test_portable_metadata_columns(project: Project) -> None:
    project.topic(minimal(tableflow={"metadata_column_naming_scheme": "PORTABLE"}))
    spec = load_topic("trades", project.config)
    assert spec.event_time == "cflt_metadata_timestamp"
    assert "cflt_metadata_leader_epoch" in spec.columns(project.config)
    assert "$$offset" not in spec.columns(project.config)


def test_key_schema_makes_columns_and_value_fields_win(project: Project) -> None:
    project.schema(
        "key.avsc",
        '{"type": "record", "name": "Key", "fields": ['
        '{"name": "id", "type": "long"}, {"name": "side", "type": "int"}]}',
    )
    project.topic(minimal(key={"format": "avro", "file": "key.avsc"}, write_mode="upsert"))
    spec = load_topic("trades", project.config)
    columns = spec.columns(project.config)
    assert (columns["id"], columns["side"]) == ("long", "string")
    assert "key" not in columns
    assert spec.cleanup_policy == "compact"


@pytest.mark.parametrize(
    ("partitioning", "cost"),
    [
        ([], None),
        (["hour($$timestamp)"], None),
        (
            ["bucket[8](side)"],
            "writes up to 8 data files; with a commit every 60 seconds, up to 11,520",
        ),
        (
            ["day($$timestamp)", "side", "bucket[8](quantity)"],
            "up to 8 data files for each day($$timestamp) and side of its records; with a commit "
            "every 60 seconds, up to 11,520 a day for each",
        ),
    ],
)
def test_partition_cost_is_the_files_of_a_commit(
    project: Project, partitioning: list[str], cost: str | None
) -> None:
    table, tableflow = {"partitioning": partitioning}, {"commit_interval_seconds": 60}
    project.topic(minimal(table=table, tableflow=tableflow))
    found = partition_cost(load_topic("trades", project.config))
    assert found is None if cost is None else cost in str(found)


def test_topic_config_values_become_kafka_text(project: Project) -> None:
    values = {"retention.ms": 86_400_000, "preallocate": True, "min.cleanable.dirty.ratio": 0.50}
    project.topic(minimal(topic_config=values))
    assert load_topic("trades", project.config).kafka_config == {
        "retention.ms": "86400000",
        "preallocate": "true",
        "min.cleanable.dirty.ratio": "0.5",
        "cleanup.policy": "delete",
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"retention_ms": 1}, "'retention_ms' is not a topic configuration.* mean retention.ms"),
        ({"retention.ms": [1]}, r"retention.ms: \[1\] is not text, a number or a boolean"),
        ({"retention.ms": "week"}, "retention.ms must be an integer, not 'week'"),
        ({"retention.bytes": 0.5}, "retention.bytes must be an integer, not '0.5'"),
        ({"cleanup.policy": "compact"}, "cleanup.policy compact contradicts write_mode append"),
        ({"cleanup.policy": "compact, delete"}, "compact,delete contradicts write_mode append"),
    ],
)
def test_topic_config_of_another_kind_is_refused(
    project: Project, values: dict[str, Any], expected: str
) -> None:
    project.topic(minimal(topic_config=values))
    with pytest.raises(SpecError, match=expected):
        load_topic("trades", project.config)


@pytest.mark.parametrize("text", ["side", "hour($$timestamp)", "bucket[16](key)", "truncate[2](a)"])
def test_partition_fields_print_as_they_are_written(text: str) -> None:
    assert str(parse_partition_field(text)) == text


@given(st.text(max_size=20) | st.sampled_from(TRANSFORMS).map(lambda name: f"{name}[0](a)"))
def test_partition_fields_are_parsed_or_refused(text: str) -> None:
    try:
        field = parse_partition_field(text)
    except ValueError:
        return
    assert parse_partition_field(str(field)) == field


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"name": "a b"}, "name", "letters, digits"),
    ({"name": "9lives"}, "name", "beginning with a letter"),
    ({"name": "__consumer_offsets"}, "name", "reserved by Kafka"),
    ({"name": "x" * 250}, "name", "249"),
    ({"name": "émile"}, "name", "letters, digits"),
    ({"pipeline": "Shop"}, "pipeline", "lowercase letters"),
    ({"partitions": 0}, "partitions", "greater than or equal to 1"),
    ({"partitions": True}, "partitions", "integer"),
    ({"partitons": 6}, "partitons", "did you mean partitions?"),
    ({"write_mode": "merge"}, "write_mode", "'append' or 'upsert', not 'merge'"),
    ({"key": {"format": "none"}, "write_mode": "upsert"}, "key.format", "needs a key"),
    ({"key": {"format": "string", "field": "syde"}}, "key.field", "did you mean side?"),
    ({"key": {"format": "string", "field": "tags"}}, "key.field", "cannot be written as text"),
    ({"key": {"format": "none", "field": "side"}}, "key.field", "format string"),
    ({"key": {"format": "avro"}}, "key.file", "needs a schema file"),
    ({"schema": {"format": "avro"}}, "schema.file", "needs a schema file"),
    ({"schema": {"format": "avro", "file": "nope.avsc"}}, "schema.file", "does not exist"),
    ({"schema": {"format": "avro", "file": "/etc/hosts"}}, "schema.file", "name of a file"),
    ({"schema": {"format": "avro", "file": "../topics/x"}}, "schema.file", "outside"),
    ({"schema": {"format": "avro", "file": "."}}, "schema.file", "does not exist"),
    ({"schema": {"format": "protobuf", "file": "trades.avsc"}}, "schema.file", "`format: avro`"),
    (
        {"schema": {"format": "avro", "file": "trades.avsc", "message": "X"}},
        "schema.message",
        "only for format protobuf",
    ),
    (
        {"schema": {"format": "avro", "file": "trades.avsc", "subject": ":.eu"}},
        "schema.subject",
        "a context without a subject",
    ),
    ({"upsert_views": {"Newest": ["side"]}}, "upsert_views.Newest", "lowercase letters"),
    ({"upsert_views": {"newest": []}}, "upsert_views.newest", "at least 1"),
    ({"upsert_views": {"newest": ["syde"]}}, "upsert_views.newest", "did you mean side?"),
    ({"upsert_views": {"newest": ["tags"]}}, "upsert_views.newest", "which cannot be a key"),
    (
        {
            "upsert_views": {"newest": ["side"]},
            "write_mode": "upsert",
            "key": {"format": "string", "field": "side"},
        },
        "upsert_views",
        "write_mode append",
    ),
    ({"event_time": "$$timestmp"}, "event_time", "did you mean $$timestamp?"),
    ({"event_time": "side"}, "event_time", "is a string, not a time; have the producer"),
    (
        {"event_time": "side"},
        "event_time",
        "or leave event_time out to use Kafka's time, $$timestamp",
    ),
    (
        {
            "event_time": "day",
            "derived_partitions": {"granularity": "hourly", "start": "2026-01-01"},
        },
        "derived_partitions.granularity",
        "no hours",
    ),
    ({"tableflow": {"retention_ms": 86_399_999}}, "tableflow.retention_ms", "86400000"),
    ({"tableflow": {"retention_ms": 2**63}}, "tableflow.retention_ms", "less than"),
    ({"tableflow": {"data_retention_ms": 1}}, "tableflow.data_retention_ms", "2592000000"),
    (
        {"tableflow": {"commit_interval_seconds": 0}},
        "tableflow.commit_interval_seconds",
        "greater than 0",
    ),
    (
        {"tableflow": {"commit_interval_seconds": float("nan")}},
        "tableflow.commit_interval_seconds",
        "finite",
    ),
    ({"tableflow": {"table_formats": []}}, "tableflow.table_formats", "at least 1"),
    ({"tableflow": {"table_formats": ["HUDI"]}}, "tableflow.table_formats.0", "'DELTA'"),
    ({"tableflow": {"table_formats": ["DELTA", "DELTA"]}}, "tableflow.table_formats", "once"),
    (
        {
            "write_mode": "upsert",
            "key": {"format": "string", "field": "side"},
            "tableflow": {"table_formats": ["ICEBERG", "DELTA"]},
        },
        "tableflow.table_formats",
        "write_mode append",
    ),
    (
        {"tableflow": {"error_handling": {"mode": "LOG", "target": "trades"}}},
        "tableflow.error_handling.target",
        "its own",
    ),
    (
        {"tableflow": {"error_handling": {"mode": "SKIP", "target": "dead"}}},
        "tableflow.error_handling.target",
        "mode LOG",
    ),
    ({"key": "string"}, "key", "must be a mapping with the fields format, file,"),
    ({"table": {"partitioning": ["hour(sid)"]}}, "table.partitioning", "did you mean side?"),
    ({"table": {"partitioning": ["hour(day)"]}}, "table.partitioning", "hour of a date"),
    ({"table": {"partitioning": ["tags"]}}, "table.partitioning", "identity of a list"),
    ({"table": {"partitioning": ["hours(at)"]}}, "table.partitioning.0", "not a transform"),
    ({"table": {"partitioning": ["bucket(side)"]}}, "table.partitioning.0", "bucket[n](side)"),
    ({"table": {"partitioning": ["day(at)", "day(at)"]}}, "table.partitioning", "second day"),
    (
        {"derived_partitions": {"granularity": "daily", "start": "2999-01-01"}},
        "derived_partitions.start",
        "in the future",
    ),
    (
        {"derived_partitions": {"granularity": "daily", "start": "01.01.2026"}},
        "derived_partitions.start",
        "must be a date of the form 2026-01-31, not '01.01.2026'",
    ),
    (
        {
            "derived_partitions": {
                "granularity": "daily",
                "start": "2026-01-01",
                "timezone": "Europe/Paris",
            }
        },
        "derived_partitions.timezone",
        "'UTC'",
    ),
    ({"generator": {"kind": "stock_trade"}}, "generator.kind", "did you mean stock_trades?"),
    ({"generator": {"kind": "stock_trades", "rate": -1}}, "generator.rate", "equal to 0"),
    ({"owners": ["trading"]}, "owners.0", "neither an e-mail address nor"),
    ({"owners": ["team:"]}, "owners.0", "neither"),
    (
        {"freshness": {"warn_minutes": 30, "fail_minutes": 30}},
        "freshness.fail_minutes",
        "more than freshness.warn_minutes",
    ),
    ({"checks": {"not_null": ["nope"]}}, "checks.not_null", "no column nope"),
    ({"checks": {"ranges": {"side": {"min": 1}}}}, "checks.ranges.side", "has no range"),
    ({"checks": {"ranges": {"quantity": {}}}}, "checks.ranges.quantity", "needs min"),
    (
        {"checks": {"ranges": {"quantity": {"min": 2, "max": 1}}}},
        "checks.ranges.quantity",
        "more than max",
    ),
    ({"checks": {"accepted_values": {"side": [False]}}}, "checks.accepted_values.side", "quote it"),
    (
        {"checks": {"accepted_values": {"quantity": ["1"]}}},
        "checks.accepted_values.quantity",
        "not a int",
    ),
    (
        {"checks": {"accepted_values": {"side": []}}},
        "checks.accepted_values.side",
        "at least 1 item",
    ),
]


@pytest.mark.parametrize(
    ("fields", "field", "reason"), WRONG, ids=[w[1] + ":" + w[2] for w in WRONG]
)
def test_wrong_field(fields: dict[str, Any], field: str, reason: str) -> None:
    found = reasons(minimal(**fields))
    assert list(found) == [field] or (fields.get("name") and field in found)
    assert reason in found[field]
    assert "\n" not in found[field]


mutations = st.sampled_from([(fields, field) for fields, field, _ in WRONG if "name" not in fields])


@given(documents, mutations)
def test_mutated_specs_name_the_field(
    document: dict[str, Any], mutation: tuple[dict[str, Any], str]
) -> None:
    fields, field = mutation
    assert field in reasons({**document, **minimal(**fields)})


@given(st.lists(mutations, min_size=2, max_size=5))
def test_one_mistake_hides_no_other(several: list[tuple[dict[str, Any], str]]) -> None:
    """Mistakes in different fields of a file are reported together."""
    taken = {"schema", "key"}  # without its schemas, a table has no columns to compare with
    broken, expected = minimal(), set()
    for fields, field in several:
        if taken.isdisjoint(fields):
            taken |= set(fields)
            broken |= fields
            expected.add(field)
    assert expected <= set(reasons(broken))


yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(documents, st.sampled_from(list(TopicSpec.model_json_schema()["properties"])), yaml_values)
def test_any_value_is_read_or_refused(document: dict[str, Any], field: str, value: Any) -> None:
    """Whatever stands in a field, there is an answer and no crash."""
    with TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.topic({**document, field: value}, file=f"{document['name']}.yaml")
        specs, found = check_topics(project.config)
        assert bool(specs) != bool(found)


def test_all_mistakes_of_all_files_at_once(project: Project) -> None:
    project.topic(minimal(name="one", partitions=0, owners=["x"]))
    project.topic(minimal(name="two", event_time="nope"))
    project.topic(minimal(name="three"))
    with pytest.raises(SpecError) as raised:
        load_topics(project.config)
    lines = raised.value.message.splitlines()[1:]
    assert [line.split(": ")[:2] for line in lines] == [
        ["topics/one.yaml", "partitions"],
        ["topics/one.yaml", "owners.0"],
        ["topics/two.yaml", "event_time"],
    ]
    assert [spec.name for spec in check_topics(project.config)[0]] == ["three"]


def test_yaml_errors_have_a_place(project: Project) -> None:
    project.topic("name: [a,\nb: c", file="a.yaml")
    project.topic(
        "name: b\nname: b\npipeline: p\nschema: {format: avro, file: trades.avsc}", "b.yaml"
    )
    project.topic("- a", file="c.yaml")
    project.topic("", file="d.yaml")
    project.topic("name: \x07", file="e.yaml")
    project.topic("x: &a [*a]", file="f.yaml")
    assert (project.config.topics_dir / "g.yaml").write_bytes(b"\xff\xfe\xfd")
    project.topic("name: h", file="h.yml")
    found = problems(project)
    assert found[0].startswith("topics/a.yaml: line 2, column 5: not YAML: ")
    assert found[1] == ("topics/b.yaml: line 2, column 1: name: is repeated here (first: line 1)")
    files = [line.split(":")[0].rpartition("/")[2] for line in found]
    assert sorted(set(files)) == [f"{letter}.yaml" for letter in "abcdefg"] + ["h.yml"]
    assert check_topics(project.config)[0] == []


def test_file_name_is_the_topic_name(project: Project) -> None:
    project.topic(minimal(), file="other.yaml")
    assert problems(project) == [
        "topics/other.yaml: name: is trades, so the file must be trades.yaml"
    ]


@pytest.mark.parametrize("name", ["Trades", "TRADES", "trades"])
def test_topics_whose_tables_would_be_one(project: Project, name: str) -> None:
    project.topic(minimal())
    project.topic(minimal(name=name), file=f"z{name}.yaml")
    assert any("trades.yaml" in line and "name: " in line for line in problems(project)[1:])


def test_schema_file_outside_by_link(project: Project, tmp_path: Path) -> None:
    (tmp_path / "secret.avsc").write_text("{}")
    (project.config.schemas_dir / "link.avsc").symlink_to(tmp_path / "secret.avsc")
    project.topic(minimal(schema={"format": "avro", "file": "link.avsc"}))
    assert problems(project) == [
        "topics/trades.yaml: schema.file: 'link.avsc' is outside of schemas/"
    ]


def test_missing_fields_and_unknown_topic(project: Project) -> None:
    project.topic({"name": "x"})
    assert problems(project) == [
        "topics/x.yaml: pipeline: is required",
        "topics/x.yaml: schema: is required",
    ]
    with pytest.raises(SpecError, match="did you mean stock_trades"):
        load_topic("stock_trade")


def test_fields_that_differ_only_in_case_are_refused(project: Project) -> None:
    fields = '[{"name": "Side", "type": "int"}, {"name": "side", "type": "int"}]'
    project.schema("case.avsc", f'{{"type": "record", "name": "T", "fields": {fields}}}')
    project.topic(minimal(schema={"format": "avro", "file": "case.avsc"}))
    assert problems(project) == [
        "topics/trades.yaml: schema.file: fields Side and side would be one column in Glue"
    ]


def test_owner_rule_is_dagsters() -> None:
    from dagster._core.definitions.utils import is_valid_owner

    for owner in ("team:a", "team:", "a@b.co", "a@b", "x", "a b@c.de", "team: x", "é@b.co"):
        assert is_valid_owner(owner) == ("owners.0" not in reasons(minimal(owners=[owner])))


def test_a_dead_letter_topic_needs_no_spec_of_its_own(project: Project) -> None:
    project.topic(minimal(tableflow={"error_handling": {"mode": "LOG"}}))
    names = [spec.name for spec in load_topics(project.config)]
    assert names == sorted(["error_log", minimal()["name"]])
    dead = load_topic("error_log", project.config)
    assert (dead.pipeline, dead.tableflow.enabled) == (minimal()["pipeline"], True)


def test_date_times_of_json_are_an_event_time(project: Project) -> None:
    at = {"type": "string", "format": "date-time"}
    project.schema("at.json", json.dumps({"type": "object", "properties": {"at": at}}))
    schema = {"format": "json", "file": "at.json"}
    project.topic(minimal(schema=schema, event_time="at"))
    (found,) = problems(project)
    assert "`schema.date_times: timestamp`" in found
    project.topic(minimal(schema={**schema, "date_times": "timestamp"}, event_time="at"))
    assert problems(project) == []
    project.topic(
        minimal(schema={"format": "avro", "file": "trades.avsc", "date_times": "timestamp"})
    )
    assert problems(project) == ["topics/trades.yaml: schema.date_times: is only for format json"]


def test_compatibility_belongs_to_a_schema(project: Project) -> None:
    project.topic(minimal(key={"format": "string", "compatibility": "FULL"}))
    (found,) = problems(project)
    assert "key.compatibility: format string has no schema in the registry" in found
    project.topic(minimal(schema={**minimal()["schema"], "compatibility": "ALL"}))
    assert "schema.compatibility" in problems(project)[0]

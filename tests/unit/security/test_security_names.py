"""Names and paths from specs, schemas and command lines cannot become SQL or other files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st
from specs import Project, minimal
from sqlglot import exp

from topicberg import spark
from topicberg.catalogs.snowflake.names import SnowflakeNames, TablePath, quote, text
from topicberg.catalogs.snowflake.statements import bootstrap, create_table, refresh_table
from topicberg.errors import SpecError, TableflowError, TopicbergError
from topicberg.formats.protobuf import protoc
from topicberg.iceberg.maintenance.conflicts import literal
from topicberg.logins.catalog import literal as duckdb_literal
from topicberg.settings import Settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.status import read_status
from topicberg.topics import check_topics
from topicberg_local.datagen.status import read_status as read_generator

PIECES = (
    "'",
    '"',
    "`",
    ";",
    "\\",
    "..",
    "/",
    "--",
    "/*",
    "*/",
    " ",
    "\n",
    "\0",
    "$$",
    "%",
    "{",
    "a",
)
hostile = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join),
    st.text(min_size=1, max_size=20),
    st.sampled_from(
        [
            "x'; DROP TABLE trades; --",
            'x"; DROP TABLE trades; --',
            "x`; DROP TABLE trades; --",
            "../../../etc/passwd",
            "/etc/passwd",
            "trades\u2019",  # quotes and letters that only look alike
            "trаdes",
            "a\u202eb",
            "$(id)",
            "{{ config }}",
            "%(name)s",
        ]
    ),
)
# NUL ends a statement for some parsers; no name that reaches one of ours has it.
in_sql = hostile.filter(lambda text: "\0" not in text)


@pytest.mark.parametrize(
    ("quote", "dialect"), [(spark.quote, "spark"), (quote, "snowflake"), (quote, "duckdb")]
)
@given(namespace=in_sql, table=in_sql)
def test_a_quoted_name_stays_one_name(
    quote: Callable[..., str], dialect: str, namespace: str, table: str
) -> None:
    statements = sqlglot.parse(f"SELECT 1 FROM {quote(namespace, table)}", dialect=dialect)
    (found,) = [select.find(exp.Table) for select in statements if select]
    assert (found.db, found.name) == (namespace, table)


@pytest.mark.parametrize(
    ("escape", "dialect"), [(text, "snowflake"), (literal, "spark"), (duckdb_literal, "duckdb")]
)
@given(value=in_sql)
def test_a_literal_stays_one_literal(
    escape: Callable[[str], str], dialect: str, value: str
) -> None:
    tokens = sqlglot.tokenize(escape(value), dialect=dialect)
    assert [token.token_type.name for token in tokens] == ["STRING"]


@given(table=in_sql, database=in_sql)
def test_statements_for_snowflake_are_single(table: str, database: str) -> None:
    made = [
        create_table(SnowflakeNames.of(Settings()), table, database, table),
        refresh_table(TablePath(database, database, table)),
        *bootstrap(Settings()),
    ]
    for statement in made:
        kinds = [token.token_type.name for token in sqlglot.tokenize(statement, "snowflake")]
        assert "SEMICOLON" not in kinds


TEXT_FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "name": lambda text: {"name": text},
    "pipeline": lambda text: {"pipeline": text},
    "file": lambda text: {"schema": {"format": "avro", "file": text}},
    "event_time": lambda text: {"event_time": text},
    "partitioning": lambda text: {"table": {"partitioning": [f"hour({text})"]}},
    "column": lambda text: {"table": {"partitioning": [text]}},
    "dead letters": lambda text: {"tableflow": {"error_handling": {"mode": "LOG", "target": text}}},
    "key field": lambda text: {"key": {"format": "string", "field": text}},
    "not null": lambda text: {"checks": {"not_null": [text]}},
    "range": lambda text: {"checks": {"ranges": {text: {"min": 0}}}},
    "owner": lambda text: {"owners": [text]},
    "generator": lambda text: {"generator": {"kind": text}},
}
COLUMN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


@given(field=st.sampled_from(list(TEXT_FIELDS)), text=hostile)
def test_what_a_spec_accepts_is_harmless(field: str, text: str) -> None:
    """Refused with a reason, or a name that needs no quotes to be one."""
    with TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.topic(minimal(**TEXT_FIELDS[field](text)), file="trades.yaml")
        specs, problems = check_topics(project.config)
    assert bool(specs) != bool(problems)
    for spec in specs:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", spec.name)
        assert re.fullmatch(r"[A-Z0-9_]+", spec.snowflake_name)
        assert re.fullmatch(r"[a-z0-9._-]+", spec.glue_name)
        assert re.fullmatch(r"[a-z0-9_]+", spec.pipeline)
        columns = [partition.column for partition in spec.table.partition_fields]
        for column in (spec.event_time, *columns, *spec.checks.not_null, *spec.checks.ranges):
            assert COLUMN.fullmatch(column)


@given(name=st.sampled_from(["prefix", "cluster_id", "bucket", "aws_account_id"]), text=hostile)
def test_what_the_settings_accept_is_harmless(name: str, text: str) -> None:
    try:
        config = Settings.model_validate({name: text})
    except TopicbergError:
        return
    assert re.fullmatch(r"[a-z0-9_-]+", getattr(config, name))


steps = st.lists(
    st.sampled_from(["..", ".", "sub", "link", "secret.avsc", "trades.avsc", "", "~", "\0", "\\"]),
    min_size=1,
    max_size=6,
).map("/".join)


@hypothesis.settings(max_examples=50)
@given(file=steps, slash=st.booleans())
def test_a_schema_file_is_inside_its_folder(file: str, slash: bool) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        project = Project(root / "project")
        secret = '{"type": "record", "name": "S", "fields": [{"name": "stolen", "type": "int"}]}'
        for place in (root, root / "project"):
            (place / "secret.avsc").write_text(secret)
        project.schema("sub/trades.avsc", '{"type": "record", "name": "T", "fields": []}')
        (project.config.schemas_dir / "link").symlink_to(root)
        (project.config.schemas_dir / "sub" / "secret.avsc").symlink_to(root / "secret.avsc")
        named = ("/" if slash else "") + file
        project.topic(minimal(schema={"format": "avro", "file": named}))
        specs, problems = check_topics(project.config)
        assert bool(specs) != bool(problems)
        for spec in specs:
            assert "stolen" not in spec.columns(project.config)
        assert not any("stolen" in problem.reason for problem in problems)


@pytest.mark.parametrize("file", ["/etc/passwd", "../../../etc/passwd", "..", ".", "", "/dev/zero"])
def test_files_of_the_system_are_refused(tmp_path: Path, file: str) -> None:
    project = Project(tmp_path)
    project.topic(minimal(schema={"format": "avro", "file": file}))
    (problem,) = check_topics(project.config)[1]
    assert problem.field == "schema.file"
    assert "root:" not in problem.reason


@pytest.mark.parametrize("topic", ["../escaped", "/tmp/escaped", "a/../../b", "..", ".", "", "a\0"])
def test_a_topic_name_is_no_path(tmp_path: Path, topic: str) -> None:
    config = Settings(project_root=tmp_path, state_dir=tmp_path / "state")
    config.topics_dir.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    for act in (
        lambda: control.enable(config, topic),
        lambda: control.disable(config, topic),
        lambda: control.resume(config, topic),
        lambda: control.find_topic(config, topic),
        lambda: read_status(config, topic),
        lambda: read_generator(config, topic),
    ):
        with pytest.raises(SpecError):
            act()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("file", ["../evil.proto", "/tmp/evil.proto", "a/../../evil.proto", "\0"])
def test_a_protobuf_reference_stays_in_its_folder(file: str) -> None:
    text = f'syntax = "proto3"; import {json.dumps(file)}; message M {{ int32 a = 1; }}'
    with pytest.raises(TableflowError, match="is not the name of a file to import"):
        protoc.compiled("record.proto", text, ((file, 'syntax = "proto3";'),))


def test_yaml_makes_no_objects_and_no_bombs(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.topic("name: !!python/object/apply:os.system [id]", file="a.yaml")
    bomb = ["name: b", "pipeline: p", "schema: {format: none}", "x0: &x0 [a, a, a, a, a, a, a, a]"]
    bomb += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 8)}]" for n in range(1, 12)]
    project.topic("\n".join([*bomb, "parameters: {t: {p: *x11}}"]), file="b.yaml")
    specs, problems = check_topics(project.config)
    assert specs == []
    assert "could not determine a constructor" in problems[0].reason

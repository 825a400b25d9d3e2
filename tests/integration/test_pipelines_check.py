"""Derived tables compiled without a run, and the descriptions that their columns take over."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topicberg.endpoints import Endpoints
from topicberg.orchestration.assets.compilation import Compiled, compile_tables
from topicberg.orchestration.assets.derived import DerivedTable, derived_table
from topicberg.orchestration.assets.lake import Lake
from topicberg.settings import Settings, settings
from topicberg.topics import Rules, load_topics
from topicberg.transforms.derivation import Derivation, Source
from topicberg.transforms.derived import write_window
from topicberg.transforms.spark_tables import spark_name
from topicberg.transforms.windows import Window

pytestmark = pytest.mark.integration

SHIPMENT = {
    "title": "Shipment",
    "type": "object",
    "properties": {
        "shipment": {"type": "integer", "description": "number of the shipment"},
        "weight": {"type": "number", "description": "kilograms"},
        "target": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    own = Settings(project_root=tmp_path, state_dir=settings().state_dir)
    own.topics_dir.mkdir(parents=True)
    own.schemas_dir.mkdir(parents=True)
    (own.schemas_dir / "shipments.json").write_text(json.dumps(SHIPMENT))
    document = {
        "name": "shipments",
        "pipeline": "depot",
        "schema": {"format": "json", "file": "shipments.json"},
        "derived_partitions": {"granularity": "hourly", "start": "2026-01-01"},
    }
    (own.topics_dir / "shipments.yaml").write_text(yaml.safe_dump(document))
    return own


def compiled(config: Settings, spark: SparkSession, *tables: DerivedTable) -> list[Compiled]:
    return list(compile_tables(Lake(config, tuple(load_topics(config)), tables), spark))


@derived_table(source="shipments", time_column="at", rules=Rules(not_null=("shipment",)))
def heavy(shipments: DataFrame) -> DataFrame:
    """Shipments of more than a ton."""
    return shipments.filter("weight > 1000").select(
        F.col("`$$timestamp`").alias("at"),
        F.col("shipment").alias("number"),
        "shipment",
        (F.col("weight") / 1000).alias("tons"),
        "target.city",
    )


@derived_table(source="heavy", time_column="at")
def heaviest(heavy: DataFrame) -> DataFrame:
    """Of each city."""
    return heavy.groupBy("at", "city").agg(F.max("tons").alias("tons"))


def test_check_of_valid_tables_returns_their_columns(config: Settings, spark: SparkSession) -> None:
    first, second = compiled(config, spark, heaviest, heavy)
    assert (first.table, first.problem) == ("heavy", None)
    assert {one.name: one.type for one in first.columns} == {
        "at": "timestamp",
        "number": "bigint",
        "shipment": "bigint",
        "tons": "double",
        "city": "string",
    }
    described = {one.name: one.description for one in first.columns if one.description}
    assert described == dict.fromkeys(("number", "shipment"), "number of the shipment")
    assert (second.table, len(second.columns), second.problem) == ("heaviest", 3, None)
    assert first.file.endswith("test_pipelines_check.py")


def _wrong_column(rows: DataFrame) -> DataFrame:
    return rows.select(F.col("`$$timestamp`").alias("at"), "weigth")


def _wrong_method(rows: DataFrame) -> DataFrame:
    return rows.selct("weight")  # type: ignore[operator]


def _wrong_field(rows: DataFrame) -> DataFrame:
    return rows.select(F.col("`$$timestamp`").alias("at"), "target.town")


def _no_time(rows: DataFrame) -> DataFrame:
    return rows.select("shipment", F.col("`$$timestamp`").alias("att"))


def _text_time(rows: DataFrame) -> DataFrame:
    return rows.select("shipment", F.lit("noon").alias("at"))


def _no_frame(rows: DataFrame) -> Any:
    return rows.columns


def _no_shipment(rows: DataFrame) -> DataFrame:
    return rows.select(F.col("`$$timestamp`").alias("at"), F.col("weight").alias("shipmnt"))


@pytest.mark.parametrize(
    ("function", "problem", "hint"),
    [
        (_wrong_column, "name `weigth` cannot be resolved", "did you mean the column weight?"),
        (_wrong_method, "Attribute `selct` is not supported", None),
        (_wrong_field, "No such struct field `town` in `city`", None),
        (_no_time, "returns no column at, its time_column; did you mean att?", "event time"),
        (_text_time, "its time_column at is a string, not a time", "event time"),
        (_no_frame, "returns a list, not a DataFrame", "return the rows"),
        (_no_shipment, "a column shipment, .* did you mean shipmnt", "rules"),
    ],
)
def test_check_of_a_mistake_names_it(
    config: Settings,
    spark: SparkSession,
    function: Callable[..., Any],
    problem: str,
    hint: str | None,
) -> None:
    first, second = compiled(config, spark, replace(heavy, transform=function), heaviest)
    assert first.problem is not None
    assert re.search(problem, first.problem), first.problem
    assert "JVM" not in first.problem
    assert (hint or "") in (first.hint or "")
    assert second.problem == "its source heavy has a problem"


@pytest.mark.parametrize(
    ("lineage", "problem"),
    [
        ({"tns": ("weight",)}, "names a column tns, .* did you mean tons?"),
        ({"tons": ("weigth",)}, "shipments has no column weigth; did you mean weight?"),
        ({"tons": ("shipments.weigth",)}, "shipments has no column weigth; did you mean weight?"),
        ({"tons": ("weight", "shipments.weight", "target.city")}, None),
    ],
)
def test_check_of_lineage_names_unknown_columns(
    config: Settings, spark: SparkSession, lineage: dict[str, tuple[str, ...]], problem: str | None
) -> None:
    (found,) = compiled(config, spark, replace(heavy, lineage=lineage))
    if problem is None:
        assert found.problem is None
    else:
        assert re.search(problem, found.problem or ""), found.problem


def test_descriptions_reach_the_derived_table(stack: Endpoints, spark: SparkSession) -> None:
    name, catalog = f"d{uuid.uuid4().hex[:8]}", stack.catalog(settings())
    catalog.create_namespace_if_not_exists("depot")
    source, target = ("depot", f"{name}_shipments"), ("depot", name)
    spark.sql(
        f"CREATE TABLE {spark_name(source)} (`$$timestamp` timestamp, "
        "shipment bigint COMMENT 'number of the shipment', weight double COMMENT 'kilograms', "
        "target struct<city: string>) USING iceberg"
    )
    derivation = Derivation(
        (Source(source, "$$timestamp"),),
        target,
        heavy.transform,
        "at",
        descriptions=(("tons", "metric tons"),),
    )
    hour = Window(datetime(2026, 1, 1, 10, tzinfo=UTC), datetime(2026, 1, 1, 11, tzinfo=UTC))
    at = "timestamp '2026-01-01 10:00:01+00:00'"
    spark.sql(f"INSERT INTO {spark_name(source)} VALUES ({at}, 1, 2000, struct('Bern'))")
    for text in ("number of the shipment", "of the parcel"):
        spark.sql(f"ALTER TABLE {spark_name(source)} ALTER COLUMN shipment COMMENT '{text}'")
        write_window(spark, catalog, derivation, hour)
        docs = {field.name: field.doc for field in catalog.load_table(target).schema().fields}
        own = {"number": text, "shipment": text, "tons": "metric tons"}
        assert docs == {"at": None, "city": None, **own}

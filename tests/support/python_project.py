"""A project whose table computes in Python, with helpers in other modules and a file of data."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "pyproject.toml": """\
[project]
name = "parcels"
version = "1"
requires-python = ">=3.11"
dependencies = []

[tool.topicberg]
prefix = "tableflow_kickstarter"
topics = "topics"
schemas = "schemas"
pipelines = ["parcels.pipelines"]
""",
    "topics/parcels.yaml": """\
name: parcels
pipeline: post
description: Parcels of a post office.
schema: {format: avro, file: parcels.avsc}
partitions: 1
table: {partitioning: ["hour($$timestamp)"]}
derived_partitions: {granularity: hourly, start: "2026-01-01"}
owners: ["team:post"]
""",
    "schemas/parcels.avsc": """\
{"type": "record", "name": "Parcel", "fields": [
  {"name": "number", "type": "long"}, {"name": "country", "type": "string"}]}
""",
    "src/parcels/__init__.py": "",
    "src/parcels/pipelines.py": '''\
"""Derived tables."""

from collections.abc import Iterator

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from parcels.prices import price
from topicberg import derived_table


def described(number: int, country: str) -> str:
    return f"{number} to {country} for {price(number, country)}"


@F.udf(StringType())
def label(number: int, country: str) -> str:
    return described(number, country)


def priced(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        pairs = zip(frame["number"], frame["country"], strict=True)
        yield frame.assign(price=[price(*pair) for pair in pairs])


@derived_table(source="parcels", time_column="sent_at")
def labels(parcels: DataFrame) -> DataFrame:
    """A label for each parcel."""
    rows = parcels.select(F.col("`$$timestamp`").alias("sent_at"), "number", "country")
    labelled = rows.withColumn("label", label("number", "country"))
    columns = "sent_at timestamp, number long, country string, label string, price long"
    return labelled.mapInPandas(priced, columns)
''',
    "src/parcels/prices.py": '''\
"""Prices by country."""

import json
from pathlib import Path

from rates import FACTOR


def price(number: int, country: str) -> int:
    zones = json.loads(Path(__file__).with_name("zones.json").read_text())
    return number * zones[country] * FACTOR
''',
    "src/parcels/zones.json": '{"de": 1, "nz": 9}',
    "src/parcels/.env": "SECRET=1",
    "src/parcels/login.pem": "SECRET",
    "src/parcels/tests/test_prices.py": "",
    "src/parcels/test_pipelines.py": "",
    "src/rates.py": "FACTOR = 2\n",
    "src/unused/__init__.py": "",
    "tests/test_all.py": "",
}
"""Path → text."""


def write_project(root: Path) -> Path:
    """Write the files into a folder, and return the folder."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root

"""The resources of the asset graph; which deployment they reach is decided here, and only here."""

from __future__ import annotations

from topicberg.orchestration.resources.lakehouse import Lakehouse
from topicberg.orchestration.resources.snowflake import Snowflake
from topicberg.orchestration.resources.spark import Spark
from topicberg.orchestration.resources.tables import Tables

RESOURCES = {
    "topicberg_lakehouse": Lakehouse(),
    "topicberg_spark": Spark(),
    "topicberg_snowflake": Snowflake(),
}
"""Dagster refuses to merge definitions that have different resources of one name: the prefix keeps
these apart from a company's own ``spark`` or ``snowflake``."""

__all__ = ["RESOURCES", "Lakehouse", "Snowflake", "Spark", "Tables"]

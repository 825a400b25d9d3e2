"""The resources of the asset graph; which deployment they reach is decided here, and only here."""

from __future__ import annotations

from topicberg.orchestration.resources.lakehouse import Lakehouse
from topicberg.orchestration.resources.snowflake import Snowflake
from topicberg.orchestration.resources.spark import Spark
from topicberg.orchestration.resources.tables import Tables

RESOURCES = {"lakehouse": Lakehouse(), "spark": Spark(), "snowflake": Snowflake()}

__all__ = ["RESOURCES", "Lakehouse", "Snowflake", "Spark", "Tables"]

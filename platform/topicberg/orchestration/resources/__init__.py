"""The resources of the asset graph; which deployment they reach is decided here, and only here."""

from __future__ import annotations

from typing import Any, cast

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource
from pydantic import Field
from pyspark.errors.exceptions.connect import SparkConnectException
from pyspark.sql import SparkSession

from topicberg.orchestration.resources.lakehouse import Lakehouse, connect
from topicberg.orchestration.resources.snowflake import Snowflake
from topicberg.orchestration.resources.tables import Tables
from topicberg.settings import settings
from topicberg.shipping.project import send
from topicberg.spark import NO_SUBSTITUTION, check_spark

__all__ = ["RESOURCES", "Lakehouse", "Snowflake", "Spark", "Tables"]


class Spark(LazyPySparkResource):
    """A session of the deployment's Spark, opened at its first use. ``spark_config`` takes further
    Spark properties; the address comes from the deployment."""

    spark_config: dict[str, Any] = Field(default_factory=dict)

    def _init_session(self) -> None:
        if self._spark_session is None:
            endpoints = connect()
            remote = endpoints.spark_connect
            check_spark(remote)
            # The properties are flat strings: nested keys would make dagster-pyspark join them.
            self.spark_config["spark.remote"] = remote
            # Texts are times in UTC wherever Spark runs; the functions of the tables rely on it.
            self.spark_config.setdefault("spark.sql.session.timeZone", "UTC")
            self.spark_config.update(NO_SUBSTITUTION | endpoints.spark_session(settings())[0])
            try:
                super()._init_session()
            except SparkConnectException:
                # A session from before Spark restarted; its client is closed now, so that the
                # next call makes another. What else is wrong is raised again.
                super()._init_session()
            send(cast("SparkSession", self._spark_session), settings().project_root)

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """End the session: Spark forgets it, and no thread of its client outlives the run."""
        session, self._spark_session = self._spark_session, None
        if session is not None:
            session.stop()


RESOURCES = {
    "topicberg_lakehouse": Lakehouse(),
    "topicberg_spark": Spark(),
    "topicberg_snowflake": Snowflake(),
}
"""Dagster refuses to merge definitions that have different resources of one name: the prefix keeps
these apart from a company's own ``spark`` or ``snowflake``."""

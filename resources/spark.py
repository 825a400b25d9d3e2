"""Spark of the chosen deployment, through dagster-pyspark."""

from __future__ import annotations

from typing import Any

from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from resources.lakehouse import connect
from topicberg.spark import check_spark


class Spark(LazyPySparkResource):
    """A session of the deployment's Spark, opened at its first use.

    ``spark_config`` takes further Spark properties; the address comes from the deployment.
    """

    spark_config: dict[str, Any] = Field(default_factory=dict)

    def _init_session(self) -> None:
        if self._spark_session is None:
            remote = connect().spark_connect
            check_spark(remote)
            # The properties are flat strings: nested keys would make dagster-pyspark join them.
            self.spark_config["spark.remote"] = remote
            super()._init_session()

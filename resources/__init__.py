"""What the graph reaches: the deployment's Kafka and catalogs, its Spark, and Snowflake.

Which deployment that is, the settings say (``TOPICBERG_DEPLOYMENT``); the assets are the same. The
names of the resources are those that the factories of topicberg ask for.
"""

from __future__ import annotations

from topicberg.orchestration import Lakehouse, Snowflake, Spark

RESOURCES = {
    "topicberg_lakehouse": Lakehouse(),
    "topicberg_spark": Spark(),
    "topicberg_snowflake": Snowflake(),
}

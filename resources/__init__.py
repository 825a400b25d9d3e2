"""What the graph reaches: the deployment's Kafka and catalogs, its Spark, and Snowflake.

Which deployment that is, the settings say (``TOPICBERG_DEPLOYMENT``); the assets are the same.
"""

from __future__ import annotations

from topicberg.orchestration import Lakehouse, Snowflake, Spark

RESOURCES = {"lakehouse": Lakehouse(), "spark": Spark(), "snowflake": Snowflake()}

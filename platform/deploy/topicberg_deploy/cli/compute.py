"""The first computation of the derived tables, after ``topicberg deploy create``."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from topicberg.cli.output import echo, load_endpoints
from topicberg.errors import TopicbergError
from topicberg_deploy.cli.runs import materialize, materialize_derived
from topicberg_deploy.polling import poll

if TYPE_CHECKING:
    from topicberg_deploy.context import DeployContext


FIRST_RECORDS_SECONDS = 120.0


def compute_derived(context: DeployContext) -> None:
    """Run the pipelines on what the connectors have produced so far, so that every table has rows.

    In the cloud, and locally from then on, Dagster does it by itself.
    """
    from topicberg.kafka import topics as kafka
    from topicberg_deploy.confluent.connect import Connector
    from topicberg_deploy.platform import resources

    endpoints = load_endpoints(context.config)

    def has_records(topic: str) -> bool:
        return any(kafka.end_offsets(endpoints, topic).values())

    for resource in resources(context.config, context.specs):
        if isinstance(resource, Connector) and resource.wanted:
            awaited = f"topic {resource.topic} has records"
            poll(partial(has_records, resource.topic), awaited, FIRST_RECORDS_SECONDS)
    echo("computing the derived tables; `topicberg ui` keeps them up to date", err=True)
    materialize(context.config, endpoints, datetime.now(UTC))


def use_deployment(context: DeployContext) -> None:
    """Read the names of the deployment, which are known now, with the login of this command."""
    from topicberg.settings import settings

    if context.deploy.profile:
        os.environ["AWS_PROFILE"] = context.deploy.profile
    settings.cache_clear()


def compute_in_cloud(context: DeployContext) -> None:
    """Compute the tables derived from topics that have records, where Dagster would.

    :raises TopicbergError: a table could not be computed; everything else is created
    """
    from topicberg.errors.meaning import is_of_vendor
    from topicberg.settings import emr_settings, settings

    use_deployment(context)
    on_emr = emr_settings() is not None
    if not on_emr and context.config.spark_remote is None:
        echo(
            "the derived tables are not computed here: there is no Spark. Dagster computes them: "
            "start its daemon with this deployment's settings"
        )
        return
    waiting = {
        spec.name
        for spec in context.specs
        if not spec.has_table(context.config)
        or f"snowflake/table/{spec.asset_name}" in context.waiting
    }
    where = "EMR Serverless" if on_emr else "TOPICBERG_SPARK_REMOTE"
    echo(f"computing the derived tables by {where}: minutes for each", err=True)
    try:
        computed = materialize_derived(settings(), load_endpoints(settings()), waiting)
    except Exception as error:
        if not (isinstance(error, TopicbergError) or is_of_vendor(error)):
            raise
        reason, hint = str(error), None
        if isinstance(error, TopicbergError):
            reason, hint = error.message, error.hint
        raise TopicbergError(
            f"the platform is created, but its derived tables are not complete: {reason}",
            hint=hint or "run the command again, which computes them again",
        ) from error
    echo(f"computed and registered in Snowflake: {', '.join(computed) or 'no table yet'}")

"""What a job run of EMR Serverless does: a window of one derived table.

This file is the entry point, in the application's image or as a copy in S3: all that it imports is
installed, and no module beside it hides one of Python's own. Spark's properties are those that
:mod:`topicberg.transforms.emr` put into the request.
"""

from __future__ import annotations

import boto3
from dagster_pipes import PipesContext, PipesS3MessageWriter, open_dagster_pipes
from pyspark.sql import SparkSession

from assets.derived import code_version, derivation
from assets.lake import Lake, find_derived
from topicberg.errors import TopicbergError
from topicberg.topics import load_topics
from topicberg.transforms.derived import Written, write_window
from topicberg.transforms.emr import Asked, Failure, Told


def main() -> None:
    """Compute what Dagster asks for, and tell it.

    :raises Exception: whatever went wrong, so that the job run fails; Dagster was told before
    """
    with open_dagster_pipes(message_writer=PipesS3MessageWriter(boto3.client("s3"))) as pipes:
        try:
            told = Told(written=_compute(pipes))
        except Exception as error:
            told = Told(failure=Failure.of(error))
            pipes.report_custom_message(told.model_dump(mode="json"))
            raise
        pipes.report_custom_message(told.model_dump(mode="json"))


def _compute(pipes: PipesContext) -> Written:
    asked = Asked.model_validate(pipes.extras)
    config = asked.config()
    lake = Lake(config, tuple(load_topics(config)), tuple(find_derived()))
    derived = lake.derived_by_name.get(asked.table)
    if derived is None or code_version(derived, lake) != pipes.code_version:
        raise TopicbergError(
            f"table {asked.table}: the code of the EMR Serverless application is not Dagster's",
            hint="build its image from the commit that Dagster runs; see docs/production.md",
        )
    spark = SparkSession.builder.getOrCreate()
    try:
        plan = derivation(derived, lake)
        return write_window(spark, asked.endpoints().catalog(config), plan, asked.window)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()

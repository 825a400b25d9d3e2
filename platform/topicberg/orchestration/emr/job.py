"""The entry point of a job run of EMR Serverless: computes a window of one derived table, or an
upsert view.

This file is in the application's image or copied to S3: all that it imports is installed, and no
module beside it hides one of Python's own. Spark's properties are those that
:mod:`topicberg.transforms.emr` put into the request.
"""

from __future__ import annotations

import os

import boto3
from dagster_pipes import PipesContext, PipesS3MessageWriter, open_dagster_pipes
from pyspark.sql import SparkSession

from topicberg.errors import TopicbergError
from topicberg.orchestration.assets.derived import DerivedTable, code_version, derivation
from topicberg.orchestration.assets.lake import Lake, find_derived
from topicberg.shipping.project import packages, pickle_by_value
from topicberg.spark import CONNECT_MODE
from topicberg.topics import check_topics
from topicberg.transforms import emr, upsert_view
from topicberg.transforms.derived import FailedPartitionsError, WrittenWindow, write_window


def main() -> None:
    """Compute what Dagster requests, and report the result, or the failure that ends the run."""
    with open_dagster_pipes(message_writer=PipesS3MessageWriter(boto3.client("s3"))) as pipes:
        try:
            report = emr.JobReport(written=_compute(pipes))
        except Exception as error:
            written = error.written if isinstance(error, FailedPartitionsError) else None
            report = emr.JobReport(failure=emr.Failure.of(error), written=written)
            pipes.report_custom_message(report.model_dump(mode="json"))
            raise
        pipes.report_custom_message(report.model_dump(mode="json"))


def _compute(pipes: PipesContext) -> WrittenWindow:
    request = emr.JobRequest.model_validate(pipes.extras)
    os.environ.pop(CONNECT_MODE, None)  # Spark is in this process
    # Modules of the project may make functions for Spark when they are imported.
    spark = SparkSession.builder.getOrCreate()
    try:
        return _written(spark, request, pipes.code_version)
    finally:
        spark.stop()


def _written(spark: SparkSession, request: emr.JobRequest, code: str | None) -> WrittenWindow:
    """:param code: the version of the table's code in Dagster"""
    config = request.config()
    specs, problems = check_topics(config)
    left_out = frozenset(name for problem in problems for name in problem.names)
    lake = Lake(config, tuple(specs), tuple(_tables()), left_out)
    pickle_by_value(packages(config.project_root))
    derived, view = lake.derived_by_name.get(request.table), lake.upsert_views.get(request.table)
    if view is None and (derived is None or code_version(derived, lake) != code):
        raise TopicbergError(
            f"table {request.table}: the code of the EMR Serverless application is not Dagster's",
            hint="run `topicberg deploy create`, which uploads this code, or build the image from "
            "the commit that Dagster runs; see docs/production.md",
        )
    endpoints = request.endpoints()
    for name, value in endpoints.spark_session(config)[0].items():
        spark.conf.set(name, value)  # before the catalog is loaded
    catalog = endpoints.catalog(config)
    if view is not None:
        head = upsert_view.refresh(spark, catalog, view).current_snapshot()
        return WrittenWindow((), snapshot_id=head.snapshot_id if head else None)
    assert derived is not None  # noqa: S101  checked above
    plan, keep_expired = derivation(derived, lake), request.keep_expired
    return write_window(spark, catalog, plan, *request.windows, keep_expired=keep_expired)


def _tables() -> list[DerivedTable]:
    """Return the derived tables; an error names a module that is missing, and how it gets here."""
    try:
        return find_derived()
    except TopicbergError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            raise emr.module_missing(str(error.__cause__.name), error.message) from error
        raise


if __name__ == "__main__":
    main()

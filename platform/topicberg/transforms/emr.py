"""Job runs of EMR Serverless that compute a window of a derived table, or an upsert view: requests
and reports.

Both sides communicate through Dagster Pipes (:mod:`.emr.client` starts a run,
:mod:`.emr.job` runs in it); here are their messages, and the request that starts a run.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, SecretStr

from topicberg.endpoints import LakeEndpoints
from topicberg.errors import ThrottledError, TopicbergError
from topicberg.errors.meaning import classify
from topicberg.errors.table import CONFLICT, NO_CAPACITY, THROTTLED, UNREACHABLE, UNRESOLVED
from topicberg.logins.catalog import CatalogLogin, TopicsCatalogLogin
from topicberg.settings import Settings
from topicberg.settings.models import EmrSettings
from topicberg.spark import missing_module
from topicberg.transforms.derived import FailedPartitionsError, WrittenWindow
from topicberg.transforms.windows import Window

NAME_LENGTH = 256
_LOCAL_ONLY = {"project_root", "state_dir", "ports", "spark_master"}
"""Settings that are only valid on this machine."""
_RETRYABLE = {kind.name: kind.raises for kind in (CONFLICT, UNREACHABLE, UNRESOLVED, THROTTLED)}


class JobRequest(BaseModel):
    """What a job run has to compute: the extras of its Pipes context. It holds no secret."""

    table: str  # Name of the derived table or of the upsert view.
    windows: list[Window] = []  # Empty: it is an upsert view.
    keep_expired: bool = False  # See :func:`topicberg.transforms.derived.write_window`.
    settings: dict[str, Any]
    has_spark: bool = False  # Whether Dagster has Spark Connect: then its graph has more tables.
    lake: LakeEndpoints
    login: dict[str, Any] = {}  # That of the catalog, without its secrets.
    topics_login: dict[str, Any] | None = None  # That of the topics' own catalog, if they have one.

    @classmethod
    def of(
        cls,
        table: str,
        windows: Sequence[Window],
        config: Settings,
        lake: LakeEndpoints,
        *,
        keep_expired: bool = False,
    ) -> JobRequest:
        return cls(
            table=table,
            windows=[*windows],
            keep_expired=keep_expired,
            settings=config.model_dump(mode="json", exclude=_LOCAL_ONLY),
            has_spark=config.has_spark,
            lake=LakeEndpoints(
                iceberg_rest=lake.iceberg_rest, s3=lake.s3, topics_rest=lake.topics_rest
            ),
            login=lake.login.public(),
            topics_login=lake.topics_login.public() if lake.topics_login else None,
        )

    def endpoints(self) -> LakeEndpoints:
        """Return the addresses, with the catalog's secrets of the job's environment.

        :raises TopicbergError: names the variable that the environment lacks
        """
        of_topics = self.lake.topics_rest == self.lake.iceberg_rest  # one client for both
        kind = TopicsCatalogLogin if of_topics else CatalogLogin
        given: dict[str, Any] = {"iceberg_login": kind.from_public(self.login)}
        if self.topics_login is not None:
            given["topics_login"] = TopicsCatalogLogin.from_public(self.topics_login)
        return self.lake.model_copy(update=given)

    def config(self) -> Settings:
        """Return the requester's settings, without those that are only valid on its machine."""
        elsewhere = SecretStr("sc://not-sent") if self.has_spark else None
        return Settings(**self.settings, spark_remote=elsewhere)


class Failure(BaseModel):
    """Why a job run could not compute its window."""

    message: str
    kind: str | None  # Of :mod:`topicberg.errors.table`, if a retry may resolve it.

    @classmethod
    def of(cls, error: Exception) -> Failure:
        kind = classify(error)
        return cls(message=f"{type(error).__name__}: {error}", kind=kind.name if kind else None)


class JobReport(BaseModel):
    """The result of a job run, a custom message of Pipes; both: some partitions failed."""

    written: WrittenWindow | None = None
    failure: Failure | None = None


def start_job_run(table: str, emr: EmrSettings, config: Settings, lake: LakeEndpoints) -> Any:
    """Return the request ``StartJobRun``, without what Pipes adds.
    https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_StartJobRun.html"""
    return {
        "applicationId": emr.application_id,
        "executionRoleArn": emr.execution_role_arn,
        "name": f"topicberg {table}"[:NAME_LENGTH],
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": emr.entry_point,
                "sparkSubmitParameters": _spark_submit_parameters(emr, config, lake),
            }
        },
        "configurationOverrides": {
            "monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": emr.log_uri}}
        },
    }


def _spark_submit_parameters(emr: EmrSettings, config: Settings, lake: LakeEndpoints) -> str:
    """Return Spark's parameters for the catalog and boto3; the user's own come last. Releases with
    Spark 4 have Iceberg on the default class path. The jar that AWS documents is of their 7.x
    images, and a jar that is missing fails a job run with ``NoSuchFileException``."""
    store = {"AWS_ENDPOINT_URL_S3": lake.s3} if lake.s3 else {}
    environment = {"AWS_DEFAULT_REGION": config.aws_region, **store}
    properties = {
        **lake.spark_properties(config),
        **{f"spark.emr-serverless.driverEnv.{name}": text for name, text in environment.items()},
    }
    words = [word for name, text in properties.items() for word in ("--conf", f"{name}={text}")]
    return f"{shlex.join(words)} {emr.spark_submit_parameters}".strip()


def module_missing(module: str, subject: str) -> TopicbergError:
    """Return the error of a subject whose code EMR Serverless cannot import."""
    return TopicbergError(
        f"{subject}: the code of the EMR Serverless application has no module {module}",
        hint=f"add the package of {module} to `dependencies` in pyproject.toml, install it, then "
        "run `topicberg deploy create`, which uploads the code; an image of your own is built "
        "again with `topicberg deploy emr-image`",
    )


def failed(
    subject: str, report: JobReport | None, state: str, details: str, logs: str
) -> TopicbergError:
    """Return the error of a job run that did not succeed.

    :param subject: names the table and the job run
    :param report: the report of the run, if it got that far
    :param details: EMR Serverless's explanation of the state
    """
    hint = f"read its logs under {logs}"
    if report and report.failure:
        kind = _RETRYABLE.get(report.failure.kind or "", TopicbergError)
        message = f"{subject} failed: {report.failure.message}"
        if report.written is None:
            return kind(message, hint=hint)
        error = FailedPartitionsError(message, hint=hint)
        error.written = report.written
        return error
    if state == "FAILED" and (module := missing_module(details)):
        return module_missing(module, f"{subject} failed")
    message = f"{subject} ended as {state}: {details or 'EMR Serverless gives no reason'}"
    if state == "FAILED" and NO_CAPACITY.search(details):
        return ThrottledError(message, hint="give the application more capacity, or a queue")
    return TopicbergError(message, hint=hint)

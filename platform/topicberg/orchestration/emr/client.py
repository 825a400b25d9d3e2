"""A window of a derived table, or an upsert view, computed by a job run of EMR Serverless that
Dagster follows.

``PipesEMRServerlessClient`` of dagster-aws starts the run, waits for it and cancels it together
with Dagster's run. The run's messages come through S3, chunk by chunk and as soon as they are
written. The library's other way, CloudWatch, begins when the run has ended and gives up after ten
seconds, whether the log has arrived by then or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import dagster as dg
from botocore.exceptions import BotoCoreError, ClientError
from dagster import PipesMessageHandler
from dagster_aws.pipes import PipesEMRServerlessClient, PipesS3MessageReader
from pydantic import ValidationError

from topicberg.endpoints import Endpoints
from topicberg.errors import TopicbergError
from topicberg.orchestration.assets.tables import is_computation_of_sensor
from topicberg.settings import Settings
from topicberg.settings.models import EmrSettings
from topicberg.transforms.derived import WrittenWindow
from topicberg.transforms.emr import JobReport, JobRequest, failed, start_job_run
from topicberg.transforms.windows import Window

POLL_SECONDS = 5.0
MESSAGES = "pipes"  # Folder of the log URI to which job runs write their messages.


def write_window_on_emr(
    context: dg.AssetExecutionContext,
    table: str,
    windows: Sequence[Window],
    emr: EmrSettings,
    config: Settings,
    endpoints: Endpoints,
) -> WrittenWindow:
    """Compute windows, or an upsert view, which has none, by a job run of EMR Serverless.

    :raises TopicbergError: the run failed, was cancelled, or did not report what it wrote
    """
    client = endpoints.boto3("emr-serverless", config)
    run = _JobRun(client)
    messages = _Messages(emr.log_uri, endpoints.boto3("s3", config))
    pipes = _Client(client, message_reader=messages, poll_interval=POLL_SECONDS)
    try:
        of_sensor = is_computation_of_sensor(context.run.tags)
        request = JobRequest.of(table, windows, config, endpoints, keep_expired=of_sensor)
        pipes.run(
            context=context,
            start_job_run_params=start_job_run(table, emr, config, endpoints),
            extras=request.model_dump(mode="json"),
        )
    except Exception as error:
        if run.state in ("FAILED", "CANCELLING", "CANCELLED"):
            logs = f"{emr.log_uri.rstrip('/')}/applications/{emr.application_id}/jobs/{run.id}/"
            described = f"table {table}: job run {run.id} of EMR Serverless"
            raise failed(described, messages.report(), run.state, run.details, logs) from error
        if run.state != "SUCCESS":
            run.cancel()
        raise
    report = messages.report()
    if report is None or report.written is None:
        raise TopicbergError(
            f"table {table}: job run {run.id} of EMR Serverless succeeded, but Dagster found "
            f"no report of it under {emr.log_uri}",
            hint=f"grant both roles the folder {MESSAGES} there (the job's to write, Dagster's to "
            "read), then materialize again, which computes the same",
        )
    return report.written


class _JobRun:
    """The last state of the job run in AWS: the library passes on neither its id nor its state. It
    listens to the client's events.
    https://botocore.amazonaws.com/v1/documentation/api/latest/topics/events.html"""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.id = self.state = self.details = ""
        self._application = ""
        events = client.meta.events
        events.register("after-call.emr-serverless.StartJobRun", self._started)
        events.register("after-call.emr-serverless.GetJobRun", self._seen)
        events.register("after-call.emr-serverless.GetDashboardForJobRun", _without_token)

    def _started(self, parsed: Mapping[str, Any], **_: Any) -> None:
        self.id, self._application = parsed.get("jobRunId", ""), parsed.get("applicationId", "")

    def _seen(self, parsed: Mapping[str, Any], **_: Any) -> None:
        seen = parsed.get("jobRun", {})
        self.state, self.details = seen.get("state", self.state), seen.get("stateDetails", "")

    def cancel(self) -> None:
        """Cancel a run that cannot be followed any more; the next attempt starts another one."""
        if self.id:
            with suppress(BotoCoreError, ClientError):
                self._client.cancel_job_run(applicationId=self._application, jobRunId=self.id)


def _without_token(parsed: dict[str, Any], **_: Any) -> None:
    """Remove the key from the logged address of Spark's UI: it is valid for an hour."""
    if "url" in parsed:
        parsed["url"] = urlunsplit((*urlsplit(parsed["url"])[:3], "", ""))


class _Client(PipesEMRServerlessClient):
    def _read_messages(self, context: Any, session: Any, response: Any) -> None:
        """Do nothing: messages came while the job ran. The library reads CloudWatch here, and warns
        with any other reader that none arrive."""


class _Messages(PipesS3MessageReader):
    """The library's reader, in a folder of its own, and also for runs that fail."""

    def __init__(self, log_uri: str, client: Any) -> None:
        place = urlsplit(log_uri)
        super().__init__(bucket=place.netloc, client=client, interval=POLL_SECONDS)
        self._folder = "/".join(part for part in (place.path.strip("/"), MESSAGES) if part)
        self._handler: PipesMessageHandler | None = None

    @contextmanager
    def get_params(self) -> Iterator[dict[str, Any]]:
        with super().get_params() as params:
            yield {**params, "key_prefix": f"{self._folder}/{params['key_prefix']}"}

    @contextmanager
    def read_messages(self, handler: PipesMessageHandler) -> Iterator[Any]:
        self._handler = handler
        with super().read_messages(handler) as params:
            yield params

    def report(self) -> JobReport | None:
        """Return the report that the run sent at its end, if any; another version's is an error."""
        sent = self._handler.get_custom_messages() if self._handler else ()
        try:
            return JobReport.model_validate(sent[-1]) if sent else None
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise TopicbergError(
                "the topicberg of the EMR Serverless application is not Dagster's: its report of "
                f"what it wrote lacks {where}, or has something else there",
                hint="run `topicberg deploy create`, which uploads this version, or build the "
                "image from the version that Dagster runs, then materialize again; see "
                "docs/production.md",
            ) from None

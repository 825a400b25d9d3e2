"""A window of a derived table, computed by a job run of EMR Serverless that Dagster follows.

``PipesEMRServerlessClient`` of dagster-aws starts the run, waits for it and cancels it together
with Dagster's run. What the run says comes through S3, chunk by chunk and as soon as it is written.
The library's other way, CloudWatch, begins when the run is over and gives up after ten seconds,
whether the log has arrived there by then or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import dagster as dg
from botocore.exceptions import BotoCoreError, ClientError
from dagster_aws.pipes import PipesEMRServerlessClient, PipesS3MessageReader

from topicberg.errors import TopicbergError
from topicberg.transforms.emr import Asked, Told, failed, start_job_run

if TYPE_CHECKING:
    from dagster import PipesMessageHandler

    from topicberg.endpoints import Endpoints
    from topicberg.settings import EmrSettings, Settings
    from topicberg.transforms.derived import Written
    from topicberg.transforms.windows import Window

POLL_SECONDS = 5.0
MESSAGES = "pipes"
"""Folder of the log URI in which job runs leave what they say."""
ENDED_BADLY = ("FAILED", "CANCELLING", "CANCELLED")


def write_window_on_emr(
    context: dg.AssetExecutionContext,
    table: str,
    window: Window,
    emr: EmrSettings,
    config: Settings,
    endpoints: Endpoints,
) -> Written:
    """As :func:`topicberg.transforms.derived.write_window`, which the job run calls.

    :param table: name of the derived table
    :raises TopicbergError: the run failed, was cancelled, or did not say what it wrote
    """
    client = endpoints.boto3("emr-serverless", config)
    run = _JobRun(client)
    messages = _Messages(emr.log_uri, endpoints.boto3("s3", config))
    pipes = _Client(client, message_reader=messages, poll_interval=POLL_SECONDS)
    try:
        pipes.run(
            context=context,
            start_job_run_params=start_job_run(table, emr, config, endpoints),
            extras=Asked.of(table, window, config, endpoints).model_dump(mode="json"),
        )
    except Exception as error:
        if run.state in ENDED_BADLY:
            logs = f"{emr.log_uri.rstrip('/')}/applications/{emr.application_id}/jobs/{run.id}/"
            what = f"table {table}: job run {run.id} of EMR Serverless"
            raise failed(what, messages.told(), run.state, run.details, logs) from error
        if run.state != "SUCCESS":
            run.cancel()
        raise
    told = messages.told()
    if told is None or told.written is None:
        raise TopicbergError(
            f"table {table}: job run {run.id} of EMR Serverless succeeded, but Dagster found "
            f"nothing of what it said under {emr.log_uri}",
            hint=f"both roles need the folder {MESSAGES} there: the job's to write, Dagster's to "
            "read; then materialize again, which computes the same",
        )
    return told.written


class _JobRun:
    """What AWS last said of the job run: the library passes on neither its id nor its state.

    It listens to the client's events.
    https://botocore.amazonaws.com/v1/documentation/api/latest/topics/events.html
    """

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
        """End a run that cannot be followed any more; the next attempt starts one of its own."""
        if self.id:
            with suppress(BotoCoreError, ClientError):
                self._client.cancel_job_run(applicationId=self._application, jobRunId=self.id)


def _without_token(parsed: dict[str, Any], **_: Any) -> None:
    """The library logs the address of Spark's UI, whose query is a key to it for an hour."""
    if "url" in parsed:
        parsed["url"] = urlunsplit((*urlsplit(parsed["url"])[:3], "", ""))


class _Client(PipesEMRServerlessClient):
    """The library's client."""

    def _read_messages(self, context: Any, session: Any, response: Any) -> None:
        """Nothing: messages came while the job ran.

        The library looks into CloudWatch here, and warns with any other reader that none arrive.
        """


class _Messages(PipesS3MessageReader):
    """The library's reader, in a folder of its own, and of a run that fails as well."""

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

    def told(self) -> Told | None:
        """What the job run said at its end."""
        said = self._handler.get_custom_messages() if self._handler else ()
        return Told.model_validate(said[-1]) if said else None

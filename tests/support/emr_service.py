"""A small EMR Serverless over HTTP, as strict as botocore's own description of the service.

It has what ``PipesEMRServerlessClient`` asks for, and keeps objects as S3 does, for what job runs
say through Pipes. What a job run does is the test's to say. As in the images of releases with
Spark 4, Iceberg is on the default class path, and a jar that the request names and the image does
not have fails the job run.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast
from urllib.parse import unquote, urlsplit

from botocore.model import OperationModel

from topicberg.settings import Settings
from topicberg.settings.models import NewEmrSettings
from topicberg_deploy.aws import emr
from topicberg_deploy.resource import Live
from topicberg_local.emulators.aws.shapes import check, routes, service

APPLICATION = "00fm4oe0607u5a1d"
ROLE = "arn:aws:iam::000000000000:role/topicberg-job"
TOKEN = "the-key-to-the-spark-ui"
SERVICE = service("emr-serverless")
DRIVER_ENVIRONMENT = "spark.emr-serverless.driverEnv."
ROUTES = routes(SERVICE)


class Job(Protocol):
    """What a job run does."""

    def state(self) -> tuple[str, str]:
        """State and its details, as of now."""

    def cancel(self) -> None: ...


@dataclass
class Scripted:
    """A job run that is in each of these states once it is requested, and stays in the last one."""

    states: list[tuple[str, str]]
    then: Callable[[], None] = lambda: None
    """Done when the last state is reported for the first time."""

    def state(self) -> tuple[str, str]:
        if len(self.states) > 1:
            return self.states.pop(0)
        then, self.then = self.then, lambda: None
        then()
        return self.states[0]

    def cancel(self) -> None:
        self.states = [("CANCELLED", "")]


class RefusedError(Exception):
    """An answer with an error's code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass
class EmrServerless:
    """The service; ``execute`` makes a job of a request that is right."""

    execute: Callable[[dict[str, Any]], Job]
    url: str = ""
    application: str | None = APPLICATION
    """The only one; None: any."""
    dashboards: bool = True
    """Whether the caller may ask for the address of Spark's UI."""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Every operation with its parameters."""
    objects: dict[str, bytes] = field(default_factory=dict)
    _jobs: dict[str, tuple[Job, dict[str, Any]]] = field(default_factory=dict)

    def operations(self) -> list[str]:
        return [name for name, _ in self.requests]

    def answer(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        for operation, verb, pattern in ROUTES:
            if verb == method and (match := re.fullmatch(pattern, path)):
                given = {**json.loads(body or b"{}"), **match.groupdict()}
                if problem := check(given, operation.input_shape):
                    raise RefusedError(400, "ValidationException", problem)
                self.requests.append((operation.name, given))
                answer: dict[str, Any] = getattr(self, f"_{snake(operation)}")(**given)
                problem = check(answer, operation.output_shape)
                assert not problem, problem
                return answer
        raise RefusedError(404, "UnknownOperationException", path)

    def _start_job_run(self, applicationId: str, **request: Any) -> dict[str, Any]:
        if self.application not in (None, applicationId):
            raise RefusedError(404, "ResourceNotFoundException", "no such application")
        run, missing = f"00job{len(self._jobs)}", missing_jars(request)
        failed = ("FAILED", f"java.nio.file.NoSuchFileException: {', '.join(missing)}")
        job = Scripted([("RUNNING", ""), failed]) if missing else self.execute(request)
        self._jobs[run] = job, request
        return {"applicationId": applicationId, "jobRunId": run, "arn": arn(run)}

    def _get_job_run(self, applicationId: str, jobRunId: str) -> dict[str, Any]:
        job, request = self._jobs[jobRunId]
        state, details = job.state()
        return {
            "jobRun": {
                "applicationId": applicationId,
                "jobRunId": jobRunId,
                "arn": arn(jobRunId),
                "createdBy": ROLE,
                "createdAt": 1767225600,
                "updatedAt": 1767225600,
                "executionRole": request["executionRoleArn"],
                "state": state,
                "stateDetails": details or " -",
                "releaseLabel": "emr-spark-8.1.0",
                "jobDriver": request["jobDriver"],
            }
        }

    def _cancel_job_run(self, applicationId: str, jobRunId: str) -> dict[str, Any]:
        self._jobs[jobRunId][0].cancel()
        return {"applicationId": applicationId, "jobRunId": jobRunId}

    def _get_dashboard_for_job_run(self, applicationId: str, jobRunId: str) -> dict[str, Any]:
        if not self.dashboards:
            raise RefusedError(403, "AccessDeniedException", "not GetDashboardForJobRun")
        return {"url": f"https://{jobRunId}.example.org/shs/?authToken={TOKEN}"}


def properties(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties of a job run as spark-submit reads them: the last one wins."""
    words = shlex.split(request["jobDriver"]["sparkSubmit"]["sparkSubmitParameters"])
    assert words[::2] == ["--conf"] * (len(words) // 2)
    return dict(word.split("=", 1) for word in words[1::2])


def missing_jars(request: Mapping[str, Any]) -> list[str]:
    """Return the jars of a request that the image does not have."""
    jars = properties(request).get("spark.jars", "").split(",")
    return [jar for jar in jars if jar.startswith("/") and not Path(jar).exists()]


def environment(request: Mapping[str, Any]) -> dict[str, str]:
    """The environment that a job's parameters ask for its driver."""
    confs = properties(request).items()
    return {
        name.removeprefix(DRIVER_ENVIRONMENT): text
        for name, text in confs
        if name.startswith(DRIVER_ENVIRONMENT)
    }


def deployed(config: Settings, code: str | None = None) -> dict[str, str]:
    """Return the variables of exactly what `deploy` notes for an application, whose compute bucket
    is the topics'.

    :param code: version of the uploaded code; None: it is in an image
    """
    live = {emr.APPLICATION: Live(APPLICATION), emr.ROLE: Live(ROLE)}
    if code is not None:
        live[emr.CODE_KEY] = Live("", {"version": code})
    context = SimpleNamespace(
        live=live,
        need=live.__getitem__,
        aws=SimpleNamespace(compute_bucket=config.bucket),
        config=config.model_copy(update={"emr": NewEmrSettings.model_construct(image="image")}),
    )
    found = emr.runtime_settings(cast(Any, context))
    assert found
    return {f"TOPICBERG_EMR_JOBS__{name.upper()}": text for name, text in found.items()}


def in_image(request: dict[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the request with the files of the image where this machine has them.

    :param paths: in the request → here
    """
    text = json.dumps(request)
    for there, here in paths.items():
        assert there in text, f"no {there} in {text}"
        text = text.replace(there, here)
    return dict(json.loads(text))


def snake(operation: OperationModel) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", operation.name).lower()


def arn(run: str) -> str:
    return (
        f"arn:aws:emr-serverless:us-east-1:000000000000:/applications/{APPLICATION}/jobruns/{run}"
    )


@contextmanager
def serving(
    execute: Callable[[dict[str, Any]], Job], application: str | None = APPLICATION
) -> Iterator[EmrServerless]:
    """The service on a port of its own.

    :param application: the only one; None: any
    """
    service = EmrServerless(execute, application=application)

    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            path = unquote(urlsplit(self.path).path)
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if not path.startswith("/applications/"):
                self.object(path, body)
                return
            try:
                self.reply(200, json.dumps(service.answer(self.command, path, body)).encode())
            except RefusedError as error:
                self.reply(error.status, json.dumps({"message": str(error)}).encode(), error.code)

        def object(self, path: str, body: bytes) -> None:
            if self.command == "PUT":
                service.objects[path] = body
                self.reply(200, b"")
                return
            found, missing = service.objects.get(path), b"<Error><Code>NoSuchKey</Code></Error>"
            self.reply(404 if found is None else 200, missing if found is None else found)

        def reply(self, status: int, body: bytes, code: str = "") -> None:
            self.send_response(status)
            if code:
                self.send_header("x-amzn-errortype", code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()

"""AWS's control-plane APIs for the local stack: moto in this process, made durable and guarded.

``python -m topicberg_local.emulators.aws --host 127.0.0.1 --port P --state-dir D`` serves Glue,
IAM, STS, Secrets Manager and SSM Parameter Store; Athena's workgroups and EMR Serverless's
applications are not moto's (:mod:`topicberg_local.emulators.aws.state`). Added here is what
moto lacks:

* every change is on disk before its answer leaves (:mod:`topicberg_local.emulators.aws.state`), so
  that a kill -9 loses nothing that was reported to a client;
* requests are signed by a known key: the stack's own (``AWS_ACCESS_KEY_ID`` and
  ``AWS_SECRET_ACCESS_KEY``), one made through IAM's CreateAccessKey, or one of STS;
* IAM simulates the policies of a user or a role (:mod:`topicberg_local.emulators.aws.simulator`);
* Lake Formation is before Glue, if the data lake settings say so
  (:mod:`topicberg_local.emulators.aws.glue`);
* Glue lists the versions of a schema (:mod:`topicberg_local.emulators.aws.glue`);
* Glue's UpdateTable honours ``VersionId`` and ``SkipArchive``;
* Secrets Manager's GetSecretValue follows ``AWSCURRENT`` when UpdateSecretVersionStage moves it.

No query of Athena and no job of EMR Serverless runs: requests for them are refused.
S3 is not served: objects and buckets are S3Proxy's, in the local stack as for Spark and DuckDB.
``GET /health`` answers without a signature.
"""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from werkzeug.test import run_wsgi_app

from topicberg.security.guard import Guard, guarded
from topicberg_local.emulators import process
from topicberg_local.emulators.aws import athena, emr_serverless, glue, simulator
from topicberg_local.emulators.aws.auth import authenticate, principal_of, speaks_json
from topicberg_local.emulators.aws.glue import LISTS, LakeFormation
from topicberg_local.emulators.aws.shapes import Refusal
from topicberg_local.emulators.aws.state import ATHENA, EMR, SERVICES, State, backends

logger = logging.getLogger(__name__)
READS = ("Get", "List", "Describe", "BatchGet", "Search", "Simulate", "Decode", "Check")
"""Actions of these names change nothing, so nothing has to be written after them."""
Environ = dict[str, Any]


class AwsResponse(NamedTuple):
    """A whole HTTP response; ``status`` as in WSGI, e.g. ``200 OK``."""

    status: str
    headers: list[tuple[str, str]]
    body: bytes


class Application:
    """The WSGI application: checks, serialises, forwards to moto, saves.

    One lock is held for a whole request: the state that is saved after a change is then exactly
    the state that the change was made on, and the check of a Glue version is atomic with the
    update it guards. The calls are short and few; a queue of them costs less than a race.
    """

    def __init__(self, moto: Callable[..., Iterable[bytes]], state: State) -> None:
        self._moto, self._state, self._lock = moto, state, threading.Lock()

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        try:
            response = self._answer(environ, body)
        except Refusal as refusal:
            response = _refused(environ, refusal)
        start_response(response.status, response.headers)
        return [response.body]

    def _answer(self, environ: Environ, body: bytes) -> AwsResponse:
        if environ["PATH_INFO"] == "/health":
            return _json({"status": "ok", "services": list(SERVICES)})
        with self._lock:
            service, region = authenticate(environ, body)
            if service not in SERVICES:
                raise Refusal(
                    HTTPStatus.NOT_IMPLEMENTED,
                    "UnsupportedOperation",
                    f"not supported by the local AWS emulator: {service} (it serves "
                    f"{', '.join(SERVICES)}; objects and buckets are the object store's)",
                )
            action = _action(environ, body, service)
            keep: Callable[[], None] | None = None
            if action == "UpdateTable":
                keep = _guard_update_table(body, region)
            elif action == "UpdateSecretVersionStage":
                keep = _follow_current(body, region)
            lake = LakeFormation(os.environ["MOTO_ACCOUNT_ID"], region)
            if action == "ListPermissions":
                return _json(lake.permissions(json.loads(body), principal_of(environ)))
            is_governed = service == "glue" and lake.is_on
            if is_governed:
                principal = principal_of(environ)
                lake.check(action, body, principal)
                if action == "BatchDeleteTable" and (errors := lake.undroppable(body, principal)):
                    return _json({"Errors": errors})
            response = self._forward(environ, body, service, region, action)
            ok = response.status.startswith("2")
            if is_governed and ok:
                lake.remember_creator(action, body, principal)
                if action in LISTS:
                    shown = lake.visible(action, body, json.loads(response.body), principal)
                    response = _json(shown)
            if keep is not None and ok:
                keep()
            if not action.startswith(READS):
                self._save()
            return response

    def _save(self) -> None:
        """:raises Refusal: the state cannot be written; the change is taken back"""
        try:
            self._state.save()
        except (OSError, TypeError, pickle.PicklingError) as error:
            logger.error("the change was taken back: %s", error)
            self._state.restore()
            text = f"{self._state.path} cannot be written, so nothing was changed: {error}"
            raise Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalFailure", text) from None

    def _forward(
        self, environ: Environ, body: bytes, service: str, region: str, action: str
    ) -> AwsResponse:
        """Return moto's answer, or that of a service of our own; raises Refusal: it refuses."""
        account = os.environ["MOTO_ACCOUNT_ID"]
        match service, action:
            case emr_serverless.SERVICE, _:
                method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
                emr, query = EMR.of(account, region), environ.get("QUERY_STRING", "")
                return _json(emr.answer(method, path, query, body))
            case athena.SERVICE, _:
                return _json(ATHENA.of(account, region).answer(action, body))
            case "iam", simulator.ACTION:
                simulated = simulator.simulate(body, account, principal_of(environ))
                return AwsResponse("200 OK", [("Content-Type", "text/xml")], simulated)
            case "glue", glue.ACTION:
                return _json(glue.SchemaVersions(backends("glue")[account][region]).answer(body))
        environ["wsgi.input"] = io.BytesIO(body)
        chunks, status, headers = run_wsgi_app(self._moto, environ, buffered=True)
        return AwsResponse(status, [*headers], b"".join(chunks))


def _action(environ: Environ, body: bytes, service: str) -> str:
    """The API's action: ``X-Amz-Target: AWSGlue.GetTable`` or ``Action=GetTable`` in a form."""
    if service == emr_serverless.SERVICE:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        operation, _ = emr_serverless.operation_of(method, path)
        return operation.name if operation else ""
    if service == "lakeformation":
        return str(environ["PATH_INFO"])[1:]
    if target := environ.get("HTTP_X_AMZ_TARGET"):
        return str(target).rpartition(".")[2]
    form = body.decode("utf-8", "replace") or environ.get("QUERY_STRING", "")
    return str(parse_qs(form).get("Action", [""])[0])


def _guard_update_table(body: bytes, region: str) -> Callable[[], None] | None:
    """Check Glue's optimistic lock; say what is to be done once the update went through.

    https://docs.aws.amazon.com/glue/latest/webapi/API_UpdateTable.html: ``VersionId`` is the
    version to update, and ``SkipArchive`` keeps no copy of it; moto ignores both.

    :returns: drops the version that was replaced, when it is not to be archived
    :raises Refusal: ConcurrentModificationException, when ``VersionId`` is not the current one
    """
    from moto.core.exceptions import JsonRESTError

    request = json.loads(body)
    try:
        backend = backends("glue")[os.environ["MOTO_ACCOUNT_ID"]][region]
        table = backend.get_table(request["DatabaseName"], request["TableInput"]["Name"])
    except (KeyError, JsonRESTError):
        return None  # moto's own refusal says what is wrong
    current = str(table._current_version)
    if request.get("VersionId", current) != current:
        raise Refusal(
            HTTPStatus.BAD_REQUEST,
            "ConcurrentModificationException",
            f"Update table failed due to concurrent modifications: version "
            f"{request['VersionId']} of {request['DatabaseName']}.{table.name} is not the "
            f"current one ({current}).",
        )
    return partial(table.versions.pop, current, None) if request.get("SkipArchive") else None


def _follow_current(body: bytes, region: str) -> Callable[[], None]:
    """Return what lets GetSecretValue follow AWSCURRENT once it has moved: moto forgets that."""
    name = json.loads(body)["SecretId"]
    manager = backends("secretsmanager")[os.environ["MOTO_ACCOUNT_ID"]][region]

    def follow() -> None:
        secret = manager.secrets[name]
        for version, record in secret.versions.items():
            if "AWSCURRENT" in record["version_stages"]:
                secret.set_default_version_id(version)

    return follow


def _json(content: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> AwsResponse:
    return _response(status, "application/x-amz-json-1.1", json.dumps(content))


def _response(status: HTTPStatus, media_type: str, text: str) -> AwsResponse:
    body = text.encode()
    headers = [("Content-Type", media_type), ("Content-Length", str(len(body)))]
    return AwsResponse(f"{status.value} {status.phrase}", headers, body)


def _refused(environ: Environ, refusal: Refusal) -> AwsResponse:
    """An error in the shape of the protocol that the client speaks: JSON, or XML of Query APIs."""
    if speaks_json(environ):
        response = _json({"__type": refusal.code, "message": refusal.message}, refusal.status)
        response.headers.append(("x-amzn-ErrorType", refusal.code))
        return response
    return _response(
        refusal.status,
        "text/xml",
        "<ErrorResponse><Error><Type>Sender</Type>"
        f"<Code>{refusal.code}</Code><Message>{escape(refusal.message)}</Message>"
        "</Error><RequestId>00000000-0000-0000-0000-000000000000</RequestId></ErrorResponse>",
    )


def serve(host: str, port: int, state_dir: Path) -> None:
    """Serve until SIGTERM; raises StackError: state, keys or port cannot be used."""
    process.require_variables("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    from topicberg.settings import settings

    os.environ["MOTO_ACCOUNT_ID"] = settings().aws_account_id

    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    class QuietHandler(MotoRequestHandler):
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            logger.debug("%s %s", self.requestline, code)

    state = State(state_dir)
    state.load()
    application = Application(DomainDispatcherApplication(create_backend_app), state)
    listener = process.listen("AWS", host, port)
    server = make_server(
        host,
        port,
        guarded(application, Guard()),
        threaded=True,
        request_handler=QuietHandler,
        fd=listener.fileno(),
    )

    def stop(_signal: int, _frame: object) -> None:
        threading.Thread(target=server.shutdown, daemon=True).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    logger.info("AWS emulator on http://%s:%d serves %s", host, port, ", ".join(SERVICES))
    server.serve_forever()
    server.server_close()


if __name__ == "__main__":
    process.main("topicberg_local.emulators.aws", __doc__, serve, {"werkzeug": logging.WARNING})

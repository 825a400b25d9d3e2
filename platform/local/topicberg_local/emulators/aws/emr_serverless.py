"""EMR Serverless's applications, as strict as AWS documents them; it runs no jobs.

Every request is checked against botocore's description of the service. An application
takes a moment from one state to the next, can be changed and deleted only in CREATED and STOPPED,
and cannot be stopped while it has job runs. What is not served is refused as UnsupportedOperation.
https://docs.aws.amazon.com/emr-serverless/latest/APIReference/
https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/application-states.html
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote

from topicberg_local.emulators.aws.shapes import Refusal, routes, serve, service

SERVICE = "emr-serverless"
INVALID = "ValidationException"
RELEASE = re.compile(r"emr-(spark-)?\d+\.\d+\.\d+(-\d{8})?")
CHANGEABLE = ("CREATED", "STOPPED")
ACTIVE = ("SUBMITTED", "PENDING", "SCHEDULED", "RUNNING", "QUEUED", "CANCELLING")
DISK = "20000 GB"
"""Of the maximum capacity of an application that states none of its disks."""
STATE_SECONDS = 0.3
"""How long an application is between two states."""
_NEXT = {"CREATING": "CREATED", "STARTING": "STARTED", "STOPPING": "STOPPED"}
_CONFIGURATION = (
    "releaseLabel",
    "architecture",
    "initialCapacity",
    "maximumCapacity",
    "autoStartConfiguration",
    "autoStopConfiguration",
    "networkConfiguration",
    "imageConfiguration",
    "runtimeConfiguration",
    "monitoringConfiguration",
    "schedulerConfiguration",
    "interactiveConfiguration",
)


@dataclass
class Application:
    """One application; ``jobs`` has the state of each job run."""

    id: str
    arn: str
    name: str
    type: str
    token: str
    configuration: dict[str, Any]
    tags: dict[str, str]
    created: float = field(default_factory=time.time)
    jobs: dict[str, str] = field(default_factory=dict)
    _state: str = "CREATING"
    _until: float = 0.0

    def become(self, state: str) -> None:
        """Enter a state; those on the way to another one end by themselves."""
        self._state, self._until = state, time.time() + STATE_SECONDS

    @property
    def state(self) -> str:
        if self._state in _NEXT and time.time() >= self._until:
            self._state = _NEXT[self._state]
        return self._state

    @property
    def active(self) -> list[str]:
        return [job for job, state in self.jobs.items() if state in ACTIVE]


class EmrServerless:
    """The service in one account and region."""

    def __init__(self, account: str, region: str) -> None:
        self.account, self.region = account, region
        self.applications: dict[str, Application] = {}

    def answer(self, method: str, path: str, query: str, body: bytes) -> dict[str, Any]:
        """:raises Refusal: the request is not valid, or not supported"""
        operation, parameters = operation_of(method, path)
        if operation is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "UnknownOperationException", path)
        given = {**json.loads(body or b"{}"), **parameters, **_query(query, operation)}
        why = "it runs no jobs of EMR Serverless, and the local stack computes with its own Spark"
        return serve(self, operation, given, INVALID, why)

    def _create_application(self, clientToken: str, type: str, **given: Any) -> dict[str, Any]:
        before = {application.token: application for application in self.applications.values()}
        if clientToken in before:
            return self._identity(before[clientToken])
        if type.upper() not in ("SPARK", "HIVE"):
            raise _invalid(f"Unsupported engine {type}")
        self._check(given)
        number = f"00{len(self.applications):06d}{int(time.time() * 1000) % 10**8:08d}"
        made = Application(
            number,
            f"arn:aws:emr-serverless:{self.region}:{self.account}:/applications/{number}",
            given.pop("name", ""),
            type.capitalize(),
            clientToken,
            tags=given.pop("tags", {}),
            configuration={
                "architecture": "X86_64",
                "autoStartConfiguration": {"enabled": True},
                "autoStopConfiguration": {"enabled": True, "idleTimeoutMinutes": 15},
                **given,
            },
        )
        made.become("CREATING")
        self.applications[number] = made
        return self._identity(made)

    def _identity(self, application: Application) -> dict[str, Any]:
        return {"applicationId": application.id, "name": application.name, "arn": application.arn}

    def _check(self, given: dict[str, Any]) -> None:
        release = given.get("releaseLabel")
        if release is not None and not RELEASE.fullmatch(release):
            raise _invalid(f"Release label '{release}' does not exist")
        stop = given.get("autoStopConfiguration", {}).get("idleTimeoutMinutes", 15)
        if not 1 <= stop <= 7 * 24 * 60:
            raise _invalid("idleTimeoutMinutes must be between 1 and 10080")
        if unknown := sorted(given.keys() - {*_CONFIGURATION, "name", "tags"}):
            raise Refusal(
                HTTPStatus.NOT_IMPLEMENTED,
                "UnsupportedOperation",
                f"the local AWS emulator does not support {', '.join(unknown)} of an application",
            )

    def _get_application(self, applicationId: str) -> dict[str, Any]:
        return {"application": self._described(self._application(applicationId))}

    def _described(self, application: Application) -> dict[str, Any]:
        times = {"createdAt": application.created, "updatedAt": application.created}
        capacity = application.configuration.get("maximumCapacity")
        limits = {"maximumCapacity": {"disk": DISK, **capacity}} if capacity else {}
        return {
            **self._identity(application),
            "type": application.type,
            "state": application.state,
            "tags": application.tags,
            **times,
            **application.configuration,
            **limits,
        }

    def _list_applications(
        self, states: list[str] | None = None, nextToken: str = "0", maxResults: int = 50
    ) -> dict[str, Any]:
        every = self.applications.values()
        chosen = [application for application in every if not states or application.state in states]
        begin, end = int(nextToken), int(nextToken) + maxResults
        summaries = [
            {
                "id": application.id,
                "name": application.name,
                "arn": application.arn,
                "releaseLabel": application.configuration["releaseLabel"],
                "type": application.type,
                "state": application.state,
                "createdAt": application.created,
                "updatedAt": application.created,
                "architecture": application.configuration["architecture"],
            }
            for application in chosen[begin:end]
        ]
        more = {"nextToken": str(end)} if len(chosen) > end else {}
        return {"applications": summaries, **more}

    def _update_application(
        self, applicationId: str, clientToken: str, **given: Any
    ) -> dict[str, Any]:
        application = self._changeable(applicationId)
        self._check(given)
        application.configuration |= given
        return {"application": self._described(application)}

    def _start_application(self, applicationId: str) -> None:
        application = self._application(applicationId)
        if application.state in CHANGEABLE:
            application.become("STARTING")
        elif (state := application.state) not in ("STARTING", "STARTED"):
            raise _invalid(f"Application {application.id} cannot be started in state {state}")

    def _stop_application(self, applicationId: str) -> None:
        application = self._application(applicationId)
        if active := len(application.active):
            raise _invalid(f"Application {application.id} has {active} active job runs")
        if application.state == "STARTED":
            application.become("STOPPING")
        elif (state := application.state) not in (*CHANGEABLE, "STOPPING"):
            raise _invalid(f"Application {application.id} cannot be stopped in state {state}")

    def _delete_application(self, applicationId: str) -> None:
        self._changeable(applicationId).become("TERMINATED")

    def _application(self, identity: str) -> Application:
        if identity not in self.applications:
            raise _missing(f"Application {identity} does not exist")
        return self.applications[identity]

    def _changeable(self, identity: str) -> Application:
        application = self._application(identity)
        if application.state not in CHANGEABLE:
            raise _invalid(
                f"Application {identity} must be in one of the following statuses [CREATED, "
                f"STOPPED]. Current status: {application.state}"
            )
        return application

    def _list_job_runs(
        self, applicationId: str, states: list[str] | None = None, **_: Any
    ) -> dict[str, Any]:
        application = self._application(applicationId)
        return {
            "jobRuns": [
                {
                    "applicationId": application.id,
                    "id": job,
                    "arn": f"{application.arn}/jobruns/{job}",
                    "createdBy": f"arn:aws:iam::{self.account}:user/someone",
                    "createdAt": application.created,
                    "updatedAt": application.created,
                    "executionRole": f"arn:aws:iam::{self.account}:role/job",
                    "state": state,
                    "stateDetails": "-",
                    "releaseLabel": application.configuration["releaseLabel"],
                }
                for job, state in application.jobs.items()
                if not states or state in states
            ]
        }

    def _cancel_job_run(self, applicationId: str, jobRunId: str, **_: Any) -> dict[str, Any]:
        application = self._application(applicationId)
        if jobRunId not in application.jobs:
            raise _missing(f"no job run {jobRunId}")
        if jobRunId in application.active:
            application.jobs[jobRunId] = "CANCELLED"
        return {"applicationId": applicationId, "jobRunId": jobRunId}

    def _tag_resource(self, resourceArn: str, tags: dict[str, str]) -> None:
        self._tagged(resourceArn).tags.update(tags)

    def _untag_resource(self, resourceArn: str, tagKeys: list[str]) -> None:
        for key in tagKeys:
            self._tagged(resourceArn).tags.pop(key, None)

    def _list_tags_for_resource(self, resourceArn: str) -> dict[str, Any]:
        return {"tags": self._tagged(resourceArn).tags}

    def _tagged(self, arn: str) -> Application:
        return self._application(arn.rpartition("/")[2])


@cache
def _routes() -> list[tuple[Any, str, str]]:
    return routes(service(SERVICE))


def operation_of(method: str, path: str) -> tuple[Any, dict[str, str]]:
    """Return the operation of a request, with the parameters in its path; None: there is none."""
    for operation, verb, pattern in _routes():
        if verb == method and (match := re.fullmatch(pattern, path)):
            return operation, {name: unquote(text) for name, text in match.groupdict().items()}
    return None, {}


def _query(query: str, operation: Any) -> dict[str, Any]:
    """Return the parameters in a query, of the types that the service describes."""

    def typed(name: str, values: list[str]) -> Any:
        kind = getattr(operation.input_shape.members.get(name), "type_name", "string")
        if kind == "list":
            return values
        return int(values[0]) if kind == "integer" else values[0]

    return {name: typed(name, values) for name, values in parse_qs(query).items()}


def _missing(message: str) -> Refusal:
    return Refusal(HTTPStatus.NOT_FOUND, "ResourceNotFoundException", message)


def _invalid(message: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, INVALID, message)

"""Athena's workgroups, as AWS documents them. It runs no queries: requests for them are refused,
those that Athena could not parse with its own error.

moto would answer a query with rows that it was given before, or with none.
https://docs.aws.amazon.com/athena/latest/APIReference/
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import sqlglot
from sqlglot.errors import SqlglotError

from topicberg_local.emulators.aws.shapes import Refusal, serve, service

SERVICE = "athena"
PRIMARY = "primary"
"""Each account has this one, and cannot delete it."""
INVALID = "InvalidRequestException"
_ENGINE = {"SelectedEngineVersion": "AUTO", "EffectiveEngineVersion": "Athena engine version 3"}
_COMMANDS = (
    "SHOW",
    "EXPLAIN",
    "MSCK",
    "PREPARE",
    "EXECUTE",
    "DEALLOCATE",
    "UNLOAD",
    "VACUUM",
    "OPTIMIZE",
)
"""Beginnings of statements that Athena has and sqlglot does not parse."""


@dataclass
class WorkGroup:
    name: str
    description: str
    configuration: dict[str, Any]
    tags: dict[str, str]
    created: float = field(default_factory=time.time)
    state: str = "ENABLED"


class Athena:
    """The service in one account and region."""

    def __init__(self, account: str, region: str) -> None:
        self.account, self.region = account, region
        self.workgroups = {PRIMARY: WorkGroup(PRIMARY, "", {"EngineVersion": _ENGINE}, {})}

    def answer(self, action: str, body: bytes) -> dict[str, Any]:
        """:raises Refusal: the request is not valid, or not supported"""
        model, given = service(SERVICE), json.loads(body or b"{}")
        if action not in model.operation_names:
            raise _invalid(f"there is no operation {action}")
        if action == "StartQueryExecution":
            _check_sql(given.get("QueryString", ""))
        operation = model.operation_model(action)
        return serve(self, operation, given, INVALID, "it runs no queries of Athena")

    def _create_work_group(
        self,
        Name: str,
        Configuration: dict[str, Any] | None = None,
        Description: str = "",
        Tags: list[dict[str, str]] | None = None,
    ) -> None:
        if Name in self.workgroups:
            raise _invalid("WorkGroup is already created")
        configuration = {
            "EnforceWorkGroupConfiguration": True,
            "PublishCloudWatchMetricsEnabled": True,
            "RequesterPaysEnabled": False,
            "EngineVersion": _ENGINE,
            **(Configuration or {}),
        }
        self.workgroups[Name] = WorkGroup(Name, Description, configuration, _tags(Tags or []))

    def _get_work_group(self, WorkGroup: str) -> dict[str, Any]:
        workgroup = self._workgroup(WorkGroup)
        times = {"CreationTime": workgroup.created}
        configuration = {"Configuration": workgroup.configuration}
        return {"WorkGroup": {**_summary(workgroup), **configuration, **times}}

    def _list_work_groups(self, **_: Any) -> dict[str, Any]:
        return {"WorkGroups": [_summary(workgroup) for workgroup in self.workgroups.values()]}

    def _update_work_group(
        self,
        WorkGroup: str,
        Description: str | None = None,
        ConfigurationUpdates: dict[str, Any] | None = None,
        State: str | None = None,
    ) -> None:
        workgroup = self._workgroup(WorkGroup)
        updates = dict(ConfigurationUpdates or {})
        results = updates.pop("ResultConfigurationUpdates", {})
        if updates.pop("RemoveBytesScannedCutoffPerQuery", False):
            workgroup.configuration.pop("BytesScannedCutoffPerQuery", None)
        workgroup.configuration |= updates
        changed = {k: v for k, v in results.items() if not k.startswith("Remove")}
        workgroup.configuration.setdefault("ResultConfiguration", {}).update(changed)
        workgroup.description = workgroup.description if Description is None else Description
        workgroup.state = State or workgroup.state

    def _delete_work_group(self, WorkGroup: str, RecursiveDeleteOption: bool = False) -> None:
        if self._workgroup(WorkGroup).name == PRIMARY:
            raise _invalid("The primary workgroup cannot be deleted")
        del self.workgroups[WorkGroup]

    def _tag_resource(self, ResourceARN: str, Tags: list[dict[str, str]]) -> None:
        self._workgroup(ResourceARN.rpartition("/")[2]).tags.update(_tags(Tags))

    def _list_tags_for_resource(self, ResourceARN: str, **_: Any) -> dict[str, Any]:
        tags = self._workgroup(ResourceARN.rpartition("/")[2]).tags
        return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}

    def _workgroup(self, name: str) -> WorkGroup:
        if name not in self.workgroups:
            raise _invalid(f"WorkGroup {name} is not found.")
        return self.workgroups[name]


def _tags(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag.get("Value", "") for tag in tags}


def _summary(workgroup: WorkGroup) -> dict[str, Any]:
    fields = {"Name": workgroup.name, "State": workgroup.state}
    return {**fields, "Description": workgroup.description}


def _check_sql(sql: str) -> None:
    """:raises Refusal: it is not one statement of Athena's SQL: Trino's, or Hive's for DDL"""
    try:
        parsed = sqlglot.parse(sql, read=SERVICE)
    except SqlglotError as error:
        raise _invalid(f"line 1:1: {str(error).splitlines()[0]}") from None
    if len(parsed) != 1 or parsed[0] is None:
        raise _invalid("Only one sql statement is allowed.")
    statement, word = parsed[0], sql.split()[0].upper()
    is_unknown = isinstance(statement, sqlglot.exp.Command) and word not in _COMMANDS
    if is_unknown or isinstance(statement, sqlglot.exp.Alias | sqlglot.exp.Condition):
        raise _invalid(f"line 1:1: mismatched input '{word}'")


def _invalid(message: str) -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, INVALID, message)

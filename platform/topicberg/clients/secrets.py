"""Secrets with a history, in AWS Secrets Manager.

A version holds one key. Besides AWS's own stages, each version has a label, ``key-<id>-<creation
time in ms>``, for as long as its key is valid: AWS drops versions that have none, and the labels
show which keys exist without reading a value. ``AWSCURRENT`` moves in one call, so a reader sees
either the previous or the new key, both of which work.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import SecretStr

from topicberg.errors.retry import retry
from topicberg.security.redaction import remember, remember_values

CURRENT = "AWSCURRENT"
_LABEL = "key-"
MOVES = 3  # Attempts to move a stage.


@dataclass(frozen=True)
class ApiKey:
    """An API key, or any other pair of a name and a secret."""

    id: str
    secret: SecretStr

    def __post_init__(self) -> None:
        remember([self.secret.get_secret_value()])


@dataclass(frozen=True)
class Version:
    """One version of a secret, without its value; ``label``: the id of the key in it; ``stage``:
    the whole label in Secrets Manager."""

    id: str
    label: str
    stage: str
    created: datetime
    current: bool


@dataclass
class Secrets:
    """Secrets of AWS Secrets Manager, by a client of boto3; ``tags`` and ``kms_key`` (an ARN; None:
    the service's) are for those that are created."""

    client: Any
    tags: Mapping[str, str] = field(default_factory=dict)
    kms_key: str | None = None
    _added: dict[str, dict[str, str]] = field(default_factory=dict, repr=False)
    """Secret → version that this process stored → its label. Threads share the secrets, not one."""

    def exists(self, name: str) -> bool:
        """Return whether the secret exists; one that waits for its deletion does not."""
        return (described := self._describe(name)) is not None and "DeletedDate" not in described

    def versions(self, name: str) -> list[Version]:
        """Return the versions with a label, oldest first: from the secret itself, since lists may
        lag, and those that this process stored."""
        if (described := self._describe(name)) is None or "DeletedDate" in described:
            return []
        stored: dict[str, list[str]] = described.get("VersionIdsToStages") or {}
        added = {version: [stage] for version, stage in self._added.get(name, {}).items()}
        labelled = [
            Version(version, *_parts(stage), CURRENT in stages)
            for version, stages in {**added, **stored}.items()
            for stage in stages
            if stage.startswith(_LABEL)
        ]
        return sorted(labelled, key=lambda version: version.created)

    def read(self, name: str, version: str | None = None) -> dict[str, str] | None:
        """Return the values of a version, default: the current one; None if there is none."""
        which = {"VersionId": version} if version else {"VersionStage": CURRENT}
        try:
            answer = self.client.get_secret_value(SecretId=name, **which)
        except (
            self.client.exceptions.ResourceNotFoundException,
            self.client.exceptions.InvalidRequestException,  # it waits for its deletion
        ):
            return None
        try:
            value = json.loads(answer.get("SecretString") or "null")  # a binary secret has none
        except ValueError:
            return None
        if not isinstance(value, dict):
            return None
        remember_values(value)
        return value

    def add(self, name: str, values: Mapping[str, str], label: str) -> str:
        """Add a version, which is not current unless it is the first; return its id."""
        remember_values(values)
        stage = f"{_LABEL}{label}-{int(time.time() * 1000)}"
        if (described := self._describe(name)) is None:
            with suppress(self.client.exceptions.ResourceExistsException):  # a lost response
                tags = [{"Key": key, "Value": value} for key, value in self.tags.items()]
                key = {"KmsKeyId": self.kms_key} if self.kms_key else {}
                self.client.create_secret(
                    Name=name, Description="created by topicberg", Tags=tags, **key
                )
        elif "DeletedDate" in described:
            self.client.restore_secret(SecretId=name)
        answer = self.client.put_secret_value(
            SecretId=name, SecretString=json.dumps(dict(values)), VersionStages=[stage]
        )
        version = str(answer["VersionId"])
        self._added.setdefault(name, {})[version] = stage
        return version

    def publish(self, name: str, version: str) -> None:
        """Make a version the current one."""
        self._move(name, CURRENT, version)

    def forget(self, name: str, label: str) -> None:
        """Remove a dead key's label; AWS then drops its version."""
        for version in self.versions(name):
            if version.label == label:
                self._added.get(name, {}).pop(version.id, None)
                self._move(name, version.stage, None)

    def _move(self, name: str, stage: str, to: str | None) -> None:
        """Move a stage to a version, or remove it. It is refused if the response to a first attempt
        was lost, or another process moved the stage: the stages are read again."""

        def move() -> None:
            stages = (self._describe(name) or {}).get("VersionIdsToStages") or {}
            held_by = next((number for number, labels in stages.items() if stage in labels), None)
            if held_by != to:
                ends = {"MoveToVersionId": to, "RemoveFromVersionId": held_by}
                given = {end: version for end, version in ends.items() if version}
                self.client.update_secret_version_stage(SecretId=name, VersionStage=stage, **given)

        retry(move, MOVES, on=self.client.exceptions.InvalidParameterException)

    def delete(self, name: str, *, purge: bool) -> None:
        """:param purge: delete immediately and for ever, instead of after AWS's 30 days"""
        self._added.pop(name, None)
        if self._describe(name) is None:
            return
        how = {"ForceDeleteWithoutRecovery": True} if purge else {"RecoveryWindowInDays": 30}
        self.client.delete_secret(SecretId=name, **how)

    def _describe(self, name: str) -> dict[str, Any] | None:
        try:
            return dict(self.client.describe_secret(SecretId=name))
        except self.client.exceptions.ResourceNotFoundException:
            return None


def _parts(stage: str) -> tuple[str, str, datetime]:
    """Return the label in a stage of Secrets Manager, the stage, and when the key was created."""
    label, _, created_ms = stage.removeprefix(_LABEL).rpartition("-")
    return label, stage, datetime.fromtimestamp(int(created_ms) / 1000, UTC)


def active_slot(values: Mapping[str, str]) -> int:
    """Return which key pair of a Snowflake user is active: 1, unless its secret names 2."""
    return 2 if str(values.get("active_key_number")) == "2" else 1

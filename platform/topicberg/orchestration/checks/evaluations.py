"""The evaluations of checks that Dagster has stored, and the findings that they hold as data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from topicberg.checks.finding import Finding
from topicberg.dagster.compatibility import warn_degraded

FINDING = "finding"  # Metadata of a failed check: :meth:`topicberg.checks.finding.Finding.to_json`.
REMEDIATION, SINCE, CAUSE = "remediation", "since", "caused by"
"""The same for people, and what a check of a user may set: alerts read them if it has no
:data:`FINDING`."""
_OWN = (FINDING, REMEDIATION, SINCE, CAUSE)
_ENDED = ("SUCCEEDED", "FAILED")
"""States in Dagster's storage of a check that has a result; it does not export their class."""
_PLAIN = (
    dg.TextMetadataValue,
    dg.IntMetadataValue,
    dg.FloatMetadataValue,
    dg.BoolMetadataValue,
    dg.JsonMetadataValue,
)


@dataclass(frozen=True)
class Evaluation:
    """The last evaluation of a check that ended."""

    event: dg.AssetCheckEvaluation
    at: datetime

    @property
    def finding(self) -> Finding:
        return finding_of(self.event)


def last_evaluations(
    instance: dg.DagsterInstance,
    keys: Collection[dg.AssetCheckKey],
    before: Mapping[dg.AssetCheckKey, Evaluation] | None = None,
) -> dict[dg.AssetCheckKey, Evaluation]:
    """Return check → its last evaluation that ended; one query for all that are not in progress.

    :param before: the last evaluations, of those in progress where Dagster has no history of checks
    """
    storage, before = instance.event_log_storage, before or {}
    evaluations = dict[dg.AssetCheckKey, Evaluation]()
    for key, newest in storage.get_latest_asset_check_execution_by_key(list(keys)).items():
        if key not in keys:  # the query returns every check of these names on these assets
            continue
        records = [newest]
        if newest.status.value not in _ENDED:
            ended = {status for status in type(newest.status) if status.value in _ENDED}
            try:
                records = [*storage.get_asset_check_execution_history(key, limit=1, status=ended)]
            except NotImplementedError as error:
                warn_degraded("a check has no last result while it is evaluated", error)
                evaluations |= {key: before[key]} if key in before else {}
                continue
        for record in records:
            if record.event is not None and record.event.dagster_event is not None:
                evaluations[key] = Evaluation(
                    record.event.dagster_event.asset_check_evaluation_data,
                    datetime.fromtimestamp(record.event.timestamp, UTC),
                )
    return evaluations


def finding_of(event: dg.AssetCheckEvaluation | dg.AssetCheckResult) -> Finding:
    """Return the finding that an evaluation holds. Of a user's check, it is made of the description
    and the metadata that docs/checks.md names."""
    metadata = event.metadata or {}
    message, since, remediation, cause = event.description or "the check failed", None, None, None
    if isinstance(stored := metadata.get(FINDING), dg.JsonMetadataValue):
        data: Any = stored.value
        message, remediation, cause = data["what"], data["remediation"], data["cause"]
        since = datetime.fromisoformat(data["since"]) if data["since"] else None
    else:
        remediation = str(metadata[REMEDIATION].value) if REMEDIATION in metadata else None
        cause = str(metadata[CAUSE].value) if CAUSE in metadata else None
        since = _time(metadata[SINCE].value) if SINCE in metadata else None
    return Finding(
        passed=event.passed,
        what=message,
        remediation=remediation,
        since=since,
        severity="warning" if event.severity == dg.AssetCheckSeverity.WARN else "error",
        cause=cause,
        facts={
            name: value.value if isinstance(value, _PLAIN) else value
            for name, value in metadata.items()
            if name not in _OWN
        },
    )


def _time(value: object) -> datetime | None:
    """Return the time of a timestamp in metadata (seconds since 1970); None: it is not one."""
    try:
        return datetime.fromtimestamp(float(str(value)), UTC)
    except (ValueError, OverflowError, OSError):
        return None

"""Findings come out of Dagster's events as they went in, and out of events that others wrote."""

from __future__ import annotations

from datetime import UTC, datetime

import dagster as dg
from hypothesis import given
from hypothesis import strategies as st
from security.corpus import TEXTS

from topicberg.checks.finding import Finding
from topicberg.orchestration.checks.adapter import result
from topicberg.orchestration.checks.evaluations import finding_of
from topicberg.security.text import one_line

KEY = dg.AssetKey(["iceberg", "orders"])
NOW = datetime(2026, 3, 4, 12, 30, tzinfo=UTC)
TEXT = st.sampled_from(TEXTS) | st.text(min_size=1, max_size=60)


def stored(made: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """As Dagster's event log has it."""
    event = dg.AssetCheckEvaluation(
        asset_key=KEY,
        check_name="volume",
        passed=made.passed,
        metadata=made.metadata,
        severity=made.severity,
        description=made.description,
    )
    return dg.deserialize_value(dg.serialize_value(event), dg.AssetCheckEvaluation)


@given(TEXT, TEXT | st.none(), st.datetimes(datetime(1980, 1, 1), timezones=st.just(UTC)))
def test_finding_through_an_event_stays_as_it_is(
    what: str, remediation: str | None, since: datetime
) -> None:
    finding = Finding(
        passed=False,
        what=what,
        remediation=remediation,
        since=since,
        severity="warning",
        cause="iceberg/orders:tableflow",
        facts={"rows": 3, "text": "a", "memory": {"a": [1]}},
    )
    found = finding_of(stored(result(KEY, "volume", finding, None)))
    assert found.what == one_line(what)
    assert found.remediation == (one_line(remediation) if remediation else None)
    assert (found.since, found.cause) == (since, finding.cause)
    assert (found.passed, found.severity, found.facts) == (False, "warning", finding.facts)


def test_finding_of_a_users_check_has_its_metadata() -> None:
    event = dg.AssetCheckEvaluation(
        asset_key=KEY,
        check_name="accounts",
        passed=False,
        description="3 trades have no account",
        metadata={
            "remediation": dg.MetadataValue.md("ask the desk"),
            "since": dg.MetadataValue.timestamp(NOW),
            "caused by": "iceberg/orders:tableflow",
        },
    )
    assert finding_of(event) == Finding(
        passed=False,
        what="3 trades have no account",
        remediation="ask the desk",
        since=NOW,
        cause="iceberg/orders:tableflow",
    )


def test_finding_of_a_check_without_metadata_has_no_time() -> None:
    event = dg.AssetCheckEvaluation(KEY, "accounts", False, {"since": "yesterday"})
    assert finding_of(event) == Finding(passed=False, what="the check failed")

"""What one service that is away, or a full disk, causes: one alert, and none for each table.

Most services are watched elsewhere (:mod:`.watch`), whose alerts this sensor knows. Of one that is
not, as in a cloud, or that only some cannot reach, the alert is made of the faults that name it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta

from topicberg.alerts.alert import Alert, AlertState, Outage
from topicberg.alerts.observation import CHECKED_WITHIN, Observation
from topicberg.checks.topic import FRESHNESS_CHECK, LAG_CHECK
from topicberg.errors.connections import SERVICES
from topicberg.wording import count

SERVICE, DISK = "service ", "service disk"
ENGINE = "service tableflow"
LEFTOVER = CHECKED_WITHIN
"""For how long after an outage its consequences may last until they are sent: failed runs are
started again, and the checks run, within this time."""
MARGIN = timedelta(minutes=1)  # How much later than an outage a fault of it may begin.
_KEYS = {
    **{name: service.key for name, service in SERVICES.items()},
    **{service.key: service.key for service in SERVICES.values()},
    "the catalog": "iceberg_rest",
}  # What messages call a service → its name in keys, which `topicberg status` and its log have.
_DAGSTER = ("dagster_code", "dagster_daemon", "dagster_webserver")
_WAITED_FOR = [SERVICE + key for key in (*(each.key for each in SERVICES.values()), *_DAGSTER)]
_NAMED = re.compile(
    r"(?:Tableflow keeps failing and retries: )?(?:(?:\w+ )?[^\s:]{1,300}: ){0,2}"
    r"((?P<plain>a disk is full|the supervisor of the local stack does not answer|"
    r"/[^\n]{0,300}/(?:credentials|ports|runtime)\.json is damaged)\b.*|"
    r"(?P<login>the login to )?"
    rf"(?P<service>{'|'.join(_KEYS)})(?: at \S+| \(s3\))?(?: \((?:[^()]|\([^()]*\))*\))? "
    r"(?P<verb>does not answer|does not list its topics|cannot be reached|"
    r"refuses the (?:login|credentials)|ends as soon as it starts|fails|failed)\b.*)",
    re.DOTALL,
)
"""How errors name a service as what fails, after the topic or table. What they quote may be of
anyone, so only the beginning of a text is read."""


def with_outages(
    state: AlertState, faults: Iterable[Alert], seen: Observation
) -> tuple[AlertState, list[Alert]]:
    """Return the state with the outages, and the faults with what caused them."""
    outages = {
        key: outage
        for key, outage in state.outages.items()
        if key not in seen.elsewhere and seen.at - outage.seen_at < LEFTOVER
    } | {key: Outage(alert=alert, seen_at=seen.at) for key, alert in seen.elsewhere.items()}
    explained: list[Alert] = []
    named: dict[str, list[Alert]] = {}
    for alert in faults:
        key = _named_in(alert)
        if cause := _cause(alert, key, outages, seen):
            explained.append(alert.model_copy(update={"cause": cause}))
        elif key is not None:
            named.setdefault(key, []).append(alert)
        else:
            explained.append(alert)
    for key, group in named.items():
        if outage := _outage(key, group, seen):
            explained.append(outage)
            group = [alert.model_copy(update={"cause": key}) for alert in group]
        explained += group
    return state.model_copy(update={"outages": outages}), explained


def _named_in(alert: Alert) -> str | None:
    """Return the key of the service that a fault without another cause names."""
    if alert.cause is not None:
        return alert.cause if alert.cause.startswith(SERVICE) else None
    match = _NAMED.match(alert.what)
    return _key(match) if match else None


def _key(match: re.Match[str]) -> str:
    is_disk = match["plain"] == "a disk is full"
    return DISK if is_disk else SERVICE + _KEYS.get(match["service"], "supervisor")


def _cause(
    alert: Alert, named: str | None, outages: Mapping[str, Outage], seen: Observation
) -> str | None:
    """Return the outage that a fault follows from, of those that are reported elsewhere."""
    keys = [named] if named else []
    if alert.cause is None:
        disk = outages.get(DISK)
        keys += [DISK] if disk and disk.alert.since - MARGIN <= alert.since else []
        is_late = alert.key.endswith((f":{LAG_CHECK}", f":{FRESHNESS_CHECK}"))
        keys += [ENGINE] if is_late and ENGINE in seen.elsewhere else []
        keys += _WAITED_FOR if alert.waits else []
    causes = (k for k in keys if k in outages and alert.since <= outages[k].seen_at + MARGIN)
    return next(causes, None)


def _outage(key: str, group: list[Alert], seen: Observation) -> Alert | None:
    """Return the alert of a service that faults name; None: they are no reason for one. It may fail
    for one table only. A run that failed long ago does not say that its cause lasts, and the text
    of a fault that has a cause may name another service."""
    named = [
        (alert, match)
        for alert in group
        if (alert.key.startswith("check ") or seen.at - alert.since < LEFTOVER)
        and (match := _NAMED.match(alert.what))
        and _key(match) == key
    ]
    certain = [n for n in named if n[1]["verb"] not in ("fails", "failed") or n[1]["login"]]
    if not certain and len(named) < 2:
        return None
    first, match = min(certain or named, key=lambda each: each[0].since)
    more = f" ({count(len(group), 'fault')} of this cause)" if len(group) > 1 else ""
    return Alert(
        key=key,
        title=match["plain"] or f"{match['login'] or ''}{match['service']} {match['verb']}",
        what=match[1] + more,
        severity=first.severity,
        since=first.since,
        link=first.link,
        remediation=first.remediation,
        assets=tuple(sorted({asset for alert in group for asset in alert.assets})),
    )

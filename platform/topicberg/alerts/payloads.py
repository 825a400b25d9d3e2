"""A notice as Slack, Microsoft Teams, PagerDuty and e-mail take it.

Text of a notice may quote a record, so nothing in it is interpreted: no link, no mention.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

from topicberg.alerts.alert import Alert, Notice
from topicberg.alerts.settings import AlertSettings
from topicberg.security.text import slack, terminal

_SLACK_LINE = 650
"""Characters of a line: Slack refuses a section of more than 3,000. The longest notice has four
long lines: the subject, what is wrong, the fix, and the runbook."""
_TEAMS_LINE = 400
"""Characters of a line: Teams refuses a message of more than 28 kB, and a character of any script
may take twelve bytes of JSON."""
_PAGERDUTY_SUMMARY, _PAGERDUTY_KEY, _PAGERDUTY_DETAIL = 1024, 255, 4000
"""Characters: the limits of PagerDuty's for the first two; an event may have 512 kB."""
_URL = re.compile(r"https?://[^\s<>|]+")


def slack_message(notice: Notice) -> dict[str, Any]:
    """Return a message in which only the last line, the link to the UI, is active.

    Source: Slack, "Composition objects", ``verbatim``: no word becomes a link or a mention.
    """
    text = slack(f"{notice.subject}\n{notice.text}")
    subject, *lines = (_shortened(line, _SLACK_LINE) for line in text.splitlines())
    if _URL.fullmatch(notice.alert.link):
        lines[-1] = f"<{lines[-1]}>"
    text = "\n".join([f"*{subject}*", *lines])
    section = {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}
    return {"text": text, "blocks": [section], "unfurl_links": False, "unfurl_media": False}


def teams_message(notice: Notice) -> dict[str, Any]:
    """Return a message with an Adaptive Card.

    Its texts are runs, in which, unlike in a ``TextBlock``, nothing is Markdown. Source: Microsoft,
    "Create incoming webhooks with Workflows", and "Adaptive Cards schema", ``RichTextBlock``.
    """
    subject, *lines = terminal(f"{notice.subject}\n{notice.text}").splitlines()[:-1]
    bold = {"type": "TextRun", "text": _shortened(subject, _TEAMS_LINE), "weight": "Bolder"}
    runs = [{"type": "TextRun", "text": _shortened(line, _TEAMS_LINE)} for line in lines if line]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [{"type": "RichTextBlock", "inlines": [run]} for run in (bold, *runs)],
        "actions": [
            {"type": "Action.OpenUrl", "title": title, "url": url}
            for title, url in _pages(notice.alert)
        ],
    }
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def pagerduty_event(notice: Notice, routing_key: str, source: str) -> dict[str, Any]:
    """Return an event of PagerDuty's Events API v2.

    Source: PagerDuty, "Send an Alert Event".

    :param source: the deployment; two of them may have one integration key
    """
    alert = notice.alert
    actions = {"firing": "trigger", "acknowledged": "acknowledge", "resolved": "resolve"}
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": actions[notice.state],
        "dedup_key": _deduplication_key(f"{source}: {alert.key}"),
    }
    if notice.state != "firing":
        return event
    details = {
        "what": alert.what,
        "fix": alert.remediation,
        "owners": ", ".join(alert.owners),
        "cause": alert.cause,
    }
    return event | {
        "client": "topicberg",
        "client_url": alert.link,
        "payload": {
            "summary": _shortened(f"{alert.title}: {alert.what}", _PAGERDUTY_SUMMARY),
            "source": source,
            "severity": alert.severity,
            "timestamp": alert.since.isoformat(),
            "component": _shortened(", ".join(alert.assets), _PAGERDUTY_DETAIL) or source,
            "class": alert.key.partition(" ")[0],
            "custom_details": {
                name: _shortened(text, _PAGERDUTY_DETAIL) for name, text in details.items() if text
            },
        },
        "links": [{"href": url, "text": text} for text, url in _pages(alert)],
    }


def _pages(alert: Alert) -> Iterator[tuple[str, str]]:
    """Yield title and address of the pages that belong to an alert."""
    for title, url in (("Open in Dagster", alert.link), ("Runbook", alert.runbook)):
        if url and _URL.fullmatch(url):
            yield title, url


def mail(chosen: AlertSettings, to: str, notice: Notice) -> EmailMessage:
    """Return a notice as an e-mail, which is plain text."""
    message = EmailMessage()
    message["Subject"] = notice.subject
    message["From"], message["To"] = chosen.smtp.sender, to
    message.set_content(notice.text)
    return message


def _deduplication_key(key: str) -> str:
    if len(key) <= _PAGERDUTY_KEY:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"{key[: _PAGERDUTY_KEY - len(digest) - 1]}-{digest}"


def _shortened(line: str, most: int) -> str:
    """Return a line of at most so many characters; no part of an entity of Slack's is left."""
    mark = " […]"
    return line if len(line) <= most else re.sub("&[a-z]*$", "", line[: most - len(mark)]) + mark

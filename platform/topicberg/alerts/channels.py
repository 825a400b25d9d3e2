"""The ways to tell people: a file, a webhook, Slack, e-mail.

Addresses are secrets: whoever has one can post to it. No error and no log shows them.
"""

from __future__ import annotations

import re
import smtplib
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path

import requests
from pydantic import SecretStr

from topicberg.alerts.alert import Alert, Notice, Told, after, changes
from topicberg.alerts.settings import AlertSettings
from topicberg.checks.finding import Severity
from topicberg.errors import TopicbergError
from topicberg.security.text import slack
from topicberg.settings import Settings

TIMEOUT_SECONDS = 10
ALERTS_FILE = "alerts.jsonl"
KEPT = timedelta(days=1)
"""How long a notice waits for a channel that does not answer."""
MAX_WAITING = 200
MAX_FILE_BYTES = 5_000_000
"""A file of this size becomes ``alerts.jsonl.1``."""


@dataclass(frozen=True)
class Channel:
    """``send`` raises a :class:`TopicbergError` if the notice did not arrive."""

    name: str
    send: Callable[[Notice], None]
    least: Severity = "warning"
    """The least severity that is sent."""


def alerts_file(config: Settings) -> Path:
    return config.state_dir / ALERTS_FILE


def tell(told: Told, now: Mapping[str, Alert], ways: Iterable[Channel]) -> tuple[Told, list[str]]:
    """Send what is to be told by every channel; what one does not take is sent again next time.

    :returns: what to remember, and why channels did not take something
    """
    at = datetime.now(UTC)
    fresh = changes(now, told.alerts, at)
    problems: dict[str, str] = {}
    undelivered: list[tuple[str, Notice]] = []
    for way in ways:
        waiting = [notice for name, notice in told.undelivered if name == way.name]
        for notice in [*waiting, *fresh]:
            if way.least == "error" and notice.alert.severity == "warning":
                continue
            try:
                if way.name not in problems:
                    way.send(notice)
                    continue
            except TopicbergError as error:
                problems[way.name] = str(error)
            except Exception as error:  # whatever it is, it must not silence the other channels
                problems[way.name] = str(_undelivered(way.name, type(error).__name__))
            if at - notice.at < KEPT:
                undelivered.append((way.name, notice))
    remembered = {"alerts": after(told.alerts, fresh), "undelivered": undelivered[-MAX_WAITING:]}
    return told.model_copy(update=remembered), list(problems.values())


def channels(config: Settings, chosen: AlertSettings) -> Iterator[Channel]:
    """Those that are set up."""
    yield Channel("file", lambda notice: _to_file(alerts_file(config), notice))
    if chosen.webhook_url:
        url = chosen.webhook_url
        yield Channel(
            "webhook",
            lambda notice: _post("webhook", url, notice.model_dump(mode="json")),
            chosen.least,
        )
    if chosen.slack_url:
        hook = chosen.slack_url
        yield Channel(
            "slack",
            lambda notice: _post("slack", hook, _for_slack(notice)),
            chosen.least,
        )
    if chosen.email_to:
        yield Channel("email", lambda notice: _mail(chosen, notice), chosen.least)


def _to_file(path: Path, notice: Notice) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MAX_FILE_BYTES:
            path.replace(path.with_suffix(".jsonl.1"))
        with path.open("a") as stream:
            stream.write(notice.model_dump_json() + "\n")
    except OSError as error:
        raise TopicbergError(
            f"{path} does not take alerts: {error.strerror}",
            hint="free some space or mend its permissions; TOPICBERG_STATE_DIR chooses another one",
        ) from None


def _post(name: str, url: SecretStr, body: object) -> None:
    try:
        answer = requests.post(url.get_secret_value(), json=body, timeout=TIMEOUT_SECONDS)
    except requests.RequestException as error:  # its text has the address
        raise _undelivered(name, type(error).__name__) from None
    if not answer.ok:
        raise _undelivered(name, f"HTTP status {answer.status_code}")


def _for_slack(notice: Notice) -> dict[str, object]:
    """Return a message in which only the link to the UI, which is its last line, acts.

    Source: Slack, "Composition objects", ``verbatim``: no word becomes a link or a mention.
    """
    subject, lines = slack(notice.subject), slack(notice.text).splitlines()
    if re.fullmatch(r"https?://[^\s<>|]+", notice.alert.link):
        lines[-1] = f"<{lines[-1]}>"
    text = "\n".join([f"*{subject}*", *lines])
    section = {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}
    return {"text": text, "blocks": [section], "unfurl_links": False, "unfurl_media": False}


def message_of(chosen: AlertSettings, notice: Notice) -> EmailMessage:
    """Return a notice as an e-mail, which is plain text."""
    message = EmailMessage()
    message["Subject"] = notice.subject
    message["From"], message["To"] = chosen.email_from, chosen.email_to
    message.set_content(notice.text)
    return message


def _mail(chosen: AlertSettings, notice: Notice) -> None:
    message = message_of(chosen, notice)
    try:
        with smtplib.SMTP(chosen.smtp_host, chosen.smtp_port, timeout=TIMEOUT_SECONDS) as server:
            if chosen.smtp_tls:
                server.starttls(context=ssl.create_default_context())
            if chosen.smtp_user and chosen.smtp_password:
                server.login(chosen.smtp_user, chosen.smtp_password.get_secret_value())
            server.send_message(message)
    except (OSError, smtplib.SMTPException) as error:
        raise _undelivered("email", type(error).__name__) from None


def _undelivered(name: str, why: str) -> TopicbergError:
    return TopicbergError(
        f"the alert channel {name} does not take notices: {why}",
        hint=f"check the settings TOPICBERG_ALERT_…; {ALERTS_FILE} has every alert",
    )

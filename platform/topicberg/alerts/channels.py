"""Where notices are sent: a file, a webhook, Slack, e-mail.

Addresses are secrets: whoever has one can post to it. No error and no log shows them.

No library does this: Apprise (150,000 lines) returns a bool where a delivery has to say why it
failed, sends Slack messages without ``verbatim``, so that words of a record become links, and has
one deduplication key per address, not per alert; dagster-slack needs a bot's token instead of a
webhook, and dagster-pagerduty only wraps one POST. PagerDuty and the like take the webhook's JSON,
whose ``alert.key`` and ``state`` are the deduplication key and the action.
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

from topicberg.alerts.alert import Alert, AlertState, Notice, after, changes
from topicberg.alerts.settings import AlertSettings
from topicberg.checks.finding import Severity
from topicberg.errors import TopicbergError
from topicberg.security.text import slack
from topicberg.settings import Settings

TIMEOUT_SECONDS = 10
ALERTS_FILE = "alerts.jsonl"
KEPT = timedelta(days=1)
"""How long a notice is kept for a channel that does not accept it."""
MAX_WAITING = 200
MAX_FILE_BYTES = 5_000_000
"""A file of this size becomes ``alerts.jsonl.1``."""


@dataclass(frozen=True)
class Channel:
    """``send`` raises a :class:`TopicbergError` if the notice was not delivered."""

    name: str
    send: Callable[[Notice], None]
    least: Severity = "warning"
    """The least severity that is sent."""


def alerts_file(config: Settings) -> Path:
    return config.state_dir / ALERTS_FILE


def deliver(
    state: AlertState, now: Mapping[str, Alert], to: Iterable[Channel]
) -> tuple[AlertState, list[str]]:
    """Send what changed to every channel; what one does not accept is sent again next time.

    :param now: key → fault
    :returns: the state afterwards, and why channels did not accept something
    """
    at = datetime.now(UTC)
    fresh = changes(now, state.alerts, at)
    problems: dict[str, str] = {}
    undelivered: list[tuple[str, Notice]] = []
    for channel in to:
        waiting = [notice for name, notice in state.undelivered if name == channel.name]
        for notice in [*waiting, *fresh]:
            if channel.least == "error" and notice.alert.severity == "warning":
                continue
            try:
                if channel.name not in problems:
                    channel.send(notice)
                    continue
            except TopicbergError as error:
                problems[channel.name] = str(error)
            except Exception as error:  # no failure of a channel may silence the others
                problems[channel.name] = str(_undelivered(channel.name, type(error).__name__))
            if at - notice.at < KEPT:
                undelivered.append((channel.name, notice))
    update = {"alerts": after(state.alerts, fresh), "undelivered": undelivered[-MAX_WAITING:]}
    return state.model_copy(update=update), list(problems.values())


def channels(config: Settings, chosen: AlertSettings) -> Iterator[Channel]:
    """Return the channels that are configured."""
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
            "slack", lambda notice: _post("slack", hook, _for_slack(notice)), chosen.least
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
            f"alerts cannot be written to {path}: {error.strerror}",
            hint="free disk space or fix the permissions; TOPICBERG_STATE_DIR sets another folder",
        ) from None


def _post(name: str, url: SecretStr, body: object) -> None:
    try:
        response = requests.post(url.get_secret_value(), json=body, timeout=TIMEOUT_SECONDS)
    except requests.RequestException as error:  # its text contains the address
        raise _undelivered(name, type(error).__name__) from None
    if not response.ok:
        raise _undelivered(name, f"HTTP status {response.status_code}")


def _for_slack(notice: Notice) -> dict[str, object]:
    """Return a message in which only the last line, the link to the UI, is active.

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
        f"the alert channel {name} does not accept notices: {why}",
        hint=f"check the settings TOPICBERG_ALERT_…; the file {ALERTS_FILE} has every alert",
    )

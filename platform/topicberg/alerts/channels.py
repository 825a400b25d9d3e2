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
_REFUSALS = (400, 413, 422)
_SLACK_LINE = 800
"""Characters of a line: Slack refuses a section of more than 3,000. The longest notice has three
long lines: the subject, what is wrong, and the fix."""
MAX_FILE_BYTES = 5_000_000
"""A file of this size becomes ``alerts.jsonl.1``."""


class RefusedNoticeError(TopicbergError):
    """A channel refuses this notice, and may accept others: the same notice is refused again."""


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
    problems: list[str] = []
    undelivered: list[tuple[str, Notice]] = []
    for channel in to:
        waiting = [notice for name, notice in state.undelivered if name == channel.name]
        is_down = False
        for notice in [*waiting, *fresh]:
            if channel.least == "error" and notice.alert.severity == "warning":
                continue
            if not is_down:
                try:
                    channel.send(notice)
                    continue
                except RefusedNoticeError as error:
                    problems.append(str(error))
                    continue
                except TopicbergError as error:
                    problems.append(str(error))
                except Exception as error:  # no failure of a channel may silence the others
                    problems.append(str(_undelivered(channel.name, type(error).__name__)))
                is_down = True
            if at - notice.at < KEPT:
                undelivered.append((channel.name, notice))
    update = {"alerts": after(state.alerts, fresh), "undelivered": undelivered[-MAX_WAITING:]}
    return state.model_copy(update=update), problems


def channels(config: Settings, chosen: AlertSettings) -> Iterator[Channel]:
    """Return the channels that are configured."""
    yield Channel("file", lambda notice: _to_file(alerts_file(config), notice))
    if chosen.webhook_url:
        url = chosen.webhook_url
        yield Channel(
            "webhook",
            lambda notice: _post("webhook", url, notice, notice.model_dump(mode="json")),
            chosen.least,
        )
    if chosen.slack_url:
        hook = chosen.slack_url
        yield Channel(
            "slack", lambda notice: _post("slack", hook, notice, _for_slack(notice)), chosen.least
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


def _post(name: str, url: SecretStr, notice: Notice, body: object) -> None:
    try:
        response = requests.post(url.get_secret_value(), json=body, timeout=TIMEOUT_SECONDS)
    except requests.RequestException as error:  # its text contains the address
        raise _undelivered(name, type(error).__name__) from None
    if response.status_code in _REFUSALS:
        raise RefusedNoticeError(
            f"the alert channel {name} refuses a notice: {notice.subject}: "
            f"HTTP status {response.status_code}",
            hint=f"it is not sent again; the file {ALERTS_FILE} has it",
        )
    if not response.ok:
        raise _undelivered(name, f"HTTP status {response.status_code}")


def _for_slack(notice: Notice) -> dict[str, object]:
    """Return a message in which only the last line, the link to the UI, is active.

    Source: Slack, "Composition objects", ``verbatim``: no word becomes a link or a mention.
    """
    subject, *lines = map(_shortened, slack(f"{notice.subject}\n{notice.text}").splitlines())
    if re.fullmatch(r"https?://[^\s<>|]+", notice.alert.link):
        lines[-1] = f"<{lines[-1]}>"
    text = "\n".join([f"*{subject}*", *lines])
    section = {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}
    return {"text": text, "blocks": [section], "unfurl_links": False, "unfurl_media": False}


def _shortened(line: str) -> str:
    if len(line) <= _SLACK_LINE:
        return line
    return re.sub("&[a-z]*$", "", line[:_SLACK_LINE]) + " […]"  # no part of an entity is left


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

"""Where notices are sent, and as what: a file, a webhook, Slack, Teams, PagerDuty, e-mail.

Addresses are secrets: whoever has one can post to it. No error and no log shows them. Text of a
notice may quote a record, so nothing in it is interpreted: no link, no mention.

No library does this: Apprise (150,000 lines) does not say why a delivery failed, makes links of
words of a record in Slack, and has one deduplication key per address, not per alert; dagster-slack
needs a bot's token, not a webhook. Others take the webhook's JSON, whose ``alert.key`` and
``state`` are the deduplication key and the action.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import smtplib
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import requests
from pydantic import SecretStr, ValidationError

from topicberg.alerts.alert import Alert, AlertState, Decisions, Notice, after, changes
from topicberg.alerts.settings import AlertAddresses, AlertSettings
from topicberg.checks.finding import Severity
from topicberg.errors import TopicbergError
from topicberg.extensions import entry_points, load
from topicberg.security.text import slack, terminal
from topicberg.settings import Settings

_SLACK_LINE = 650
"""Characters of a line: Slack refuses a section of more than 3,000. The longest notice has four
long lines: the subject, what is wrong, the fix, and the runbook."""
_TEAMS_LINE = 400
"""Characters of a line: Teams refuses a message of more than 28 kB, and a character of any script
may take twelve bytes of JSON."""
_PAGERDUTY_SUMMARY, _PAGERDUTY_KEY, _PAGERDUTY_DETAIL = 1024, 255, 4000
"""Characters: the limits of PagerDuty's for the first two; an event may have 512 kB."""
_URL = re.compile(r"https?://[^\s<>|]+")
TIMEOUT_SECONDS = 10
BEGIN_SECONDS, SENDING_SECONDS = 5, TIMEOUT_SECONDS + 1
"""For how long notices are sent, and for how much longer the last ones are waited for: a sensor
whose tick takes 25 seconds is reported, and Dagster ends it after 60."""
ALERTS_FILE = "alerts.jsonl"
KEPT = timedelta(days=1)  # How long a notice is kept for a channel that does not accept it.
MAX_WAITING = 200
_LATE: dict[str, list[Notice]] = {}  # By channel: those that it did not accept, after that time.
_REFUSALS = (400, 413, 422)
MAX_FILE_BYTES = 5_000_000  # A file of this size becomes ``alerts.jsonl.1``.


class RefusedNoticeError(TopicbergError):
    """A channel refuses this notice, and may accept others: the same notice is refused again."""


Send = Callable[[Notice], None]
"""Raises a :class:`TopicbergError` if the notice was not delivered: it is sent again for a day."""


class ChannelFactory(Protocol):
    """What an entry point of ``topicberg.alert_channels`` names: it makes a channel of that name.

    The channel gets the alerts that no route of ``TOPICBERG_ALERT_ROUTES`` takes. Its settings are
    an :class:`.EnvironmentSettings` with ``concern = Concern.ALERTS`` in a module that an entry
    point of ``topicberg.settings`` names, so that the engine of the local stack gets them.
    """

    def __call__(self, config: Settings) -> Send | None:
        """Return what sends a notice; None: the channel is not configured.

        An alert's ``key`` is the same when it begins (``state`` is ``firing``) and when it is
        resolved. A :class:`RefusedNoticeError` says that sending it again is useless. Of another
        exception than a :class:`TopicbergError` only the type is logged, since its text may have
        an address in it.
        """


@dataclass(frozen=True)
class Channel:
    name: str
    send: Send
    least: Severity = "warning"  # The least severity that is sent.
    takes: Callable[[Alert], bool] = lambda alert: True  # Whether an alert is for its readers.

    def wants(self, alert: Alert) -> bool:
        """Return whether an alert is sent there."""
        return self.takes(alert) and (self.least == "warning" or alert.severity == "error")


def alerts_file(config: Settings) -> Path:
    return config.state_dir / ALERTS_FILE


def deliver(
    state: AlertState,
    now: Mapping[str, Alert],
    to: Iterable[Channel],
    decisions: Decisions = Decisions(),  # noqa: B008  immutable
) -> tuple[AlertState, list[str]]:
    """Send what changed to all channels at once; what one does not accept is sent again next time,
    and so is what is left after a while: a slow channel delays neither others nor the caller.

    :returns: the state afterwards, and why channels did not accept something
    """
    moment, until = datetime.now(UTC), time.monotonic() + BEGIN_SECONDS
    fresh = changes(state, now, decisions, moment)
    problems, sending = list[str](), list[tuple[Thread, list[Notice]]]()
    for channel in to:
        waiting = [notice for name, notice in state.undelivered if name == channel.name]
        late = _LATE.pop(channel.name, ())
        left = [n for n in (*waiting, *late, *fresh) if channel.wants(n.alert)]
        send = partial(_send_all, channel, left, until, problems)
        sending.append((Thread(target=send, name=channel.name, daemon=True), left))
        sending[-1][0].start()
    for thread, _ in sending:
        thread.join(max(0.0, until + SENDING_SECONDS - time.monotonic()))
        problems += [str(_undelivered(thread.name, "no answer yet"))] if thread.is_alive() else []
    share = MAX_WAITING // max(1, sum(bool(left) for _, left in sending))
    kept = [(by.name, n) for by, left in sending for n in left[-share:] if moment - n.at < KEPT]
    return after(state, fresh, now, decisions).model_copy(update={"undelivered": kept}), problems


def _send_all(channel: Channel, left: list[Notice], until: float, problems: list[str]) -> None:
    """Send notices, and remove them, until one is not accepted; begin none after a time."""
    while left and time.monotonic() < until:
        notice = left.pop(0)
        try:
            send_by(channel, notice)
        except TopicbergError as error:
            problems.append(str(error))
            if time.monotonic() > until + TIMEOUT_SECONDS:
                _LATE.setdefault(channel.name, []).append(notice)
            elif not isinstance(error, RefusedNoticeError):  # the channel is down
                # Others are next: no alert keeps them from the channel.
                left[:] = sorted([notice, *left], key=lambda n: n.alert.key == notice.alert.key)
                return


def send_by(channel: Channel, notice: Notice) -> None:
    """Send a notice; raise TopicbergError if it was not delivered, whatever the channel raises."""
    try:
        channel.send(notice)
    except TopicbergError:
        raise
    except Exception as error:  # no failure of a channel may silence the others
        raise _undelivered(channel.name, type(error).__name__) from None


def channels(config: Settings, chosen: AlertSettings) -> Iterator[Channel]:
    """Return the channels: an alert goes to the routes of its owners, without one to the others."""
    yield Channel("file", lambda notice: _to_file(alerts_file(config), notice))
    routed = chosen.routes.keys()
    for name, send in (*_built_in(config, chosen, chosen), *_added(config)):
        yield Channel(name, send, chosen.least, lambda alert: routed.isdisjoint(alert.owners))
    for owner, addresses in chosen.routes.items():
        takes = partial(lambda owner, alert: owner in alert.owners, owner)
        for name, send in _built_in(config, chosen, addresses, f" of {owner}"):
            yield Channel(name, send, chosen.least, takes)


def _built_in(
    config: Settings, chosen: AlertSettings, to: AlertAddresses, suffix: str = ""
) -> Iterator[tuple[str, Send]]:
    """Yield each channel that has an address, by its name: the kind, and the suffix."""
    posts: tuple[tuple[str, SecretStr | None, Callable[[Notice], object]], ...] = (
        ("webhook", to.webhook_url, lambda notice: notice.model_dump(mode="json")),
        ("slack", to.slack_url, slack_message),
        ("teams", to.teams_url, teams_message),
    )
    for kind, url, body in posts:
        if url is not None:
            yield kind + suffix, partial(_post_as, url, body, kind + suffix)
    if to.pagerduty_key is not None:
        key, pagerduty = to.pagerduty_key.get_secret_value(), SecretStr(chosen.pagerduty_url)
        event = partial(pagerduty_event, routing_key=key, source=config.prefix)
        yield f"pagerduty{suffix}", partial(_post_as, pagerduty, event, f"pagerduty{suffix}")
    if to.email_to is not None:
        yield f"email{suffix}", partial(_mail, chosen, to.email_to, f"email{suffix}")


def _added(config: Settings) -> Iterator[tuple[str, Send]]:
    """Yield the channels of other packages; one that cannot be made says so for each notice."""
    for point in entry_points("topicberg.alert_channels"):
        try:
            send = load(point, partial(_make, config))
        except TopicbergError as error:
            send = partial(_fail, error)
        if send is not None:
            yield point.name, send


def _make(config: Settings, factory: ChannelFactory) -> Send | None:
    try:
        return factory(config)
    except ValidationError as error:  # its text contains the values
        wrong = ", ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        hint = "correct the settings of the channel"
        raise TopicbergError(f"invalid settings: {wrong}", hint=hint) from None


def _fail(error: TopicbergError, _: Notice) -> None:
    raise error


def _to_file(path: Path, notice: Notice) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MAX_FILE_BYTES:
            path.replace(path.with_suffix(".jsonl.1"))
        with path.open("ab+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)  # the engine and Dagster's sensors write to it
            end = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, end - 1))
            # A writer that was killed has left half a line, which is not to swallow this one.
            begin = b"" if stream.read(1) in (b"", b"\n") else b"\n"
            try:
                stream.write(begin + notice.model_dump_json().encode() + b"\n")
                stream.flush()
            except OSError:  # such as a full disk, on which a part of the line fits
                os.truncate(path, end)
                raise
    except OSError as error:
        raise TopicbergError(
            f"alerts cannot be written to {path}: {error.strerror}",
            hint="free disk space or fix the permissions; TOPICBERG_STATE_DIR sets another folder",
        ) from None


def _post_as(url: SecretStr, body: Callable[[Notice], object], name: str, notice: Notice) -> None:
    try:
        response = requests.post(url.get_secret_value(), json=body(notice), timeout=TIMEOUT_SECONDS)
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


def _mail(chosen: AlertSettings, to: str, name: str, notice: Notice) -> None:
    message, smtp = mail(chosen, to, notice), chosen.smtp
    try:
        with smtplib.SMTP(smtp.host, smtp.port, timeout=TIMEOUT_SECONDS) as server:
            if smtp.tls:
                server.starttls(context=ssl.create_default_context())
            if smtp.user and smtp.password:
                server.login(smtp.user, smtp.password.get_secret_value())
            server.send_message(message)
    except (OSError, smtplib.SMTPException) as error:
        raise _undelivered(name, type(error).__name__) from None


def _undelivered(name: str, why: str) -> TopicbergError:
    return TopicbergError(
        f"the alert channel {name} does not accept notices: {why}",
        hint=f"check the settings TOPICBERG_ALERT_…; the file {ALERTS_FILE} has every alert",
    )


def slack_message(notice: Notice) -> dict[str, Any]:
    """Return a message in which only the last line, the link to the UI, is active. Source: Slack,
    "Composition objects", ``verbatim``: no word becomes a link or a mention."""
    text = slack(f"{notice.subject}\n{notice.text}")
    subject, *lines = (_shortened(line, _SLACK_LINE) for line in text.splitlines())
    if _URL.fullmatch(notice.alert.link):
        lines[-1] = f"<{lines[-1]}>"
    text = "\n".join([f"*{subject}*", *lines])
    section = {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}
    return {"text": text, "blocks": [section], "unfurl_links": False, "unfurl_media": False}


def teams_message(notice: Notice) -> dict[str, Any]:
    """Return a message with an Adaptive Card. Its texts are runs, in which, unlike in a
    ``TextBlock``, nothing is Markdown. Source: Microsoft, "Create incoming webhooks with
    Workflows", and "Adaptive Cards schema", ``RichTextBlock``."""
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
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [attachment]}


def pagerduty_event(notice: Notice, routing_key: str, source: str) -> dict[str, Any]:
    """Return an event of PagerDuty's Events API v2. Source: PagerDuty, "Send an Alert Event".

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
    owners = ", ".join(alert.owners)
    details = {"what": alert.what, "fix": alert.remediation, "owners": owners, "cause": alert.cause}
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
    pages = ("Open in Dagster", alert.link), ("Runbook", alert.runbook)
    return ((title, url) for title, url in pages if url and _URL.fullmatch(url))


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

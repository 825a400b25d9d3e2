"""Where notices are sent: a file, a webhook, Slack, Teams, PagerDuty, e-mail.

Addresses are secrets: whoever has one can post to it. No error and no log shows them.

No library does this: Apprise (150,000 lines) returns a bool where a delivery has to say why it
failed, sends Slack messages without ``verbatim``, so that words of a record become links, and has
one deduplication key per address, not per alert; dagster-slack needs a bot's token instead of a
webhook, and dagster-pagerduty only wraps one POST. Others take the webhook's JSON, whose
``alert.key`` and ``state`` are the deduplication key and the action.
"""

from __future__ import annotations

import fcntl
import os
import smtplib
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

import requests
from pydantic import SecretStr, ValidationError

from topicberg.alerts.alert import Alert, AlertState, Notice, after, changes
from topicberg.alerts.decisions import Decisions
from topicberg.alerts.payloads import mail, pagerduty_event, slack_message, teams_message
from topicberg.alerts.settings import AlertAddresses, AlertSettings
from topicberg.checks.finding import Severity
from topicberg.errors import TopicbergError
from topicberg.extensions import entry_points, load
from topicberg.settings import Settings

TIMEOUT_SECONDS = 10
ALERTS_FILE = "alerts.jsonl"
KEPT = timedelta(days=1)
"""How long a notice is kept for a channel that does not accept it."""
MAX_WAITING = 200
_REFUSALS = (400, 413, 422)
MAX_FILE_BYTES = 5_000_000
"""A file of this size becomes ``alerts.jsonl.1``."""


class RefusedNoticeError(TopicbergError):
    """A channel refuses this notice, and may accept others: the same notice is refused again."""


Send = Callable[[Notice], None]
"""Raises a :class:`TopicbergError` if the notice was not delivered: it is sent again for a day."""


class ChannelFactory(Protocol):
    """What an entry point of ``topicberg.alert_channels`` names: it makes a channel of that name.

    The channel gets the alerts that no route of ``TOPICBERG_ALERT_ROUTES`` takes. Its settings are
    an :class:`.EnvironmentSettings` with ``concern = Concern.ALERTS`` in a module that an entry
    point of ``topicberg.settings`` names: ``topicberg settings`` lists them, and the engine of the
    local stack gets them.
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
    least: Severity = "warning"
    """The least severity that is sent."""
    takes: Callable[[Alert], bool] = lambda alert: True
    """Whether an alert is sent there."""


def alerts_file(config: Settings) -> Path:
    return config.state_dir / ALERTS_FILE


def deliver(
    state: AlertState,
    now: Mapping[str, Alert],
    to: Iterable[Channel],
    decisions: Decisions = Decisions(),  # noqa: B008  immutable
) -> tuple[AlertState, list[str]]:
    """Send what changed to every channel; what one does not accept is sent again next time.

    :param now: key → fault
    :returns: the state afterwards, and why channels did not accept something
    """
    moment = datetime.now(UTC)
    fresh = changes(state, now, decisions, moment)
    problems: list[str] = []
    undelivered: list[tuple[str, Notice]] = []
    for channel in to:
        waiting = [notice for name, notice in state.undelivered if name == channel.name]
        is_down = False
        for notice in [*waiting, *fresh]:
            is_minor = channel.least == "error" and notice.alert.severity == "warning"
            if is_minor or not channel.takes(notice.alert):
                continue
            if not is_down:
                try:
                    send_by(channel, notice)
                    continue
                except TopicbergError as error:
                    problems.append(str(error))
                    if isinstance(error, RefusedNoticeError):
                        continue
                is_down = True
            if moment - notice.at < KEPT:
                undelivered.append((channel.name, notice))
    state = after(state, fresh, now, decisions)
    return state.model_copy(update={"undelivered": undelivered[-MAX_WAITING:]}), problems


def send_by(channel: Channel, notice: Notice) -> None:
    """Send a notice; raise TopicbergError if it was not delivered, whatever the channel raises."""
    try:
        channel.send(notice)
    except TopicbergError:
        raise
    except Exception as error:  # no failure of a channel may silence the others
        raise _undelivered(channel.name, type(error).__name__) from None


def channels(config: Settings, chosen: AlertSettings) -> Iterator[Channel]:
    """Return the channels that are configured.

    Alerts go to the routes of their owners, and those without one to the other channels.
    """
    yield Channel("file", lambda notice: _to_file(alerts_file(config), notice))

    def is_routed(alert: Alert) -> bool:
        return any(owner in chosen.routes for owner in alert.owners)

    for name, send in (*_built_in(config, chosen, chosen), *_added(config)):
        yield Channel(name, send, chosen.least, lambda alert: not is_routed(alert))
    for owner, addresses in chosen.routes.items():

        def is_theirs(alert: Alert, owner: str = owner) -> bool:
            return owner in alert.owners

        for name, send in _built_in(config, chosen, addresses, f" of {owner}"):
            yield Channel(name, send, chosen.least, is_theirs)


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

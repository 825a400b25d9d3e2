"""What channels get, at servers that refuse what the vendors' documentation does not allow."""

from __future__ import annotations

import email.message
import email.parser
import email.policy
import json
import re
import socketserver
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from security.corpus import TEXTS

from topicberg.alerts.alert import Alert, AlertState, Notice
from topicberg.alerts.channels import (
    channels,
    deliver,
    pagerduty_event,
    slack_message,
    teams_message,
)
from topicberg.alerts.settings import AlertAddresses, AlertSettings
from topicberg.settings import Settings

KEY = "e93facc04764012d7bfb002500d5d1a6"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
FAULT = Alert(
    key="check iceberg/orders:tableflow",
    title="check tableflow of iceberg/orders failed",
    what="the topic is suspended",
    severity="error",
    since=NOW,
    link="http://ui/assets/iceberg/orders",
    remediation="`topicberg tableflow resume orders`",
    runbook="http://ui/topicberg/docs/operate.html#by-symptom",
    assets=("iceberg/orders",),
    owners=("team:shop",),
)
STATES: list[Any] = list(get_args(Notice.model_fields["state"].annotation))
texts = st.text(max_size=9_000) | st.sampled_from(TEXTS)
alerts = st.builds(
    Alert,
    key=st.text(min_size=1, max_size=900),
    title=texts,
    what=texts,
    severity=st.sampled_from(["warning", "error"]),
    since=st.just(NOW),
    link=st.sampled_from(["http://ui/a", "not an address", "http://ui/<b>"]),
    remediation=st.none() | texts,
    runbook=st.none() | st.just("http://ui/docs#x"),
    assets=st.lists(st.text(max_size=300), max_size=40).map(tuple),
    owners=st.lists(st.text(max_size=300), max_size=40).map(tuple),
)
notices = st.builds(
    Notice, state=st.sampled_from(STATES), alert=alerts, at=st.just(NOW), by=st.none() | texts
)


def pagerduty_problems(event: Any) -> list[str]:
    """What PagerDuty refuses: its documentation "Send an Alert Event"."""
    problems = []

    def expect(name: str, *, holds: bool) -> None:
        if not holds:
            problems.append(name)

    expect("routing_key", holds=len(event.get("routing_key", "")) == 32)
    action = event.get("event_action")
    expect("event_action", holds=action in ("trigger", "acknowledge", "resolve"))
    expect("dedup_key", holds=0 < len(event.get("dedup_key", "")) <= 255)
    expect("size", holds=len(json.dumps(event)) <= 512_000)
    if action == "trigger":
        payload = event.get("payload", {})
        expect("summary", holds=0 < len(payload.get("summary", "")) <= 1024)
        expect("source", holds=bool(payload.get("source")))
        severities = ("critical", "error", "warning", "info")
        expect("severity", holds=payload.get("severity") in severities)
        expect("timestamp", holds=datetime.fromisoformat(payload["timestamp"]).tzinfo is not None)
        for name in ("component", "group", "class"):
            expect(name, holds=isinstance(payload.get(name, ""), str))
        expect("details", holds=isinstance(payload.get("custom_details", {}), dict))
        links = event.get("links", [])
        expect("links", holds=all(link["href"].startswith("http") for link in links))
    return problems


def slack_problems(message: Any) -> list[str]:
    """What Slack refuses: its documentation "Blocks" and "Composition objects"."""
    lengths = [len(block["text"]["text"]) for block in message["blocks"]]
    wrong = ["section" for length in lengths if not 0 < length <= 3000]
    return [*wrong, *(["text"] if len(message["text"]) > 40_000 else [])]


def teams_problems(message: Any) -> list[str]:
    """What Teams refuses: "Create incoming webhooks with Workflows"; elements of version 1.4."""
    problems = [] if len(json.dumps(message)) <= 28 * 1024 else ["size"]
    (attachment,) = message["attachments"]
    card, expected = attachment["content"], {"type": "AdaptiveCard", "version": "1.4"}
    if attachment["contentType"] != "application/vnd.microsoft.card.adaptive":
        problems.append("contentType")
    if message["type"] != "message" or not expected.items() <= card.items() or not card["body"]:
        problems.append("card")
    for block in card["body"]:
        if block["type"] != "RichTextBlock" or any(
            run["type"] != "TextRun" or not run["text"] for run in block["inlines"]
        ):
            problems.append("body")
    for action in card["actions"]:
        if action["type"] != "Action.OpenUrl" or not re.match("https?://", action["url"]):
            problems.append("actions")
    return problems


@given(notices)
@example(Notice(state="firing", alert=FAULT, at=NOW))
def test_payloads_of_any_notice_are_within_the_limits(notice: Notice) -> None:
    assert not pagerduty_problems(pagerduty_event(notice, KEY, "shop"))
    assert not slack_problems(slack_message(notice))
    assert not teams_problems(teams_message(notice))


def test_payloads_of_the_widest_text_are_within_the_limits() -> None:
    wide = "\N{PILE OF POO}" * 20_000
    texts = dict.fromkeys(("title", "what", "remediation", "runbook", "key"), wide)
    notice = Notice(state="firing", alert=FAULT.model_copy(update=texts), at=NOW)
    assert not pagerduty_problems(pagerduty_event(notice, KEY, "shop"))
    assert not slack_problems(slack_message(notice))
    assert not teams_problems(teams_message(notice))


def test_events_of_one_fault_have_one_deduplication_key() -> None:
    def key(alert: Alert, state: Any, source: str = "shop") -> str:
        notice = Notice(state=state, alert=alert, at=NOW)
        return str(pagerduty_event(notice, KEY, source)["dedup_key"])

    long = FAULT.model_copy(update={"key": "check " + "x" * 400})
    other = FAULT.model_copy(update={"key": "check " + "x" * 401})
    for alert in (FAULT, long):
        assert len({key(alert, state) for state in STATES}) == 1
    assert len({key(FAULT, "firing"), key(long, "firing"), key(other, "firing")}) == 3
    assert key(FAULT, "firing") != key(FAULT, "firing", "billing")


class Vendors(ThreadingHTTPServer):
    """PagerDuty, Slack and Teams: path → what is wrong with a body; ``got``: path and body."""

    CHECKS: dict[str, Callable[[Any], list[str]]] = {  # noqa: RUF012
        "/v2/enqueue": pagerduty_problems,
        "/slack": slack_problems,
        "/teams": teams_problems,
        "/hook": lambda body: [] if Notice.model_validate(body) else ["notice"],
    }

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                path = self.path.partition("?")[0]
                problems = server.CHECKS[path](body)
                if self.headers["Content-Type"] != "application/json":
                    problems.append("content type")
                if not problems:
                    server.got.append((self.path, body))
                accepted = 202 if path in ("/v2/enqueue", "/teams") else 200
                self.send_response(400 if problems else accepted)
                self.end_headers()
                self.wfile.write(json.dumps({"errors": problems}).encode())

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class MailServer(socketserver.ThreadingTCPServer):
    """An SMTP server (RFC 5321) that keeps what it gets."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        self.got: list[tuple[str, list[str], email.message.EmailMessage]] = []
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                def answer(text: str) -> None:
                    self.wfile.write(f"{text}\r\n".encode())

                answer("220 mail.example.org ESMTP")
                sender, recipients = "", []
                for line in self.rfile:
                    command, _, rest = line.decode().strip().partition(" ")
                    match command.upper():
                        case "EHLO":
                            answer("250-mail.example.org")
                            answer("250 8BITMIME")
                        case "MAIL":
                            sender = rest.partition("<")[2].partition(">")[0]
                            answer("250 OK")
                        case "RCPT":
                            recipients.append(rest.partition("<")[2].partition(">")[0])
                            answer("250 OK")
                        case "DATA":
                            answer("354 go on")
                            body = b""
                            while (part := self.rfile.readline()) != b".\r\n":
                                body += part.removeprefix(b".")
                            parser = email.parser.BytesParser(policy=email.policy.default)
                            server.got.append((sender, recipients, parser.parsebytes(body)))
                            answer("250 OK")
                        case "QUIT":
                            answer("221 bye")
                            return
                        case _:
                            answer("502 not implemented")

        super().__init__(("127.0.0.1", 0), Handler)


@contextmanager
def running(server: Any) -> Iterator[Any]:
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def vendors() -> Iterator[Vendors]:
    with running(Vendors()) as server:
        yield server


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    with running(MailServer()) as server:
        yield server


def every_channel(vendors: Vendors, mail_server: MailServer, **more: Any) -> AlertSettings:
    return AlertSettings(
        webhook_url=f"{vendors.url}/hook",
        slack_url=f"{vendors.url}/slack",
        teams_url=f"{vendors.url}/teams",
        pagerduty_key=KEY,
        pagerduty_url=f"{vendors.url}/v2/enqueue",
        email_to="team@example.org, boss@example.org",
        smtp={"host": "127.0.0.1", "port": mail_server.server_address[1], "tls": False},
        **more,
    )


@pytest.mark.parametrize("what", TEXTS)
def test_every_channel_accepts_any_fault_and_its_end(
    what: str, tmp_path: Path, vendors: Vendors, mail_server: MailServer
) -> None:
    config, chosen = Settings(state_dir=tmp_path), every_channel(vendors, mail_server)
    alert = Alert(**{**FAULT.model_dump(), "what": what, "title": what})
    state, problems = deliver(AlertState(), {alert.key: alert}, channels(config, chosen))
    assert not problems
    state, problems = deliver(state, {}, channels(config, chosen))
    assert not problems
    assert sorted([path for path, _ in vendors.got]) == sorted(2 * list(Vendors.CHECKS))
    events = [body for path, body in vendors.got if path == "/v2/enqueue"]
    assert [event["event_action"] for event in events] == ["trigger", "resolve"]
    assert [to for _, to, _ in mail_server.got] == 2 * [["team@example.org", "boss@example.org"]]
    assert mail_server.got[0][2]["Subject"].startswith("[topicberg] ERROR")
    assert FAULT.link in mail_server.got[0][2].get_content()


def test_alert_goes_to_the_route_of_its_owner_else_to_all_others(
    tmp_path: Path, vendors: Vendors
) -> None:
    config = Settings(state_dir=tmp_path)
    chosen = AlertSettings(
        slack_url=f"{vendors.url}/slack?all",
        pagerduty_url=f"{vendors.url}/v2/enqueue?ship",
        routes={
            "team:shop": AlertAddresses(slack_url=f"{vendors.url}/slack?shop"),
            "team:ship": AlertAddresses(slack_url=f"{vendors.url}/slack?ship", pagerduty_key=KEY),
        },
    )

    def sent(*owners: str) -> list[str]:
        vendors.got.clear()
        alert = FAULT.model_copy(update={"owners": owners})
        _, problems = deliver(AlertState(), {alert.key: alert}, channels(config, chosen))
        assert not problems
        return sorted(path.partition("?")[2] for path, _ in vendors.got)

    assert sent() == sent("team:other") == ["all"]
    assert (sent("team:shop"), sent("team:shop", "team:other")) == (["shop"], ["shop"])
    assert sent("team:shop", "team:ship") == ["ship", "ship", "shop"]
    lines = (tmp_path / "alerts.jsonl").read_text().splitlines()
    assert len(lines) == 5, "the file has every alert"


def test_routes_are_read_from_the_environment_and_hide_their_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from topicberg.alerts.settings import alert_settings
    from topicberg_local.python_services import as_environment

    routes = {"team:shop": {"slack_url": "https://hooks.example/secret-1", "pagerduty_key": KEY}}
    monkeypatch.setenv("TOPICBERG_ALERT_ROUTES", json.dumps(routes))
    chosen = alert_settings()
    assert "secret-1" not in repr(chosen)
    assert KEY not in repr(chosen)
    assert json.loads(as_environment(alert_settings())["TOPICBERG_ALERT_ROUTES"]) == routes


@pytest.mark.parametrize("routes", ['{"a": {"slak_url": "x"}}', '{"a": 1}', "[1]"])
def test_wrong_routes_are_an_error_that_names_the_setting(
    routes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from topicberg.alerts.settings import alert_settings
    from topicberg.errors import TopicbergError

    monkeypatch.setenv("TOPICBERG_ALERT_ROUTES", routes)
    with pytest.raises(TopicbergError, match="TOPICBERG_ALERT_ROUTES"):
        alert_settings()


def test_notice_that_waits_for_a_route_is_sent_there_only(tmp_path: Path, vendors: Vendors) -> None:
    config = Settings(state_dir=tmp_path)

    def chosen(port: int) -> AlertSettings:
        shop = AlertAddresses(slack_url=f"http://127.0.0.1:{port}/slack?shop")
        return AlertSettings(slack_url=f"{vendors.url}/slack?all", routes={"team:shop": shop})

    state, (problem,) = deliver(AlertState(), {FAULT.key: FAULT}, channels(config, chosen(9)))
    assert "slack of team:shop does not accept" in problem
    state, problems = deliver(
        state, {FAULT.key: FAULT}, channels(config, chosen(vendors.server_address[1]))
    )
    assert not problems
    assert [path for path, _ in vendors.got] == ["/slack?shop"]
    assert not state.undelivered
    assert timedelta(0) < datetime.now(UTC) - state.sent_at[FAULT.key]

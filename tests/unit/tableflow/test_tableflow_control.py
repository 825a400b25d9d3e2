"""Requests to Tableflow beside the specs, statuses, metrics, and the dashboard that shows them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from repository import PROJECT_ROOT
from typer.testing import CliRunner, Result

from topicberg.checks.topic import check_engine, topic_checks
from topicberg.cli import tableflow as cli
from topicberg.cli.query import deleted_topics
from topicberg.errors import SpecError, TopicbergError
from topicberg.orchestration.resources.lakehouse import ingest_by_engine
from topicberg.settings import Settings
from topicberg.tableflow.service import control
from topicberg.tableflow.service.metrics import StatusCollector
from topicberg.tableflow.service.status import (
    COUNTERS,
    OpenTransaction,
    TopicStatus,
    Unavailable,
    read_status,
    remove_status,
    reported_snapshot,
    status_file,
    write_status,
)
from topicberg.tableflow.upsert.key_hashing import KeyState
from topicberg.tableflow.upsert.tombstones import Missed
from topicberg.tableflow.values.skips import Skip
from topicberg.topics import load_topic, requests
from topicberg.topics.discovery import FoundSchema, FoundTopic

FOUND = FoundTopic(partitions=1, value=FoundSchema(format="avro", version=1))

UNUSED: Any = None
SPEC = "name: orders\npipeline: shop\nschema: {format: none}\n"


@pytest.fixture
def config(tmp_path: Path, as_settings: Callable[[Settings], None]) -> Settings:
    config = Settings(project_root=tmp_path, state_dir=tmp_path / "state")
    config.topics_dir.mkdir(parents=True)
    (config.topics_dir / "orders.yaml").write_text(SPEC)
    as_settings(config)
    return config


def test_without_a_request_the_spec_decides(config: Settings) -> None:
    assert list(control.enabled_topics(config)) == ["orders"]
    (config.topics_dir / "orders.yaml").write_text(SPEC + "tableflow: {enabled: false}\n")
    assert control.enabled_topics(config) == {}


def test_a_request_wins_over_the_spec(config: Settings) -> None:
    control.disable(config, "orders")
    assert control.enabled_topics(config) == {}
    control.enable(config, "orders", {"error_handling": {"mode": "SKIP"}})
    spec = control.enabled_topics(config)["orders"]
    assert (spec.tableflow.error_handling.mode, spec.pipeline) == ("SKIP", "shop")
    assert control.as_requested(config, load_topic("orders", config)) == spec


def test_enabled_topic_in_mode_log_brings_its_dead_letters(config: Settings) -> None:
    control.enable(config, "orders", {"error_handling": {"mode": "LOG", "target": "broken"}})
    assert set(control.enabled_topics(config)) == {"orders", "broken"}
    assert control.find_topic(config, "broken").value_schema.file == "topicberg:error_log.avsc"
    control.disable(config, "broken")
    assert set(control.enabled_topics(config)) == {"orders"}
    control.enable(config, "orders")
    assert set(control.enabled_topics(config)) == {"orders"}


def test_a_deleted_topic_is_disabled_until_it_is_created(config: Settings) -> None:
    requests.topic_deleted(config, "orders")
    assert control.enabled_topics(config) == {}
    requests.topic_created(config, "orders")
    assert set(control.enabled_topics(config)) == {"orders"}
    control.disable(config, "orders")
    requests.topic_created(config, "orders")
    assert control.enabled_topics(config) == {}


def test_query_of_a_deleted_topic_prints_a_note(config: Settings) -> None:
    """The table outlives its topic, and a query of it still counts rows."""
    control.enable(config, "web.clicks", discovered=FOUND)
    assert not list(deleted_topics("SELECT count(*) FROM web_clicks", config))
    requests.topic_deleted(config, "web.clicks")
    for sql in ("SELECT count(*) FROM WEB_CLICKS", 'SELECT 1 FROM "lkc-local"."web.clicks"'):
        (note,) = deleted_topics(sql, config)
        assert "topic web.clicks was deleted" in note
        assert "`topicberg tableflow disable web.clicks --drop-table`" in note
    assert not list(deleted_topics("SELECT count(*) FROM orders", config))


def test_command_after_a_new_deployment_wins(config: Settings) -> None:
    """A deployment deletes and creates the topic, and sets what the spec says."""
    logs = {"error_handling": {"mode": "LOG", "target": "broken"}}
    control.enable(config, "orders", logs, command=True)
    control.disable(config, "orders")
    requests.topic_deleted(config, "orders")
    assert control.enabled_topics(config) == {}
    requests.topic_created(config, "orders")
    (config.topics_dir / "orders.yaml").write_text(SPEC + "tableflow: {enabled: false}\n")
    assert control.enabled_topics(config) == {}, "the spec decides whether it is enabled"
    (config.topics_dir / "orders.yaml").write_text(SPEC)
    assert set(control.enabled_topics(config)) == {"orders", "broken"}
    control.enable(config, "orders", {"error_handling": {"mode": "SKIP"}, "retention_ms": 86400000})
    applied = control.as_requested(config, load_topic("orders", config)).tableflow
    assert (applied.error_handling.mode, applied.retention_ms) == ("LOG", 86_400_000)
    control.enable(config, "orders", command=True)
    assert control.as_requested(config, load_topic("orders", config)).tableflow == applied
    control.enable(config, "orders", command=True, as_in_spec=True)
    assert set(control.enabled_topics(config)) == {"orders"}, "a command takes it back"


def run(*arguments: str, **how: Any) -> Result:
    return CliRunner().invoke(cli.app, arguments, **how)


def test_enable_as_a_hint_says_resets_nothing_that_a_command_set(config: Settings) -> None:
    """Nor does a mode that is set again lose the dead-letter topic of the spec, or of a command."""
    target = "tableflow: {error_handling: {mode: LOG, target: spoiled}}\n"
    (config.topics_dir / "orders.yaml").write_text(SPEC + target)

    def enabled(*options: str) -> tuple[str, str | None, int]:
        assert run("enable", "orders", *options).exit_code == 0
        tableflow = control.find_topic(config, "orders").tableflow
        handling = tableflow.error_handling
        return handling.mode, handling.target, tableflow.retention_ms // 86_400_000

    assert enabled("--error-handling", "LOG", "--retention-ms", "86400000") == ("LOG", "spoiled", 1)
    assert enabled("--log-target", "broken") == ("LOG", "broken", 1)
    assert enabled("--error-handling", "SKIP")[0] == "SKIP"
    assert enabled() == ("SKIP", "broken", 1)
    control.disable(config, "orders")
    control.table_dropped(config, "orders")
    assert enabled("--error-handling", "LOG") == ("LOG", "broken", 1)
    assert enabled("--as-in-spec") == ("LOG", "spoiled", 7)


def test_paused_topic_keeps_everything_until_it_is_resumed(
    config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enabled, disabled, deployed again, deleted: only `resume` ends the pause, and it accepts
    nothing that other writers did."""
    assert "is not enabled" in str(run("pause", "nothing").exception)
    control.enable(config, "orders", {"retention_ms": 86_400_000}, command=True)
    first = run("pause", "orders")
    assert re.match(r"topic orders is paused since 20.* UTC by \w+@", first.output)
    assert run("pause", "orders").output == first.output, "since the first one"
    assert control.enabled_topics(config)["orders"].tableflow.retention_ms == 86_400_000
    assert "topic orders is paused" in run("enable", "orders").output
    control.resume(config, "orders")
    requests.topic_deleted(config, "orders")
    requests.topic_created(config, "orders")
    monkeypatch.setattr(cli, "compare_schemas", lambda *_: ([], None))
    monkeypatch.setattr(cli, "waiting_changes", lambda *_: ([], []))
    monkeypatch.setattr(cli, "_engines", lambda *_: {})
    assert "run `topicberg tableflow resume orders` to continue" in run("status").output
    (shown,) = json.loads(run("status", "--json").output)
    assert (shown["phase"], shown["engine"]) == ("PAUSED", None), "also without an engine"
    for read in (
        lambda: run("run", "orders", "--once", catch_exceptions=False),
        lambda: ingest_by_engine(load_topic("orders", config), UNUSED, config, UNUSED),
    ):
        with pytest.raises(TopicbergError, match="topic orders is paused since"):
            read()
    requested = control.Requested(config)
    requested.topics()
    resumed = run("resume", "orders").output
    assert "continues where the table ends; it was paused since" in resumed
    requested.topics()
    assert requested.changed()["orders"].paused is None
    assert requests.read_request(config, "orders").resumed_at == 0.0
    assert run("status", "orders", "--json").output.count("PAUSED") == 0
    assert "orders is not paused: the engine tries again" in run("resume", "orders").output
    assert requests.read_request(config, "orders").resumed_at > 0


def test_checks_of_a_paused_topic_pass_and_say_so(config: Settings) -> None:
    """Although the table is behind, and the service that the engine needs was not there."""
    (config.topics_dir / "orders.yaml").write_text(
        SPEC + "checks: {max_lag_records: 1}\nfreshness: {warn_minutes: 1, fail_minutes: 2}\n"
    )
    write_status(config, TopicStatus(topic="orders", phase="FAILED", error_message="no Kafka"))
    requests.pause(config, "orders", "ada@desk")
    status, now = read_status(config, "orders"), datetime.now(UTC)
    probe: Any = SimpleNamespace(status=lambda _: status, now=now, config=config)
    checks = {check.name: check for check in topic_checks(load_topic("orders", config))}
    for name in ("tableflow", "kafka_lag", "freshness"):
        finding = checks[name].evaluate(probe)
        assert finding.passed
        assert "UTC by ada@desk; run `topicberg tableflow resume orders`" in finding.what
    assert status.without(Unavailable("Spark", 1)) == status


def test_dead_letter_topic_is_paused_without_its_topic(config: Settings) -> None:
    control.enable(config, "orders", {"error_handling": {"mode": "LOG", "target": "broken"}})
    assert run("pause", "broken").exit_code == 0
    assert set(control.enabled_topics(config)) == {"orders", "broken"}
    assert control.find_topic(config, "broken").value_schema.file == "topicberg:error_log.avsc"
    control.resume(config, "broken")
    assert set(control.enabled_topics(config)) == {"orders", "broken"}
    assert not control.needs_look(config, "broken"), "Kafka does not say what it is"


def test_pause_whose_request_cannot_be_read_lasts(config: Settings) -> None:
    """What reads the topic in the foreground does not know either that it may."""
    paused = requests.pause(config, "orders", "ada@desk")
    write_status(config, TopicStatus(topic="orders", paused=paused))
    (requests.requests_folder(config) / "orders.json").write_text('{"topic": "ord')
    assert read_status(config, "orders").paused == paused
    with pytest.raises(TopicbergError, match="is damaged"):
        requests.require_unpaused(config, "orders")
    assert "is damaged" in str(run("resume", "orders").exception)


def test_resume_of_a_disabled_topic_does_not_say_that_it_continues(config: Settings) -> None:
    requests.pause(config, "orders", "ada@desk")
    control.disable(config, "orders")
    assert "orders: it is disabled; it was paused" in run("resume", "orders").output


def test_a_topic_without_a_spec(config: Settings) -> None:
    control.enable(config, "clicks", {"retention_ms": 86_400_000}, "upsert", discovered=FOUND)
    spec = control.enabled_topics(config)["clicks"]
    assert (spec.write_mode, spec.tableflow.retention_ms) == ("upsert", 86_400_000)
    assert control.find_topic(config, "clicks") == spec
    control.disable(config, "clicks")
    assert "clicks" not in control.enabled_topics(config)


def test_topic_whose_spec_is_deleted_is_refused_until_it_is_enabled_again(config: Settings) -> None:
    control.enable(config, "orders")
    (config.topics_dir / "orders.yaml").unlink()
    assert "has no spec" in control.usable_topics(config)[1]["orders"]
    control.enable(config, "orders", discovered=FOUND)
    assert control.enabled_topics(config)["orders"].value_schema.format == "avro"


def test_invalid_settings_are_refused_and_not_written(config: Settings) -> None:
    with pytest.raises(SpecError, match=r"topic orders: tableflow.retention_ms"):
        control.enable(config, "orders", {"retention_ms": 1})
    assert requests.read_request(config, "orders") is None
    with pytest.raises(SpecError, match="not enabled"):
        control.resume(config, "nothing")


def test_resume_keeps_earlier_requests(config: Settings) -> None:
    control.enable(config, "orders", {"error_handling": {"mode": "SKIP"}})
    control.resume(config, "orders")
    request = requests.read_request(config, "orders")
    assert request.resumed_at > 0
    assert request.tableflow == {"error_handling": {"mode": "SKIP"}}


def test_damaged_request_is_reported(config: Settings) -> None:
    control.disable(config, "orders")
    (path,) = (config.state_dir / "tableflow" / "requests").glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("{")
    with pytest.raises(TopicbergError, match="damaged"):
        control.find_topic(config, "orders")
    path.write_bytes(b"\xff")
    with pytest.raises(TopicbergError, match="damaged"):
        control.resume(config, "orders")
    path.unlink()
    path.mkdir()
    with pytest.raises(TopicbergError, match="cannot be read: Is a directory"):
        control.resume(config, "orders")


def test_one_invalid_topic_does_not_affect_the_others(config: Settings) -> None:
    """A spec, damaged requests, and a request whose settings are no good any more."""
    for name in ("bytes", "clicks", "views", "wrong"):
        (config.topics_dir / f"{name}.yaml").write_text(SPEC.replace("orders", name))
    control.enable(config, "clicks")
    control.enable(config, "views")
    folder = config.state_dir / "tableflow" / "requests"
    (folder / "clicks.json").write_text("{")
    (folder / "bytes.json").write_bytes(b"\xff")
    (folder / "folder.json").mkdir()
    unusable = requests.StoredRequest(topic="views", enabled=True, tableflow={"retention_ms": 1})
    (folder / "views.json").write_text(unusable.model_dump_json())
    (config.topics_dir / "wrong.yaml").write_text("name: wrong\n")
    usable, wrong = control.usable_topics(config)
    assert set(usable) == {"orders"}
    assert set(wrong) == {"bytes", "clicks", "folder", "views", "wrong"}
    assert "retention_ms" in wrong["views"]
    requested = control.Requested(config)
    requests.write_request(
        config, requests.StoredRequest(topic="orders", enabled=True, resumed_at=1.0)
    )
    requested.topics()
    assert [*requested.changed()] == ["orders"]


def test_requests_are_read_again_only_after_a_change(config: Settings) -> None:
    control.enable(config, "views", discovered=FOUND)
    requested = control.Requested(config)
    first = requested.topics()
    assert set(first[0]) == {"orders", "views"}
    assert requested.topics()[0]["orders"] is first[0]["orders"]
    control.resume(config, "views")
    assert requested.topics() == first
    assert [[*requested.changed()], [*requested.changed()]] == [["views"], []]
    (config.topics_dir / "orders.yaml").write_text(SPEC + "tableflow: {enabled: false}\n")
    control.disable(config, "views")
    assert requested.topics() == ({}, {})


def test_an_awaited_topic_commits_once_by_the_engine_that_has_it(config: Settings) -> None:
    assert control.awaited(config, {"orders"}) == []
    for _ in range(2):
        control.commit_soon(config, "orders")
    assert control.awaited(config, {"views"}) == []
    assert control.awaited(config, {"views", "orders"}) == ["orders"]
    assert control.awaited(config, {"orders"}) == []
    (config.state_dir / "tableflow" / "awaited" / "views.json").mkdir()
    assert control.awaited(config, {"views"}) == []


def test_awaited_topic_whose_file_is_none_keeps_no_other_from_its_commit(config: Settings) -> None:
    (config.state_dir / "tableflow/awaited/a.json").mkdir(parents=True)
    control.commit_soon(config, "orders")
    assert control.awaited(config, ["a", "orders"]) == ["orders"]


def test_a_topic_is_not_its_own_dead_letter_topic(config: Settings) -> None:
    for name, target in (("orders", "orders"), ("error_log", None)):
        options = {"error_handling": {"mode": "LOG", "target": target}}
        with pytest.raises(SpecError, match="cannot be its own dead-letter topic"):
            control.enable(config, name, options, discovered=FOUND)


def test_status_is_read_back_and_half_of_one_is_none(config: Settings) -> None:
    status = TopicStatus(topic="orders", phase="RUNNING", lag={0: 3}, end_offsets={0: 7})
    write_status(config, status)
    assert read_status(config, "orders") == status
    status_file(config, "orders").write_text("{")
    assert read_status(config, "orders").phase == "PENDING"


def test_status_metrics_and_check_have_the_same_numbers(
    config: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read, written, skipped, dead-lettered and waiting are different numbers everywhere."""
    numbers = {
        "records_read": 1001, "rows_committed": 902, "records_skipped": 83,
        "records_dead_lettered": 16, "bytes_committed": 5005, "commits": 6, "failures": 7,
    }  # fmt: skip
    assert {*COUNTERS} == {*numbers}
    status = TopicStatus(
        topic="orders", phase="RUNNING", lag={0: 300, 1: 4}, rows_skipped=150,
        counting_since_ms=1_767_225_600_000, **numbers,
    )  # fmt: skip
    write_status(config, status)
    cli.status("orders")
    shown = capsys.readouterr()
    words = shown.out.split()
    for column in ("read", "written", "skipped", "dead-lettered", "waiting"):
        assert column in words
    assert {"1,001", "902", "83", "16", "304"} <= set(words)
    assert "since 2026-01-01 00:00:00 UTC" in " ".join(words)
    assert "150 records skipped or dead-lettered since the table was created" in shown.err
    cli.status("orders", as_json=True)
    (document,) = json.loads(capsys.readouterr().out)
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: [status]))
    facts = check_engine(control.find_topic(config, "orders"), status, datetime.now(UTC)).facts
    for name, number in numbers.items():
        metric = registry.get_sample_value(f"topicberg_tableflow_{name}_total", {"topic": "orders"})
        assert document[name] == metric == facts[name] == number
    assert facts["rows_skipped"] == document["rows_skipped"] == 150
    assert facts["consumer_lag"] == sum(document["lag"].values()) == 304


@pytest.mark.parametrize(("lag", "shown"), [({}, "-"), ({0: 0}, "0"), ({0: 3, 1: 4}, "7")])
def test_records_that_wait_are_not_0_while_their_number_is_unknown(
    config: Settings, capsys: pytest.CaptureFixture[str], lag: dict[int, int], shown: str
) -> None:
    status = TopicStatus(topic="orders", phase="FAILED", suspended=True, lag=lag)
    write_status(config, status.model_copy(update=dict.fromkeys(COUNTERS, 9)))
    cli.status("orders")
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "SUSPENDED" in line)
    assert shown in row.split()
    facts = check_engine(control.find_topic(config, "orders"), status, datetime.now(UTC)).facts
    assert facts.get("consumer_lag") == (sum(lag.values()) if lag else None)


def test_a_message_is_shown_as_it_is(
    config: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in a narrow terminal, and with brackets that rich would take as markup."""
    message = (
        "[/lkc-local] broke at [red], and this is a long way from the reason of it all: a disk"
    )
    write_status(config, TopicStatus(topic="orders", suspended=True, error_message=message))
    monkeypatch.setenv("COLUMNS", "80")
    cli.status("orders")
    shown = capsys.readouterr()
    assert "SUSPENDED" in shown.out
    assert f"orders: {message}" in shown.err


@pytest.mark.parametrize("suspended", [True, False])
def test_status_of_long_names_fits_80_columns(
    suspended: bool,
    config: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The phase and the mode are whole words, the same as in --json; the command wins."""
    name = "orders.of.the.web.shop.with.a.very.long.name"
    status = TopicStatus(topic=name, phase="FAILED", suspended=suspended, rows_committed=10**11)
    write_status(config, status)
    options = {"error_handling": {"mode": "LOG"}}
    control.enable(config, name, options, discovered=FOUND, command=True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")  # without colours
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    cli.status()
    shown = capsys.readouterr().out
    phase = "SUSPENDED" if suspended else "FAILED"
    assert max(map(len, shown.splitlines())) <= 80
    (line,) = (line for line in shown.splitlines() if line.startswith("orders.of"))
    assert {phase, "LOG"} <= set(line.split())
    cli.status(name, as_json=True)
    (document,) = json.loads(capsys.readouterr().out)
    assert (document["phase"], document["error_handling"]) == (phase, "LOG")


def test_status_with_an_invalid_spec_shows_all_topics(
    config: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (config.topics_dir / "wrong.yaml").write_text("name: wrong\n")
    cli.status()
    shown = capsys.readouterr()
    assert {"orders", "wrong"} <= set(shown.out.split())
    assert "wrong: the spec is invalid, it is not ingested: " in shown.err
    write_status(config, TopicStatus(topic="wrong", engine="one"))
    cli.status()
    error = capsys.readouterr().err
    assert "wrong: the spec is invalid, the last valid one stays in use: " in error


def test_notes_on_a_topic_that_runs_are_shown(
    config: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skip = Skip(partition=1, offset=9, by="ann@host", at_ms=0, reason="broken disk")
    status = TopicStatus(
        topic="orders",
        open_transactions={0: OpenTransaction(offset=7, since_ms=0)},
        missed_deletes=Missed(since_ms=0, until_ms=1000),
        skip_requests=[skip],
        keys=KeyState(columns=["id"], rebuilt_at_ms=0, rows_removed=2),
        files_of_commit=1385,
    )
    write_status(config, status)
    cli.status("orders")
    shown = capsys.readouterr().err
    assert "partition 0: records from offset 7 on wait for the end of a transaction" in shown
    assert "`topicberg tableflow reread orders`" in shown
    assert "the newest commit added 1,385 data files, one for each partition" in shown
    assert "(id): the index of keys was rebuilt at 1970-01-01 00:00:00 UTC; rows deleted" in shown
    assert "newer row has their key: 2" in shown
    assert "skipped by ann@host at 1970-01-01 00:00:00 UTC, reason: broken disk" in shown


def test_reported_snapshot_is_that_of_the_last_status(tmp_path: Path) -> None:
    config = Settings(state_dir=tmp_path)
    assert reported_snapshot(config, "orders") is None
    for snapshot in range(5):
        write_status(config, TopicStatus(topic="orders", snapshot_id=snapshot))
        assert reported_snapshot(config, "orders") == snapshot
        time.sleep(0.02)  # file systems have times of a few milliseconds
    remove_status(config, "orders")
    assert reported_snapshot(config, "orders") is None


def test_reported_snapshot_of_a_damaged_status_is_none(tmp_path: Path) -> None:
    config = Settings(state_dir=tmp_path)
    write_status(config, TopicStatus(topic="orders", snapshot_id=1))
    status_file(config, "orders").write_text("{")
    assert reported_snapshot(config, "orders") is None


def test_reported_snapshot_of_an_unchanged_status_is_kept(tmp_path: Path) -> None:
    """A tick costs what changed: of the other statuses only the state of the file is read."""
    config = Settings(state_dir=tmp_path)
    write_status(config, TopicStatus(topic="orders", snapshot_id=1))
    assert reported_snapshot(config, "orders") == 1
    file = status_file(config, "orders")
    before = file.stat()
    file.write_text(file.read_text().replace(":1", ":2"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert reported_snapshot(config, "orders") == 1


DASHBOARD = json.loads((PROJECT_ROOT / "docs/production/grafana-dashboard.json").read_text())
PANELS: list[Any] = DASHBOARD["panels"]
FUNCTIONS = {"sum", "max", "by", "rate", "increase", "label_values"}


def samples() -> dict[str, set[str]]:
    """Name of every sample → its labels."""
    status = TopicStatus(
        topic="orders", reader="process", lag={0: 1}, committed_at_ms=1,
        open_transactions={0: OpenTransaction(offset=1, since_ms=0)},
    )  # fmt: skip
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: [status], "one"))
    found: dict[str, set[str]] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def queries() -> list[str]:
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    variables = DASHBOARD["templating"]["list"]
    return [*found, *(one["query"]["query"] for one in variables if one["type"] == "query")]


@pytest.mark.parametrize("query", queries())
def test_query_names_metrics_and_labels_that_exist(query: str) -> None:
    known, names = samples(), re.findall(r"[a-z_]{2,}", re.sub(r'"[^"]*"|\[[^]]*\]', "", query))
    metrics = {name for name in names if name.startswith("topicberg_")}
    assert metrics
    assert metrics <= known.keys()
    labels = {*names} - metrics - FUNCTIONS
    for metric in metrics:
        assert labels <= known[metric], query


def test_every_counter_has_a_panel() -> None:
    text = " ".join(queries())
    assert [name for name in COUNTERS if f"_{name}_total" not in text] == []


def test_gauges_of_a_status_have_its_values() -> None:
    status = TopicStatus(
        topic="orders", phase="RUNNING", lag={0: 3, 1: 0}, committed_at_ms=1, data_files=4,
        open_transactions={0: OpenTransaction(offset=7, since_ms=0)},
    )  # fmt: skip
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: [status]))

    def value(name: str, **labels: str) -> float | None:
        labels["topic"] = "orders"
        return registry.get_sample_value(f"topicberg_tableflow_{name}", labels)

    assert (value("consumer_lag_records", partition="0"), value("data_files")) == (3, 4)
    assert [value("phase", phase=phase) for phase in ("RUNNING", "FAILED", "SUSPENDED")] == [
        1,
        0,
        0,
    ]
    assert (value("open_transaction_seconds", partition="0") or 0) > 10**9
    assert (value("commit_lag_seconds") or 0) > 10**9

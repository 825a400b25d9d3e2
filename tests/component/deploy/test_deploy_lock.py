"""Two deploys never change something at the same time, whatever clocks, networks and processes do.
AWS is simulated: one parameter whose versions have AWS's time, behind a network that delays, loses
and repeats requests. Clients have clocks of their own, pause, crash and start again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from botocore.exceptions import EndpointConnectionError
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import SecretStr

from topicberg.clients.confluent import ApiError
from topicberg.settings import Settings
from topicberg_deploy import lock
from topicberg_deploy.context import DeployContext
from topicberg_deploy.lock import (
    LEASE_SECONDS,
    MARGIN_SECONDS,
    Entry,
    Lease,
    LockLostError,
    state_of,
)
from topicberg_deploy.settings import DeploySettings
from topicberg_deploy.snowflake_account import SnowflakeSession

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection

START = 1_800_000_000.0
SKEW = 2.0
"""Between AWS's own clocks, in seconds."""
IN_FLIGHT = MARGIN_SECONDS - 2 * SKEW - 4.0
"""How long a change may take after its client asked for the lease."""


class AlreadyExistsError(Exception):
    pass


class NotAnsweredError(Exception):
    pass


class StoppedError(BaseException):
    """The simulation is over."""


class Time:
    """A clock that jumps to the next event. Of all threads that sleep in it, one runs at a time."""

    def __init__(self) -> None:
        self.now = START
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = count()
        self._idle = threading.Semaphore(0)
        self._over = False

    def at(self, moment: float, act: Callable[[], object]) -> None:
        heappush(self._events, (moment, next(self._count), act))

    def sleep(self, seconds: float) -> None:
        wake = threading.Semaphore(0)

        def hand_over() -> None:
            wake.release()
            self._idle.acquire()

        self.at(self.now + seconds, hand_over)
        self._idle.release()
        wake.acquire()
        if self._over:
            raise StoppedError

    def run(self, loops: list[Callable[[], object]], seconds: float) -> None:
        """:raises AssertionError: one of the loops raised it"""
        failures: list[AssertionError] = []

        def body(loop: Callable[[], object]) -> None:
            try:
                self.sleep(0)
                loop()
            except StoppedError:
                pass
            except AssertionError as error:
                failures.append(error)
            finally:
                self._idle.release()

        threads = [threading.Thread(target=body, args=(loop,)) for loop in loops]
        for thread in threads:
            thread.start()
            self._idle.acquire()
        while self._events and not failures and self.now < START + seconds:
            moment, _, act = heappop(self._events)
            self.now = max(self.now, moment)
            act()
        self._over = True
        while self._events:
            heappop(self._events)[2]()
        for thread in threads:
            thread.join()
        for failure in failures:
            raise failure


@dataclass
class Aws:
    """The parameter, behind a network."""

    random: Random
    time: Time = field(default_factory=Time)
    versions: list[dict[str, Any]] = field(default_factory=list)
    changing: str | None = None
    changes: int = 0

    def stamp(self) -> datetime:
        return datetime.fromtimestamp(self.time.now + self.random.uniform(0, SKEW), UTC)

    def append(self, value: str) -> int:
        number = self.versions[-1]["Version"] + 1 if self.versions else 1
        version = {"Version": number, "Value": value, "LastModifiedDate": self.stamp()}
        self.versions = [*self.versions, version][-100:]
        return int(number)


@dataclass
class Client:
    """boto3's ``ssm``, as far as the lease uses it."""

    aws: Aws
    exceptions: Any = field(
        default_factory=lambda: SimpleNamespace(ParameterAlreadyExists=AlreadyExistsError)
    )

    def _travel(self) -> None:
        random = self.aws.random
        self.aws.time.sleep(random.choice([0.01, 0.2, 1.0, 5.0, random.uniform(0, 150)]))

    def put_parameter(self, *, Value: str, Overwrite: bool, **ignored: Any) -> dict[str, Any]:
        aws, fate = self.aws, self.aws.random.random()
        self._travel()
        if fate < 0.06:
            raise NotAnsweredError
        if fate < 0.12:  # it arrives when its client has given up

            def arrive() -> None:
                if Overwrite or not aws.versions:
                    aws.append(Value)

            aws.time.at(aws.time.now + aws.random.uniform(0, 200), arrive)
            raise NotAnsweredError
        for _ in range(2 if fate < 0.18 else 1):  # the SDK repeats what was not answered
            if aws.versions and not Overwrite:
                raise AlreadyExistsError
            written = aws.append(Value)
        self._travel()
        if fate > 0.94:
            raise NotAnsweredError
        return {"Version": written}

    def get_paginator(self, _: str) -> Any:
        return SimpleNamespace(paginate=self._history)

    def _history(self, *, PaginationConfig: dict[str, int], **_: Any) -> Iterator[dict[str, Any]]:
        first, size = 0, PaginationConfig["PageSize"]
        while first == 0 or first < len(self.aws.versions):
            self._travel()
            if self.aws.random.random() < 0.05:
                raise NotAnsweredError
            date = format_datetime(self.aws.stamp(), usegmt=True)
            yield {
                "Parameters": self.aws.versions[first : first + size],
                "ResponseMetadata": {"HTTPHeaders": {"date": date}},
            }
            first += size


@dataclass
class Machine:
    """Deploys one after the other, each with an id of its own."""

    aws: Aws
    name: str
    offset: float
    rate: float
    knows_dead: bool
    lease: Lease | None = None
    holds: bool = False
    dead: set[str] = field(default_factory=set)
    count: int = 0

    def clock(self) -> float:
        return self.offset + (self.aws.time.now - START) * self.rate

    def run(self) -> None:
        while True:
            self.aws.time.sleep(self.aws.random.uniform(0, 30))
            try:
                self._step()
            except NotAnsweredError:
                pass
            except LockLostError:
                self.holds = False

    def _step(self) -> None:
        random = self.aws.random
        if self.lease is None:
            self.count += 1
            is_dead = self.dead.__contains__ if self.knows_dead else lambda _: False
            me = f"{self.name}{self.count}"
            self.lease = Lease(Client(self.aws), "lock", me, is_dead, self.clock)
        if random.random() < 0.1:  # the machine sleeps, or the process is stopped
            self.aws.time.sleep(random.uniform(0, 300))
        if not self.holds:
            self.holds = self.lease.acquire()
            return
        action = random.random()
        if action < 0.3:
            self.lease.renew()
        elif action < 0.85:
            self.lease.check()
            self.change()
        elif action < 0.93:
            self.holds, lease, self.lease = False, self.lease, None
            lease.release()
        else:  # it crashes
            self.dead.add(f"{self.name}{self.count}")
            self.holds, self.lease = False, None

    def change(self) -> None:
        """What the lease allowed a moment ago."""
        me = f"{self.name}{self.count}"
        assert self.aws.changing is None, f"{self.aws.changing} and {me} at the same time"
        self.aws.changing = me
        self.aws.time.sleep(self.aws.random.uniform(0, IN_FLIGHT))
        self.aws.changing = None
        self.aws.changes += 1


def simulate(seed: int) -> Aws:
    """Three machines for an hour."""
    aws = Aws(random := Random(seed))
    machines = [
        Machine(
            aws,
            name,
            offset=random.uniform(-1e6, 1e6),
            rate=random.uniform(0.98, 1.02),
            knows_dead=random.random() < 0.5,
        )
        for name in "abc"
    ]
    aws.time.run([machine.run for machine in machines], seconds=3600)
    return aws


@hypothesis_settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_lease_two_holders_never_change_at_once(seed: int) -> None:
    assert simulate(seed).changes >= 0


def test_lease_simulation_does_something() -> None:
    assert sum(simulate(seed).changes for seed in range(5)) > 50


def entries(*written: tuple[float, str | None] | tuple[float, str | None, str]) -> list[Entry]:
    return [Entry(number, one[0], one[1], *one[2:]) for number, one in enumerate(written, 1)]


@pytest.mark.parametrize(
    ("history", "holder"),
    [
        ([], None),
        ([(0.0, "a")], "a"),
        ([(0.0, "a"), (50.0, "b")], "a"),
        ([(0.0, "a"), (91.0, "b")], "b"),
        ([(0.0, "a"), (50.0, "b"), (80.0, "a"), (100.0, "b")], "a"),
        ([(0.0, "a"), (91.0, "b"), (92.0, "a")], "b"),
        ([(0.0, "a"), (10.0, None, "a"), (11.0, "b")], "b"),
        ([(0.0, "a"), (91.0, "b"), (92.0, None, "a")], "b"),
        ([(0.0, "a"), (10.0, "b", "a")], "b"),
        ([(0.0, "a"), (10.0, "b", "c")], "a"),
    ],
)
def test_state_of_versions(history: list[Any], holder: str | None) -> None:
    assert state_of(entries(*history)).holder == holder


def test_lease_without_renewal_stops_before_it_ends() -> None:
    now, client = 1000.0, SimpleNamespace(put_parameter=lambda **_: {"Version": 1})
    lease = Lease(client, "lock", "a", now=lambda: now)
    with pytest.raises(LockLostError):
        lease.check()
    assert lease.acquire()
    now += LEASE_SECONDS - MARGIN_SECONDS - 1
    lease.check()
    now += 1
    with pytest.raises(LockLostError, match="could not be renewed"):
        lease.check()


def lose() -> None:
    """Check a lease that was not renewed in time."""
    raise LockLostError("lost")


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> DeployContext:
    """Of a deploy that lost its lease; no address answers."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("topicberg_deploy.aws_account.ATTEMPTS", 1)
    deploy = DeploySettings(
        confluent_api_key="k",
        confluent_api_secret=SecretStr("s"),
        confluent_url="http://127.0.0.1:9",
    )
    lost = DeployContext(Settings(deployment="cloud"), deploy, [], sleep=lambda _: None)
    lost.check_lease = lose
    return lost


@pytest.mark.parametrize(
    ("service", "action", "arguments"),
    [
        ("iam", "create_role", {"RoleName": "r", "AssumeRolePolicyDocument": "{}"}),
        ("s3", "put_object", {"Bucket": "b", "Key": "k", "Body": b""}),
        ("s3", "delete_bucket", {"Bucket": "b"}),
        ("secretsmanager", "put_secret_value", {"SecretId": "s", "SecretString": "x"}),
        ("ssm", "put_parameter", {"Name": "n", "Value": "v"}),
        ("glue", "update_table", {"DatabaseName": "d", "TableInput": {"Name": "t"}}),
    ],
)
def test_aws_change_without_lease_is_not_sent(
    context: DeployContext, service: str, action: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(LockLostError):
        getattr(context.aws.client(service), action)(**arguments)
    context.check_lease = lambda: None
    with pytest.raises(EndpointConnectionError):
        getattr(context.aws.client(service), action)(**arguments)


def test_aws_read_without_lease_is_sent(context: DeployContext) -> None:
    with pytest.raises(EndpointConnectionError):
        context.aws.client("iam").get_role(RoleName="r")
    with pytest.raises(EndpointConnectionError):
        context.aws.new_client("ssm").put_parameter(Name="lock", Value="v")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_confluent_change_without_lease_is_not_sent(context: DeployContext, method: str) -> None:
    with pytest.raises(LockLostError):
        context.confluent.cloud.request(method, "/org/v2/environments")
    with pytest.raises(ApiError):
        context.confluent.cloud.request("GET", "/org/v2/environments")


@pytest.mark.parametrize("statement", ["CREATE ROLE R", "alter user U", "  DROP DATABASE D"])
def test_snowflake_change_without_lease_is_not_run(context: DeployContext, statement: str) -> None:
    session = SnowflakeSession(cast("SnowflakeConnection", None), check_lease=context.check_lease)
    with pytest.raises(LockLostError):
        session.run(statement, "")
    with pytest.raises(AttributeError):
        session.run("SHOW ROLES", "")


def hold(path: str, ready: Any) -> None:
    with lock._alive(Path(path)):
        ready.set()
        signal.pause()


def test_lock_of_a_killed_process_is_known_to_be_free(tmp_path: Path) -> None:
    me, spawn = "0" * 32, multiprocessing.get_context("spawn")
    ready = spawn.Event()
    process = spawn.Process(target=hold, args=(str(tmp_path / me), ready))
    process.start()
    assert ready.wait(60)
    assert not lock._ended(tmp_path, me)
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert lock._ended(tmp_path, me)
    assert not lock._ended(tmp_path, me)  # that is all that is known of it


def test_lock_of_another_machine_is_not_known_to_be_free(tmp_path: Path) -> None:
    assert not lock._ended(tmp_path, "1" * 32)
    assert not lock._ended(tmp_path, "../" + "1" * 29)
